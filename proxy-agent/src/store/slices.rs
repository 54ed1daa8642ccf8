//! EndpointSlices by the Service that their label names.

use super::counts::AddressCounts;
use crate::model::{Endpoint, EndpointSlice, ObjectName};
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

/// The slices that belong to a Service; others are not kept.
#[derive(Debug, Default)]
pub(super) struct Slices {
    /// Of each Service, sorted by name. Never empty.
    by_service: HashMap<ObjectName, Vec<EndpointSlice>>,
    /// The Service of each slice.
    service_of: HashMap<ObjectName, ObjectName>,
    /// Addresses of all endpoints.
    addresses: AddressCounts,
    /// How many slices with zone hints a Service has. Never 0.
    zone_hinted: HashMap<ObjectName, u32>,
}

impl Slices {
    /// The slices of a Service.
    pub(super) fn of(&self, service: &ObjectName) -> &[EndpointSlice] {
        self.by_service.get(service).map_or(&[], Vec::as_slice)
    }

    pub(super) fn get(&self, name: &ObjectName) -> Option<&EndpointSlice> {
        let slices = self.of(self.service_of.get(name)?);
        slices.get(position(slices, name).ok()?)
    }

    /// Adds a slice that is not there.
    pub(super) fn insert(&mut self, slice: EndpointSlice) {
        let Some(service) = slice.service.clone() else {
            return;
        };
        for endpoint in &slice.endpoints {
            self.addresses.add(endpoint.address);
        }
        if has_zone_hints(&slice) {
            *self.zone_hinted.entry(service.clone()).or_default() += 1;
        }
        self.service_of.insert(slice.name.clone(), service.clone());
        let slices = self.by_service.entry(service).or_default();
        if slices.is_empty() {
            // Nearly every Service has one or two; a vector would start with room for four.
            slices.reserve_exact(1);
        }
        let (Ok(at) | Err(at)) = position(slices, &slice.name);
        slices.insert(at, slice);
    }

    pub(super) fn remove(&mut self, name: &ObjectName) -> Option<EndpointSlice> {
        let service = self.service_of.remove(name)?;
        let slices = self.by_service.get_mut(&service)?;
        let slice = slices.remove(position(slices, name).ok()?);
        if slices.is_empty() {
            self.by_service.remove(&service);
        }
        for endpoint in &slice.endpoints {
            self.addresses.remove(endpoint.address);
        }
        if has_zone_hints(&slice)
            && let Some(count) = self.zone_hinted.get_mut(&service)
        {
            *count -= 1;
            if *count == 0 {
                self.zone_hinted.remove(&service);
            }
        }
        Some(slice)
    }

    /// Names of all slices, in no order.
    pub(super) fn names(&self) -> impl Iterator<Item = &ObjectName> {
        self.service_of.keys()
    }

    /// Services of slices with zone hints, in no order.
    pub(super) fn zone_hinted(&self) -> impl Iterator<Item = &ObjectName> {
        self.zone_hinted.keys()
    }

    /// Services that have an endpoint on one of these Nodes, in no order. Looks at all
    /// endpoints.
    pub(super) fn users_of_nodes(
        &self,
        names: &BTreeSet<Arc<str>>,
    ) -> impl Iterator<Item = &ObjectName> {
        let is_there = |endpoint: &Endpoint| {
            let node = endpoint.node.as_ref();
            node.is_some_and(|node| names.contains(node))
        };
        let uses = move |slices: &Vec<EndpointSlice>| {
            let mut endpoints = slices.iter().flat_map(|slice| &slice.endpoints);
            endpoints.any(is_there)
        };
        let services = self.by_service.iter();
        services
            .filter(move |(_, slices)| uses(slices))
            .map(|(service, _)| service)
    }

    /// Services that have an endpoint of this address, in no order. Looks at
    /// all endpoints, but only if there is one.
    pub(super) fn users_of(&self, address: IpAddr) -> impl Iterator<Item = &ObjectName> {
        let some = self.addresses.contains(address);
        let uses = move |slices: &Vec<EndpointSlice>| {
            slices
                .iter()
                .flat_map(|slice| &slice.endpoints)
                .any(|endpoint| endpoint.address == address)
        };
        let services = some.then_some(&self.by_service).into_iter().flatten();
        services
            .filter(move |(_, slices)| uses(slices))
            .map(|(service, _)| service)
    }
}

fn position(slices: &[EndpointSlice], name: &ObjectName) -> Result<usize, usize> {
    slices.binary_search_by(|slice| slice.name.cmp(name))
}

fn has_zone_hints(slice: &EndpointSlice) -> bool {
    let zones = |hints: &crate::model::Hints| !hints.zones.is_empty();
    slice
        .endpoints
        .iter()
        .any(|endpoint| endpoint.hints.as_deref().is_some_and(zones))
}
