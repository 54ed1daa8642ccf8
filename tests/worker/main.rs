//! What runs inside the lab's namespaces: `peer worker NAME` serves and dials
//! on request, `peer reap LAB` cleans up behind a lab, `peer hold` keeps a lab
//! until it is killed (for the test of that).

mod dial;
mod load;
mod offload;
mod probe;
mod segment;
mod serve;
mod socket;

use anyhow::{Context, Result, bail};
use lab::wire::{HttpAnswer, Reply, Request};
use std::collections::BTreeMap;
use std::io::{BufRead, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["worker", _name] => work(),
        ["reap", lab] => lab::reap_when_stdin_ends(lab),
        ["hold"] => hold(),
        _ => bail!("usage: peer worker NAME | peer reap LAB | peer hold"),
    }
}

/// Answers requests until standard input ends.
fn work() -> Result<()> {
    let mut worker = Worker::default();
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let request: Request = serde_json::from_str(&line?).context("a request")?;
        let reply = worker
            .answer(request)
            .unwrap_or_else(|error| Reply::Error(format!("{error:#}")));
        let mut text = serde_json::to_string(&reply)?;
        text.push('\n');
        out.write_all(text.as_bytes())?;
        out.flush()?;
    }
    Ok(())
}

#[derive(Default)]
struct Worker {
    listeners: serve::Listeners,
    sockets: socket::Sockets,
    loads: load::Loads,
}

impl Worker {
    fn answer(&mut self, request: Request) -> Result<Reply> {
        let Self {
            listeners,
            sockets,
            loads,
        } = self;
        Ok(match request {
            Request::Sysctl { path, value } => {
                std::fs::write(format!("/proc/sys/{path}"), value)?;
                Reply::Done
            }
            Request::Listen {
                name,
                transport,
                address,
                port,
            } => {
                listeners.listen(&name, transport, SocketAddr::new(address, port))?;
                Reply::Done
            }
            Request::Collect { address, port } => {
                listeners.collect(SocketAddr::new(address, port))?;
                Reply::Done
            }
            Request::Unlisten { transport, port } => {
                listeners.unlisten(transport, port);
                Reply::Done
            }
            Request::Received { port } => Reply::Received(listeners.received(port)),
            Request::Dial(dial) => Reply::Dialed(sockets.dial(&dial)),
            Request::Probe(probe) => Reply::Echo(probe::probe(&probe)),
            Request::Redial {
                socket,
                to,
                timeout_ms,
            } => Reply::Dialed(sockets.redial(socket, to, timeout_ms)?),
            Request::Dissolve { socket } => Reply::Dialed(sockets.dissolve(socket)?),
            Request::Sequences { socket } => {
                Reply::Sequences(segment::sequences(sockets.get(socket)?)?)
            }
            Request::Reset(segment) => {
                segment::send_reset(&segment)?;
                Reply::Done
            }
            Request::Flood { from, to, count } => {
                segment::flood(from, to, count)?;
                Reply::Done
            }
            Request::Offloads { device, on } => {
                offload::switch(&device, on)?;
                Reply::Done
            }
            Request::Names { socket } => Reply::Names(sockets.names(socket)?),
            Request::Talk {
                socket,
                line,
                timeout_ms,
            } => Reply::Dialed(sockets.talk(socket, &line, timeout_ms)?),
            Request::UdpSocket { from } => Reply::Id(sockets.unconnected(from)?),
            Request::SendTo { socket, to, line } => {
                Reply::Dialed(sockets.send_to(socket, to, &line)?)
            }
            Request::ReceiveFrom { socket, timeout_ms } => {
                Reply::Dialed(sockets.receive_from(socket, timeout_ms)?)
            }
            Request::Close { socket } => {
                sockets.close(socket);
                Reply::Done
            }
            Request::Many { dial, count } => Reply::Counts(load::many(&dial, count)),
            Request::StartLoad { dial, every_us } => Reply::Id(loads.start_dialing(dial, every_us)),
            Request::StartSender { from, to, every_us } => {
                Reply::Id(loads.start_sending(from, to, every_us)?)
            }
            Request::LoadSoFar { load } => Reply::Counts(loads.so_far(load)?),
            Request::StopLoad { load } => Reply::Counts(loads.stop(load)?),
            Request::Http { to, path } => Reply::Http(http(to, &path)?),
        })
    }
}

/// `GET` on a connection of its own.
fn http(to: SocketAddr, path: &str) -> Result<HttpAnswer> {
    let bound = Duration::from_secs(3);
    let mut stream =
        TcpStream::connect_timeout(&to, bound).with_context(|| format!("connect to {to}"))?;
    stream.set_read_timeout(Some(bound))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n\r\n"
    )?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text).context("read the answer")?;
    let text = String::from_utf8_lossy(&text);
    let (head, body) = text
        .split_once("\r\n\r\n")
        .with_context(|| format!("no header in {text:?}"))?;
    let mut lines = head.lines();
    let status = lines
        .next()
        .and_then(|line| line.split(' ').nth(1))
        .context("no status line")?
        .parse()?;
    let headers: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let chunked = headers
        .get("transfer-encoding")
        .is_some_and(|encoding| encoding == "chunked");
    let body = if chunked {
        unchunk(body)
    } else {
        body.to_owned()
    };
    Ok(HttpAnswer {
        status,
        headers,
        body,
    })
}

/// Undoes the chunked transfer coding (RFC 9112, 7.1).
fn unchunk(mut rest: &str) -> String {
    let mut body = String::new();
    while let Some((size, tail)) = rest.split_once("\r\n") {
        let Ok(size) = usize::from_str_radix(size.trim(), 16) else {
            break;
        };
        let Some(chunk) = tail.get(..size) else { break };
        body.push_str(chunk);
        rest = tail
            .get(size..)
            .unwrap_or_default()
            .trim_start_matches("\r\n");
        if size == 0 {
            break;
        }
    }
    body
}

/// Builds a lab, says what it is made of, and waits to be killed.
fn hold() -> Result<()> {
    let lab = lab::Lab::new(1)?;
    let pod = lab.node("n1").pod("held")?;
    std::fs::create_dir_all(lab.node("n1").pins())?;
    println!("{} {} {}", lab.name(), lab.switch().pid(), pod.pid());
    std::thread::park();
    Ok(())
}
