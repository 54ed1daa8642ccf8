//! Slices that nobody's controller made, and what the Node says.

use crate::space::{bare, by_hand};
use crate::world::story;
use anyhow::{Result, ensure};
use control_plane::Kind;
use lab::Transport;
use lab::manifests::slice;
use serde_json::{Value, json};

#[test]
fn a_service_without_selector_has_the_endpoints_that_somebody_writes() {
    story("by-hand", |world, space| {
        let created =
            space.create(&bare("web").field("ipFamilyPolicy", "RequireDualStack".into()))?;
        let (v4, v6) = (created.v4(80)?, created.v6(80)?);
        // K40: the families are independent.
        space.create(&by_hand("web").ready_endpoints([&world.b1]))?;
        world.soon_only("IPv4 slice", &v4, &["b1"])?;
        world.tcp(&v6)?.refused()?;
        let six = slice("web-v6", "web").v6().port("http", lab::BACKEND_PORT);
        space.create(&six.ready_endpoints([&world.b2]))?;
        world.soon_only("IPv6 slice", &v6, &["b2"])?;
        // K30: an endpoint moves to another slice.
        let second = slice("web-second", "web").port("http", lab::BACKEND_PORT);
        space.create(&second.ready_endpoints([&world.b1, &world.b3]))?;
        world.soon_only("second slice", &v4, &["b1", "b3"])?;
        space.replace(&by_hand("web"))?;
        space.delete_slice("web-v6")?;
        world.soon("IPv6 slice was deleted", || world.tcp(&v6)?.refused())?;
        world.client.many_tcp(&v4, 30)?.only_by(&["b1", "b3"])
    });
}

#[test]
fn pods_reach_the_api_server_by_its_cluster_ip() {
    // K70
    story("kubernetes", |world, _space| {
        let object = json!({
            "metadata": { "name": "kubernetes", "labels": { "kubernetes.io/service-name": "kubernetes" } },
            "addressType": "IPv4",
            "ports": [{ "name": "https", "port": 6443, "protocol": "TCP" }],
            "endpoints": [{ "addresses": [world.plane.host().v4()], "conditions": { "ready": true } }],
        });
        world.api.create(Kind::Slice, "default", &object)?;
        for from in [&world.client, world.node("n2").host()] {
            world.soon("10.96.0.1 answers", || {
                // It speaks TLS, and says so.
                let answer = from.http_get("http://10.96.0.1:443/")?;
                ensure!(answer.body.contains("HTTPS server"), "{answer:?}");
                Ok(())
            })?;
        }
        Ok(())
    });
}

#[test]
fn a_node_object_may_come_late_and_get_its_zone_later() {
    story("zones", |world, space| {
        let n3 = world.node("n3");
        let label = |zone: Value| json!({ "metadata": { "labels": { "topology.kubernetes.io/zone": zone } } });
        let only =
            |to: &str, pods: &[&str]| -> Result<()> { n3.host().many_tcp(to, 30)?.only_by(pods) };
        n3.kill_agent()?;
        world.api.delete(Kind::Node, "", "n3", None)?;
        let to = space.create(&bare("web"))?.v4(80)?;
        let hinted = by_hand("web")
            .endpoint(&world.b1)
            .ready()
            .for_zones(&["east"])
            .endpoint(&world.b2)
            .ready()
            .for_zones(&["west"]);
        space.create(&hinted)?;
        n3.start_agent()?;
        let start = std::time::Duration::from_secs(10);
        world.within(start, "an agent without a Node", || {
            only(&to, &["b1", "b2"])
        })?;

        world.create_node("n3")?;
        // Nothing tells when an agent has seen a Node without a zone: its next
        // word on the Node is the label.
        world
            .api
            .patch(Kind::Node, "", "n3", &label("east".into()))?;
        world.soon("zone label added", || only(&to, &["b1"]))?;
        world
            .api
            .patch(Kind::Node, "", "n3", &label("west".into()))?;
        world.soon("zone label changed", || only(&to, &["b2"]))?;
        world.api.patch(Kind::Node, "", "n3", &label(Value::Null))?;
        world.soon("zone label removed", || only(&to, &["b1", "b2"]))?;
        world
            .dial(&world.client, Transport::Tcp, &to)?
            .pod()
            .map(drop)
    });
}
