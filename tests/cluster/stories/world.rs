//! Where the stories take place: three nodes with agents that read the API of
//! a real control plane, a backend on each, a client pod on n1.

use crate::space::{Space, selecting};
use anyhow::{Context, Result, anyhow};
use control_plane::ControlPlane;
use control_plane::{Api, Kind};
use lab::manifests::Manifest;
use lab::{
    BACKEND_PORT, Dial, IN_FORCE, Lab, Outcome, Peer, SERVICE_CIDRS, SharedLab, Transport,
    eventually,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the API server may take to start, or to start again.
const START: Duration = Duration::from_secs(60);

/// How long the controllers may take, whatever else the machine does.
pub(crate) const CONTROLLERS: Duration = Duration::from_secs(20);

/// How long an agent may take to find the API server again (K70).
pub(crate) const RECONNECT: Duration = Duration::from_secs(30);

/// See the module.
pub(crate) struct World {
    lab: Lab,
    pub(crate) plane: ControlPlane,
    pub(crate) api: Api,
    /// Backends on n1, n2 and n3; Pods of many stories run "on" them.
    pub(crate) b1: Peer,
    pub(crate) b2: Peer,
    pub(crate) b3: Peer,
    /// Pod on n1.
    pub(crate) client: Peer,
    barriers: AtomicU32,
}

static WORLD: SharedLab<World> = SharedLab::new(World::new);

/// Tells a story in an API namespace of this name. One at a time: some of them
/// stop agents and the API server.
pub(crate) fn story(name: &str, tell: impl FnOnce(&World, &Space<'_>) -> Result<()>) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    WORLD.story(|world| {
        let told = world
            .restore()
            .and_then(|()| Space::new(world, name))
            .and_then(|space| tell(world, &space));
        told.map_err(|error| anyhow!("{error:#}\n{}", world.plane.logs()))
    });
}

impl World {
    fn new() -> Result<Self> {
        let begun = Instant::now();
        let lab = Lab::new(3)?;
        let plane = ControlPlane::start(&lab)?;
        let api = Api::new(plane.host(), &plane.kubeconfig("admin"))?;
        let backend = |name, node| lab.node(node).pod(name)?.serve(BACKEND_PORT);
        let world = Self {
            b1: backend("b1", "n1")?,
            b2: backend("b2", "n2")?,
            b3: backend("b3", "n3")?,
            client: lab.node("n1").pod("client")?,
            lab,
            plane,
            api,
            barriers: AtomicU32::new(0),
        };
        world
            .furnish()
            .map_err(|error| anyhow!("{error:#}\n{}{}", world.plane.logs(), world.lab.logs()))?;
        tell("control plane and agents", begun);
        Ok(world)
    }

    /// What a cluster has before any story: Nodes, rights, controllers, agents.
    fn furnish(&self) -> Result<()> {
        self.wait_for_api()?;
        self.plane.grant(&self.api)?;
        self.plane.start_controllers()?;
        self.restore()
    }

    /// What a story may rely on at its beginning, whatever the last one left.
    fn restore(&self) -> Result<()> {
        if !self.plane.has_api_server() {
            self.start_api_server()?;
        }
        self.plane.resume_api_server()?;
        self.plane.start_controllers()?;
        let nodes = self.api.list(Kind::Node, "")?;
        for node in self.lab.nodes() {
            if !nodes.iter().any(|it| it["metadata"]["name"] == node.name()) {
                self.create_node(node.name())?;
            }
            self.agent_reads(node.name(), &[])?;
            if !node.has_agent() {
                node.start_agent()?;
            }
            node.resume_agent()?;
            node.wait_healthy()?;
        }
        self.settle()
    }

