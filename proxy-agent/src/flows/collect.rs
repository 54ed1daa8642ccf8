//! The walk through the flows that removes what is over.

use super::age::{State, silent_s};
use super::maps::{FlowMaps, Pair, Position};
use super::now_s;
use super::open::OpenFlows;
use crate::observe::Metrics;
use crate::publish::Kernel;
use crate::publish::bpf::BpfKernel;
use anyhow::{Context, Result, anyhow};
use proxy_common::decide::BackendRef;
use proxy_common::{Flow, FlowKey, Protocol};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Elements that are looked at in one second. A map of a million takes half a
/// minute, and never more than a few percent of one CPU.
const ELEMENTS_PER_SECOND: usize = 32_768;

/// Elements of one system call.
const BATCH: usize = 4096;

const SECOND: Duration = Duration::from_secs(1);

/// Pause between two walks.
const PAUSE: Duration = Duration::from_secs(5);

/// Why flows were removed, and how many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Silent for longer than their state allows.
    pub silent: u64,
    /// UDP, and their backend no longer serves.
    pub backend_gone: u64,
    /// Halves without the other one.
    pub half: u64,
}

/// What a walk has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Flows by protocol and state.
    pub flows: BTreeMap<(u32, State), u64>,
    /// Elements of map `flows`.
    pub elements: u64,
    /// Elements of map `flows_new`.
    pub elements_new: u64,
}

/// The thread that walks; it ends when this is dropped.
#[derive(Debug)]
pub struct Collector {
    _stop: Sender<()>,
}

impl Collector {
    /// Starts it on the maps that are in force.
    pub fn start(pin_dir: &Path, metrics: Arc<Metrics>) -> Result<Self> {
        let (stop, stopped) = channel();
        let pin_dir = pin_dir.to_owned();
        let thread = std::thread::Builder::new().name("flows".to_owned());
        let run = move || {
            let mut walk = None;
            let mut pause = Duration::ZERO;
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                pause = match step(&mut walk, &pin_dir, &metrics) {
                    Ok(pause) => pause,
                    Err(error) => {
                        tracing::error!("flows that are over stay until the next try: {error:#}");
                        walk = None;
                        PAUSE
                    }
                };
            }
        };
        thread.spawn(run).context("starting the thread for flows")?;
        Ok(Self { _stop: stop })
    }
}

/// One second's work; how long to rest after it.
fn step(walk: &mut Option<Walk>, pin_dir: &Path, metrics: &Metrics) -> Result<Duration> {
    let current = match walk {
        Some(current) => current,
        None => walk.insert(Walk::open(pin_dir)?),
    };
    let is_complete = current.step()?;
    metrics.flows_removed(std::mem::take(&mut current.removed));
    if is_complete {
        metrics.flows(&current.begin_anew());
        return pause();
    }
    Ok(SECOND)
}

/// How long to rest between two walks: until a second begins ([`OpenFlows::begin`]).
fn pause() -> Result<Duration> {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)?;
    let past = Duration::new(0, Duration::from(now).subsec_nanos());
    Ok(PAUSE - past)
}

struct Walk {
    maps: FlowMaps,
    kernel: BpfKernel,
    position: Position,
    summary: Summary,
    removed: Removed,
    /// The backends' open flows; `None` before the walk begins.
    open: Option<OpenFlows>,
    /// Whether the last walk found little room.
    crowded: bool,
}

impl Walk {
    fn open(pin_dir: &Path) -> Result<Self> {
        Ok(Self {
            maps: FlowMaps::open(pin_dir)?,
            kernel: BpfKernel::open(pin_dir).map_err(|error| anyhow!(error))?,
            position: Position::default(),
            summary: Summary::default(),
            removed: Removed::default(),
            open: None,
            crowded: false,
        })
    }

    /// Looks at the elements of one second; whether both maps are done.
    fn step(&mut self) -> Result<bool> {
        let now_s = now_s().context("reading the clock")?;
        if self.open.is_none() {
            self.open = Some(OpenFlows::begin(self.kernel.open_flows(), now_s));
        }
        let mut looked_at = 0;
        while looked_at < ELEMENTS_PER_SECOND {
            let is_new = FlowMaps::is_in_new(&self.position);
            let Some(elements) = self.maps.next(&mut self.position, BATCH)? else {
                return Ok(true);
            };
            looked_at += elements.len();
            let counter = if is_new {
                &mut self.summary.elements_new
            } else {
                &mut self.summary.elements
            };
            *counter += elements.len() as u64;
            for (key, flow) in elements {
                if flow.is_reply() {
                    self.look_at_reply(key, &flow, now_s)?;
                } else {
                    self.look_at_request(key, flow, now_s)?;
                }
            }
        }
        Ok(false)
    }

