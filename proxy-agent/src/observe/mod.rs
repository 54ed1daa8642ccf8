//! What the agent tells: health, metrics, and the maps as people read them.

mod connections;
mod events;
mod health;
mod metrics;
mod server;
pub mod snapshot;

pub use events::{EventOutcome, EventWriter};
pub use health::Health;
pub use metrics::{Metrics, drops};
pub use server::{serve_health, serve_metrics};