    /// Returns when the controllers and all agents follow the API: after an
    /// outage of the API server they need a while to find it again.
    fn settle(&self) -> Result<()> {
        let name = format!("barrier-{}", self.barriers.fetch_add(1, Ordering::Relaxed));
        let space = Space::existing(self, "default");
        let to = space.create(&selecting(&name))?.v4(80)?;
        space.run(&name, &name, &self.b1)?;
        for node in self.lab.nodes() {
            eventually(RECONNECT, || {
                self.dial(node.host(), Transport::Tcp, &to)?
                    .answered_by("b1")
            })
            .with_context(|| format!("wait until {} follows the API", node.name()))?;
        }
        space.delete_service(&name)?;
        space.remove(&name)
    }

    /// API servers for a node's agent at its next start: those, or that of the kubeconfig.
    pub(crate) fn agent_reads(&self, node: &str, servers: &[&str]) -> Result<()> {
        let kubeconfig = self.plane.kubeconfig("fairlead");
        let kubeconfig = kubeconfig.to_str().context("a path of text")?;
        let mut flags = vec!["--kubeconfig", kubeconfig, "--service-cidrs", SERVICE_CIDRS];
        let servers = servers.join(",");
        if !servers.is_empty() {
            flags.extend(["--master", &servers]);
        }
        self.lab.node(node).agent_flags(flags);
        Ok(())
    }

    /// A Node as its kubelet registers it; no label tells a zone.
    pub(crate) fn create_node(&self, name: &str) -> Result<()> {
        let object = self.lab.node_manifest(name).to_json();
        self.api.create(Kind::Node, "", &object).map(drop)
    }

    /// Starts the API server on the store that is there; returns when it can be used.
    pub(crate) fn start_api_server(&self) -> Result<()> {
        self.plane.start_api_server()?;
        self.wait_for_api()
    }

    /// SIGKILL and start.
    pub(crate) fn restart_api_server(&self) -> Result<()> {
        self.plane.kill_api_server()?;
        self.start_api_server()
    }

    /// Waits until the API server takes what clients write: it answers before
    /// it can hand out ClusterIPs.
    fn wait_for_api(&self) -> Result<()> {
        let probe = json!({
            "metadata": { "generateName": "probe-" },
            "spec": { "ports": [{ "port": 1 }] },
        });
        let created = eventually(START, || {
            if self.plane.api_server_gave_up() {
                return Ok(None);
            }
            self.api.create(Kind::Service, "default", &probe).map(Some)
        })
        .context("wait for the API server")?
        .context("the API server ended")?;
        let name = created["metadata"]["name"].as_str().unwrap_or_default();
        self.api.delete(Kind::Service, "default", name, None)
    }

    /// A dial that gives up soon.
    pub(crate) fn dial(&self, from: &Peer, transport: Transport, to: &str) -> Result<Outcome> {
        from.dial(brief(transport, to)?)
    }

    /// The client pod's TCP dial.
    pub(crate) fn tcp(&self, to: &str) -> Result<Outcome> {
        self.dial(&self.client, Transport::Tcp, to)
    }

    /// Within two seconds of the last write, and of the last change that the
    /// controllers made of it, it is so. Prints how long it took since the write.
    ///
    /// The endpoint controller waits for a second or more when it finds its own
    /// cache out of date. That is no time of ours.
    pub(crate) fn soon<T>(
        &self,
        what: &str,
        mut condition: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let (begun, written) = (Instant::now(), self.api.last_write());
        let outcome = eventually(CONTROLLERS, || {
            let last = begun.max(self.api.last_slice());
            match condition() {
                Ok(value) => Ok(Ok(value)),
                Err(error) if last.elapsed() > IN_FORCE && self.controllers_are_done()? => {
                    Ok(Err(error.context("still not so after 2 s")))
                }
                Err(error) => Err(error),
            }
        });
        let value = outcome.flatten().with_context(|| what.to_owned())?;
        tell(what, written);
        Ok(value)
    }

