//! The `bpf` system call as far as aya leaves something open: test runs with a
//! context and with CHECKSUM_COMPLETE, and maps whose types are not aya's `Pod`.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

/// Commands, include/uapi/linux/bpf.h.
const MAP_LOOKUP_ELEM: libc::c_long = 1;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const MAP_DELETE_ELEM: libc::c_long = 3;
const MAP_GET_NEXT_KEY: libc::c_long = 4;
const PROG_TEST_RUN: libc::c_long = 10;

/// BPF_F_TEST_SKB_CHECKSUM_COMPLETE: the packet comes with its sum, as from a
/// network card, and the kernel compares when the program is done.
const CHECKSUM_COMPLETE: u32 = 1 << 2;

/// Room for what a program makes of a packet.
const PACKET_MAX: usize = 4096;

/// `struct __sk_buff` as a test run takes it.
#[repr(C)]
#[derive(Clone, Copy, FromZeros, IntoBytes, Immutable)]
struct SkBuff {
    /// Fields that must be 0.
    before_index: [u32; 9],
    ingress_ifindex: u32,
    ifindex: u32,
    between: [u32; 30],
    gso_segs: u32,
    /// The socket, a pointer.
    sk: [u32; 2],
    gso_size: u32,
    after: [u32; 3],
}

const _: () = assert!(size_of::<SkBuff>() == 192);

/// What comes with a packet besides its bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Context {
    /// Index of the device.
    pub(crate) device: u32,
    /// Index of the device by which it came in, 0 for this node's own.
    pub(crate) came_by: u32,
    /// Bytes of payload in each segment, 0 for a packet that is not to be cut.
    pub(crate) segment: u32,
    /// Whether the kernel is to check its sum over the packet.
    pub(crate) summed: bool,
}

/// Runs a program once on a packet; the verdict and the packet afterwards.
pub(crate) fn test_run(
    program: BorrowedFd<'_>,
    packet: &[u8],
    context: Context,
) -> io::Result<(u32, Vec<u8>)> {
    let mut skb = SkBuff::new_zeroed();
    skb.ifindex = context.device;
    skb.ingress_ifindex = context.came_by;
    skb.gso_size = context.segment;
    if context.segment > 0 {
        skb.gso_segs = u32::try_from(packet.len())
            .unwrap_or(u32::MAX)
            .div_ceil(context.segment);
    }
    let mut out = vec![0_u8; PACKET_MAX];
    let mut attributes = TestRun {
        program: program.as_raw_fd() as u32,
        data_size_in: packet.len() as u32,
        data_size_out: PACKET_MAX as u32,
        data_in: packet.as_ptr() as u64,
        data_out: out.as_mut_ptr() as u64,
        repeat: 1,
        context_size_in: size_of::<SkBuff>() as u32,
        context_in: (&raw const skb) as u64,
        flags: if context.summed { CHECKSUM_COMPLETE } else { 0 },
        ..TestRun::new_zeroed()
    };
    bpf(PROG_TEST_RUN, &mut attributes)?;
    out.truncate(attributes.data_size_out as usize);
    Ok((attributes.verdict, out))
}

/// `union bpf_attr` of a test run.
#[repr(C)]
#[derive(FromZeros, IntoBytes)]
struct TestRun {
    program: u32,
    verdict: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context_size_in: u32,
    context_size_out: u32,
    context_in: u64,
    context_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    _end: u32,
}

/// `union bpf_attr` of the calls on elements.
#[repr(C)]
#[derive(FromZeros, IntoBytes)]
struct Element {
    map: u32,
    _pad: u32,
    key: u64,
    /// For MAP_GET_NEXT_KEY, where the next key goes.
    value: u64,
    flags: u64,
}

/// A map with its types.
pub(crate) struct Map<K, V> {
    fd: OwnedFd,
    types: PhantomData<(K, V)>,
}

impl<K: IntoBytes + Immutable, V: IntoBytes + Immutable> Map<K, V> {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self {
            fd,
            types: PhantomData,
        }
    }

    /// Stores an element.
    pub(crate) fn put(&self, key: &K, value: &V) {
        self.call(MAP_UPDATE_ELEM, key, (&raw const *value) as u64)
            .expect("there is room in the map");
    }

    /// Removes an element, if it is there.
    pub(crate) fn remove(&self, key: &K) {
        match self.call(MAP_DELETE_ELEM, key, 0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => panic!("{error}"),
            _ => {}
        }
    }

    fn call(&self, command: libc::c_long, key: &K, value: u64) -> io::Result<()> {
        self.call_at(command, (&raw const *key) as u64, value)
    }

    fn call_at(&self, command: libc::c_long, key: u64, value: u64) -> io::Result<()> {
        bpf(
            command,
            &mut Element {
                map: self.fd.as_raw_fd() as u32,
                _pad: 0,
                key,
                value,
                flags: 0,
            },
        )
    }
}

impl<K, V> Map<K, V>
where
    K: IntoBytes + Immutable + FromZeros,
    V: IntoBytes + Immutable,
{
    /// Every key.
    pub(crate) fn keys(&self) -> Vec<K> {
        let mut keys: Vec<K> = Vec::new();
        loop {
            let mut next = K::new_zeroed();
            let last = keys.last().map_or(0, |key| (&raw const *key) as u64);
            match self.call_at(MAP_GET_NEXT_KEY, last, (&raw mut next) as u64) {
                Ok(()) => keys.push(next),
                Err(_) => return keys,
            }
        }
    }

    /// Removes every element.
    pub(crate) fn clear(&self) {
        for key in self.keys() {
            self.remove(&key);
        }
    }
}

impl<K, V> Map<K, V>
where
    K: IntoBytes + Immutable + FromZeros,
    V: IntoBytes + Immutable + FromBytes,
{
    /// An element, if it is there.
    pub(crate) fn get(&self, key: &K) -> Option<V> {
        let mut value = V::new_zeroed();
        self.call(MAP_LOOKUP_ELEM, key, (&raw mut value) as u64)
            .is_ok()
            .then_some(value)
    }

    /// Every element.
    pub(crate) fn entries(&self) -> Vec<(K, V)> {
        let keys = self.keys().into_iter();
        keys.filter_map(|key| self.get(&key).map(|value| (key, value)))
            .collect()
    }
}

fn bpf<T>(command: libc::c_long, attributes: &mut T) -> io::Result<()> {
    // SAFETY: `attributes` is the call's part of `union bpf_attr`, and what it
    // points at is as large as it says, and lives until the call returns.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            (&raw mut *attributes).cast::<libc::c_void>(),
            size_of::<T>(),
        )
    };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
