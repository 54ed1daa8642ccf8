//! Against an API server of a few lines.

use super::*;
use crate::model::{Kind, SOCKET_TRANSLATION};
use crate::source::Object;
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Mutex;
use std::time::Duration;
use tokio::runtime::Runtime;

/// How the server behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// Streaming lists.
    Streaming,
    /// Knows of streaming lists, but has them switched off.
    Pages,
    /// Does not know of streaming lists.
    Old,
    /// Pages, and the first watch of Services has expired.
    Expired,
    /// Refuses to tell of Namespaces.
    Forbidding,
    /// Has trouble with them.
    Failing,
    /// Pages, and Pods and Namespaces are none of our business.
    Forbidden,
}

struct Server {
    address: String,
    requests: Arc<Mutex<Vec<String>>>,
    /// Its death takes the server's connections with it.
    runtime: Option<Runtime>,
}

impl Server {
    fn start(manner: Manner, service: &'static str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("runtime");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("port");
        listener.set_nonblocking(true).expect("listener");
        let address = format!("http://{}", listener.local_addr().expect("address"));
        let app = Router::new()
            .fallback(answer)
            .with_state((manner, service, requests.clone()));
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("listener");
            axum::serve(listener, app).await.expect("server");
        });
        Self {
            address,
            requests,
            runtime: Some(runtime),
        }
    }

    fn stop(&mut self) {
        self.runtime.take().expect("running").shutdown_background();
    }

    fn count(&self, wanted: impl Fn(&str) -> bool) -> usize {
        self.requests
            .lock()
            .expect("requests")
            .iter()
            .filter(|it| wanted(it))
            .count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

type Context = (Manner, &'static str, Arc<Mutex<Vec<String>>>);

async fn answer(State((manner, service, requests)): State<Context>, uri: Uri) -> Response {
    let (path, query) = (
        uri.path().to_owned(),
        uri.query().unwrap_or_default().to_owned(),
    );
    let first = {
        let mut requests = requests.lock().expect("requests");
        requests.push(uri.to_string());
        let same = |it: &&String| {
            it.starts_with(&path)
                && it.contains("watch=true")
                && !it.contains("sendInitialEvents=true")
        };
        requests.iter().filter(same).count() == 1
    };
    let services = path.ends_with("/services");
    let object = |name: &str, version: u32| {
        json!({"metadata": {"name": name, "namespace": "shop", "resourceVersion": version.to_string()},
               "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}})
    };
    let metadata = |meta: Value| json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": meta});
    let items = if services {
        vec![object(service, 5)]
    } else if path.ends_with("/namespaces") {
        vec![metadata(
            json!({"name": "mesh", "labels": {SOCKET_TRANSLATION: "disabled"}}),
        )]
    } else if path.ends_with("/pods") {
        vec![metadata(
            json!({"name": "web", "namespace": "mesh", "uid": "u"}),
        )]
    } else {
        vec![]
    };
    let event = |kind: &str, object: Value| json!({"type": kind, "object": object});
    let later = services.then(|| event("ADDED", object("later", 11)));
    if path == "/api/v1/namespaces/kube-system" {
        return namespace(manner);
    }
    if path == "/version" {
        let minor = if manner == Manner::Old { "26" } else { "34+" };
        return version(minor);
    }
    let pods = path.ends_with("/pods");
    let namespaces = path.ends_with("/namespaces");
    if manner == Manner::Forbidden && (pods || namespaces) {
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                            "message": "forbidden", "reason": "Forbidden", "code": 403});
        return (StatusCode::FORBIDDEN, status.to_string()).into_response();
    }
    if !query.contains("watch=true") {
        let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "10"}, "items": items});
        return list.to_string().into_response();
    }
    if query.contains("sendInitialEvents=true") {
        if manner != Manner::Streaming {
            let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                                "message": "sendInitialEvents is forbidden", "reason": "Invalid", "code": 422});
            return (StatusCode::UNPROCESSABLE_ENTITY, status.to_string()).into_response();
        }
        let end = json!({"kind": "X", "apiVersion": "v1", "metadata": {
            "resourceVersion": "10", "annotations": {"k8s.io/initial-events-end": "true"}}});
        let listed = items.into_iter().map(|it| event("ADDED", it));
        return stream(
            listed
                .chain([event("BOOKMARK", end)])
                .chain(later)
                .collect(),
        );
    }
    if manner == Manner::Expired && services && first {
        let gone = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                          "message": "too old resource version", "reason": "Expired", "code": 410});
        return stream(vec![event("ERROR", gone)]);
    }
    stream(later.into_iter().collect())
}

