//! A worker in one of the lab's namespaces: a pod, a host process, an outside client.

use crate::held::{Held, Load};
use crate::network::{FRONTENDS, ip};
use crate::outcome::Outcome;
use crate::probed::Probed;
use crate::program::sibling;
use crate::spawn::{Netns, netns_of, spawn};
use crate::wire::{Counts, Dial, Dialed, HttpAnswer, Probe, Reply, Request, Segment, Transport};
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

/// A worker. Clones are the same worker; it ends with the last of them, and a
/// pod's namespace ends with it.
#[derive(Clone)]
pub struct Peer {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    node: Option<String>,
    v4: Ipv4Addr,
    v6: Ipv6Addr,
    netns: OwnedFd,
    cgroup: PathBuf,
    /// Whether the cgroup goes away with the worker.
    owns_cgroup: bool,
    pipes: Mutex<Pipes>,
}

struct Pipes {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

/// Who a worker is.
pub(crate) struct Identity {
    pub(crate) name: String,
    pub(crate) node: Option<String>,
    pub(crate) v4: Ipv4Addr,
    pub(crate) v6: Ipv6Addr,
}

impl Peer {
    /// Starts a worker in a namespace and in a cgroup that is made for it.
    pub(crate) fn start(identity: Identity, netns: Netns<'_>, cgroup: PathBuf) -> Result<Self> {
        let owns_cgroup = !cgroup.exists();
        std::fs::create_dir_all(&cgroup).with_context(|| format!("make {cgroup:?}"))?;
        let mut command = Command::new(sibling("peer")?);
        command
            .args(["worker", &identity.name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = spawn(command, netns, Some(&cgroup))?;
        let Identity { name, node, v4, v6 } = identity;
        let inner = Inner {
            netns: netns_of(&child)?,
            pipes: Mutex::new(Pipes {
                stdin: child.stdin.take(),
                stdout: BufReader::new(child.stdout.take().context("no standard output")?),
                child,
            }),
            name,
            node,
            v4,
            v6,
            cgroup,
            owns_cgroup,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// One more worker in the same namespace and cgroup: each does one thing at a time.
    pub fn beside(&self, name: &str) -> Result<Self> {
        let identity = Identity {
            name: name.to_owned(),
            node: self.inner.node.clone(),
            v4: self.v4(),
            v6: self.v6(),
        };
        let netns = Netns::Join(&self.inner.netns);
        Self::start(identity, netns, self.inner.cgroup.clone())
    }

    /// Name, unique in the lab; a backend answers with it.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The node that it is on.
    pub fn node_name(&self) -> Option<&str> {
        self.inner.node.as_deref()
    }

    /// IPv4 address.
    pub fn v4(&self) -> Ipv4Addr {
        self.inner.v4
    }

    /// IPv6 address.
    pub fn v6(&self) -> Ipv6Addr {
        self.inner.v6
    }

    /// Its network namespace.
    pub fn netns(&self) -> impl AsFd + '_ {
        &self.inner.netns
    }

    pub(crate) fn netns_fd(&self) -> &OwnedFd {
        &self.inner.netns
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.lock().child.id()
    }

    /// Starts a program beside it, in its namespace and cgroup; it dies with this process.
    pub fn spawn(&self, command: Command) -> Result<Child> {
        spawn(
            command,
            Netns::Join(&self.inner.netns),
            Some(&self.inner.cgroup),
        )
    }

    /// Sends any request.
    pub fn ask(&self, request: &Request) -> Result<Reply> {
        self.exchange(request)
            .with_context(|| format!("worker {}: {request:?}", self.name()))
    }

    fn exchange(&self, request: &Request) -> Result<Reply> {
        let mut pipes = self.lock();
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        pipes
            .stdin
            .as_mut()
            .context("it was stopped")?
            .write_all(line.as_bytes())
            .context("it is gone")?;
        line.clear();
        pipes
            .stdout
            .read_line(&mut line)
            .context("read its answer")?;
        ensure!(!line.is_empty(), "it ended without an answer");
        match serde_json::from_str(&line).with_context(|| format!("its answer {line:?}"))? {
            Reply::Error(error) => Err(anyhow!(error)),
            reply => Ok(reply),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Pipes> {
        // A panic elsewhere leaves the pipes between two whole lines or dead.
        self.inner
            .pipes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a sysctl of its network namespace.
    pub fn sysctl(&self, path: &str, value: &str) -> Result<()> {
        self.ask(&Request::Sysctl {
            path: path.to_owned(),
            value: value.to_owned(),
        })
        .map(drop)
    }

    /// Runs `ip` commands in its network namespace, one a line, without the word `ip`.
    pub fn ip(&self, commands: &str) -> Result<()> {
        ip(&self.inner.netns, format!("{commands}\n"))
    }

    /// Sends what is for an address or a CIDR through another host of its
    /// subnet, from now on.
    pub fn route(&self, to: &str, via: &Self) -> Result<()> {
        let gateway: IpAddr = if to.contains(':') {
            via.v6().into()
        } else {
            via.v4().into()
        };
        self.ip(&format!("route replace {to} via {gateway}"))
    }

    /// Sends what is for frontends through another host, from now on. More
    /// exact routes stay as they are.
    pub fn route_frontends(&self, via: &Self) -> Result<()> {
        FRONTENDS.iter().try_for_each(|to| self.route(to, via))
    }

    /// Answers on `port`, TCP and UDP, both families, as its own name.
    pub fn serve(self, port: u16) -> Result<Self> {
        for transport in Transport::BOTH {
            self.listen(transport, Ipv4Addr::UNSPECIFIED.into(), port)?;
            self.listen(transport, Ipv6Addr::UNSPECIFIED.into(), port)?;
        }
        Ok(self)
    }

    /// Answers on one address, port and transport.
    pub fn listen(&self, transport: Transport, address: IpAddr, port: u16) -> Result<()> {
        self.ask(&Request::Listen {
            name: self.name().to_owned(),
            transport,
            address,
            port,
        })
        .map(drop)
    }

    /// Receives datagrams on `port`, both families, and never answers.
    pub fn collect(&self, port: u16) -> Result<()> {
        for address in [
            IpAddr::from(Ipv4Addr::UNSPECIFIED),
            Ipv6Addr::UNSPECIFIED.into(),
        ] {
            self.ask(&Request::Collect { address, port })?;
        }
        Ok(())
    }

    /// Ends the listeners on a port.
    pub fn unlisten(&self, transport: Transport, port: u16) -> Result<()> {
        self.ask(&Request::Unlisten { transport, port }).map(drop)
    }

    /// Datagrams that its listeners on `port` got so far, by sender.
    pub fn received(&self, port: u16) -> Result<BTreeMap<SocketAddr, u64>> {
        match self.ask(&Request::Received { port })? {
            Reply::Received(counts) => Ok(counts),
            other => unexpected(&other),
        }
    }

    /// One TCP connection: connect, read the answer, close.
    pub fn tcp(&self, to: &str) -> Result<Outcome> {
        self.dial(Dial::new(Transport::Tcp, address(to)?))
    }

    /// One datagram and its answer on a connected UDP socket.
    pub fn udp(&self, to: &str) -> Result<Outcome> {
        self.dial(Dial::new(Transport::Udp, address(to)?))
    }

    /// The same by either transport.
    pub fn reach(&self, transport: Transport, to: &str) -> Result<Outcome> {
        self.dial(Dial::new(transport, address(to)?))
    }

    /// One dial in all detail.
    pub fn dial(&self, dial: Dial) -> Result<Outcome> {
        let what = format!("{} → {} {}", self.name(), dial.transport.as_str(), dial.to);
        self.outcome(what, &Request::Dial(dial))
    }

    /// A ping and its answer.
    pub fn ping(&self, to: IpAddr) -> Result<Probed> {
        self.probe(Probe::ping(to))
    }

    /// A packet of a given size and what comes back.
    pub fn probe(&self, probe: Probe) -> Result<Probed> {
        let what = format!("{} → {:?} {}", self.name(), probe.kind, probe.to);
        let expected = probe.answer;
        match self.ask(&Request::Probe(probe))? {
            Reply::Echo(echo) => Ok(Probed {
                what,
                expected,
                echo,
            }),
            other => unexpected(&other),
        }
    }

    /// Sends a TCP reset that belongs to no socket.
    pub fn send_reset(&self, segment: Segment) -> Result<()> {
        self.ask(&Request::Reset(segment)).map(drop)
    }

    /// Sends many TCP SYNs, each from another address and port; `from` is the
    /// first address.
    pub fn flood(&self, from: IpAddr, to: SocketAddr, count: u32) -> Result<()> {
        self.ask(&Request::Flood { from, to, count }).map(drop)
    }

    /// Switches a device's offloads on or off: checksums and segments.
    pub fn offloads(&self, device: &str, on: bool) -> Result<()> {
        let device = device.to_owned();
        self.ask(&Request::Offloads { device, on }).map(drop)
    }

    /// A TCP connection that stays open.
    pub fn hold_tcp(&self, to: &str) -> Result<Held> {
        self.hold(Dial::new(Transport::Tcp, address(to)?))
    }

    /// A connected UDP socket that stays open.
    pub fn hold_udp(&self, to: &str) -> Result<Held> {
        self.hold(Dial::new(Transport::Udp, address(to)?))
    }

    /// A dial whose socket stays open, even if the dial failed.
    pub fn hold(&self, dial: Dial) -> Result<Held> {
        let outcome = self.dial(Dial { hold: true, ..dial })?;
        let socket = outcome
            .dialed
            .socket
            .with_context(|| format!("{}: no socket to hold", outcome.what))?;
        Ok(Held::new(self.clone(), socket, outcome))
    }

    /// An unconnected UDP socket, bound to `from` (port 0: any).
    pub fn udp_socket(&self, from: &str) -> Result<Held> {
        match self.ask(&Request::UdpSocket {
            from: address(from)?,
        })? {
            Reply::Id(socket) => {
                let outcome = Outcome {
                    what: format!("{} on {from}", self.name()),
                    dialed: Dialed::default(),
                };
                Ok(Held::new(self.clone(), socket, outcome))
            }
            other => unexpected(&other),
        }
    }

    /// Many TCP connections, as fast as possible.
    pub fn many_tcp(&self, to: &str, count: u32) -> Result<Counts> {
        self.many(Dial::new(Transport::Tcp, address(to)?), count)
    }

    /// Many exchanges, each with a connected UDP socket of its own.
    pub fn many_udp(&self, to: &str, count: u32) -> Result<Counts> {
        self.many(Dial::new(Transport::Udp, address(to)?), count)
    }

    /// Many dials, as fast as possible.
    pub fn many(&self, dial: Dial, count: u32) -> Result<Counts> {
        counts(self.ask(&Request::Many { dial, count })?)
    }

    /// Dials again and again, `per_second` times, while the test does other things.
    pub fn load(&self, transport: Transport, to: &str, per_second: u32) -> Result<Load> {
        let every_us = 1_000_000 / u64::from(per_second.max(1));
        let dial = Dial::new(transport, address(to)?);
        self.start_load(&Request::StartLoad { dial, every_us })
    }

    /// Sends datagrams from the one socket `from` and reads nothing.
    pub fn one_way(&self, from: &str, to: &str, per_second: u32) -> Result<Load> {
        let every_us = 1_000_000 / u64::from(per_second.max(1));
        self.start_load(&Request::StartSender {
            from: address(from)?,
            to: address(to)?,
            every_us,
        })
    }

    fn start_load(&self, request: &Request) -> Result<Load> {
        match self.ask(request)? {
            Reply::Id(load) => Ok(Load::new(self.clone(), load)),
            other => unexpected(&other),
        }
    }

    /// `GET` of `http://HOST:PORT/PATH` from within the namespace.
    pub fn http_get(&self, url: &str) -> Result<HttpAnswer> {
        let rest = url
            .strip_prefix("http://")
            .with_context(|| format!("{url} is not http"))?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        match self.ask(&Request::Http {
            to: address(host)?,
            path: format!("/{path}"),
        })? {
            Reply::Http(answer) => Ok(answer),
            other => unexpected(&other),
        }
    }

    pub(crate) fn outcome(&self, what: String, request: &Request) -> Result<Outcome> {
        match self.ask(request)? {
            Reply::Dialed(dialed) => Ok(Outcome { what, dialed }),
            other => unexpected(&other),
        }
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer")
            .field("name", &self.inner.name)
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let pipes = self.pipes.get_mut().unwrap_or_else(PoisonError::into_inner);
        // A worker ends when its standard input does. If it hangs, the lab's
        // cgroup is killed later; waiting for it here could hang as well.
        drop(pipes.stdin.take());
        // It is a child of ours and not waited for yet, so the id is still its own.
        let _ = pipes.child.kill();
        let _ = pipes.child.wait();
        if self.owns_cgroup {
            // Fails if other workers came to live there; the lab removes it then.
            let _ = std::fs::remove_dir(&self.cgroup);
        }
    }
}

pub(crate) fn counts(reply: Reply) -> Result<Counts> {
    match reply {
        Reply::Counts(counts) => Ok(counts),
        other => unexpected(&other),
    }
}

pub(crate) fn unexpected<T>(reply: &Reply) -> Result<T> {
    bail!("an answer to something else: {reply:?}")
}

/// `10.96.0.20:80` or `[fd00:96::20]:80`.
pub(crate) fn address(text: &str) -> Result<SocketAddr> {
    text.parse()
        .with_context(|| format!("{text:?} is not an address and port"))
}
