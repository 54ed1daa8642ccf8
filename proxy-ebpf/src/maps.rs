//! The maps, and the look-ups in them that a decision needs.
//!
//! Names are what `bpftool map` shows and what the agent pins (15 characters at
//! most). Sizes here are defaults: the agent sets its own when it loads.

mod counters;

pub use counters::{add, count_failed, count_flow, count_open_socket, count_opened, count_refused};

use crate::packet::{Packet, icmp::QUOTE_WORDS};
use aya_ebpf::{
    EbpfContext, Global,
    bindings::bpf_sock,
    btf_maps::{
        Array, ArrayOfMaps, HashMap, LpmTrie, LruHashMap, PerCpuArray, ProgramArray, SkStorage,
    },
    helpers::generated::{
        bpf_get_netns_cookie, bpf_get_prandom_u32, bpf_ktime_get_coarse_ns, bpf_ktime_get_ns,
        bpf_sk_storage_get,
    },
    macros::btf_map,
    maps::lpm_trie::Key,
    programs::SockAddrContext,
};
use proxy_common::{
    Address, Affinity, AffinityKey, Backend, BackendId, BackendStats, Device, DeviceSettings,
    DropReason, Flow, FlowKey, FragmentKey, FragmentPorts, Frontend, FrontendKey, IDS_PER_LINE,
    Layout, LocalBackendKey, NetnsAddresses, NodeAddresses, NodeId, PathMtu, ServiceId,
    ServiceRecord, ServiceStats, Settings, SocketFlow, SourceRange, TableLine, TableRef, UdpFlows,
    UdpSocket,
    decide::{BackendRef, FrontendLookup, Maps},
    limits,
};

const MMAPABLE: usize = 1 << 10; // BPF_F_MMAPABLE, include/uapi/linux/bpf.h

const NO_PREALLOC: usize = 1; // BPF_F_NO_PREALLOC, include/uapi/linux/bpf.h

type Chunk = Array<TableLine, { limits::LINES_PER_CHUNK as usize }, MMAPABLE>;

#[btf_map(name = "frontends")]
static FRONTENDS: HashMap<FrontendKey, Frontend, { limits::FRONTENDS_MAX as usize }> =
    HashMap::new();

#[btf_map(name = "backends")]
pub static BACKENDS: Array<Backend, { limits::BACKENDS_MAX as usize }, MMAPABLE> = Array::new();

#[btf_map(name = "tables")]
static TABLES: ArrayOfMaps<Chunk, { limits::CHUNKS_MAX as usize }> = ArrayOfMaps::new();

/// The first chunk, which the agent puts into `tables`; further ones are made
/// like it, so that each prints its fields.
#[btf_map(name = "tables_0")]
static TABLES_0: Chunk = Chunk::new();

#[btf_map(name = "vips")]
static VIPS: HashMap<Address, u32, { limits::ADDRESSES_MAX as usize }> = HashMap::new();

#[btf_map(name = "external_addresses")]
static EXTERNAL_ADDRESSES: HashMap<Address, u32, { limits::ADDRESSES_MAX as usize }, NO_PREALLOC> =
    HashMap::new();

#[btf_map(name = "node_addresses")]
static NODE_ADDRESSES: HashMap<Address, u32, { limits::NODE_ADDRESSES_MAX as usize }> =
    HashMap::new();

#[btf_map(name = "service_cidrs")]
static SERVICE_CIDRS: LpmTrie<Address, u32, { limits::SERVICE_CIDRS_MAX as usize }> =
    LpmTrie::new();

#[btf_map(name = "source_ranges")]
static SOURCE_RANGES: LpmTrie<SourceRange, u32, { limits::SOURCE_RANGES_MAX as usize }> =
    LpmTrie::new();

#[btf_map(name = "netns_addresses")]
static NETNS_ADDRESSES: HashMap<u64, NetnsAddresses, { limits::NETNS_MAX as usize }> =
    HashMap::new();

/// Network namespaces whose sockets are left alone, by cookie.
#[btf_map(name = "opt_outs")]
static OPT_OUTS: HashMap<u64, u32, { limits::OPT_OUTS_MAX as usize }> = HashMap::new();

#[btf_map(name = "affinity")]
static AFFINITY: LruHashMap<AffinityKey, Affinity, { limits::AFFINITY_MAX as usize }> =
    LruHashMap::new();