    /// Whether the slices say what Services and Pods ask for.
    fn controllers_are_done(&self) -> Result<bool> {
        let [services, pods, slices] = [
            self.api.list(Kind::Service, "")?,
            self.api.list(Kind::Pod, "")?,
            self.api.list(Kind::Slice, "")?,
        ];
        Ok(services
            .iter()
            .all(|service| as_asked(service, &pods, &slices)))
    }

    /// The same with another deadline.
    pub(crate) fn within<T>(
        &self,
        deadline: Duration,
        what: &str,
        condition: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let written = self.api.last_write();
        let value = eventually(deadline, condition).with_context(|| what.to_owned())?;
        tell(what, written);
        Ok(value)
    }

    /// These pods answer the client, each of them, and no other.
    pub(crate) fn only(&self, to: &str, pods: &[&str]) -> Result<()> {
        // Of three pods, 30 dials in a row miss one with odds of 1 to 60,000.
        let dial = brief(Transport::Tcp, to)?;
        self.client.many(dial, 30)?.only_by(pods)
    }

    /// Within two seconds these pods answer the client, each of them, and no other.
    pub(crate) fn soon_only(&self, what: &str, to: &str, pods: &[&str]) -> Result<()> {
        self.soon(what, || self.only(to, pods))
    }

    /// Within two seconds nobody answers the client.
    pub(crate) fn soon_gone(&self, what: &str, to: &str) -> Result<()> {
        self.soon(what, || self.tcp(to)?.unanswered())
    }
}

/// A dial that gives up soon: what it tries may not be in force yet.
pub(crate) fn brief(transport: Transport, to: &str) -> Result<Dial> {
    let mut dial = Dial::new(transport, to.parse()?);
    dial.timeout_ms = 400;
    Ok(dial)
}

/// Whether the slices of one Service have its Pods, as they are.
fn as_asked(service: &Value, pods: &[Value], slices: &[Value]) -> bool {
    let app = &service["spec"]["selector"]["app"];
    let namespace = &service["metadata"]["namespace"];
    if app.is_null() {
        return true;
    }
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut asked = BTreeSet::new();
    for pod in pods {
        let meta = &pod["metadata"];
        if meta["namespace"] != *namespace || meta["labels"]["app"] != *app {
            continue;
        }
        let ready = list(&pod["status"]["conditions"])
            .iter()
            .any(|it| it["type"] == "Ready" && it["status"] == "True");
        let terminating = !meta["deletionTimestamp"].is_null();
        for ip in list(&pod["status"]["podIPs"]) {
            let ip = ip["ip"].as_str().unwrap_or_default().to_owned();
            let v6 = ip.contains(':');
            let family = if v6 { "IPv6" } else { "IPv4" };
            if list(&service["spec"]["ipFamilies"]).contains(&family.into()) {
                asked.insert((ip, ready, terminating));
            }
        }
    }
    let mut there = BTreeSet::new();
    for slice in slices {
        let meta = &slice["metadata"];
        let owner = &meta["labels"]["kubernetes.io/service-name"];
        if meta["namespace"] != *namespace || *owner != service["metadata"]["name"] {
            continue;
        }
        for endpoint in list(&slice["endpoints"]) {
            let ip = endpoint["addresses"][0].as_str().unwrap_or_default();
            let conditions = &endpoint["conditions"];
            let (serving, terminating) = (
                conditions["serving"] == true,
                conditions["terminating"] == true,
            );
            there.insert((ip.to_owned(), serving, terminating));
        }
    }
    asked == there
}

/// Prints what a reader wants to see of a story that goes well, too.
pub(crate) fn tell(what: &str, since: Instant) {
    // Not eprintln!, which the test harness swallows.
    let _ = writeln!(
        std::io::stderr(),
        "    {:>6} ms  {what}",
        since.elapsed().as_millis()
    );
}

impl std::ops::Deref for World {
    type Target = Lab;

    fn deref(&self) -> &Lab {
        &self.lab
    }
}

impl AsRef<Lab> for World {
    fn as_ref(&self) -> &Lab {
        &self.lab
    }
}
