//! As much of an API server as kube-proxy needs: it lists what the lab's agents
//! read, and its watches tell of nothing. To write thousands of Services into a
//! real one takes longer than all rows.

use anyhow::{Context, Result, bail};
use lab::{Lab, Node};
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{Shutdown, shutdown};
use serde_json::{Deserializer, Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::thread::JoinHandle;

const PORT: u16 = 6443;

/// What is listed, and where.
const RESOURCES: [Resource; 4] = [
    Resource {
        path: "/api/v1/services",
        version: "v1",
        kind: "Service",
    },
    Resource {
        path: "/api/v1/nodes",
        version: "v1",
        kind: "Node",
    },
    Resource {
        path: "/apis/discovery.k8s.io/v1/endpointslices",
        version: "discovery.k8s.io/v1",
        kind: "EndpointSlice",
    },
    Resource {
        path: "/apis/networking.k8s.io/v1/servicecidrs",
        version: "networking.k8s.io/v1",
        kind: "ServiceCIDR",
    },
];

struct Resource {
    path: &'static str,
    version: &'static str,
    kind: &'static str,
}

/// Answers by path.
type Answers = BTreeMap<String, String>;

/// The server. It ends with this, and its connections with their clients.
pub(crate) struct ApiServer {
    listener: Arc<TcpListener>,
    accepting: Option<JoinHandle<()>>,
    services: usize,
}

impl ApiServer {
    /// Serves the objects that there are now, on the node's loopback. It knows
    /// of no other node: that is what kube-proxy selects.
    pub(crate) fn start(lab: &Lab, node: &Node) -> Result<Self> {
        let mut objects = read(lab)?;
        let nodes = objects.entry("Node".to_owned()).or_default();
        nodes.retain(|it| it["metadata"]["name"] == node.name());
        let services = objects.get("Service").map_or(0, Vec::len);
        let answers = Arc::new(answers(objects, node)?);
        let listener = Arc::new(listen(node)?);
        let at = Arc::clone(&listener);
        let accepting = std::thread::spawn(move || {
            // An error is the end: `drop` shuts the socket down.
            while let Ok((stream, _)) = at.accept() {
                let answers = Arc::clone(&answers);
                std::thread::spawn(move || {
                    // It is the client who notices what went wrong.
                    let _ = serve(&stream, &answers);
                });
            }
        });
        Ok(Self {
            listener,
            accepting: Some(accepting),
            services,
        })
    }

    /// How many Services it lists.
    pub(crate) fn services(&self) -> usize {
        self.services
    }

    /// For a client on the node.
    pub(crate) fn kubeconfig(&self) -> String {
        let cluster = json!({ "server": format!("http://127.0.0.1:{PORT}") });
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "bench", "cluster": cluster }],
            "users": [{ "name": "bench", "user": {} }],
            "contexts": [{ "name": "bench", "context": { "cluster": "bench", "user": "bench" } }],
            "current-context": "bench",
        })
        .to_string()
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        // Wakes whoever waits in accept().
        let _ = shutdown(self.listener.as_raw_fd(), Shutdown::Both);
        if let Some(thread) = self.accepting.take() {
            let _ = thread.join();
        }
    }
}

fn listen(node: &Node) -> Result<TcpListener> {
    let netns = node.host().netns().as_fd().try_clone_to_owned()?;
    // A socket stays in the namespace where it was made; the thread ends.
    let made = std::thread::spawn(move || {
        setns(netns, CloneFlags::CLONE_NEWNET).context("enter the node's namespace")?;
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
        TcpListener::bind(at).with_context(|| format!("listen on {at}"))
    });
    made.join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The objects of all manifests by kind.
fn read(lab: &Lab) -> Result<BTreeMap<String, Vec<Value>>> {
    let mut objects: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for file in fs::read_dir(lab.manifests_dir()).context("list manifests")? {
        let path = file?.path();
        let text = fs::read_to_string(&path).with_context(|| format!("read {path:?}"))?;
        for object in Deserializer::from_str(&text).into_iter::<Value>() {
            let mut object = object.with_context(|| format!("read {path:?}"))?;
            object["metadata"]["resourceVersion"] = "1".into();
            let kind = object["kind"].as_str().context("an object has a kind")?;
            objects.entry(kind.to_owned()).or_default().push(object);
        }
    }
    Ok(objects)
}

fn answers(mut objects: BTreeMap<String, Vec<Value>>, node: &Node) -> Result<Answers> {
    let mut answers = Answers::new();
    for Resource {
        path,
        version,
        kind,
    } in RESOURCES
    {
        let items = objects.remove(kind).unwrap_or_default();
        if kind == "Node" {
            let it = items.first().context("the lab has this node")?;
            answers.insert(format!("{path}/{}", node.name()), it.to_string());
        }
        let list = json!({
            "kind": format!("{kind}List"),
            "apiVersion": version,
            "metadata": { "resourceVersion": "1" },
            "items": items,
        });
        answers.insert(path.to_owned(), list.to_string());
    }
    Ok(answers)
}

/// Answers the requests of one connection.
fn serve(stream: &TcpStream, answers: &Answers) -> Result<()> {
    let mut reader = BufReader::new(stream);
    while let Some(target) = request(&mut reader)? {
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let has = |parameter: &str| query.split('&').any(|it| it == parameter);
        match answers.get(path) {
            // A client that is told so lists and watches in two requests.
            Some(_) if has("sendInitialEvents=true") => {
                answer(stream, "422 Unprocessable Entity", &failure("Invalid", 422))?;
            }
            Some(_) if has("watch=true") => return watch(stream, &mut reader),
            Some(body) => answer(stream, "200 OK", body)?,
            None => answer(stream, "404 Not Found", &failure("NotFound", 404))?,
        }
    }
    Ok(())
}

/// Reads a request; its target, or `None` at the end.
fn request(reader: &mut impl BufRead) -> Result<Option<String>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let target = line.split(' ').nth(1).context("a request line")?.to_owned();
    let mut length = 0;
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            bail!("half a request");
        }
        if line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse()?;
        }
    }
    std::io::copy(&mut reader.take(length), &mut std::io::sink())?;
    Ok(Some(target))
}

fn answer(mut stream: &TcpStream, status: &str, body: &str) -> Result<()> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    Ok(stream.write_all(body.as_bytes())?)
}

/// Nothing changes: the watch begins, and lasts as long as the client likes.
fn watch(mut stream: &TcpStream, reader: &mut impl Read) -> Result<()> {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\
                Transfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes())?;
    std::io::copy(reader, &mut std::io::sink())?;
    Ok(())
}

fn failure(reason: &str, code: u16) -> String {
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "code": code,
    })
    .to_string()
}
