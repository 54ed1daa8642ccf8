//! semantics.md, "Objects we take": which Services, slices and endpoints count.

use anyhow::{Context, Result};
use lab::manifests::{service, slice};
use lab::{Cast, SharedLab, Transport};
use serde_json::json;

static CAST: SharedLab<Cast> = SharedLab::new(Cast::new);

fn gone(cast: &Cast, to: &str) -> Result<()> {
    cast.try_briefly(&cast.client, Transport::Tcp, to)?
        .unanswered()
}

#[test]
fn headless_external_name_and_foreign_services_are_not_ours() {
    CAST.story(|cast| {
        // An LB IP shows whether the Service is taken, whatever its clusterIP.
        let not_ours = [
            (
                "headless-none",
                service("headless-none")
                    .field("clusterIP", json!("None"))
                    .port("http", 80, 8080),
            ),
            (
                "named",
                service("named")
                    .field("externalName", json!("example.test"))
                    .port("http", 80, 8080),
            ),
            (
                "labelled",
                service("labelled")
                    .cluster_ip("10.96.3.1")
                    .port("http", 80, 8080)
                    .label("service.kubernetes.io/headless", ""),
            ),
            (
                "foreign",
                service("foreign")
                    .cluster_ip("10.96.3.2")
                    .port("http", 80, 8080)
                    .label("service.kubernetes.io/service-proxy-name", "another-proxy"),
            ),
        ];
        for (number, (name, object)) in not_ours.iter().enumerate() {
            let object = object
                .clone()
                .external_ips(&[&format!("203.0.113.{}", 60 + number)]);
            let object = if *name == "named" {
                object.of_type("ExternalName")
            } else {
                object
            };
            cast.apply(&object)?;
            cast.apply(
                &slice(name, name)
                    .port("http", 8080)
                    .ready_endpoints([&cast.b1]),
            )?;
        }
        cast.settle()?;
        for number in 0..not_ours.len() {
            gone(cast, &format!("203.0.113.{}:80", 60 + number))?;
        }
        Ok(())
    });
}

#[test]
fn a_service_that_becomes_headless_or_foreign_loses_its_frontends_and_gets_them_back() {
    // K36
    CAST.story(|cast| {
        let ours = service("proxied")
            .cluster_ip("10.96.3.5")
            .external_ips(&["203.0.113.65"])
            .port("http", 80, 8080);
        cast.apply(&ours)?;
        // A label on the slice decides nothing: the Service does.
        cast.apply(
            &slice("proxied", "proxied")
                .label(
                    "service.kubernetes.io/service-proxy-name",
                    json!("another-proxy"),
                )
                .port("http", 8080)
                .ready_endpoints([&cast.b1]),
        )?;
        cast.settle()?;
        let reached = |to: &str| cast.client.tcp(to)?.answered_by("b1");
        reached("203.0.113.65:80")?;
        for (label, value) in [
            ("service.kubernetes.io/service-proxy-name", "another-proxy"),
            ("service.kubernetes.io/headless", ""),
        ] {
            cast.apply(&ours.clone().label(label, value))?;
            cast.soon_gone(&cast.client, "203.0.113.65:80")?;
            gone(cast, "10.96.3.5:80")?;
            cast.apply(&ours)?;
            cast.soon_answered_by(&cast.client, "203.0.113.65:80", "b1")?;
            reached("10.96.3.5:80")?;
        }
        cast.apply(&ours.clone().of_type("ExternalName"))?;
        cast.soon_gone(&cast.client, "203.0.113.65:80")
    });
}

#[test]
fn a_broken_file_harms_no_other_object() {
    CAST.story(|cast| {
        cast.apply(&cast.service("sound", "10.96.3.28"))?;
        cast.apply_yaml("broken-text", "apiVersion: v1\nkind: Service\nmetadata: [")?;
        cast.apply_yaml(
            "broken-kind",
            "apiVersion: example.test/v1\nkind: Unheard\nmetadata: {name: of}\n",
        )?;
        cast.apply_yaml(
            "broken-service",
            "apiVersion: v1\nkind: Service\nmetadata: {name: odd, namespace: default}\n\
             spec: {clusterIP: not-an-address, ports: [{port: 80}]}\n",
        )?;
        cast.apply(&cast.ready("sound", &[&cast.b1]))?;
        cast.settle()?;
        cast.client.tcp("10.96.3.28:80")?.answered_by("b1")
    });
}