/// Only people and tools read it.
#[btf_map(name = "services")]
static SERVICES: HashMap<ServiceId, ServiceRecord, { limits::SERVICES_MAX as usize }> =
    HashMap::new();

/// What a connected socket was translated from and to.
#[btf_map(name = "socket_flows")]
pub static SOCKET_FLOWS: SkStorage<SocketFlow> = SkStorage::new();

/// The last few translations of an unconnected UDP socket.
#[btf_map(name = "udp_flows")]
pub static UDP_FLOWS: SkStorage<UdpFlows> = SkStorage::new();

/// Connected UDP sockets by cookie.
#[btf_map(name = "udp_sockets")]
pub static UDP_SOCKETS: HashMap<u64, UdpSocket, { limits::UDP_SOCKETS_MAX as usize }> =
    HashMap::new();

#[btf_map(name = "settings")]
static SETTINGS: Array<Settings, 1> = Array::new();

/// Flows that have been answered.
#[btf_map(name = "flows")]
pub static FLOWS: HashMap<FlowKey, Flow, { limits::FLOWS_MAX as usize }, NO_PREALLOC> =
    HashMap::new();

/// Flows that have not, half-open ones included: a flood of them evicts nothing else.
#[btf_map(name = "flows_new")]
pub static FLOWS_NEW: LruHashMap<FlowKey, Flow, { limits::FLOWS_NEW_MAX as usize }> =
    LruHashMap::new();

#[btf_map(name = "scratch")]
static SCRATCH: PerCpuArray<Scratch, 1> = PerCpuArray::new();

#[btf_map(name = "answers")]
static ANSWERS: PerCpuArray<Answers, 1> = PerCpuArray::new();

#[btf_map(name = "fragments")]
pub static FRAGMENTS: LruHashMap<FragmentKey, FragmentPorts, { limits::FRAGMENTS_MAX as usize }> =
    LruHashMap::new();

/// Programs that others go on with: `ingress` itself, with what was in a tunnel.
#[btf_map(name = "programs")]
pub static PROGRAMS: ProgramArray<1> = ProgramArray::new();

/// Nodes of the cluster; element 0 is none.
#[btf_map(name = "nodes")]
pub static NODES: Array<NodeAddresses, { limits::NODES_MAX as usize }> = Array::new();

/// Their indices by address.
#[btf_map(name = "node_ids")]
pub static NODE_IDS: HashMap<Address, NodeId, { 2 * limits::NODES_MAX as usize }> = HashMap::new();

/// Ways to them that take less than their first device.
#[btf_map(name = "path_mtus")]
pub static PATH_MTUS: LruHashMap<Address, PathMtu, { limits::PATH_MTUS_MAX as usize }> =
    LruHashMap::new();

/// Backends on this node.
#[btf_map(name = "local_backends")]
pub static LOCAL_BACKENDS: HashMap<
    LocalBackendKey,
    BackendId,
    { limits::LOCAL_BACKENDS_MAX as usize },
> = HashMap::new();

#[btf_map(name = "devices")]
static DEVICES: HashMap<u32, Device, { limits::DEVICES_MAX as usize }> = HashMap::new();

#[btf_map(name = "device_settings")]
static DEVICE_SETTINGS: Array<DeviceSettings, 1> = Array::new();

/// Only the agent reads it.
#[btf_map(name = "layout")]
static LAYOUT: Array<Layout, 1> = Array::new();

#[btf_map(name = "drop_stats")]
static DROP_STATS: PerCpuArray<u64, { DropReason::COUNT as usize }> = PerCpuArray::new();

/// Counters by backend id.
#[btf_map(name = "backend_stats")]
static BACKEND_STATS: Array<BackendStats, { limits::BACKENDS_MAX as usize }, MMAPABLE> =
    Array::new();

/// Counters by service id.
#[btf_map(name = "service_stats")]
static SERVICE_STATS: Array<ServiceStats, { limits::SERVICES_MAX as usize }, MMAPABLE> =
    Array::new();

/// 1 where `bpf_set_retval` exists for these programs (Linux 6.1). Frozen at
/// load, so the verifier drops the branch that a kernel lacks.
#[unsafe(export_name = "HAS_SET_RETVAL")]
pub static HAS_SET_RETVAL: Global<u32> = Global::new(0);

