//! The take-over from a kube-proxy, as the programs are told of it.

use crate::{attach, take_over};
use anyhow::Result;
use std::path::Path;
use tokio::sync::watch;

/// Whether one goes on, once our maps are in force.
#[derive(Default)]
pub(super) struct TakeOver {
    watch: Option<watch::Receiver<Option<bool>>>,
}

impl TakeOver {
    pub(super) fn follow(&mut self, pin_dir: &Path) -> Result<()> {
        self.watch = Some(take_over::follow(pin_dir)?);
        Ok(())
    }

    /// The next change.
    pub(super) async fn told(&mut self) -> bool {
        if let Some(watch) = &mut self.watch {
            while watch.changed().await.is_ok() {
                if let Some(goes_on) = *watch.borrow_and_update() {
                    return goes_on;
                }
            }
        }
        std::future::pending().await
    }
}

/// Tells the programs.
pub(super) fn set(pin_dir: &Path, goes_on: bool) -> Result<()> {
    attach::update_device_settings(pin_dir, |settings| settings.take_over = goes_on.into())?;
    if goes_on {
        tracing::info!("connections of a kube-proxy may be under way: they go on");
    } else {
        tracing::info!("no connection of a kube-proxy is under way");
    }
    Ok(())
}
