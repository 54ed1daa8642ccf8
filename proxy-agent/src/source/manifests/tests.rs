//! Files as people and tools write them.

use super::*;
use crate::source::Object;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// A directory that is followed, and what came out of it.
struct Followed {
    _home: TempDir,
    path: PathBuf,
    events: mpsc::Receiver<Event>,
}

impl Followed {
    /// Follows a directory with these files; without files there is none yet.
    fn new(files: &[(&str, &str)]) -> Self {
        let home = TempDir::new().expect("temporary directory");
        let path = home.path().join("manifests");
        for (name, text) in files {
            fs::create_dir_all(&path).expect("directory");
            fs::write(path.join(name), text).expect("file");
        }
        let (sender, events) = mpsc::channel(64);
        tokio::spawn(run(path.clone(), sender));
        Self {
            _home: home,
            path,
            events,
        }
    }

    /// The next event, in short.
    async fn next(&mut self) -> String {
        let next = tokio::time::timeout(Duration::from_secs(10), self.events.recv()).await;
        match next.expect("an event in time").expect("the source runs") {
            Event::Begin(kind) => format!("begin {}", kind.as_str()),
            Event::Done(kind) => format!("done {}", kind.as_str()),
            Event::Apply(Object::Service(service)) => {
                format!("{} {}", service.name, service.cluster_ips[0])
            }
            Event::Apply(object) => format!("{} {}", object.kind().as_str(), object.name()),
            Event::Unavailable(kind) => format!("unavailable {}", kind.as_str()),
            Event::Delete(kind, name) => format!("delete {} {name}", kind.as_str()),
            Event::Warning(warning) => {
                format!("warning {} {}", warning.reason.as_str(), warning.name)
            }
        }
    }

    /// The next events are these.
    async fn expect(&mut self, want: &[&str]) {
        for want in want {
            assert_eq!(self.next().await, *want);
        }
    }

    /// The first list, which has these objects.
    async fn expect_list(&mut self, want: &[&str]) {
        for kind in Kind::ALL {
            self.expect(&[&format!("begin {}", kind.as_str())]).await;
        }
        self.expect(want).await;
        for kind in Kind::ALL {
            self.expect(&[&format!("done {}", kind.as_str())]).await;
        }
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path.join(name), text).expect("file");
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.path.join(from), self.path.join(to)).expect("rename");
    }

    /// Nothing is pending: a marker that is written now is the next thing told.
    async fn expect_quiet(&mut self) {
        self.write("zz-marker.yaml", &web("marker", "10.96.255.1"));
        self.expect(&["default/marker 10.96.255.1"]).await;
        fs::remove_file(self.path.join("zz-marker.yaml")).expect("marker");
        self.expect(&["delete Service default/marker"]).await;
    }
}

fn web(name: &str, ip: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{clusterIP: {ip}}}\n"
    )
}

const SLICE: &str = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web-1}\naddressType: IPv4\n";
const NODE: &str = "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n";

#[tokio::test]
async fn every_form_of_manifest_is_read() {
    let list = r#"{"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"clusterIP": "10.96.0.2"}}]}"#;
    let typed = "apiVersion: v1\nkind: ServiceList\nitems:\n- metadata: {name: b, namespace: shop}\n  spec: {clusterIP: 10.96.0.3}\n";
    let others = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {ports: 7}\n---\n---\n# nothing\n";
    let mut followed = Followed::new(&[
        (
            "1.yaml",
            &format!("{}---\n{SLICE}---\n{NODE}", web("web", "10.96.0.1")),
        ),
        ("2.json", list),
        ("3.yml", typed),
        ("4.yaml", others),
        (
            "5.yaml",
            "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: shop, uid: u}\nspec: {nodeName: n1}\n---\n\
             apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n",
        ),
        ("5.txt", "not a manifest"),
        (".6.yaml", &web("hidden", "10.96.0.6")),
        ("7.yaml~", &web("backup", "10.96.0.7")),
    ]);
    followed
        .expect_list(&[
            "default/web 10.96.0.1",
            "EndpointSlice default/web-1",
            "Node n1",
            "default/a 10.96.0.2",
            "shop/b 10.96.0.3",
            "Pod shop/p",
            "Namespace shop",
        ])
        .await;
}