    fn begin_anew(&mut self) -> Summary {
        self.position = Position::default();
        for it in self.open.take().unwrap_or_default().corrections() {
            let backend = BackendRef {
                id: it.backend,
                generation: it.generation,
            };
            self.kernel.correct_open_flows(backend, it.change);
        }
        let summary = std::mem::take(&mut self.summary);
        self.crowded = summary.elements * 4 > u64::from(self.maps.room()) * 3;
        summary
    }

    fn look_at_request(&mut self, key: FlowKey, request: Flow, now_s: u32) -> Result<()> {
        let mut pair = self.maps.pair(key, request)?;
        if let Some(reason) = self.over(&pair, now_s) {
            // A packet may have come since the batch was read.
            let Some(request) = self.maps.find(&key)?.filter(|it| !it.is_reply()) else {
                return Ok(());
            };
            pair = self.maps.pair(key, request)?;
            if self.over(&pair, now_s).is_some() {
                return self.remove(&pair, reason);
            }
        }
        let state = State::of(key.protocol, &pair.request, pair.reply.as_ref());
        *self.summary.flows.entry((key.protocol, state)).or_default() += 1;
        if let Some(open) = self.open.as_mut().filter(|_| state.is_open()) {
            open.see(&pair.request);
        }
        Ok(())
    }

    fn over(&self, pair: &Pair, now_s: u32) -> Option<Over> {
        let Pair {
            key,
            request,
            reply,
        } = pair;
        let silent_s = silent_s(request, reply.as_ref(), now_s);
        if key.protocol == u32::from(Protocol::Udp as u8) {
            let backend = self.kernel.backend(request.backend);
            if backend.generation != request.generation || !backend.is_serving() {
                return Some(Over::BackendGone);
            }
        }
        // Programs write the two halves one after the other.
        if silent_s < State::TIMEOUT_MIN_S {
            return None;
        }
        if reply.is_none() && !request.is_dsr() && request.state & Flow::ANSWERED != 0 {
            return Some(Over::Half);
        }
        let state = State::of(key.protocol, request, reply.as_ref());
        (silent_s >= state.timeout_s(self.crowded)).then_some(Over::Silent)
    }

    fn remove(&mut self, pair: &Pair, reason: Over) -> Result<()> {
        let Pair {
            key,
            request,
            reply,
        } = pair;
        self.maps.remove(key)?;
        if let Some(seen) = reply {
            let other_key = request.other_key(key.protocol);
            // Only the half that was looked at: a new flow may have taken its place.
            let current = self.maps.find(&other_key)?;
            if current.is_some_and(|it| it.created_s == seen.created_s) {
                self.maps.remove(&other_key)?;
            }
        }
        self.kernel.count_flow(request, reply.as_ref());
        *match reason {
            Over::Silent => &mut self.removed.silent,
            Over::BackendGone => &mut self.removed.backend_gone,
            Over::Half => &mut self.removed.half,
        } += 1;
        Ok(())
    }

    /// A reply's half goes with its request's; alone, it is left over.
    fn look_at_reply(&mut self, key: FlowKey, reply: &Flow, now_s: u32) -> Result<()> {
        if now_s.saturating_sub(reply.last_seen_s) < State::TIMEOUT_MIN_S {
            return Ok(());
        }
        let request = self.maps.find(&reply.other_key(key.protocol))?;
        let has_request = request.is_some_and(|it| !it.is_reply() && !it.is_dsr());
        let current = self.maps.find(&key)?;
        if !has_request && current.is_some_and(|it| it.last_seen_s == reply.last_seen_s) {
            self.maps.remove(&key)?;
            self.removed.half += 1;
        }
        Ok(())
    }
}

/// Why a flow is to go.
#[derive(Clone, Copy, Debug)]
enum Over {
    Silent,
    BackendGone,
    Half,
}
