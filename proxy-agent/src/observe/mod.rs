//! What the agent tells: health, metrics, and the maps as people read them.

mod connections;
mod events;
mod health;
mod health_checks;
mod metrics;
mod server;
pub mod snapshot;

pub use events::{EventOutcome, EventWriter};
pub use health::Health;
pub use health_checks::{Claim, HealthChecks};
pub use metrics::{Metrics, drops};
pub use server::{serve_health, serve_metrics};
