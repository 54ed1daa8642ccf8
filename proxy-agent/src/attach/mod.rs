//! Programs on their hooks, and maps on the BPF file system.
//!
//! Everything is pinned: the data path works without the agent, and a new agent
//! takes the maps over and replaces each program in place (invariant 6).

mod maps;
mod probe;

pub use maps::{MapSizes, MapSpec};

use crate::sys;
use anyhow::{Context, Result, bail};
use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, MapData};
use aya::programs::{CgroupAttachMode, CgroupSockAddr, ProgramType, links::FdLink};
use aya::sys::{BpfHelper, is_helper_supported};
use aya::{Ebpf, EbpfLoader};
use ipnet::IpNet;
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
use nix::sys::statfs::{BPF_FS_MAGIC, CGROUP2_SUPER_MAGIC, FsType, statfs};
use proxy_common::{Address, Settings, mapped_prefix_length};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The socket programs: name in the object, of the pin and of the hook.
pub const PROGRAMS: [&str; 8] = [
    "connect4",
    "connect6",
    "sendmsg4",
    "sendmsg6",
    "recvmsg4",
    "recvmsg6",
    "getpeername4",
    "getpeername6",
];

static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("FAIRLEAD_BPF_OBJECT"));

/// Where things go.
#[derive(Clone, Debug)]
pub struct AttachOptions {
    /// Directory on a BPF file system for maps and links.
    pub pin_dir: PathBuf,
    /// Cgroup v2 directory whose processes are served.
    pub cgroup_root: PathBuf,
    /// Sizes of new maps.
    pub sizes: MapSizes,
    /// Whether only sockets of the host's network namespace are translated.
    pub host_only: bool,
    /// Address ranges set aside for Services.
    pub service_cidrs: Vec<IpNet>,
}

/// Where the link of a program is pinned.
pub fn link_path(pin_dir: &Path, program: &str) -> PathBuf {
    pin_dir.join("links").join(program)
}

/// Loads the programs, takes over or creates the maps, and attaches.
pub fn attach(options: &AttachOptions) -> Result<()> {
    let cgroup = open_cgroup(&options.cgroup_root)?;
    prepare_pin_dir(&options.pin_dir)?;
    // Before Linux 5.11 maps count against this limit; later it does not matter.
    if let Err(error) = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY) {
        tracing::debug!(%error, "RLIMIT_MEMLOCK stays as it is (raising it takes CAP_SYS_RESOURCE)");
    }
    let mut object = load(options)?;
    configure(&options.pin_dir, options)?;
    for name in PROGRAMS {
        let program: &mut CgroupSockAddr = object
            .program_mut(name)
            .with_context(|| format!("the object has no program {name}"))?
            .try_into()?;
        program
            .load()
            .with_context(|| format!("loading program {name}"))?;
        put_in_place(program, &cgroup, &link_path(&options.pin_dir, name))
            .with_context(|| format!("attaching {name} to {}", options.cgroup_root.display()))?;
    }
    let cookie = probe::host_netns_cookie(&options.pin_dir).with_context(|| {
        format!(
            "checking that the programs on {} run",
            options.cgroup_root.display()
        )
    })?;
    tracing::info!(cgroup = %options.cgroup_root.display(), pins = %options.pin_dir.display(), host_netns_cookie = cookie, "socket programs are in place");
    Ok(())
}

fn open_cgroup(path: &Path) -> Result<File> {
    expect_file_system(
        path,
        CGROUP2_SUPER_MAGIC,
        "is no cgroup v2 directory: set --cgroup-root, or mount one with `mount -t cgroup2 none DIR`",
    )?;
    File::open(path).with_context(|| format!("opening {}", path.display()))
}

fn prepare_pin_dir(path: &Path) -> Result<()> {
    let links = path.join("links");
    std::fs::create_dir_all(&links).with_context(|| format!("creating {}", links.display()))?;
    expect_file_system(
        path,
        BPF_FS_MAGIC,
        "is not on a BPF file system: `mount -t bpf bpf /sys/fs/bpf`, or set --pin-dir",
    )
}

fn expect_file_system(path: &Path, wanted: FsType, otherwise: &str) -> Result<()> {
    let found = statfs(path)
        .with_context(|| format!("looking at {}", path.display()))?
        .filesystem_type();
    if found != wanted {
        bail!("{} {otherwise}", path.display());
    }
    Ok(())
}