#[tokio::test]
async fn only_what_changed_is_told() {
    let both = |ip| format!("{}---\n{}", web("a", "10.96.0.1"), web("b", ip));
    let mut followed = Followed::new(&[("web.yaml", &both("10.96.0.2"))]);
    followed
        .expect_list(&["default/a 10.96.0.1", "default/b 10.96.0.2"])
        .await;
    followed.write("web.yaml", &both("10.96.0.3"));
    followed.expect(&["default/b 10.96.0.3"]).await;
    followed.write("web.yaml", &both("10.96.0.3"));
    followed.write("web.yaml", &web("a", "10.96.0.1"));
    followed.expect(&["delete Service default/b"]).await;
    fs::remove_file(followed.path.join("web.yaml")).expect("file");
    followed.expect(&["delete Service default/a"]).await;
    followed.expect_quiet().await;
}

#[tokio::test]
async fn a_broken_file_keeps_its_last_good_objects() {
    let mut followed = Followed::new(&[("web.yaml", &web("web", "10.96.0.1"))]);
    followed.expect_list(&["default/web 10.96.0.1"]).await;
    followed.write(
        "web.yaml",
        "apiVersion: v1\nkind: Service\nmetadata: {name: we",
    );
    followed
        .expect(&["warning UnreadableManifest web.yaml"])
        .await;
    followed.write("web.yaml", &web("web", "10.96.0.2"));
    followed.expect(&["default/web 10.96.0.2"]).await;
    // A file that is fine but for one object: only that one stays as it was.
    let odd = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {ports: many}\n";
    followed.write(
        "web.yaml",
        &format!("{odd}---\n{}", web("api", "10.96.0.3")),
    );
    followed
        .expect(&[
            "warning UnreadableObject default/web",
            "default/api 10.96.0.3",
        ])
        .await;
    followed.write("web.yaml", &web("web", "10.96.0.2"));
    followed.expect(&["delete Service default/api"]).await;
    followed.expect_quiet().await;
}

#[tokio::test]
async fn of_two_files_the_first_by_name_counts() {
    let mut followed = Followed::new(&[("b.yaml", &web("web", "10.96.0.2"))]);
    followed.expect_list(&["default/web 10.96.0.2"]).await;
    followed.write("c.yaml", &web("web", "10.96.0.3"));
    followed
        .expect(&["warning DuplicateObject default/web"])
        .await;
    followed.write("a.yaml", &web("web", "10.96.0.1"));
    followed
        .expect(&[
            "default/web 10.96.0.1",
            "warning DuplicateObject default/web",
        ])
        .await;
    fs::remove_file(followed.path.join("a.yaml")).expect("file");
    followed.expect(&["default/web 10.96.0.2"]).await;
    fs::remove_file(followed.path.join("b.yaml")).expect("file");
    followed.expect(&["default/web 10.96.0.3"]).await;
    followed.write(
        "c.yaml",
        &format!(
            "{}---\n{}",
            web("web", "10.96.0.3"),
            web("web", "10.96.0.4")
        ),
    );
    followed
        .expect(&["warning DuplicateObject default/web"])
        .await;
    followed.expect_quiet().await;
}

#[tokio::test]
async fn editors_may_write_in_their_ways() {
    let mut followed = Followed::new(&[("web.yaml", &web("web", "10.96.0.1"))]);
    followed.expect_list(&["default/web 10.96.0.1"]).await;
    // A new file is moved over the old one.
    followed.write(".web.yaml.tmp", &web("web", "10.96.0.2"));
    followed.rename(".web.yaml.tmp", "web.yaml");
    followed.expect(&["default/web 10.96.0.2"]).await;
    // The old file becomes the backup, then the new one is written.
    followed.rename("web.yaml", "web.yaml~");
    followed.write("web.yaml", &web("web", "10.96.0.3"));
    followed.expect(&["default/web 10.96.0.3"]).await;
    // The file gets another name.
    followed.rename("web.yaml", "shop.yaml");
    followed.expect_quiet().await;
    followed.rename("shop.yaml", "a.yaml");
    followed.expect_quiet().await;
    // A link to a file elsewhere.
    fs::write(followed.path.join("../real.yaml"), web("api", "10.96.0.4")).expect("file");
    std::os::unix::fs::symlink("../real.yaml", followed.path.join("link.yaml")).expect("link");
    followed.expect(&["default/api 10.96.0.4"]).await;
}

