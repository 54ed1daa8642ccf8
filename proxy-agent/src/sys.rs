//! The few bpf(2) commands that aya 0.14 does not offer.
//!
//! Links: aya attaches and pins them but neither replaces their program nor shows
//! their descriptor, and a link that cannot be replaced in place leaves a gap at
//! every upgrade; it names devices by name, which may be another one's by then.
//! Maps: aya creates them without type information outside of an object. And one
//! getsockopt(2).

mod hooks;

pub use hooks::{
    LinkInfo, TcxHook, attach_cgroup, attach_tcx, cgroup_programs, has_tcx, is_link, link_info,
    replace_program, tcx_programs,
};

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

// include/uapi/linux/bpf.h, enum bpf_cmd
const BPF_MAP_CREATE: i64 = 0;
const BPF_OBJ_PIN: i64 = 6;
const BPF_OBJ_GET: i64 = 7;
const BPF_OBJ_GET_INFO_BY_FD: i64 = 15;
const BPF_BTF_GET_FD_BY_ID: i64 = 19;
const BPF_MAP_LOOKUP_BATCH: i64 = 24;

#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct ObjGet {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct InfoByFd {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct BtfGetFd {
    btf_id: u32,
    padding: u32,
    open_flags: u32,
}

#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    name: [u8; 16],
    ifindex: u32,
    btf_fd: u32,
    btf_key_type_id: u32,
    btf_value_type_id: u32,
}

/// What the kernel tells of a map (`struct bpf_map_info`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct MapInfo {
    map_type: u32,
    id: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    name: [u8; 16],
    ifindex: u32,
    vmlinux_value_type_id: u32,
    netns_dev: u64,
    netns_inode: u64,
    btf_id: u32,
    btf_key_type_id: u32,
    btf_value_type_id: u32,
    padding: u32,
}

/// What the kernel tells of a program (the start of `struct bpf_prog_info`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct ProgramInfo {
    program_type: u32,
    id: u32,
}

fn bpf<T: IntoBytes + Immutable>(command: i64, attributes: &T) -> io::Result<i64> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of `attributes`; pointers
    // inside are kept alive by the callers.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attributes),
            size_of::<T>(),
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Opens what is pinned at `path`.
pub fn open_pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let pathname = path.as_ptr() as u64;
    bpf(
        BPF_OBJ_GET,
        &ObjGet {
            pathname,
            bpf_fd: 0,
            file_flags: 0,
        },
    )
    .and_then(owned)
}

/// Pins an object at `path`, on a BPF file system.
pub fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    let pathname = path.as_ptr() as u64;
    bpf(
        BPF_OBJ_PIN,
        &ObjGet {
            pathname,
            bpf_fd: raw(object),
            file_flags: 0,
        },
    )
    .map(|_| ())
}

/// Type and sizes of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapShape {
    /// `enum bpf_map_type`.
    pub map_type: u32,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// Elements that fit.
    pub max_entries: u32,
}

/// What the kernel tells of a map.
pub fn map_shape(map: BorrowedFd<'_>) -> io::Result<MapShape> {
    let info: MapInfo = info(map)?;
    Ok(MapShape {
        map_type: info.map_type,
        key_size: info.key_size,
        value_size: info.value_size,
        max_entries: info.max_entries,
    })
}

/// The id of a program.
pub fn program_id(program: BorrowedFd<'_>) -> io::Result<u32> {
    let info: ProgramInfo = info(program)?;
    Ok(info.id)
}

