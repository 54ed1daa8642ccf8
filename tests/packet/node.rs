//! A node: a network namespace with devices and routes, and the programs loaded
//! with small maps. There is one in the process; each story gets it empty.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result};
use aya::maps::{Map as AyaMap, MapData, PerCpuArray};
use aya::programs::{ProgramFd, SchedClassifier};
use aya::{Ebpf, EbpfLoader};
use nix::sched::{CloneFlags, setns, unshare};
use proxy_common::{
    Address, Affinity, AffinityKey, Backend, BackendId, BackendStats, Device, DeviceSettings,
    DropReason, Flow, FlowKey, FragmentKey, FragmentPorts, Frontend, FrontendKey, FrontendKind,
    LocalBackendKey, NodeAddresses, NodeId, PathMtu, ServiceId, SourceRange, TableLine, TableRef,
    decide::BackendRef,
};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::bpf::{self, Map};
pub(crate) use crate::cast::Listing;
use crate::link::{self, device};
pub(crate) use crate::link::{Link, is_local};
pub(crate) use crate::outcome::{Outcome, REDIRECT, SHOT, UNSPEC, addresses};
use crate::packet::{Frame, Packet, Transport};

/// Elements of `flows`.
pub(crate) const FLOWS_MAX: u32 = 1_024;
/// Elements of `flows_new`; an LRU map may evict long before it is full.
const FLOWS_NEW_MAX: u32 = 8_192;
const BACKENDS_MAX: u32 = 1_024;

/// The port of tunnels.
pub(crate) const DSR_PORT: u16 = 6_089;

/// Source ports for SNAT.
pub(crate) const SNAT_PORTS: (u16, u16) = (61_000, 61_999);

/// Key of map `source_ranges`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
pub(crate) struct RangeKey {
    bits: u32,
    range: SourceRange,
}

pub(crate) struct Node {
    ebpf: Ebpf,
    ingress: OwnedFd,
    egress: OwnedFd,
    frontends: Map<FrontendKey, Frontend>,
    published: Vec<FrontendKey>,
    backends: Map<u32, Backend>,
    next_backend: BackendId,
    lines: Map<u32, TableLine>,
    next_line: u32,
    vips: Map<Address, u32>,
    external_addresses: Map<Address, u32>,
    node_addresses: Map<Address, u32>,
    source_ranges: Map<RangeKey, u32>,
    affinity: Map<AffinityKey, Affinity>,
    pub(crate) flows: Map<FlowKey, Flow>,
    pub(crate) flows_new: Map<FlowKey, Flow>,
    pub(crate) fragments: Map<FragmentKey, FragmentPorts>,
    nodes: Map<u32, NodeAddresses>,
    node_ids: Map<Address, NodeId>,
    path_mtus: Map<Address, PathMtu>,
    local_backends: Map<LocalBackendKey, BackendId>,
    devices: Map<u32, Device>,
    settings: Map<u32, DeviceSettings>,
    answers: PerCpuArray<MapData, u64>,
    drop_stats: PerCpuArray<MapData, u64>,
    backend_stats: Map<u32, BackendStats>,
}

/// Which program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    Ingress,
    Egress,
}

/// The namespace, and what is loaded.
struct World {
    netns: OwnedFd,
    node: Node,
}

static WORLD: Mutex<Option<World>> = Mutex::new(None);

