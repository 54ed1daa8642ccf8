//! Programs on their hooks, and maps on the BPF file system.
//!
//! Everything is pinned: the data path works without the agent. A new agent takes
//! the maps over and replaces each program in place, or builds a new set of maps
//! beside them and changes over when that is complete (invariant 6, [`Upgrade`]).

mod clsact;
mod devices;
mod guard;
pub(crate) mod layout;
mod links;
mod look;
mod maps;
mod pins;
mod probe;
mod settings;
mod sockets;
mod upgrade;

pub use devices::{Applied, DEVICE_HOOKS, DeviceHooks, DevicePin, pinned_devices};
pub use guard::{guard_is_up, put_up_guard, take_down_guard};
pub use look::{HookState, look_at_hooks};
pub use maps::{Content, MapSizes, MapSpec};
pub use pins::upgrade_is_under_way;
pub use probe::observed_netns_cookie;
pub use settings::{
    ServiceRanges, pinned_device_settings, pinned_service_ranges, pinned_settings, service_ranges,
    update_device_settings,
};
pub use sockets::SocketHooks;
pub use upgrade::Upgrade;

use crate::publish::bpf::BpfKernel;
use anyhow::{Context, Result, anyhow, bail};
use aya::maps::ProgramArray;
use aya::programs::{Program, ProgramType};
use aya::sys::{BpfHelper, is_helper_supported};
use aya::{Ebpf, EbpfLoader};
use ipnet::IpNet;
use layout::Pinned;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use nix::sys::statfs::{BPF_FS_MAGIC, CGROUP2_SUPER_MAGIC, FsType, statfs};
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::ops::RangeInclusive;
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
    /// Source ports for SNAT.
    pub snat_ports: RangeInclusive<u16>,
    /// UDP port by which Nodes hand each other packets for DSR; 0 for none.
    pub dsr_port: u16,
}

/// The hook of a socket program, as the kernel numbers it.
pub fn attach_type(program: &str) -> Option<u32> {
    // include/uapi/linux/bpf.h, enum bpf_attach_type
    Some(match program {
        "sock_ops" => 3,
        "connect4" => 10,
        "connect6" => 11,
        "sendmsg4" => 14,
        "sendmsg6" => 15,
        "recvmsg4" => 19,
        "recvmsg6" => 20,
        "getpeername4" => 29,
        "getpeername6" => 30,
        "sock_release" => 34,
        _ => return None,
    })
}

/// Where the link of a program is pinned.
pub fn link_path(pin_dir: &Path, program: &str) -> PathBuf {
    pins::links(pin_dir).join(program)
}

/// What the agent publishes into, and what is left to do after its first publish.
pub struct Attached {
    /// The maps.
    pub kernel: BpfKernel,
    /// The programs on devices, which are nowhere yet but where others were.
    pub devices: DeviceHooks,
    /// The socket programs, once they are in force.
    pub sockets: Option<SocketHooks>,
    /// The change-over to them, if other programs and maps are still in force.
    pub upgrade: Option<Upgrade>,
    /// The pin directory is ours while this lives.
    pub lock: Flock<File>,
}

/// Loads the programs; takes over or creates the maps, and attaches. Where
/// pinned maps do not fit, prepares others beside them.
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
    pins::settle(&options.pin_dir)?;
    let pinned = Pinned::read(&options.pin_dir)
        .with_context(|| format!("looking at the maps in {}", options.pin_dir.display()))?;
    let hooks = pins::maps(&pins::links(&options.pin_dir)).context("listing the links")?;
    let specs = MapSpec::all(&options.sizes);
    let differences = pinned.differences(&specs);
    let first_start = pinned.maps.is_empty() && hooks.is_empty();
    if !first_start && !differences.is_empty() {
        let (kernel, devices, upgrade) = upgrade::prepare(options, cgroup, &pinned, &differences)?;
        return Ok(Attached {
            kernel,
            devices,
            sockets: None,
            upgrade: Some(upgrade),
            lock,
        });
    }
    let (mut programs, mut devices) = Programs::load(options, &specs, &options.pin_dir, cgroup)?;
    let sockets = programs.put_in_place(options, &mut devices)?;
    Ok(Attached {
        kernel: BpfKernel::open(&options.pin_dir)?,
        devices,
        sockets: Some(sockets),
        upgrade: None,
        lock,
    })
}

/// Programs that the kernel has checked, and the cgroup that they are for.
struct Programs {
    object: Ebpf,
    cgroup: File,
}