/// 1 where `bpf_ktime_get_coarse_ns` exists (Linux 5.11), which is read faster.
#[unsafe(export_name = "HAS_COARSE_CLOCK")]
static HAS_COARSE_CLOCK: Global<u32> = Global::new(0);

/// Which load of the programs this is.
#[unsafe(export_name = "INSTANCE")]
pub static INSTANCE: Global<u32> = Global::new(0);

/// What a socket was translated from and to, if it was; for contexts other than
/// sock_addr's.
#[inline(always)]
pub fn socket_flow<'a>(sk: *mut bpf_sock) -> Option<&'a mut SocketFlow> {
    let map = core::ptr::from_ref(&SOCKET_FLOWS).cast_mut().cast();
    // SAFETY: the map is a socket storage, and the kernel checks `sk`.
    let record = unsafe { bpf_sk_storage_get(map, sk.cast(), core::ptr::null_mut(), 0) };
    // SAFETY: null, or a record that lives as long as the socket, which the
    // program has to itself.
    let flow = unsafe { record.cast::<SocketFlow>().as_mut() }?;
    (flow.used != 0).then_some(flow)
}

/// What is known of a connected UDP socket.
#[inline(always)]
pub fn udp_socket(cookie: u64) -> Option<UdpSocket> {
    let element = UDP_SOCKETS.get_ptr(cookie)?;
    // SAFETY: the element is valid while the program runs. One that is recycled
    // meanwhile is of a socket that no longer sends.
    Some(unsafe { *element })
}

/// Whether the backend that a socket is connected to serves no more.
#[inline(always)]
pub fn is_gone(socket: &UdpSocket) -> bool {
    let backend = BACKENDS.get(socket.backend);
    backend.is_none_or(|it| it.generation != socket.generation || !it.is_serving())
}

/// The settings; the element of an array always exists.
#[inline(always)]
pub fn settings() -> Option<*mut Settings> {
    SETTINGS.get_ptr_mut(0)
}

/// Where a program on a device has the flow that it is about: two halves are
/// more than its stack holds beside the rest.
#[repr(C)]
pub struct Scratch {
    /// What the headers of the packet say. Here and not on the stack, so that the
    /// verifier knows nothing of its values and need not try the program once for
    /// each kind of packet.
    pub packet: Packet,
    pub work: Work,
}

/// See [`Scratch`].
#[repr(C)]
pub struct Work {
    /// The packet's tuple.
    pub key: FlowKey,
    /// The tuple of the other direction.
    pub other_key: FlowKey,
    /// What the packet becomes.
    pub flow: Flow,
    /// What packets of the other direction become.
    pub other: Flow,
    /// The frontend that a packet of no flow asks for.
    pub frontend: Frontend,
    /// What an ICMP error quotes.
    pub bytes: [u32; QUOTE_WORDS],
    /// Bytes that the way takes, if the packet is too big for it.
    pub mtu: u32,
    /// When the oldest half-open connection began, in seconds since boot, of those
    /// whose ports were tried; and its port.
    pub oldest_s: u32,
    pub oldest_port: u32,
    /// The request's tuple of a connection that loses its port.
    pub displaced: FlowKey,
    /// The backend that the packet's tunnel named.
    pub tunnel_to: Address,
    /// Its port in host byte order; 0 if the packet came in no tunnel.
    pub tunnel_port: u32,
}

/// Answers that programs on devices give by themselves, per CPU.
#[repr(C)]
struct Answers {
    /// When the count began, in seconds since boot.
    since_s: u32,
    /// How many since then.
    count: u32,
}

/// Answers per second and CPU: enough for people and load balancers' probes,
/// too few to serve as anybody's amplifier.
const ANSWERS_PER_S: u32 = 1_000;

/// Whether one more answer may be given (RFC 4443, 2.4 f asks for a limit).
#[inline(always)]
pub fn may_answer() -> bool {
    let Some(answers) = ANSWERS.get_ptr_mut(0) else {
        return false;
    };
    let now_s = now_s();
    // SAFETY: the element is this CPU's own and outlives the program.
    unsafe {
        if (*answers).since_s != now_s {
            (*answers).since_s = now_s;
            (*answers).count = 0;
        }
        (*answers).count += 1;
        (*answers).count <= ANSWERS_PER_S
    }
}