fn namespace(manner: Manner) -> Response {
    let failure = |code: StatusCode, reason: &str| {
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                            "message": "no", "reason": reason, "code": code.as_u16()});
        (code, status.to_string()).into_response()
    };
    match manner {
        Manner::Forbidding => failure(StatusCode::FORBIDDEN, "Forbidden"),
        Manner::Failing => failure(StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
        _ => json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                    "metadata": {"name": "kube-system", "uid": "0b5f-7"}})
        .to_string()
        .into_response(),
    }
}

fn version(minor: &str) -> Response {
    let version = json!({"major": "1", "minor": minor, "gitVersion": "v1", "gitCommit": "", "gitTreeState": "",
                         "buildDate": "", "goVersion": "", "compiler": "", "platform": ""});
    version.to_string().into_response()
}

/// Events, and then a connection that stays open.
fn stream(events: Vec<Value>) -> Response {
    let lines = events
        .into_iter()
        .map(|it| Ok::<_, Infallible>(format!("{it}\n")));
    Body::from_stream(futures::stream::iter(lines).chain(futures::stream::pending()))
        .into_response()
}

/// The source, and the events about Services.
struct Followed {
    events: mpsc::Receiver<Event>,
}

impl Followed {
    fn new(servers: &[&str]) -> Self {
        let options = KubeOptions {
            kubeconfig: None,
            servers: servers.iter().map(|it| (*it).to_owned()).collect(),
            node_name: "n1".into(),
            service_proxy_name: None,
        };
        let (sender, events) = mpsc::channel(16);
        let client = tokio::sync::watch::Sender::new(None);
        tokio::spawn(async move {
            run(&options, sender, &client).await.expect("configuration");
        });
        Self { events }
    }

    async fn expect(&mut self, want: &[&str]) {
        for want in want {
            assert_eq!(self.next().await, *want);
        }
    }

    async fn any(&mut self) -> Event {
        let next = tokio::time::timeout(Duration::from_secs(30), self.events.recv()).await;
        next.expect("an event in time").expect("the source runs")
    }

    async fn next(&mut self) -> String {
        loop {
            match self.any().await {
                Event::Begin(Kind::Service) => return "begin".into(),
                Event::Done(Kind::Service) => return "done".into(),
                Event::Apply(Object::Service(service)) => return service.name.to_string(),
                Event::Delete(Kind::Service, name) => return format!("delete {name}"),
                _ => {}
            }
        }
    }
}

#[tokio::test]
async fn a_server_with_streaming_lists_is_asked_for_them() {
    let server = Server::start(Manner::Streaming, "web");
    let mut followed = Followed::new(&[&server.address]);
    followed
        .expect(&["begin", "shop/web", "done", "shop/later"])
        .await;
    let services = |it: &str| it.starts_with("/api/v1/services");
    assert_eq!(server.count(services), 1);
    let selector = "labelSelector=%21service.kubernetes.io%2Fheadless%2C%21service.kubernetes.io%2Fservice-proxy-name";
    assert_eq!(server.count(|it| services(it) && it.contains(selector)), 1);
}

#[tokio::test]
async fn a_server_without_streaming_lists_gives_pages() {
    for (manner, streaming_requests) in [(Manner::Pages, 1), (Manner::Old, 0)] {
        let server = Server::start(manner, "web");
        let mut followed = Followed::new(&[&server.address]);
        followed
            .expect(&["begin", "shop/web", "done", "shop/later"])
            .await;
        let services =
            |it: &str| it.starts_with("/api/v1/services") && it.contains("sendInitialEvents=true");
        assert_eq!(server.count(services), streaming_requests, "{manner:?}");
    }
}

#[tokio::test]
async fn all_pods_of_the_node_are_asked_for_once_a_namespace_opts_out() {
    let server = Server::start(Manner::Old, "web");
    let mut followed = Followed::new(&[&server.address]);
    // The list without label may come first: then it is the only one.
    let labelled = "labelSelector=fairlead.io%2Fsocket-translation";
    let ours = "spec.nodeName%3Dn1";
    let unlabelled =
        |it: &str| it.starts_with("/api/v1/pods?") && it.contains(ours) && !it.contains(labelled);
    while server.count(unlabelled) == 0 {
        followed.any().await;
    }
    assert!(server.count(|it| it.starts_with("/api/v1/namespaces?") && it.contains(labelled)) > 0);
    let foreign = |it: &str| it.starts_with("/api/v1/pods?") && !it.contains(ours);
    assert_eq!(server.count(foreign), 0);
    while followed.any().await != Event::Done(Kind::Pod) {}
}