/// The node, for one story.
pub(crate) struct Guard(MutexGuard<'static, Option<World>>);

/// Takes the node and makes it empty; the calling thread enters its namespace.
pub(crate) fn node() -> Guard {
    let mut world = WORLD.lock().unwrap_or_else(PoisonError::into_inner);
    if world.is_none() {
        *world = Some(World::new().expect("the node comes up (as root)"));
    }
    let mut guard = Guard(world);
    setns(&guard.world().netns, CloneFlags::CLONE_NEWNET).expect("entering the namespace");
    guard.reset();
    guard
}

impl Guard {
    fn world(&mut self) -> &mut World {
        self.0.as_mut().expect("there is one")
    }
}

impl std::ops::Deref for Guard {
    type Target = Node;
    fn deref(&self) -> &Node {
        &self.0.as_ref().expect("there is one").node
    }
}

impl std::ops::DerefMut for Guard {
    fn deref_mut(&mut self) -> &mut Node {
        &mut self.world().node
    }
}

impl World {
    fn new() -> Result<Self> {
        unshare(CloneFlags::CLONE_NEWNET).context("a network namespace")?;
        let netns = std::fs::File::open("/proc/thread-self/ns/net")?.into();
        link::set_up()?;
        Ok(Self {
            netns,
            node: Node::load()?,
        })
    }
}

/// A map of the object with its types.
fn typed<K: IntoBytes + Immutable, V: IntoBytes + Immutable>(
    ebpf: &Ebpf,
    name: &str,
) -> Result<Map<K, V>> {
    Ok(Map::new(fd(ebpf, name)?.try_clone_to_owned()?))
}

fn fd<'a>(ebpf: &'a Ebpf, name: &str) -> Result<BorrowedFd<'a>> {
    match ebpf.map(name).with_context(|| format!("no map {name}"))? {
        AyaMap::Array(it)
        | AyaMap::HashMap(it)
        | AyaMap::LruHashMap(it)
        | AyaMap::LpmTrie(it)
        | AyaMap::ArrayOfMaps(it)
        | AyaMap::ProgramArray(it) => Ok(it.fd().as_fd()),
        other => anyhow::bail!("{name} is {other:?}"),
    }
}

fn per_cpu(ebpf: &mut Ebpf, name: &str) -> Result<PerCpuArray<MapData, u64>> {
    let map = ebpf
        .take_map(name)
        .with_context(|| format!("no map {name}"))?;
    Ok(PerCpuArray::try_from(map)?)
}

/// Where `cargo xtask bpf` writes the object, if nothing else is said.
fn object() -> Vec<u8> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/bpf/fairlead.o");
    let path = std::env::var_os("FAIRLEAD_BPF_OBJECT").map_or(built, Into::into);
    std::fs::read(&path)
        .unwrap_or_else(|error| panic!("{}: {error}: run `cargo xtask bpf`", path.display()))
}

impl Node {
    fn load() -> Result<Self> {
        let mut loader = EbpfLoader::new();
        for (map, size) in [
            ("frontends", 1_024),
            ("backends", BACKENDS_MAX),
            ("backend_stats", BACKENDS_MAX),
            ("flows", FLOWS_MAX),
            ("flows_new", FLOWS_NEW_MAX),
            ("affinity", 1_024),
            ("fragments", 1_024),
        ] {
            loader.map_max_entries(map, size);
        }
        let mut ebpf = loader.load(&object()).context("loading the BPF object")?;
        let mut program = |name: &str| -> Result<OwnedFd> {
            let program: &mut SchedClassifier = ebpf
                .program_mut(name)
                .with_context(|| format!("no program {name}"))?
                .try_into()?;
            program.load().with_context(|| format!("loading {name}"))?;
            let fd: &ProgramFd = program.fd()?;
            Ok(fd.as_fd().try_clone_to_owned()?)
        };
        let (ingress, egress) = (program("ingress")?, program("egress")?);
        let again = ingress.as_raw_fd() as u32;
        typed::<u32, u32>(&ebpf, "programs")?.put(&0, &again);
        let chunk = fd(&ebpf, "tables_0")?.as_raw_fd() as u32;
        typed::<u32, u32>(&ebpf, "tables")?.put(&0, &chunk);
        Ok(Self {
            ingress,
            egress,
            frontends: typed(&ebpf, "frontends")?,
            published: Vec::new(),
            backends: typed(&ebpf, "backends")?,
            next_backend: 1,
            lines: typed(&ebpf, "tables_0")?,
            next_line: 0,
            vips: typed(&ebpf, "vips")?,
            external_addresses: typed(&ebpf, "external_addresses")?,
            node_addresses: typed(&ebpf, "node_addresses")?,
            source_ranges: typed(&ebpf, "source_ranges")?,
            affinity: typed(&ebpf, "affinity")?,
            flows: typed(&ebpf, "flows")?,
            flows_new: typed(&ebpf, "flows_new")?,
            fragments: typed(&ebpf, "fragments")?,
            nodes: typed(&ebpf, "nodes")?,
            node_ids: typed(&ebpf, "node_ids")?,
            path_mtus: typed(&ebpf, "path_mtus")?,
            local_backends: typed(&ebpf, "local_backends")?,
            devices: typed(&ebpf, "devices")?,
            settings: typed(&ebpf, "device_settings")?,
            backend_stats: typed(&ebpf, "backend_stats")?,
            answers: per_cpu(&mut ebpf, "answers")?,
            drop_stats: per_cpu(&mut ebpf, "drop_stats")?,
            ebpf,
        })
    }

