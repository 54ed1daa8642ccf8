//! Ports that a row leaves to the API server. It would draw them from the whole
//! range, and so may take one that another row names.

use super::Stage;
use serde_json::Value;

impl Stage<'_> {
    /// Gives a Service the NodePorts and the healthCheckNodePort that it does not name.
    pub(super) fn number_ports(&self, service: &mut Value) {
        let name = service["metadata"]["name"].as_str().unwrap_or_default();
        let name = name.to_owned();
        let spec = &mut service["spec"];
        let is_balanced = spec["type"] == "LoadBalancer";
        let has_node_ports = spec["type"] == "NodePort"
            || (is_balanced && spec["allocateLoadBalancerNodePorts"] != false);
        if has_node_ports {
            for port in spec["ports"].as_array_mut().into_iter().flatten() {
                let key = format!("{} {}", port["name"], port["protocol"]);
                self.fill(port, "nodePort", &name, &key);
            }
        }
        if is_balanced && spec["externalTrafficPolicy"] == "Local" {
            self.fill(spec, "healthCheckNodePort", &name, "health");
        }
    }

    /// A port that is not named, the same for the row's whole time.
    fn fill(&self, object: &mut Value, field: &str, service: &str, port: &str) {
        if object[field].as_u64().unwrap_or_default() != 0 {
            return;
        }
        let mut drawn = self.drawn.borrow_mut();
        let number = drawn
            .entry((service.to_owned(), port.to_owned()))
            .or_insert_with(|| {
                let numbers = self.world.numbers();
                match field {
                    "nodePort" => numbers.node_port(),
                    _ => numbers.health_port(),
                }
            });
        object[field] = (*number).into();
    }
}
