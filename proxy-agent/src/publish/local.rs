//! Map `local_backends`: for packets that another node hands over, which name an
//! endpoint of this node and cannot name its id.

use super::{Kernel, KernelError, Publisher};
use crate::compile::BackendEntry;
use proxy_common::{LocalBackendKey, ServiceId};

fn key(service: ServiceId, entry: &BackendEntry) -> LocalBackendKey {
    let (address, port) = entry.key;
    LocalBackendKey {
        address,
        port: port.into(),
        service,
    }
}

impl<K: Kernel> Publisher<K> {
    /// Lists a backend if it is on this node.
    pub(super) fn list_local(
        &mut self,
        service: ServiceId,
        entry: &BackendEntry,
    ) -> Result<(), KernelError> {
        let key = key(service, entry);
        if entry.local == 0 || self.local_backends.get(&key) == Some(&entry.id) {
            return Ok(());
        }
        self.kernel.set_local_backend(&key, entry.id)?;
        self.local_backends.insert(key, entry.id);
        Ok(())
    }

    /// Takes a backend off the list if it is not on this node, or `gone`.
    pub(super) fn unlist_local(&mut self, service: ServiceId, entry: &BackendEntry, gone: bool) {
        let key = key(service, entry);
        let listed = self.local_backends.get(&key) == Some(&entry.id);
        if listed && (gone || entry.local == 0) {
            self.remove_local(&key);
        }
    }

    /// Takes off the list what no service port has: an agent died before it did.
    pub(super) fn prune_local(&mut self) {
        let mut wrong = self.local_backends.clone();
        for (service, port) in &self.ports {
            for entry in port.backends.iter().filter(|it| it.local == 1) {
                let key = key(*service, entry);
                if wrong.get(&key) == Some(&entry.id) {
                    wrong.remove(&key);
                }
            }
        }
        for key in wrong.keys() {
            self.remove_local(key);
        }
    }

    /// One that stays is harmless: programs compare it with the backend.
    fn remove_local(&mut self, key: &LocalBackendKey) {
        match self.kernel.remove_local_backend(key) {
            Ok(()) => drop(self.local_backends.remove(key)),
            Err(error) => {
                tracing::error!(service = key.service, %error, "a local backend stays listed");
            }
        }
    }
}