impl Programs {
    /// Loads the object against the maps that are pinned in `directory`, makes
    /// those that are missing, and writes what programs must know.
    fn load(
        options: &AttachOptions,
        specs: &[MapSpec],
        directory: &Path,
        cgroup: File,
    ) -> Result<(Self, DeviceHooks)> {
        let instance = instance();
        let mut object = load(specs, directory, instance)?;
        settings::configure(directory, options, instance)?;
        for name in PROGRAMS
            .into_iter()
            .chain(DEVICE_HOOKS.map(|(name, _)| name))
        {
            links::load(program(&mut object, name)?).with_context(|| format!("loading {name}"))?;
        }
        let again = program(&mut object, "ingress")?.fd()?.try_clone()?;
        let next = object
            .map_mut("programs")
            .context("the object has no map programs")?;
        ProgramArray::try_from(next)?
            .set(0, &again, 0)
            .context("letting ingress go on with what is in a tunnel")?;
        let mut device_programs = Vec::new();
        for (name, hook) in DEVICE_HOOKS {
            let fd = links::descriptor(program(&mut object, name)?)
                .with_context(|| format!("keeping {name}"))?;
            device_programs.push((name, hook, fd));
        }
        let devices = DeviceHooks::new(&options.pin_dir, directory, device_programs)?;
        tracing::debug!(maps = %directory.display(), cgroup = %options.cgroup_root.display(), "programs are loaded");
        Ok((Self { object, cgroup }, devices))
    }

    /// Puts every program on its hook, in place of another build's, and checks
    /// that they run. What reads a socket's memory comes before what writes it,
    /// so that no socket is written down where its reader does not look.
    fn put_in_place(
        &mut self,
        options: &AttachOptions,
        devices: &mut DeviceHooks,
    ) -> Result<SocketHooks> {
        let pin_dir = &options.pin_dir;
        let mut new_links = Vec::new();
        for name in PROGRAMS.into_iter().rev() {
            let program = program(&mut self.object, name)?;
            let pin = link_path(pin_dir, name);
            let link = links::put_in_place(program, &self.cgroup, &pin).with_context(|| {
                format!("attaching {name} to {}", options.cgroup_root.display())
            })?;
            new_links.extend(link.map(|link| (link, pin)));
        }
        devices.put_in_place()?;
        pins::finish(pin_dir)?;
        let cookie = probe::find_host(pin_dir).with_context(|| {
            format!(
                "checking that the programs on {} run",
                options.cgroup_root.display()
            )
        })?;
        for (link, pin) in new_links {
            links::pin_link(link, pin_dir, &pin)?;
        }
        links::remove_others(pin_dir, &PROGRAMS)?;
        tracing::info!(cgroup = %options.cgroup_root.display(), pins = %options.pin_dir.display(), host_netns_cookie = cookie, "socket programs are in place");
        SocketHooks::new(options, &mut self.object, &self.cgroup)
    }
}

fn program<'a>(object: &'a mut Ebpf, name: &str) -> Result<&'a mut Program> {
    object
        .program_mut(name)
        .with_context(|| format!("the object has no program {name}"))
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
    let links = pins::links(path);
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

fn load(specs: &[MapSpec], directory: &Path, instance: u32) -> Result<Ebpf> {
    let has_set_retval = u32::from(
        is_helper_supported(ProgramType::CgroupSockAddr, BpfHelper::BPF_FUNC_set_retval)
            .unwrap_or(false),
    );
    if has_set_retval == 0 {
        tracing::info!(
            "this kernel lacks bpf_set_retval (Linux 6.1): refusals go by a closed loopback port"
        );
    }
    let has_coarse_clock = u32::from(
        is_helper_supported(
            ProgramType::SchedClassifier,
            BpfHelper::BPF_FUNC_ktime_get_coarse_ns,
        )
        .unwrap_or(false),
    );
    let mut loader = EbpfLoader::new();
    loader.override_global("HAS_SET_RETVAL", &has_set_retval, true);
    loader.override_global("HAS_COARSE_CLOCK", &has_coarse_clock, true);
    loader.override_global("INSTANCE", &instance, true);
    for spec in specs {
        loader.map_pin_path(spec.name, directory.join(spec.name));
        if spec.max_entries > 0 {
            loader.map_max_entries(spec.name, spec.max_entries);
        }
    }
    loader.load(OBJECT).context("loading the BPF object")
}