    /// Empty maps, but for what the agent writes by itself.
    fn reset(&mut self) {
        for key in std::mem::take(&mut self.published) {
            self.frontends.remove(&key);
        }
        self.vips.clear();
        self.external_addresses.clear();
        self.source_ranges.clear();
        self.affinity.clear();
        self.node_ids.clear();
        self.path_mtus.clear();
        self.local_backends.clear();
        self.fragments.clear();
        self.clear_flows();
        self.node_addresses.clear();
        for id in 1..self.next_backend {
            self.remove_backend(id);
        }
        (self.next_backend, self.next_line) = (1, 0);
        self.may_answer();
        self.snat_ports(SNAT_PORTS);
        for link in Link::ALL {
            if link.role() != 0 {
                self.devices.put(&link.index(), &device(link));
            }
        }
        for address in [Link::Up0, Link::Up1, Link::L3]
            .iter()
            .flat_map(|it| it.addresses())
        {
            let ip: IpAddr = address.parse().expect("an address");
            self.node_addresses.put(&ip.into(), &1);
        }
    }

    pub(crate) fn clear_flows(&self) {
        self.flows.clear();
        self.flows_new.clear();
    }

    /// The limit of answers in a second begins anew.
    pub(crate) fn may_answer(&mut self) {
        let cpus = aya::util::nr_cpus().expect("counting CPUs");
        let zero = vec![0; cpus].try_into().expect("one for each CPU");
        self.answers.set(0, zero, 0).expect("writing answers");
    }

    /// Chooses the source ports for SNAT.
    pub(crate) fn snat_ports(&self, (first, last): (u16, u16)) {
        self.settings(first, last, false);
    }

    /// Whether conntrack may own connections that are not ours.
    pub(crate) fn take_over(&self, running: bool) {
        self.settings(SNAT_PORTS.0, SNAT_PORTS.1, running);
    }

    /// There is a device that leads to the stack, for what must be fragmented.
    pub(crate) fn slow_path(&self, link: Link) {
        let settings = DeviceSettings {
            slow_path: link.index(),
            ..self.settings.get(&0).expect("an array has it")
        };
        self.settings.put(&0, &settings);
    }

    /// Nodes hand each other packets for DSR. This one has the addresses of `up0`; the
    /// other ones are given, from number 1 on.
    pub(crate) fn hands_over(&self, others: &[NodeAddresses]) {
        let [v4, v6] = Link::Up0.addresses().map(|it| {
            let ip: IpAddr = it.parse().expect("an address");
            Address::from(ip)
        });
        let settings = DeviceSettings {
            dsr_port: DSR_PORT.into(),
            node: NodeAddresses { v4, v6 },
            ..self.settings.get(&0).expect("an array has it")
        };
        self.settings.put(&0, &settings);
        for (id, node) in (1..).zip(others) {
            self.nodes.put(&id, node);
            self.node_ids.put(&node.v4, &id);
            self.node_ids.put(&node.v6, &id);
        }
    }

