//! The seed of Maglev tables: as configured, or the cluster's.
//!
//! Nodes must agree on it, and clients should not know it, since they could aim
//! at a backend. Both hold for the UID of a Namespace. Nothing is published
//! before there is a seed, but one that an earlier agent wrote serves. A node that
//! may not read the UID goes on with a seed that everybody knows and says so: that
//! nodes agree is worth more than that nobody can aim, and Services must work.

use crate::compile::maglev;
use crate::config::Config;
use crate::source::kube::{self, KubeOptions, UidError};
use std::time::Duration;
use tokio::sync::watch;

/// Pause before the API server is asked again.
const RETRY: Duration = Duration::from_secs(1);

/// The same where it has refused: somebody may grant the right.
const RETRY_REFUSED: Duration = Duration::from_secs(60);

/// So many answers that are none, and the known seed serves for a while.
const PATIENCE: u32 = 10;

/// The seed as soon as it is known, and whenever it becomes another one.
pub(super) struct Seeds(Option<watch::Receiver<Option<u32>>>);

impl Seeds {
    pub(super) fn start(config: &Config) -> Self {
        let (sender, receiver) = watch::channel(None);
        match (&config.maglev_seed, config.kube_options()) {
            (None, Some(options)) => {
                tokio::spawn(async move { ask(&options, &sender).await });
            }
            (text, _) => {
                let text = text.as_deref().unwrap_or(maglev::DEFAULT_SEED_TEXT);
                sender.send_replace(Some(maglev::seed(text)));
            }
        }
        Self(Some(receiver))
    }

    /// The next one; for ever pending when there will be none.
    pub(super) async fn next(&mut self) -> u32 {
        while let Some(receiver) = &mut self.0 {
            let changed = receiver.changed().await;
            let seed = *receiver.borrow_and_update();
            if changed.is_err() {
                self.0 = None;
            } else if let Some(seed) = seed {
                return seed;
            }
        }
        std::future::pending().await
    }
}

/// Asks until there is an answer.
async fn ask(options: &KubeOptions, seeds: &watch::Sender<Option<u32>>) {
    let mut failures = 0;
    loop {
        let error = match kube::uid(options).await {
            Ok(uid) => {
                seeds.send_replace(Some(maglev::seed(&uid)));
                return;
            }
            Err(error) => error,
        };
        failures += 1;
        let refused = !matches!(error, UidError::Failed(_));
        if !refused && failures < PATIENCE {
            tracing::info!("the cluster's UID is not known yet: {error}");
        } else if seeds.borrow().is_none() {
            tracing::warn!(
                "Maglev tables have a seed that everybody knows, so clients outside can choose their backend: {error}"
            );
            seeds.send_replace(Some(maglev::seed(maglev::DEFAULT_SEED_TEXT)));
        }
        tokio::time::sleep(if refused { RETRY_REFUSED } else { RETRY }).await;
    }
}