fn load(options: &AttachOptions) -> Result<Ebpf> {
    let specs = MapSpec::all(&options.sizes);
    let misfits: Vec<String> = specs
        .iter()
        .filter_map(|spec| spec.misfit(&options.pin_dir))
        .collect();
    if !misfits.is_empty() {
        bail!(
            "{}; stop the agent and remove {} to start anew (services are not translated until it is back)",
            misfits.join("; "),
            options.pin_dir.display()
        );
    }
    let has_set_retval = u32::from(
        is_helper_supported(ProgramType::CgroupSockAddr, BpfHelper::BPF_FUNC_set_retval)
            .unwrap_or(false),
    );
    if has_set_retval == 0 {
        tracing::info!(
            "this kernel lacks bpf_set_retval (Linux 6.1): refusals go by a closed loopback port"
        );
    }
    let mut loader = EbpfLoader::new();
    loader.override_global("HAS_SET_RETVAL", &has_set_retval, true);
    for spec in &specs {
        loader.map_pin_path(spec.name, options.pin_dir.join(spec.name));
        if spec.max_entries > 0 {
            loader.map_max_entries(spec.name, spec.max_entries);
        }
    }
    loader.load(OBJECT).context("loading the BPF object")
}

/// Replaces the program of the pinned link, or attaches and pins a new one.
fn put_in_place(program: &mut CgroupSockAddr, cgroup: &File, pin: &Path) -> Result<()> {
    let cgroup_id = cgroup.metadata()?.ino();
    match replace(program, cgroup_id, pin) {
        Ok(true) => return Ok(()),
        Ok(false) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => {
            return Err(error)
                .with_context(|| format!("replacing the program of {}", pin.display()));
        }
    }
    let id = program.attach(cgroup, CgroupAttachMode::Single)?;
    let link: FdLink = program.take_link(id)?.try_into()?;
    // A link to another cgroup, or to one that is gone: the new one is already in force.
    match std::fs::remove_file(pin) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).context("removing the old link");
        }
        _ => {}
    }
    link.pin(pin)
        .with_context(|| format!("pinning {}", pin.display()))?;
    Ok(())
}

/// Whether the pinned link was on our cgroup and has the new program now.
fn replace(program: &CgroupSockAddr, cgroup_id: u64, pin: &Path) -> io::Result<bool> {
    let link = sys::open_pinned(pin)?;
    if sys::link_info(link.as_fd())?.cgroup_id != cgroup_id {
        return Ok(false);
    }
    let program = program.fd().map_err(io::Error::other)?;
    sys::replace_program(link.as_fd(), program.as_fd())?;
    Ok(true)
}

/// Writes what the programs must know before they run.
fn configure(pin_dir: &Path, options: &AttachOptions) -> Result<()> {
    update_settings(pin_dir, |settings| {
        settings.host_only = options.host_only.into()
    })?;
    let map =
        MapData::from_pin(pin_dir.join("service_cidrs")).context("opening map service_cidrs")?;
    let mut map: LpmTrie<_, [u8; size_of::<Address>()], u32> =
        aya::maps::Map::LpmTrie(map).try_into()?;
    let wanted: Vec<(u32, [u8; 16])> = options
        .service_cidrs
        .iter()
        .map(|cidr| {
            (
                mapped_prefix_length(cidr.network(), cidr.prefix_len()),
                Address::from(cidr.network()).bytes,
            )
        })
        .collect();
    let present = map
        .keys()
        .collect::<Result<Vec<_>, _>>()
        .context("reading map service_cidrs")?;
    for (prefix, address) in &wanted {
        map.insert(&Key::new(*prefix, *address), 1, 0)
            .context("writing map service_cidrs")?;
    }
    for key in present {
        if !wanted.contains(&(key.prefix_len(), key.data())) {
            map.remove(&key).context("writing map service_cidrs")?;
        }
    }
    Ok(())
}

/// Changes the one element of map `settings`.
fn update_settings(pin_dir: &Path, change: impl FnOnce(&mut Settings)) -> Result<Settings> {
    let map = MapData::from_pin(pin_dir.join("settings")).context("opening map settings")?;
    let mut map: Array<_, [u8; size_of::<Settings>()]> = aya::maps::Map::Array(map).try_into()?;
    let mut settings: Settings =
        zerocopy::transmute!(map.get(&0, 0).context("reading map settings")?);
    let before = settings;
    change(&mut settings);
    if settings != before {
        let bytes: [u8; size_of::<Settings>()] = zerocopy::transmute!(settings);
        map.set(0, bytes, 0).context("writing map settings")?;
    }
    Ok(settings)
}