#[test]
fn a_yaml_file_with_several_objects_is_read_whole() {
    CAST.story(|cast| {
        let address = cast.b2.v4();
        cast.apply_yaml(
            "several",
            &format!(
                "apiVersion: v1\nkind: Service\nmetadata: {{name: yaml, namespace: default}}\nspec:\n\
                 \x20 clusterIP: 10.96.3.29\n  clusterIPs: [10.96.3.29]\n  ports: [{{name: http, port: 80}}]\n\
                 ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\n\
                 metadata: {{name: yaml-1, namespace: default, labels: {{kubernetes.io/service-name: yaml}}}}\n\
                 ports: [{{name: http, port: 8080}}]\nendpoints: [{{addresses: [{address}]}}]\n"
            ),
        )?;
        cast.settle()?;
        cast.client.tcp("10.96.3.29:80")?.answered_by("b2")?;
        cast.delete_yaml("several")?;
        cast.soon_gone(&cast.client, "10.96.3.29:80")
    });
}

#[test]
fn services_of_one_name_in_two_namespaces_are_two() {
    CAST.story(|cast| {
        cast.apply(&cast.service("same", "10.96.3.41"))?;
        cast.apply(&cast.service("same", "10.96.3.42").in_namespace("other"))?;
        cast.apply(&cast.ready("same", &[&cast.b1]))?;
        cast.apply(
            &cast
                .slice("same", "same")
                .in_namespace("other")
                .ready_endpoints([&cast.b2]),
        )?;
        cast.settle()?;
        cast.client
            .many_tcp("10.96.3.41:80", 20)?
            .only_by(&["b1"])?;
        cast.client.many_tcp("10.96.3.42:80", 20)?.only_by(&["b2"])
    });
}

#[test]
fn the_families_of_a_service_are_independent() {
    // K40; the primary family is IPv6.
    CAST.story(|cast| {
        cast.apply(
            &lab::manifests::service("dual")
                .cluster_ip("fd00:96::3070")
                .cluster_ip("10.96.3.70")
                .udp_port("dns", 53, 8080)
                .port("http", 80, 8080)
                .node_port(30370)
                .lb_ip("198.51.100.70")
                .lb_ip("2001:db8:100::70"),
        )?;
        let v4 = cast.slice("dual-v4", "dual").ready_endpoints([&cast.b1]);
        let v6 = cast
            .slice("dual-v6", "dual")
            .v6()
            .ready_endpoints([&cast.b2]);
        let v4_frontends = ["10.96.3.70:80", "192.0.2.11:30370", "198.51.100.70:80"];
        let v6_frontends = [
            "[fd00:96::3070]:80",
            "[2001:db8:2::11]:30370",
            "[2001:db8:100::70]:80",
        ];
        let expect = |frontends: &[&str], pod: Option<&str>| -> Result<()> {
            for client in cast.insiders() {
                for to in frontends {
                    let outcome = client.tcp(to)?;
                    match pod {
                        Some(pod) => outcome.answered_by(pod)?,
                        None => outcome.refused()?,
                    }
                }
            }
            Ok(())
        };
        cast.apply(&v4)?;
        cast.settle()?;
        expect(&v4_frontends, Some("b1")).context("IPv4 has endpoints")?;
        expect(&v6_frontends, None).context("IPv6 has none")?;
        cast.apply(&v6)?;
        cast.delete(&v4)?;
        cast.settle()?;
        expect(&v4_frontends, None).context("IPv4 has none left")?;
        expect(&v6_frontends, Some("b2")).context("IPv6 has endpoints")?;
        cast.apply(&v4)?;
        cast.settle()?;
        expect(&v4_frontends, Some("b1")).context("both have endpoints")?;
        expect(&v6_frontends, Some("b2")).context("both have endpoints")
    });
}
