//! etcd, kube-apiserver and kube-controller-manager on a host of the lab.
//!
//! Keys, certificates and tokens are made anew each time, in the lab's
//! temporary directory. The programs live in the lab's cgroup and die with the
//! test process, so they leave as little behind as the lab does.

use crate::api::{Api, Kind};
use crate::kube_proxy;
use anyhow::{Context, Result, ensure};
use lab::{Lab, Peer, SERVICE_CIDRS, tail};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Where the API server answers.
pub const API_SERVER: &str = "https://192.0.2.21:6443";
/// The same server by its other address.
pub const API_SERVER_V6: &str = "https://[2001:db8:2::21]:6443";
/// Where a second one answers, if a story starts it.
pub const SECOND_API_SERVER: &str = "https://192.0.2.21:6444";
/// Nobody has this address of the LAN.
pub const NO_API_SERVER: &str = "https://192.0.2.29:6443";

/// Last octet of the control plane's host.
const HOST: u8 = 21;
const ETCD: &str = "http://127.0.0.1:2379";
const ETCD_PORT: u16 = 2379;
/// Group of the agents; what it may do is said through the API.
pub const AGENTS: &str = "fairlead-agents";

/// Users, each with a kubeconfig of its own; the names of the controller
/// manager and of the group with all rights are Kubernetes'.
const USERS: [(&str, &str); 4] = [
    ("admin", "system:masters"),
    ("system:kube-controller-manager", "system:masters"),
    (kube_proxy::USER, "system:authenticated"),
    ("fairlead", AGENTS),
];

/// A running control plane.
#[derive(Debug)]
pub struct ControlPlane {
    host: Peer,
    /// Folder with the programs.
    programs: PathBuf,
    /// Keys, kubeconfigs, logs and etcd's data.
    dir: PathBuf,
    /// `None` while it is killed.
    api_server: Mutex<Option<Child>>,
    controllers: Mutex<Option<Child>>,
}

impl ControlPlane {
    /// Starts etcd and the API server, which needs a few seconds to answer.
    pub fn start(lab: &Lab) -> Result<Self> {
        let programs = std::env::var_os("FAIRLEAD_CONTROL_PLANE")
            .map(PathBuf::from)
            .context(
                "FAIRLEAD_CONTROL_PLANE names no folder with etcd, kube-apiserver, \
                 kube-controller-manager and kube-proxy: let `cargo xtask` run this",
            )?;
        let [_, _, temp] = lab.traces();
        let plane = Self {
            host: lab.host("control-plane", HOST)?,
            programs,
            dir: temp.join("control-plane"),
            api_server: Mutex::new(None),
            controllers: Mutex::new(None),
        };
        fs::create_dir(&plane.dir)?;
        plane.make_credentials()?;
        let mut etcd = plane.program("etcd");
        etcd.arg("--data-dir").arg(plane.dir.join("etcd")).args([
            // Its data is thrown away with the lab.
            "--unsafe-no-fsync",
            "--listen-client-urls",
            ETCD,
            "--advertise-client-urls",
            ETCD,
            "--listen-peer-urls",
            "http://127.0.0.1:2380",
        ]);
        plane.spawn("etcd", etcd)?;
        plane.start_api_server()?;
        Ok(plane)
    }

