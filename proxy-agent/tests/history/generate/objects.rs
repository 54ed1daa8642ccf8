//! One random object; hostile fields among sensible ones.

use super::pools::{
    CLUSTER_IPS_V4, CLUSTER_IPS_V6, ENDPOINTS_V4, ENDPOINTS_V6, HOSTILE_IPS, NODE_INTERNAL_IPS,
    NODE_PORTS, OUTSIDE_IPS, SERVICE_PORTS, SOURCE_RANGES, WEIGHTS,
};
use crate::model::{OUR_NODE, OUR_PROXY};
use crate::random::Random;
use crate::steps::{Key, Kind};
use serde_json::{Map, Value, json};

/// An object of this key. Half of those that are known already are changed in
/// one place only.
pub(super) fn object(random: &mut Random, key: &Key, known: Option<&Value>) -> Value {
    let (kind, namespace, name) = key;
    let mut fresh = match kind {
        Kind::Service => service(random),
        Kind::EndpointSlice => slice(random, namespace),
        Kind::Node => node(random),
    };
    fresh["metadata"]["name"] = json!(name);
    if !namespace.is_empty() && (namespace != "default" || random.percent(50)) {
        fresh["metadata"]["namespace"] = json!(namespace);
    }
    match known {
        Some(known) if random.percent(70) => {
            let mut changed = known.clone();
            cross(random, &mut changed, &fresh);
            changed
        }
        _ => fresh,
    }
}

/// Takes one field, or one element of a list, from another object.
fn cross(random: &mut Random, into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            let mut keys: Vec<&String> = from.keys().collect();
            keys.retain(|key| into.get(*key) != from.get(*key));
            if keys.is_empty() {
                return;
            }
            let key = random.pick(&keys);
            match into.get_mut(key) {
                Some(old) if random.percent(80) => cross(random, old, &from[key]),
                _ => {
                    into.insert(key.clone(), from[key].clone());
                }
            }
        }
        (Value::Array(into), Value::Array(from)) => match (into.len(), from.len()) {
            (0, _) | (_, 0) => into.clone_from(from),
            (old, new) => {
                let (at, other) = (random.below(old), &from[random.below(new)]);
                match random.below(4) {
                    0 => into.push(other.clone()),
                    1 => drop(into.remove(at)),
                    _ => cross(random, &mut into[at], other),
                }
            }
        },
        (into, from) => *into = from.clone(),
    }
}

/// Sets a field in most cases, to null in a few.
fn put(random: &mut Random, map: &mut Map<String, Value>, percent: usize, key: &str, value: Value) {
    if random.percent(percent) {
        map.insert(key.to_owned(), value);
    } else if random.percent(10) {
        map.insert(key.to_owned(), Value::Null);
    }
}

fn ip(random: &mut Random, sane: &[&str]) -> Value {
    let pool = if random.percent(4) { HOSTILE_IPS } else { sane };
    json!(random.pick(pool))
}

fn some(random: &mut Random, most: usize, mut one: impl FnMut(&mut Random) -> Value) -> Value {
    let length = random.below(most + 1);
    Value::Array((0..length).map(|_| one(random)).collect())
}