    /// The endpoint is on this Node.
    pub(crate) fn is_on(&self, id: BackendId, node: NodeId) {
        let mut record = self.backends.get(&id).expect("an array has it");
        record.node = node;
        self.backends.put(&id, &record);
    }

    fn settings(&self, first: u16, last: u16, take_over: bool) {
        let settings = DeviceSettings {
            seed: 7,
            snat_first_port: first,
            snat_last_port: last,
            take_over: take_over.into(),
            ..DeviceSettings::default()
        };
        self.settings.put(&0, &settings);
    }

    /// The packet path learns something else of a device.
    pub(crate) fn change_device(&self, link: Link, change: impl FnOnce(&mut Device)) {
        let mut device = device(link);
        change(&mut device);
        self.devices.put(&link.index(), &device);
    }

    /// Adds an endpoint; it is local if its address is one of cni0's network.
    pub(crate) fn backend(&mut self, service: ServiceId, address: SocketAddr) -> BackendRef {
        let id = self.next_backend;
        self.next_backend += 1;
        let generation = self.backends.get(&id).map_or(1, |it| it.generation + 1);
        let record = Backend {
            address: address.ip().into(),
            port: address.port(),
            local: is_local(address).into(),
            state: Backend::IN_CLUSTER_SET | Backend::SERVING,
            service,
            generation,
            weight: 1,
            node: 0,
        };
        self.backends.put(&id, &record);
        if record.local != 0 {
            let key = LocalBackendKey {
                address: record.address,
                port: record.port.into(),
                service,
            };
            self.local_backends.put(&key, &id);
        }
        BackendRef { id, generation }
    }

    /// The endpoint serves, or no longer does.
    pub(crate) fn set_serving(&self, id: BackendId, serving: bool) {
        let mut record = self.backends.get(&id).expect("an array has it");
        record.state &= !Backend::SERVING;
        record.state |= if serving { Backend::SERVING } else { 0 };
        self.backends.put(&id, &record);
    }

    /// The endpoint is gone, and its id may be given to another one.
    pub(crate) fn remove_backend(&self, id: BackendId) {
        let mut record = self.backends.get(&id).expect("an array has it");
        record.service = 0;
        record.state = 0;
        record.generation += 1;
        self.backends.put(&id, &record);
    }

    /// Connections and conversations that went to the endpoint.
    pub(crate) fn opened(&self, id: BackendId) -> u64 {
        self.backend_stats.get(&id).map_or(0, |it| it.opened)
    }

    /// So many flows of the endpoint are open.
    pub(crate) fn set_open_flows(&self, id: BackendId, open_flows: i32) {
        let stats = self.backend_stats.get(&id).unwrap_or_default();
        self.backend_stats.put(
            &id,
            &BackendStats {
                open_flows,
                ..stats
            },
        );
    }

    /// Publishes a frontend; a NodePort's address is the node's, whichever is given.
    pub(crate) fn publish(&mut self, listing: &Listing) {
        let mut address: Address = listing.address.ip().into();
        match listing.kind {
            FrontendKind::NodePort => address = address.wildcard(),
            FrontendKind::ClusterIp => self.vips.put(&address, &1),
            FrontendKind::LoadBalancer | FrontendKind::ExternalIp => {
                self.external_addresses.put(&address, &1);
            }
        }
        let key = FrontendKey {
            address,
            port: listing.address.port(),
            protocol: listing.protocol,
            scope: listing.scope,
        };
        let table = TableRef {
            chunk: 0,
            first_line: self.next_line,
            length: listing.backends.len() as u32,
        };
        for ids in listing.backends.chunks(16) {
            let mut backends = [0; 16];
            backends[..ids.len()].copy_from_slice(ids);
            self.lines.put(&self.next_line, &TableLine { backends });
            self.next_line += 1;
        }
        let frontend = Frontend {
            key,
            generation: self.next_line,
            service: listing.service,
            table,
            affinity_timeout_s: listing.affinity_timeout_s,
            kind: listing.kind,
            set: listing.set,
            elsewhere: listing.elsewhere.into(),
            source_filter: listing.source_filter,
            algorithm: listing.algorithm,
            forwarding: listing.forwarding,
            _reserved: [0; 2],
        };
        self.frontends.put(&key, &frontend);
        self.published.push(key);
    }