/// Creates an empty map that is like another one, type information included.
///
/// Before Linux 6.2 a map-of-maps takes only inner maps that have type
/// information if its template has (`bpf_map_meta_equal` compares what was
/// searched for in it).
pub fn create_like(template: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let like: MapInfo = info(template)?;
    let btf = match like.btf_id {
        0 => None,
        btf_id => Some(
            bpf(
                BPF_BTF_GET_FD_BY_ID,
                &BtfGetFd {
                    btf_id,
                    padding: 0,
                    open_flags: 0,
                },
            )
            .and_then(owned)?,
        ),
    };
    let map = MapCreate {
        map_type: like.map_type,
        key_size: like.key_size,
        value_size: like.value_size,
        max_entries: like.max_entries,
        map_flags: like.map_flags,
        inner_map_fd: 0,
        numa_node: 0,
        name: like.name,
        ifindex: 0,
        btf_fd: btf.as_ref().map_or(0, |btf| raw(btf.as_fd())),
        btf_key_type_id: like.btf_key_type_id,
        btf_value_type_id: like.btf_value_type_id,
    };
    bpf(BPF_MAP_CREATE, &map).and_then(owned)
}

/// Where a walk through a hash map goes on (a bucket of its table).
#[derive(Clone, Copy, Debug)]
pub struct Batch(u32);

#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable)]
struct LookupBatch {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// The next elements of a hash map, about `count` of them, and where to go on;
/// nowhere at the end of the map (Linux 5.6).
#[expect(clippy::type_complexity, reason = "elements and a position")]
pub fn lookup_batch<const K: usize, const V: usize>(
    map: BorrowedFd<'_>,
    position: Option<Batch>,
    count: usize,
) -> io::Result<(Vec<([u8; K], [u8; V])>, Option<Batch>)> {
    let mut count = count;
    loop {
        let (mut keys, mut values) = (vec![[0; K]; count], vec![[0; V]; count]);
        let mut next = 0_u32;
        let start = position.map_or(0, |it| it.0);
        let mut attributes = LookupBatch {
            in_batch: position.map_or(0, |_| std::ptr::from_ref(&start) as u64),
            out_batch: std::ptr::from_mut(&mut next) as u64,
            keys: keys.as_mut_ptr() as u64,
            values: values.as_mut_ptr() as u64,
            count: u32::try_from(count).map_err(io::Error::other)?,
            map_fd: raw(map),
            elem_flags: 0,
            flags: 0,
        };
        // SAFETY: the kernel writes `count` keys and values at most, the next
        // position, and how many it has written.
        let result = unsafe {
            libc::syscall(
                libc::SYS_bpf,
                BPF_MAP_LOOKUP_BATCH,
                std::ptr::from_mut(&mut attributes),
                size_of::<LookupBatch>(),
            )
        };
        let error = io::Error::last_os_error();
        let is_last = match (result, error.raw_os_error()) {
            (0, _) => false,
            (_, Some(libc::ENOENT)) => true,
            // One bucket has more elements than there is room for.
            (_, Some(libc::ENOSPC)) => {
                count *= 2;
                continue;
            }
            _ => return Err(error),
        };
        let found = keys.into_iter().zip(values);
        let elements = found.take(attributes.count as usize).collect();
        return Ok((elements, (!is_last).then_some(Batch(next))));
    }
}

/// A socket option that is a number of 64 bits (level SOL_SOCKET).
pub fn socket_option(socket: BorrowedFd<'_>, option: libc::c_int) -> io::Result<u64> {
    let mut value = [0; 8];
    read_socket_option(socket, libc::SOL_SOCKET, option, &mut value)?;
    Ok(u64::from_ne_bytes(value))
}

/// A socket option of a level. The kernel may read `value` before it writes there.
pub fn read_socket_option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: &mut [u8],
) -> io::Result<()> {
    let mut length = libc::socklen_t::try_from(value.len()).map_err(io::Error::other)?;
    // SAFETY: the kernel reads and writes at most `length` bytes of `value`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            value.as_mut_ptr().cast(),
            &mut length,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn info<T: Default + FromBytes + IntoBytes + Immutable>(object: BorrowedFd<'_>) -> io::Result<T> {
    let mut info = T::default();
    let attributes = InfoByFd {
        bpf_fd: raw(object),
        info_len: size_of::<T>() as u32,
        info: std::ptr::from_mut(&mut info) as u64,
    };
    bpf(BPF_OBJ_GET_INFO_BY_FD, &attributes)?;
    Ok(info)
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

fn owned(fd: i64) -> io::Result<OwnedFd> {
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn raw(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}