fn service(random: &mut Random) -> Value {
    let mut labels = Map::new();
    let proxy = random.pick(&[OUR_PROXY, "other", ""]);
    put(
        random,
        &mut labels,
        6,
        "service.kubernetes.io/service-proxy-name",
        json!(proxy),
    );
    put(
        random,
        &mut labels,
        4,
        "service.kubernetes.io/headless",
        json!(""),
    );
    labels.retain(|_, value| !value.is_null());
    let mut metadata = Map::new();
    put(random, &mut metadata, 90, "labels", Value::Object(labels));
    let stamp = random.pick(&["1Z", "2Z", "3Z", "x"]);
    let stamp = json!(format!("2026-01-01T00:00:0{stamp}"));
    put(random, &mut metadata, 80, "creationTimestamp", stamp);
    let mut annotations = Map::new();
    let weights = random.pick(WEIGHTS);
    let algorithm = random.pick(&["random", "maglev", "least-connections", "fastest"]);
    put(
        random,
        &mut annotations,
        20,
        "fairlead.io/algorithm",
        json!(algorithm),
    );
    put(
        random,
        &mut annotations,
        15,
        "fairlead.io/weights",
        json!(weights),
    );
    for key in [
        "fairlead.io/forwarding-mode",
        "service.cilium.io/forwarding-mode",
    ] {
        let mode = random.pick(&["dsr", "dsr", "snat", "hybrid", "DSR"]);
        put(random, &mut annotations, 15, key, json!(mode));
    }
    annotations.retain(|_, value| !value.is_null());
    put(
        random,
        &mut metadata,
        95,
        "annotations",
        Value::Object(annotations),
    );
    let mut spec = Map::new();
    let kinds = [
        "ClusterIP",
        "NodePort",
        "NodePort",
        "LoadBalancer",
        "LoadBalancer",
        "ExternalName",
        "",
        "Odd",
    ];
    let kind = random.pick(&kinds);
    put(random, &mut spec, 85, "type", json!(kind));
    cluster_ips(random, &mut spec);
    let families = some(random, 2, |random| {
        json!(random.pick(&["IPv4", "IPv6", "IPv5"]))
    });
    put(random, &mut spec, 40, "ipFamilies", families);
    let external = some(random, 2, |random| ip(random, OUTSIDE_IPS));
    put(random, &mut spec, 40, "externalIPs", external);
    let ranges = some(random, 2, |random| json!(random.pick(SOURCE_RANGES)));
    put(random, &mut spec, 30, "loadBalancerSourceRanges", ranges);
    for policy in ["internalTrafficPolicy", "externalTrafficPolicy"] {
        let value = random.pick(&["Local", "Local", "Cluster", "", "Global"]);
        put(random, &mut spec, 50, policy, json!(value));
    }
    let affinity = random.pick(&["ClientIP", "ClientIP", "None", "", "Cookie"]);
    put(random, &mut spec, 40, "sessionAffinity", json!(affinity));
    let timeout = random.pick(&[0, -5, 1, 10_800, 100_000_000]);
    let config = json!({"clientIP": {"timeoutSeconds": timeout}});
    put(random, &mut spec, 20, "sessionAffinityConfig", config);
    let ports = some(random, 3, service_port);
    put(random, &mut spec, 97, "ports", ports);
    let ingress = some(random, 2, |random| {
        let mut entry = Map::new();
        let address = ip(random, OUTSIDE_IPS);
        put(random, &mut entry, 90, "ip", address);
        put(random, &mut entry, 10, "hostname", json!("lb.example"));
        let mode = random.pick(&["VIP", "VIP", "Proxy", "Odd"]);
        put(random, &mut entry, 40, "ipMode", json!(mode));
        Value::Object(entry)
    });
    let mut whole = Map::new();
    whole.insert("apiVersion".into(), json!("v1"));
    whole.insert("kind".into(), json!("Service"));
    whole.insert("metadata".into(), Value::Object(metadata));
    put(random, &mut whole, 98, "spec", Value::Object(spec));
    put(
        random,
        &mut whole,
        60,
        "status",
        json!({"loadBalancer": {"ingress": ingress}}),
    );
    Value::Object(whole)
}

fn cluster_ips(random: &mut Random, spec: &mut Map<String, Value>) {
    let (v4, v6) = (ip(random, CLUSTER_IPS_V4), ip(random, CLUSTER_IPS_V6));
    let all = match random.below(20) {
        0 => json!(["None"]),
        1 => json!([]),
        2..5 => json!([v6.clone()]),
        5..8 => json!([v6.clone(), v4.clone()]),
        8..11 => json!([v4.clone(), v6]),
        11 => json!([v4.clone(), ip(random, HOSTILE_IPS)]),
        _ => json!([v4.clone()]),
    };
    let first = all.get(0).cloned().unwrap_or(v4);
    put(random, spec, 80, "clusterIPs", all);
    put(random, spec, 70, "clusterIP", first);
}

fn service_port(random: &mut Random) -> Value {
    let mut port = Map::new();
    let strange = random.pick(&["x:y", "x/y", "x\0", "HTTP"]);
    let name = random.pick(&["http", "http", "dns", ""]);
    let name = if random.percent(4) { strange } else { name };
    put(random, &mut port, 85, "name", json!(name));
    let protocol = random.pick(&["TCP", "UDP", "UDP", "SCTP", "", "ICMP"]);
    put(random, &mut port, 70, "protocol", json!(protocol));
    let number = number(random, SERVICE_PORTS);
    put(random, &mut port, 98, "port", number);
    let node_port = self::number(random, NODE_PORTS);
    put(random, &mut port, 80, "nodePort", node_port);
    put(random, &mut port, 50, "targetPort", json!(8080));
    Value::Object(port)
}

fn number(random: &mut Random, sane: &[i64]) -> Value {
    let pool: &[i64] = if random.percent(3) {
        &[0, -1, 65_536, 65_616, i64::MAX, i64::MIN]
    } else {
        sane
    };
    json!(random.pick(pool))
}

