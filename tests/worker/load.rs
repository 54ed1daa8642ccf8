//! Many dials: all at once, or in the background.

use crate::dial::{dial, millis_since};
use crate::socket::{bind_to, open};
use anyhow::{Context, Result};
use lab::wire::{Counts, Dial, Dialed};
use nix::sys::socket::{MsgFlags, SockType, SockaddrStorage, sendto};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Dials one after the other.
pub(crate) fn many(how: &Dial, count: u32) -> Counts {
    let start = Instant::now();
    let mut counts = Counts::default();
    for _ in 0..count {
        add(&mut counts, dial_once(how));
    }
    counts.elapsed_ms = millis_since(start);
    counts
}

fn dial_once(how: &Dial) -> Dialed {
    match dial(how) {
        Ok((_, dialed)) => dialed,
        Err(failure) => Dialed {
            failure: Some(failure),
            ..Dialed::default()
        },
    }
}

fn add(counts: &mut Counts, dialed: Dialed) {
    let (kind, name) = match (dialed.line, dialed.failure) {
        (Some(line), _) => (
            &mut counts.answered,
            line.split(' ').next().unwrap_or_default().to_owned(),
        ),
        (None, Some(failure)) => (
            &mut counts.failed,
            format!("{}: {}", failure.call, failure.errno),
        ),
        (None, None) => (&mut counts.failed, "nothing".to_owned()),
    };
    *kind.entry(name).or_default() += 1;
}

/// Background loads by number.
#[derive(Default)]
pub(crate) struct Loads {
    running: BTreeMap<u32, Load>,
    last: u32,
}

struct Load {
    start: Instant,
    stop: Arc<AtomicBool>,
    counts: Arc<Mutex<Counts>>,
    thread: JoinHandle<()>,
}

impl Loads {
    pub(crate) fn start_dialing(&mut self, how: Dial, every_us: u64) -> u32 {
        self.start(every_us, move || dial_once(&how))
    }

    /// Counts sent datagrams as answered by `sent`.
    pub(crate) fn start_sending(
        &mut self,
        from: SocketAddr,
        to: SocketAddr,
        every_us: u64,
    ) -> Result<u32> {
        let fd = open(from, SockType::Datagram)?;
        bind_to(&fd, from).with_context(|| format!("bind {from}"))?;
        let to = SockaddrStorage::from(to);
        Ok(self.start(every_us, move || {
            match sendto(fd.as_raw_fd(), b"one way", &to, MsgFlags::empty()) {
                Ok(_) => Dialed {
                    line: Some("sent".to_owned()),
                    ..Dialed::default()
                },
                Err(errno) => Dialed {
                    failure: Some(crate::socket::failure("sendto")(errno)),
                    ..Dialed::default()
                },
            }
        }))
    }

    fn start(&mut self, every_us: u64, mut once: impl FnMut() -> Dialed + Send + 'static) -> u32 {
        let stop = Arc::new(AtomicBool::new(false));
        let counts = Arc::new(Mutex::new(Counts::default()));
        let thread = {
            let (stop, counts) = (Arc::clone(&stop), Arc::clone(&counts));
            std::thread::spawn(move || {
                let mut next = Instant::now();
                while !stop.load(Ordering::Relaxed) {
                    let dialed = once();
                    add(
                        &mut counts.lock().unwrap_or_else(PoisonError::into_inner),
                        dialed,
                    );
                    next += Duration::from_micros(every_us);
                    std::thread::sleep(next.saturating_duration_since(Instant::now()));
                }
            })
        };
        self.last += 1;
        self.running.insert(
            self.last,
            Load {
                start: Instant::now(),
                stop,
                counts,
                thread,
            },
        );
        self.last
    }

    pub(crate) fn so_far(&self, id: u32) -> Result<Counts> {
        let load = self
            .running
            .get(&id)
            .with_context(|| format!("no load {id}"))?;
        Ok(load.counts())
    }

    pub(crate) fn stop(&mut self, id: u32) -> Result<Counts> {
        let load = self
            .running
            .remove(&id)
            .with_context(|| format!("no load {id}"))?;
        load.stop.store(true, Ordering::Relaxed);
        let counts = {
            while !load.thread.is_finished() {
                std::thread::sleep(Duration::from_millis(1));
            }
            load.counts()
        };
        Ok(counts)
    }
}

impl Load {
    fn counts(&self) -> Counts {
        let mut counts = self
            .counts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        counts.elapsed_ms = millis_since(self.start);
        counts
    }
}
