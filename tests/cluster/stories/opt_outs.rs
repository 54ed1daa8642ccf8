//! Pods and Namespaces that opt out of socket translation (rule 36).

use crate::space::{Space, selecting};
use crate::world::{World, story};
use anyhow::{Context, Result, ensure};
use control_plane::{AGENTS, Kind};
use lab::{Peer, Transport};
use serde_json::{Value, json};
use std::fs;
use std::net::Ipv4Addr;
use std::time::Duration;

/// An agent that was refused tries again within half a minute.
const TRIED_AGAIN: Duration = Duration::from_secs(45);

/// A Service, whose ClusterIP the switch plays for those who are left alone, and
/// a Pod on n1 with the cgroup that a kubelet makes for it.
struct Scene<'w> {
    world: &'w World,
    space: &'w Space<'w>,
    to: String,
    pod: Peer,
}

impl<'w> Scene<'w> {
    fn new(world: &'w World, space: &'w Space<'w>) -> Result<Self> {
        let to = space.create(&selecting("web"))?.v4(80)?;
        space.run("web", "web", &world.b1)?;
        let address: Ipv4Addr = to.trim_end_matches(":80").parse()?;
        let switch = world.switch();
        switch.ip(&format!("addr add {address}/32 dev br0"))?;
        switch.listen(Transport::Tcp, address.into(), 80)?;
        let n1 = world.node("n1");
        let pod = n1.pod(space.name())?;
        space.run("client", "client", &pod)?;
        let uid = uid(world, space)?;
        let cgroup = n1.cgroup().join(format!("pods/pod{uid}"));
        fs::create_dir_all(&cgroup)?;
        fs::write(cgroup.join("cgroup.procs"), pod.pid().to_string())?;
        Ok(Self {
            world,
            space,
            to,
            pod,
        })
    }

    fn soon(&self, what: &str, by: &str) -> Result<()> {
        self.world.soon(what, || self.answered_by(by))
    }

    fn answered_by(&self, by: &str) -> Result<()> {
        let dialed = self.world.dial(&self.pod, Transport::Tcp, &self.to)?;
        dialed.answered_by(by)
    }

    /// Nobody else notices.
    fn others_are_served(&self) -> Result<()> {
        self.world.tcp(&self.to)?.answered_by("b1")
    }

    fn label_pod(&self, value: Value) -> Result<()> {
        let api = &self.world.api;
        api.patch(Kind::Pod, self.space.name(), "client", &label(value))?;
        Ok(())
    }

    fn label_namespace(&self, value: Value) -> Result<()> {
        let api = &self.world.api;
        api.patch(Kind::Namespace, "", self.space.name(), &label(value))?;
        Ok(())
    }

    fn restart_agent(&self) -> Result<()> {
        let n1 = self.world.node("n1");
        n1.kill_agent()?;
        n1.start_agent()?;
        n1.wait_healthy()
    }
}

fn label(value: Value) -> Value {
    json!({ "metadata": { "labels": { "fairlead.io/socket-translation": value } } })
}

fn uid(world: &World, space: &Space<'_>) -> Result<String> {
    let pods = world.api.list(Kind::Pod, space.name())?;
    let pod = pods.iter().find(|it| it["metadata"]["name"] == "client");
    let uid = pod.and_then(|it| it["metadata"]["uid"].as_str());
    Ok(uid.context("the API server gives no UID")?.to_owned())
}

#[test]
fn labels_of_pods_and_namespaces_are_followed() {
    story("opt-out", |world, space| {
        let scene = Scene::new(world, space)?;
        scene.soon("the Service answers", "b1")?;
        scene.label_pod("disabled".into())?;
        scene.soon("the Pod opts out", "switch")?;
        scene.others_are_served()?;
        scene.restart_agent()?;
        scene.answered_by("switch")?;
        scene.label_pod(Value::Null)?;
        scene.soon("the Pod's label is gone", "b1")?;
        scene.label_namespace("disabled".into())?;
        scene.soon("its Namespace opts out", "switch")?;
        scene.others_are_served()?;
        scene.restart_agent()?;
        scene.answered_by("switch")?;
        scene.label_pod("enabled".into())?;
        scene.soon("the Pod's own label wins", "b1")?;
        scene.label_pod(Value::Null)?;
        scene.soon("which is gone again", "switch")?;
        scene.label_namespace(Value::Null)?;
        scene.soon("the Namespace's label is gone", "b1")
    });
}

#[test]
fn an_agent_that_may_not_see_pods_serves_all_the_same_and_follows_once_it_may() {
    story("no-opt-out", |world, space| {
        let scene = Scene::new(world, space)?;
        scene.soon("the Service answers", "b1")?;
        let roles = world.api.list(Kind::ClusterRole, "")?;
        let role = roles.iter().find(|it| it["metadata"]["name"] == AGENTS);
        let rules = role.context("no role for agents")?["rules"].clone();
        let mut fewer = rules.clone();
        let sees_pods = |it: &Value| {
            let watches = it["verbs"].to_string().contains("watch");
            watches && it["resources"].to_string().contains("pods")
        };
        let list = fewer.as_array_mut().context("rules are a list")?;
        list.retain(|it| !sees_pods(it));
        let grant = |rules: &Value| {
            let patch = json!({ "rules": rules });
            world.api.patch(Kind::ClusterRole, "", AGENTS, &patch)
        };
        grant(&fewer)?;
        let log = world.node("n1").log();
        let before = fs::read_to_string(&log)?.len();
        scene.restart_agent()?;
        scene.answered_by("b1")?;
        scene.label_pod("disabled".into())?;
        space.delete_service("web")?;
        world.soon_gone("changes are followed without that right", &scene.to)?;
        let web = selecting("web").cluster_ip(scene.to.trim_end_matches(":80"));
        space.create(&web)?;
        scene.soon("the Service is back, and the Pod not left alone", "b1")?;
        let text = fs::read_to_string(&log)?;
        let told = text[before..].matches("labels fairlead.io").count();
        ensure!(
            told == 2,
            "{told} words of missing rights, not one per kind"
        );
        grant(&rules)?;
        world.within(TRIED_AGAIN, "the right is back", || {
            scene.answered_by("switch")
        })?;
        scene.others_are_served()
    });
}