/// What this thread logs.
type Log = Arc<Mutex<Vec<u8>>>;

struct Writer(Log);

impl std::io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("log").extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn without_the_right_to_see_pods_and_namespaces_all_else_goes_on() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || Writer(writer.clone()));
    let _logging = tracing::subscriber::set_default(subscriber.finish());
    let server = Server::start(Manner::Forbidden, "web");
    let mut followed = Followed::new(&[&server.address]);
    let mut missing = vec![
        Event::Unavailable(Kind::Pod),
        Event::Unavailable(Kind::Namespace),
        Event::Done(Kind::Service),
    ];
    while !missing.is_empty() {
        let event = followed.any().await;
        assert!(!matches!(event, Event::Done(Kind::Pod | Kind::Namespace)));
        missing.retain(|it| *it != event);
    }
    // It is tried again, and told once.
    let namespaces = |it: &str| it.starts_with("/api/v1/namespaces?");
    let before = server.count(namespaces);
    while server.count(namespaces) < before + 2 {
        followed.any().await;
    }
    let log = String::from_utf8(log.lock().expect("log").clone()).expect("text");
    let told = log.lines().filter(|it| it.contains("not allowed"));
    let told: Vec<&str> = told.filter(|it| it.contains("Namespace")).collect();
    assert_eq!(told.len(), 1, "{log}");
}

#[tokio::test]
async fn an_expired_watch_leads_to_a_new_list() {
    let server = Server::start(Manner::Expired, "web");
    let mut followed = Followed::new(&[&server.address]);
    followed
        .expect(&[
            "begin",
            "shop/web",
            "done",
            "begin",
            "shop/web",
            "done",
            "shop/later",
        ])
        .await;
}

#[tokio::test]
async fn the_next_server_is_used_when_one_is_gone() {
    let mut first = Server::start(Manner::Streaming, "one");
    let second = Server::start(Manner::Streaming, "two");
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("port");
    let dead = format!("http://{}", nobody.local_addr().expect("address"));
    drop(nobody);
    let mut followed = Followed::new(&[&dead, &first.address, &second.address]);
    followed
        .expect(&["begin", "shop/one", "done", "shop/later"])
        .await;
    first.stop();
    followed
        .expect(&["begin", "shop/two", "done", "shop/later"])
        .await;
}

#[tokio::test]
async fn a_configuration_that_cannot_work_is_an_error() {
    let options = |kubeconfig: Option<&str>, servers: &[&str]| KubeOptions {
        kubeconfig: kubeconfig.map(PathBuf::from),
        servers: servers.iter().map(|it| (*it).to_owned()).collect(),
        node_name: "n1".into(),
        service_proxy_name: None,
    };
    for (options, part) in [
        (
            options(Some("/nonexistent/kubeconfig"), &[]),
            "kubeconfig /nonexistent/kubeconfig",
        ),
        (options(None, &["https://"]), "\"https://\""),
        (options(None, &[]), "not in a pod"),
    ] {
        let error = run(
            &options,
            mpsc::channel(1).0,
            &tokio::sync::watch::Sender::new(None),
        )
        .await
        .expect_err(part)
        .to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[tokio::test]
async fn the_uid_of_the_cluster_is_known_refused_or_may_come_later() {
    let ask = async |manner| {
        let server = Server::start(manner, "web");
        let options = KubeOptions {
            kubeconfig: None,
            servers: vec![server.address.clone()],
            node_name: "n1".into(),
            service_proxy_name: None,
        };
        uid(&options).await
    };
    assert_eq!(ask(Manner::Pages).await.expect("a UID"), "0b5f-7");
    let refused = ask(Manner::Forbidding).await.expect_err("an error");
    assert!(matches!(refused, UidError::Refused(_)), "{refused}");
    assert!(refused.to_string().contains("--maglev-seed"), "{refused}");
    let failed = ask(Manner::Failing).await.expect_err("an error");
    assert!(matches!(failed, UidError::Failed(_)), "{failed}");
}
