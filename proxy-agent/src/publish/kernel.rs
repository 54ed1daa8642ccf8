//! The kernel as the publisher sees it: single writes that can fail.

use proxy_common::{
    Address, Backend, BackendId, DeviceSettings, Frontend, FrontendKey, LocalBackendKey,
    NodeAddresses, NodeId, ServiceId, ServiceRecord, SourceRange, TableRef,
};
use std::io;

/// A write that the kernel refused.
#[derive(Debug, thiserror::Error)]
#[error("{call} on map {map}: {error}{}", advice(error))]
pub struct KernelError {
    /// What was tried.
    pub call: &'static str,
    /// The map's name.
    pub map: &'static str,
    /// The kernel's answer.
    pub error: io::Error,
}

/// E2BIG is how a map says that it is full.
fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::E2BIG) => " (the map is full: raise its size, see `fairlead status`)",
        _ => "",
    }
}

/// Waits until no program can still read what was there before.
pub type Grace = Box<dyn FnOnce() -> Result<(), KernelError> + Send>;

/// Single reads and writes of the maps by which Nodes hand packets to each other.
pub trait NodeMaps {
    /// Number of elements of `nodes`.
    fn nodes_max(&self) -> u32;
    /// The elements of `nodes` that are of a Node.
    fn nodes(&self) -> Result<Vec<(NodeId, NodeAddresses)>, KernelError>;
    /// Writes an element of `nodes`.
    fn set_node(&mut self, id: NodeId, addresses: &NodeAddresses) -> Result<(), KernelError>;
    /// Every element of `node_ids`.
    fn node_ids(&self) -> Result<Vec<(Address, NodeId)>, KernelError>;
    /// Writes an element of `node_ids`.
    fn set_node_id(&mut self, address: &Address, id: NodeId) -> Result<(), KernelError>;
    /// Removes an element of `node_ids`.
    fn remove_node_id(&mut self, address: &Address) -> Result<(), KernelError>;
    /// Every element of `local_backends`.
    fn local_backends(&self) -> Result<Vec<(LocalBackendKey, BackendId)>, KernelError>;
    /// Writes an element of `local_backends`.
    fn set_local_backend(
        &mut self,
        key: &LocalBackendKey,
        id: BackendId,
    ) -> Result<(), KernelError>;
    /// Removes an element of `local_backends`.
    fn remove_local_backend(&mut self, key: &LocalBackendKey) -> Result<(), KernelError>;
}

/// Single reads and writes of the maps. The publisher puts them in order.
pub trait Kernel: NodeMaps {
    /// Number of elements of `backends`.
    fn backends_max(&self) -> u32;
    /// Number of elements of `services`.
    fn services_max(&self) -> u32;
    /// Element of `backends`; it always exists below `backends_max`.
    fn backend(&self, id: BackendId) -> Backend;
    /// Writes an element of `backends`, the address before the state.
    fn set_backend(&mut self, id: BackendId, backend: &Backend);
    /// Zeroes the counters of a backend id, for its next owner.
    fn reset_backend_stats(&mut self, id: BackendId);
    /// Zeroes the counters of a service id, for its next owner.
    fn reset_service_stats(&mut self, id: ServiceId);
    /// Chunks that `tables` has.
    fn chunks(&self) -> u32;
    /// Adds an empty chunk to `tables`.
    fn add_chunk(&mut self) -> Result<(), KernelError>;
    /// The ids in a table's room.
    fn table(&self, table: TableRef) -> Vec<BackendId>;
    /// Whether a table's room holds just these ids.
    fn table_is(&self, table: TableRef, ids: &[BackendId]) -> bool;
    /// Fills a table's room.
    fn write_table(&mut self, table: TableRef, ids: &[BackendId]);
    /// Every element of `frontends`; one that cannot be read is left alone.
    fn frontends(&self) -> Result<Vec<Frontend>, KernelError>;
    /// Writes an element of `frontends` under its own key.
    fn set_frontend(&mut self, frontend: &Frontend) -> Result<(), KernelError>;
    /// Removes an element of `frontends`.
    fn delete_frontend(&mut self, key: &FrontendKey) -> Result<(), KernelError>;
    /// Every element of `services`.
    fn services(&self) -> Result<Vec<(ServiceId, ServiceRecord)>, KernelError>;
    /// Writes an element of `services`.
    fn set_service(&mut self, id: ServiceId, record: &ServiceRecord) -> Result<(), KernelError>;
    /// Removes an element of `services`.
    fn delete_service(&mut self, id: ServiceId) -> Result<(), KernelError>;
    /// Every element of `source_ranges`: prefix length and key.
    fn source_ranges(&self) -> Result<Vec<(u32, SourceRange)>, KernelError>;
    /// Adds to `source_ranges`.
    fn add_source_range(
        &mut self,
        prefix_length: u32,
        range: &SourceRange,
    ) -> Result<(), KernelError>;
    /// Removes from `source_ranges`.
    fn remove_source_range(
        &mut self,
        prefix_length: u32,
        range: &SourceRange,
    ) -> Result<(), KernelError>;
    /// Every element of an address set.
    fn addresses(&self, set: AddressSet) -> Result<Vec<Address>, KernelError>;
    /// Adds to an address set.
    fn add_address(&mut self, set: AddressSet, address: &Address) -> Result<(), KernelError>;
    /// Removes from an address set.
    fn remove_address(&mut self, set: AddressSet, address: &Address) -> Result<(), KernelError>;
    /// The element of `device_settings`.
    fn device_settings(&self) -> Result<DeviceSettings, KernelError>;
    /// Writes the element of `device_settings`.
    fn set_device_settings(&mut self, settings: &DeviceSettings) -> Result<(), KernelError>;
    /// What waits for the readers of this moment.
    fn grace(&self) -> Grace;
}

/// The maps that are sets of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressSet {
    /// Map `vips`.
    Vips,
    /// Map `external_addresses`.
    External,
    /// Map `node_addresses`.
    NodeAddresses,
}

impl AddressSet {
    /// The map's name.
    pub fn map(self) -> &'static str {
        match self {
            Self::Vips => "vips",
            Self::External => "external_addresses",
            Self::NodeAddresses => "node_addresses",
        }
    }
}