/// This CPU's scratch space; the element of an array always exists. Programs on
/// devices do not interrupt each other.
#[inline(always)]
pub fn scratch() -> Option<&'static mut Scratch> {
    let element = SCRATCH.get_ptr_mut(0)?;
    // SAFETY: the element is this CPU's own and outlives the program.
    unsafe { element.as_mut() }
}

/// Who asks.
pub trait Client {
    /// See [`Maps::client_address`].
    fn address(&self, v4: bool) -> Option<Address>;
    /// See [`Maps::client`].
    fn identity(&self) -> u64;
    /// See [`Maps::client_is_host`].
    fn is_host(&self) -> bool;
    /// See [`Maps::number`].
    fn number(&self, of_client: bool) -> u32;
    /// Whether another node has taken the packet for a frontend already: a NodePort
    /// is asked for by that node's address then.
    fn is_handed_over(&self) -> bool;
}

/// The look-ups of one program's run for a client.
pub struct KernelMaps<C>(pub C);

/// Words of a `Frontend`, in memory order.
type FrontendWords = [u32; size_of::<Frontend>() / 4];

/// Copies a frontend out of its element, `false` if the element was recycled meanwhile.
///
/// The kernel writes an element's value from its start to its end, so a key and
/// a generation that are unchanged after the copy prove that the copy is whole.
#[inline(always)]
fn copy_frontend(element: *const Frontend, key: &FrontendKey, to: &mut Frontend) -> bool {
    let words = element.cast::<FrontendWords>();
    // SAFETY: the element is valid and aligned while the program runs.
    let copy = unsafe { words.read_volatile() };
    // SAFETY: the same; the compiler may not merge volatile reads.
    let again = unsafe { element.cast::<[u32; 6]>().read_volatile() };
    if again[0] != copy[0]
        || again[1] != copy[1]
        || again[2] != copy[2]
        || again[3] != copy[3]
        || again[4] != copy[4]
        || again[5] != copy[5]
    {
        return false;
    }
    // SAFETY: same size, and only the agent writes this map, whole `Frontend`s.
    *to = unsafe { core::mem::transmute::<FrontendWords, Frontend>(copy) };
    to.key.same(key)
}

impl<C: Client> Maps for KernelMaps<C> {
    #[inline(always)]
    fn frontend(&self, key: &FrontendKey, copy: &mut Frontend) -> FrontendLookup {
        let Some(element) = FRONTENDS.get_ptr(key) else {
            return FrontendLookup::Missing;
        };
        if copy_frontend(element, key, copy) {
            return FrontendLookup::Found;
        }
        let Some(element) = FRONTENDS.get_ptr(key) else {
            return FrontendLookup::Missing;
        };
        if copy_frontend(element, key, copy) {
            FrontendLookup::Found
        } else {
            FrontendLookup::Unstable
        }
    }

    #[inline(always)]
    fn is_node_address(&self, address: &Address) -> bool {
        self.0.is_handed_over() || NODE_ADDRESSES.get_ptr(address).is_some()
    }

    #[inline(always)]
    fn is_cluster_ip(&self, address: &Address) -> bool {
        VIPS.get_ptr(address).is_some()
    }

    #[inline(always)]
    fn in_service_cidr(&self, address: &Address) -> bool {
        SERVICE_CIDRS
            .get(&Key::new(128, *address))
            .is_some_and(|refuse| *refuse != 0)
    }

    #[inline(always)]
    fn table_entry(&self, table: TableRef, index: u32) -> Option<BackendId> {
        let line = TABLES.get_value(table.chunk, &(table.first_line + index / IDS_PER_LINE))?;
        line.backends.get((index % IDS_PER_LINE) as usize).copied()
    }

    #[inline(always)]
    fn backend(&self, id: BackendId) -> Option<Backend> {
        BACKENDS.get(id).copied()
    }

    #[inline(always)]
    fn affinity(&self, key: &AffinityKey) -> Option<Affinity> {
        let element = AFFINITY.get_ptr(key)?;
        // SAFETY: the element is valid while the program runs. A torn copy is
        // harmless: the backend's generation and set are checked afterwards.
        Some(unsafe { *element })
    }