#[tokio::test]
async fn a_file_that_is_away_for_a_moment_is_not_gone() {
    let home = TempDir::new().expect("temporary directory");
    let file = home.path().join("web.yaml");
    fs::write(&file, web("web", "10.96.0.1")).expect("file");
    let directory = Directory::open(home.path()).expect("inotify");
    let (sender, mut events) = mpsc::channel(64);
    let mut manifests = Manifests::new(sender);
    let only = |change| Changes {
        files: [("web.yaml".into(), change)].into(),
        rescan: false,
    };
    manifests.rescan(&directory).await.expect("receiver");
    while events.try_recv().is_ok() {}
    fs::remove_file(&file).expect("file");
    manifests
        .take(&directory, only(Change::Vanished))
        .await
        .expect("receiver");
    assert_eq!(events.try_recv().ok(), None);
    fs::write(&file, web("web", "10.96.0.2")).expect("file");
    manifests
        .take(&directory, only(Change::Written))
        .await
        .expect("receiver");
    assert!(matches!(events.try_recv(), Ok(Event::Apply(_))));
    assert!(manifests.vanishing.is_empty());
    fs::remove_file(&file).expect("file");
    manifests
        .take(&directory, only(Change::Vanished))
        .await
        .expect("receiver");
    manifests.vanish_due().await;
    manifests
        .take(&directory, Changes::default())
        .await
        .expect("receiver");
    assert!(matches!(
        events.try_recv(),
        Ok(Event::Delete(Kind::Service, _))
    ));
}

#[tokio::test]
async fn the_directory_may_appear_later_and_be_replaced() {
    let mut followed = Followed::new(&[]);
    fs::create_dir(&followed.path).expect("directory");
    followed.expect_list(&[]).await;
    followed.write("web.yaml", &web("web", "10.96.0.1"));
    followed.expect(&["default/web 10.96.0.1"]).await;
    // While it is away nothing changes; the new one is compared.
    let beside = |name: &str| followed.path.with_file_name(name);
    fs::create_dir(beside("next")).expect("directory");
    fs::write(beside("next").join("api.yaml"), web("api", "10.96.0.2")).expect("file");
    fs::rename(&followed.path, beside("old")).expect("rename");
    fs::rename(beside("next"), &followed.path).expect("rename");
    followed
        .expect(&["default/api 10.96.0.2", "delete Service default/web"])
        .await;
    followed.expect_quiet().await;
}

/// Swaps the files as the kubelet does with a ConfigMap.
fn swap(path: &Path, generation: &str, text: &str) {
    let data = path.join(generation);
    fs::create_dir_all(&data).expect("directory");
    fs::write(data.join("web.yaml"), text).expect("file");
    std::os::unix::fs::symlink(generation, path.join("..data_tmp")).expect("link");
    fs::rename(path.join("..data_tmp"), path.join("..data")).expect("swap");
}

#[tokio::test]
async fn a_config_map_is_swapped_as_a_whole() {
    let home = TempDir::new().expect("temporary directory");
    let path = home.path().to_path_buf();
    swap(&path, "..2026_1", &web("web", "10.96.0.1"));
    std::os::unix::fs::symlink("..data/web.yaml", path.join("web.yaml")).expect("link");
    let (sender, events) = mpsc::channel(64);
    tokio::spawn(run(path.clone(), sender));
    let mut followed = Followed {
        _home: home,
        path,
        events,
    };
    followed.expect_list(&["default/web 10.96.0.1"]).await;
    swap(&followed.path, "..2026_2", &web("web", "10.96.0.2"));
    followed.expect(&["default/web 10.96.0.2"]).await;
    followed.expect_quiet().await;
}

#[tokio::test]
async fn a_source_without_receiver_ends() {
    let home = TempDir::new().expect("temporary directory");
    let (sender, events) = mpsc::channel(1);
    let source = tokio::spawn(run(home.path().to_path_buf(), sender));
    drop(events);
    let end = tokio::time::timeout(Duration::from_secs(10), source).await;
    end.expect("ends").expect("no panic").expect("no error");
}
