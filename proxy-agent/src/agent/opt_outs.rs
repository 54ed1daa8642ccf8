//! Pods that opt out of socket translation, handed on to the thread that finds them.

use super::Agent;
use crate::sockets::OptOuts;

impl Agent {
    /// Hands on who opts out, once that is known: until then, and while Pods and
    /// Namespaces cannot be listed, what an earlier agent wrote stays in force.
    pub(super) fn follow_opt_outs(&mut self) {
        let Some(opted_out) = self.store.opted_out() else {
            return;
        };
        match &self.opt_outs {
            Some(opt_outs) => opt_outs.set(opted_out),
            None => {
                let (pin_dir, maps) = self.map_dirs();
                self.opt_outs = Some(OptOuts::start(&pin_dir, &maps, opted_out));
            }
        }
    }
}