    /// Lets a range of clients use a Service's filtered frontends.
    pub(crate) fn allow(&self, service: ServiceId, range: IpAddr, prefix: u8) {
        let key = RangeKey {
            bits: SourceRange::SERVICE_BITS + proxy_common::mapped_prefix_length(range, prefix),
            range: SourceRange {
                service,
                address: range.into(),
            },
        };
        self.source_ranges.put(&key, &1);
    }

    /// A packet comes in.
    #[track_caller]
    pub(crate) fn ingress(&self, link: Link, packet: &Packet) -> Outcome {
        self.run(Program::Ingress, link, packet)
    }

    /// A packet leaves.
    #[track_caller]
    pub(crate) fn egress(&self, link: Link, packet: &Packet) -> Outcome {
        self.run(Program::Egress, link, packet)
    }

    #[track_caller]
    pub(crate) fn run(&self, program: Program, link: Link, packet: &Packet) -> Outcome {
        let context = bpf::Context {
            device: link.index(),
            came_by: 0,
            segment: 0,
            // A changed port shows in no checksum then, so the kernel's sum is off;
            // it does not look at it for such datagrams.
            summed: packet.transport != Transport::Udp { summed: false },
        };
        self.run_with(program, context, &packet.frame())
    }

    /// Runs a program on any bytes.
    #[track_caller]
    pub(crate) fn run_bytes(&self, program: Program, link: Link, frame: &Frame) -> Outcome {
        let context = bpf::Context {
            device: link.index(),
            ..bpf::Context::default()
        };
        self.run_with(program, context, frame)
    }

    #[track_caller]
    pub(crate) fn run_with(
        &self,
        program: Program,
        context: bpf::Context,
        frame: &Frame,
    ) -> Outcome {
        let before = self.counters();
        let (verdict, bytes) = self.run_uncounted(program, context, frame);
        let after = self.counters();
        let mut counted = DropReason::ALL
            .into_iter()
            .filter(|&reason| before[reason as usize] != after[reason as usize]);
        let outcome = Outcome {
            verdict,
            frame: bytes,
            counted: counted.next(),
        };
        assert_eq!(counted.next(), None, "a second reason in {outcome:?}");
        outcome
    }

    /// The same without a look at the counters.
    #[track_caller]
    pub(crate) fn run_uncounted(
        &self,
        program: Program,
        context: bpf::Context,
        frame: &Frame,
    ) -> (i32, Frame) {
        let fd = match program {
            Program::Ingress => &self.ingress,
            Program::Egress => &self.egress,
        };
        match bpf::test_run(fd.as_fd(), &frame.0, context) {
            Ok((verdict, bytes)) => (verdict as i32, Frame(bytes)),
            Err(error) if error.raw_os_error() == Some(libc::EBADMSG) => {
                panic!("the sum that came with the packet is no longer its sum: {frame:?}")
            }
            Err(error) => panic!("test run: {error}: {frame:?}"),
        }
    }

    fn counters(&self) -> Vec<u64> {
        (0..DropReason::COUNT)
            .map(|reason| {
                let values = self.drop_stats.get(&reason, 0).expect("reading counters");
                values.iter().sum()
            })
            .collect()
    }

    /// The loaded programs, for their sizes.
    pub(crate) fn program(&self, name: &str) -> &SchedClassifier {
        let program = self.ebpf.program(name).expect("it is loaded");
        program.try_into().expect("a program of TC")
    }
}