    #[inline(always)]
    fn remember_affinity(&self, key: &AffinityKey, value: &Affinity) {
        // An LRU map makes room by itself; if it cannot, the next connection picks anew.
        let _ = AFFINITY.insert(key, value, 0);
    }

    #[inline(always)]
    fn source_allowed(&self, service: ServiceId, address: &Address) -> bool {
        let client = SourceRange {
            service,
            address: *address,
        };
        SOURCE_RANGES
            .get(&Key::new(SourceRange::BITS, client))
            .is_some()
    }

    #[inline(always)]
    fn client_address(&self, v4: bool) -> Option<Address> {
        self.0.address(v4)
    }

    #[inline(always)]
    fn client(&self) -> u64 {
        self.0.identity()
    }

    #[inline(always)]
    fn client_is_host(&self) -> bool {
        self.0.is_host()
    }

    #[inline(always)]
    fn number(&self, of_client: bool) -> u32 {
        self.0.number(of_client)
    }

    #[inline(always)]
    fn random(&self) -> u32 {
        random()
    }

    #[inline(always)]
    fn open_connections(&self, id: BackendId) -> u32 {
        BACKEND_STATS.get(id).map_or(0, BackendStats::open)
    }

    #[inline(always)]
    fn now_s(&self) -> u32 {
        now_s()
    }
}

/// A random number.
#[inline(always)]
pub fn random() -> u32 {
    // SAFETY: takes nothing, returns a number.
    unsafe { bpf_get_prandom_u32() }
}

/// Seconds since boot.
#[inline(always)]
pub fn now_s() -> u32 {
    let now_ns = if HAS_COARSE_CLOCK.load() != 0 {
        // SAFETY: takes nothing, returns a number.
        unsafe { bpf_ktime_get_coarse_ns() }
    } else {
        // SAFETY: the same.
        unsafe { bpf_ktime_get_ns() }
    };
    (now_ns / 1_000_000_000) as u32
}

/// The address of a network namespace in a family, if it is known.
#[inline(always)]
pub fn netns_address(cookie: u64, v4: bool) -> Option<Address> {
    let element = NETNS_ADDRESSES.get_ptr(cookie)?;
    // SAFETY: the element is valid while the program runs.
    let address = unsafe { if v4 { (*element).v4 } else { (*element).v6 } };
    (!address.same(address.wildcard())).then_some(address)
}

/// Whether a packet to this address, which is none of this node, is for a frontend or
/// for nobody, whatever its port.
#[inline(always)]
pub fn belongs_to_service(address: &Address) -> bool {
    VIPS.get_ptr(address).is_some()
        || EXTERNAL_ADDRESSES.get_ptr(address).is_some()
            && NODE_ADDRESSES.get_ptr(address).is_none()
}

/// A device of the packet path.
#[inline(always)]
pub fn device(index: u32) -> Option<&'static Device> {
    let element = DEVICES.get_ptr(index)?;
    // SAFETY: the element is valid while the program runs, and only the agent
    // writes it.
    unsafe { element.as_ref() }
}

/// The settings of the packet path; the element of an array always exists.
#[inline(always)]
pub fn device_settings() -> Option<&'static DeviceSettings> {
    DEVICE_SETTINGS.get(0)
}

/// A backend, if its element still belongs to the same endpoint.
#[inline(always)]
pub fn current_backend(backend: BackendRef) -> Option<&'static Backend> {
    let current = BACKENDS.get(backend.id)?;
    (current.generation == backend.generation).then_some(current)
}

/// Cookie of the socket's network namespace.
#[inline(always)]
pub fn netns_cookie(ctx: &SockAddrContext) -> u64 {
    // SAFETY: `ctx` is this program's context.
    unsafe { bpf_get_netns_cookie(ctx.as_ptr()) }
}

/// Whether the socket's network namespace opts out of translation (rule 36).
#[inline(always)]
pub fn opts_out(ctx: &SockAddrContext) -> bool {
    OPT_OUTS.get_ptr(netns_cookie(ctx)).is_some()
}

/// Whether the socket is in the host's network namespace.
#[inline(always)]
pub fn is_host(ctx: &SockAddrContext) -> bool {
    let Some(settings) = settings() else {
        return false;
    };
    // SAFETY: the element of an array map is always valid.
    let host = unsafe { (*settings).host_netns_cookie };
    host != 0 && host == netns_cookie(ctx)
}