fn slice(random: &mut Random, namespace: &str) -> Value {
    let services: &[&str] = if namespace == "shop" {
        &["web", "web", "api", "api", "db", "a:b", "nobody", ""]
    } else {
        &["web", "web", "kubernetes"]
    };
    let mut labels = Map::new();
    let service = random.pick(services);
    if random.percent(95) {
        labels.insert("kubernetes.io/service-name".into(), json!(service));
    }
    if random.percent(3) {
        labels.insert("service.kubernetes.io/headless".into(), json!(""));
    }
    let family = random.pick(&["IPv4", "IPv4", "IPv4", "IPv6", "IPv6"]);
    let strange = random.pick(&["FQDN", "", "ipv4"]);
    let family = if random.percent(4) { strange } else { family };
    let pool = match (family, random.percent(3)) {
        ("IPv6", false) | ("IPv4", true) => ENDPOINTS_V6,
        _ => ENDPOINTS_V4,
    };
    let most = if random.percent(5) { 40 } else { 5 };
    let mut whole = Map::new();
    whole.insert("apiVersion".into(), json!("discovery.k8s.io/v1"));
    whole.insert("kind".into(), json!("EndpointSlice"));
    let mut metadata = json!({"labels": labels});
    if random.percent(10) {
        metadata["annotations"] = json!({"fairlead.io/weights": random.pick(WEIGHTS)});
    }
    whole.insert("metadata".into(), metadata);
    put(random, &mut whole, 98, "addressType", json!(family));
    let ports = some(random, 2, slice_port);
    put(random, &mut whole, 97, "ports", ports);
    // Hints count only if all have some: mostly all or none.
    let hinted = random.pick(&[0, 0, 50, 97]);
    let endpoints = some(random, most, |random| endpoint(random, pool, hinted));
    put(random, &mut whole, 97, "endpoints", endpoints);
    Value::Object(whole)
}

fn slice_port(random: &mut Random) -> Value {
    let mut port = Map::new();
    let strange = random.pick(&["x:y", "x/y", "x\0", "HTTP"]);
    let name = random.pick(&["http", "http", "http", "dns", ""]);
    let name = if random.percent(4) { strange } else { name };
    put(random, &mut port, 90, "name", json!(name));
    let protocol = random.pick(&["TCP", "TCP", "UDP", "UDP", "SCTP", "", "ICMP"]);
    put(random, &mut port, 60, "protocol", json!(protocol));
    let number = number(random, &[8080, 8080, 8080, 9090]);
    put(random, &mut port, 97, "port", number);
    Value::Object(port)
}

fn endpoint(random: &mut Random, pool: &[&str], hinted: usize) -> Value {
    let mut endpoint = Map::new();
    let mut addresses = vec![ip(random, pool)];
    if random.percent(5) {
        addresses.push(ip(random, pool));
    }
    if random.percent(2) {
        addresses.clear();
    }
    put(random, &mut endpoint, 98, "addresses", json!(addresses));
    let mut conditions = Map::new();
    // Ready, draining, and everything else, also what contradicts itself.
    let [ready, serving, terminating] = match random.below(10) {
        0..5 => [true, true, false],
        5..7 => [false, true, true],
        _ => [(); 3].map(|()| random.percent(50)),
    };
    put(random, &mut conditions, 85, "ready", json!(ready));
    put(random, &mut conditions, 80, "serving", json!(serving));
    put(
        random,
        &mut conditions,
        80,
        "terminating",
        json!(terminating),
    );
    put(
        random,
        &mut endpoint,
        92,
        "conditions",
        Value::Object(conditions),
    );
    let node = random.pick(&[OUR_NODE, "n2", "n2", "n3", "n4", ""]);
    put(random, &mut endpoint, 80, "nodeName", json!(node));
    let pod = json!({"kind": "Pod", "name": random.pick(&["web-0", "web-1", "api-0"])});
    put(random, &mut endpoint, 60, "targetRef", pod);
    let mut hints = Map::new();
    let zones = some(random, 2, |random| hint(random, &["za", "za", "zb"]));
    put(random, &mut hints, 80, "forZones", zones);
    let nodes = some(random, 2, |random| hint(random, &[OUR_NODE, "n2"]));
    put(random, &mut hints, 50, "forNodes", nodes);
    put(random, &mut endpoint, hinted, "hints", Value::Object(hints));
    Value::Object(endpoint)
}

fn hint(random: &mut Random, names: &[&str]) -> Value {
    if random.percent(3) {
        return json!({});
    }
    json!({"name": random.pick(names)})
}

fn node(random: &mut Random) -> Value {
    let zone = random.pick(&["za", "za", "zb", ""]);
    let labels = if random.percent(85) {
        json!({"topology.kubernetes.io/zone": zone})
    } else {
        json!({})
    };
    let addresses = some(random, 3, |random| {
        let kind = random.pick(&["InternalIP", "InternalIP", "ExternalIP", "Hostname"]);
        json!({"type": kind, "address": random.pick(NODE_INTERNAL_IPS)})
    });
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"labels": labels},
        "status": {"addresses": addresses},
    })
}