    /// Gives the agents the rights that they need, and no other.
    pub fn grant(&self, api: &Api) -> Result<()> {
        api.create(
            Kind::ClusterRole,
            "",
            &json!({
                "metadata": { "name": AGENTS },
                "rules": [
                    { "apiGroups": [""], "resources": ["services", "nodes"], "verbs": ["list", "watch"] },
                    { "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"] },
                    // For the seed of Maglev tables.
                    { "apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["kube-system"], "verbs": ["get"] },
                    // For opt-outs.
                    { "apiGroups": [""], "resources": ["pods", "namespaces"], "verbs": ["list", "watch"] },
                    // For Events, and the UIDs of what they are about.
                    { "apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"] },
                    { "apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["get"] },
                    { "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get"] },
                ],
            }),
        )?;
        api.create(
            Kind::ClusterRoleBinding,
            "",
            &json!({
                "metadata": { "name": AGENTS },
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": AGENTS },
                "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": AGENTS }],
            }),
        )?;
        Ok(())
    }

    /// Starts the controllers that the stories need, unless they run. The API
    /// server must answer: the program gives up if it does not.
    pub fn start_controllers(&self) -> Result<()> {
        let mut running = self
            .controllers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if running.is_some() {
            return Ok(());
        }
        let mut controllers = self.program("kube-controller-manager");
        controllers
            .arg("--kubeconfig")
            .arg(self.kubeconfig("system:kube-controller-manager"))
            .args([
                "--controllers=endpointslice-controller",
                "--leader-elect=false",
                "--bind-address=127.0.0.1",
            ]);
        *running = Some(self.spawn("kube-controller-manager", controllers)?);
        Ok(())
    }

    /// Starts the API server on the etcd that runs.
    pub fn start_api_server(&self) -> Result<()> {
        let mut running = self.api_server();
        ensure!(running.is_none(), "the API server runs already");
        *running = Some(self.launch_api_server("kube-apiserver", 6443)?);
        Ok(())
    }

    /// Starts one more API server, on [`SECOND_API_SERVER`].
    pub fn start_second_api_server(&self) -> Result<Second> {
        self.launch_api_server("second-kube-apiserver", 6444)
            .map(Second)
    }

    fn launch_api_server(&self, log: &str, port: u16) -> Result<Child> {
        let mut server = self.program("kube-apiserver");
        let file = |flag: &str, name: &str| format!("{flag}={}", self.dir.join(name).display());
        server.args([
            file("--cert-dir", "unused"),
            file("--tls-cert-file", "server.crt"),
            file("--tls-private-key-file", "server.key"),
            file("--token-auth-file", "tokens.csv"),
            file("--service-account-key-file", "server.crt"),
            file("--service-account-signing-key-file", "server.key"),
            format!("--etcd-servers={ETCD}"),
            format!("--service-cluster-ip-range={SERVICE_CIDRS}"),
            format!("--advertise-address={}", self.host.v4()),
            format!("--secure-port={port}"),
        ]);
        server.args([
            "--bind-address=::",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            // No controller makes service accounts, and pods of stories need none.
            "--disable-admission-plugins=ServiceAccount",
            // Stories write the endpoints of default/kubernetes by hand.
            "--endpoint-reconciler-type=none",
        ]);
        self.spawn(log, server)
    }

    /// SIGSTOP: the API server keeps its connections and says nothing on them.
    pub fn pause_api_server(&self) -> Result<()> {
        self.signal_api_server(Signal::SIGSTOP)
    }

    /// SIGCONT.
    pub fn resume_api_server(&self) -> Result<()> {
        self.signal_api_server(Signal::SIGCONT)
    }

    fn signal_api_server(&self, signal: Signal) -> Result<()> {
        let server = self.api_server();
        let id = server.as_ref().context("no API server runs")?.id();
        kill(Pid::from_raw(id.try_into()?), signal)
            .with_context(|| format!("{signal} to the API server"))
    }

    /// SIGKILL to the API server.
    pub fn kill_api_server(&self) -> Result<()> {
        let mut server = self.api_server().take().context("no API server runs")?;
        server.kill().context("kill the API server")?;
        server.wait().context("wait for the API server")?;
        self.kill_controllers()
    }

    /// After a few outages on end their own pauses between tries grow past a
    /// minute (client-go's reflectors), and that is not what is tested here.
    fn kill_controllers(&self) -> Result<()> {
        let running = self
            .controllers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(mut controllers) = running {
            controllers.kill().context("kill the controllers")?;
            controllers.wait().context("wait for the controllers")?;
        }
        Ok(())
    }

    /// Whether the API server has ended by itself.
    pub fn api_server_gave_up(&self) -> bool {
        let ended = |server: &mut Child| matches!(server.try_wait(), Ok(Some(_)));
        self.api_server().as_mut().is_some_and(ended)
    }

    /// Whether the API server was started and not killed.
    pub fn has_api_server(&self) -> bool {
        self.api_server().is_some()
    }

    /// Makes etcd forget everything but the present, so that no watch can go on
    /// from a revision before it.
    pub fn forget_history(&self) -> Result<()> {
        // Every answer tells the store's revision.
        let answer = self.ask_etcd("/v3/kv/range", r#"{"key":"AA=="}"#)?;
        let revision = answer
            .split_once(r#""revision":""#)
            .and_then(|(_, rest)| rest.split('"').next())
            .with_context(|| format!("no revision in {answer}"))?;
        let body = format!(r#"{{"revision":"{revision}","physical":true}}"#);
        self.ask_etcd("/v3/kv/compaction", &body).map(drop)
    }

    /// `POST` to etcd's JSON gateway, which listens on the host's loopback only.
    fn ask_etcd(&self, path: &str, body: &str) -> Result<String> {
        let request = format!(
            "POST {path} HTTP/1.0\r\nHost: etcd\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = in_namespace_of(&self.host, || {
            let etcd = SocketAddr::from((Ipv4Addr::LOCALHOST, ETCD_PORT));
            let mut stream = TcpStream::connect(etcd).context("connect to etcd")?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            stream.write_all(request.as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        })?;
        ensure!(answer.contains(" 200 OK"), "etcd answers {path}: {answer}");
        Ok(answer)
    }

    /// The host of the control plane.
    pub fn host(&self) -> &Peer {
        &self.host
    }

    /// A user's kubeconfig.
    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        self.dir.join(format!("{user}.kubeconfig"))
    }

    /// The last lines of each program's log.
    pub fn logs(&self) -> String {
        [
            "etcd",
            "kube-apiserver",
            "second-kube-apiserver",
            "kube-controller-manager",
        ]
        .map(|name| {
            let log = tail(&self.log(name), 15);
            format!("--- log of {name} ends ---\n{log}\n")
        })
        .concat()
    }

    fn log(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.log"))
    }

    fn api_server(&self) -> std::sync::MutexGuard<'_, Option<Child>> {
        self.api_server
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Where keys, kubeconfigs and logs are.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where a program is.
    pub(crate) fn program_path(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    fn program(&self, name: &str) -> Command {
        Command::new(self.program_path(name))
    }

    fn spawn(&self, name: &str, mut command: Command) -> Result<Child> {
        let path = self.log(name);
        let log = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("open {path:?}"))?;
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        self.host.spawn(command)
    }

    /// A key and a certificate that signs itself, tokens, and kubeconfigs.
    fn make_credentials(&self) -> Result<()> {
        let (certificate, key) = (self.dir.join("server.crt"), self.dir.join("server.key"));
        // 10.96.0.1 is the ClusterIP of default/kubernetes.
        let names = format!(
            "subjectAltName=IP:{},IP:{},IP:10.96.0.1,IP:127.0.0.1,IP:::1,DNS:kubernetes.default.svc",
            self.host.v4(),
            self.host.v6()
        );
        let output = Command::new("openssl")
            .args(["req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=lab"])
            .args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
            // Clients trust this one certificate; it must not be that of an authority.
            .args(["-addext", "basicConstraints=critical,CA:FALSE"])
            .args(["-addext", &names])
            .arg("-keyout")
            .arg(&key)
            .arg("-out")
            .arg(&certificate)
            .output()
            .context("run openssl")?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "openssl: {stderr}");
        let mut tokens = String::new();
        for (user, group) in USERS {
            let token = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
            let token = token.trim();
            tokens += &format!("{token},{user},{user},{group}\n");
            let text = kubeconfig(&certificate, user, token);
            fs::write(self.kubeconfig(user), text)?;
        }
        fs::write(self.dir.join("tokens.csv"), tokens)?;
        Ok(())
    }
}

/// The second API server; it ends with this.
#[derive(Debug)]
pub struct Second(Child);

impl Drop for Second {
    fn drop(&mut self) {
        // It is a child of ours and not waited for yet, so the id is still its own.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn kubeconfig(certificate: &Path, user: &str, token: &str) -> String {
    let certificate = certificate.display();
    format!(
        r"apiVersion: v1
kind: Config
clusters: [{{name: lab, cluster: {{server: '{API_SERVER}', certificate-authority: '{certificate}'}}}}]
users: [{{name: '{user}', user: {{token: '{token}'}}}}]
contexts: [{{name: lab, context: {{cluster: lab, user: '{user}'}}}}]
current-context: lab
"
    )
}

/// Runs `job` on a thread in the network namespace of a peer.
fn in_namespace_of<T: Send>(peer: &Peer, job: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let netns = peer.netns().as_fd().try_clone_to_owned()?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            setns(netns, CloneFlags::CLONE_NEWNET).context("enter the namespace")?;
            job()
        });
        // A panic there is a panic here.
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
