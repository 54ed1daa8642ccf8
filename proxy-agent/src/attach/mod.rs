//! Programs on their hooks, and maps on the BPF file system.
//!
//! Everything is pinned: the data path works without the agent, and a new agent
//! takes the maps over and replaces each program in place (invariant 6).

mod links;
mod maps;
mod probe;
mod settings;

pub use maps::{MapSizes, MapSpec};
pub use probe::observed_netns_cookie;

use anyhow::{Context, Result, anyhow, bail};
use aya::programs::ProgramType;
use aya::sys::{BpfHelper, is_helper_supported};
use aya::{Ebpf, EbpfLoader};
use ipnet::IpNet;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use nix::sys::statfs::{BPF_FS_MAGIC, CGROUP2_SUPER_MAGIC, FsType, statfs};
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// The socket programs: name in the object, of the pin and of the hook.
pub const PROGRAMS: [&str; 10] = [
    "connect4",
    "connect6",
    "sendmsg4",
    "sendmsg6",
    "recvmsg4",
    "recvmsg6",
    "getpeername4",
    "getpeername6",
    "sock_release",
    "sock_ops",
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
    /// Addresses in those ranges that somebody else serves.
    pub left_alone: Vec<IpAddr>,
}

/// Where the link of a program is pinned.
pub fn link_path(pin_dir: &Path, program: &str) -> PathBuf {
    pin_dir.join("links").join(program)
}

/// The pin directory is ours while this lives.
#[derive(Debug)]
pub struct Attached {
    _lock: Flock<File>,
}

/// Loads the programs, takes over or creates the maps, and attaches.
///
/// Links to another cgroup than before take the place of the old ones only when
/// the probe has shown that they work.
pub fn attach(options: &AttachOptions) -> Result<Attached> {
    let cgroup = open_cgroup(&options.cgroup_root)?;
    let lock = prepare_pin_dir(&options.pin_dir)?;
    // Before Linux 5.11 maps count against this limit; later it does not matter.
    if let Err(error) = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY) {
        tracing::debug!(%error, "RLIMIT_MEMLOCK stays as it is (raising it takes CAP_SYS_RESOURCE)");
    }
    raise_file_limit();
    let instance = instance();
    let mut object = load(options, instance)?;
    settings::configure(options, instance)?;
    let mut new_links = Vec::new();
    for name in PROGRAMS {
        let program = object
            .program_mut(name)
            .with_context(|| format!("the object has no program {name}"))?;
        let pin = link_path(&options.pin_dir, name);
        let link = links::put_in_place(program, &cgroup, &pin)
            .with_context(|| format!("attaching {name} to {}", options.cgroup_root.display()))?;
        new_links.extend(link.map(|link| (link, pin)));
    }
    let cookie = probe::find_host(&options.pin_dir).with_context(|| {
        format!(
            "checking that the programs on {} run",
            options.cgroup_root.display()
        )
    })?;
    for (link, pin) in new_links {
        links::pin_link(link, &pin)?;
    }
    tracing::info!(cgroup = %options.cgroup_root.display(), pins = %options.pin_dir.display(), host_netns_cookie = cookie, "socket programs are in place");
    Ok(Attached { _lock: lock })
}

fn open_cgroup(path: &Path) -> Result<File> {
    expect_file_system(
        path,
        CGROUP2_SUPER_MAGIC,
        "is no cgroup v2 directory: set --cgroup-root, or mount one with `mount -t cgroup2 none DIR`",
    )?;
    File::open(path).with_context(|| format!("opening {}", path.display()))
}

/// A number that an earlier start is unlikely to have had; not 0.
fn instance() -> u32 {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    (hasher.finish() as u32).max(1)
}

/// The soft limit of most hosts is 1024, for the sake of select(2).
fn raise_file_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::debug!(%error, "RLIMIT_NOFILE stays as it is");
    }
}

/// Makes the directory and claims it for this process: two agents would undo
/// each other's work.
fn prepare_pin_dir(path: &Path) -> Result<Flock<File>> {
    let existing = path.ancestors().find(|it| it.exists()).unwrap_or(path);
    expect_file_system(
        existing,
        BPF_FS_MAGIC,
        "is not on a BPF file system: `mount -t bpf bpf /sys/fs/bpf`, or set --pin-dir",
    )?;
    let links = path.join("links");
    std::fs::create_dir_all(&links).with_context(|| format!("creating {}", links.display()))?;
    let directory = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    Flock::lock(directory, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| match error {
        Errno::EWOULDBLOCK => anyhow!(
            "another agent uses {}: stop it first, or set --pin-dir",
            path.display()
        ),
        error => anyhow!(error).context(format!("locking {}", path.display())),
    })
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

fn load(options: &AttachOptions, instance: u32) -> Result<Ebpf> {
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
    loader.override_global("INSTANCE", &instance, true);
    for spec in &specs {
        loader.map_pin_path(spec.name, options.pin_dir.join(spec.name));
        if spec.max_entries > 0 {
            loader.map_max_entries(spec.name, spec.max_entries);
        }
    }
    loader.load(OBJECT).context("loading the BPF object")
}
