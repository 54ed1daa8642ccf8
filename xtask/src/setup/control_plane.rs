//! The programs of a real control plane, for the cluster tests: built from
//! their published Go modules (tests/cluster/tools), once per version, since
//! that takes a quarter of an hour.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::{clear, lock, step};
use crate::{command, paths};

/// envtest's name for a folder with ready programs.
const READY_MADE: &str = "KUBEBUILDER_ASSETS";

const KUBERNETES: &str = "k8s.io/kubernetes";
const ETCD: &str = "go.etcd.io/etcd/server/v3";

/// A program, and where its source is.
struct Program {
    name: &'static str,
    /// The folder below tests/cluster/tools with its go.mod.
    module: &'static str,
    package: &'static str,
}

/// The slowest first: most of its packages serve the next one too.
const PROGRAMS: [Program; 4] = [
    Program {
        name: "kube-apiserver",
        module: "kubernetes",
        package: "k8s.io/kubernetes/cmd/kube-apiserver",
    },
    Program {
        name: "kube-controller-manager",
        module: "kubernetes",
        package: "k8s.io/kubernetes/cmd/kube-controller-manager",
    },
    Program {
        name: "kube-proxy",
        module: "kubernetes",
        package: "k8s.io/kubernetes/cmd/kube-proxy",
    },
    Program {
        name: "etcd",
        module: "etcd",
        package: ETCD,
    },
];

/// The folder with the programs, building those that are missing.
pub(crate) fn control_plane() -> Result<PathBuf> {
    if let Some(dir) = env::var_os(READY_MADE).map(PathBuf::from) {
        check(&dir)?;
        step(&format!("control plane of {READY_MADE}"), true, || Ok(()))?;
        return Ok(dir);
    }
    let kubernetes = GoModule::read("kubernetes")?;
    let etcd = GoModule::read("etcd")?;
    let release = kubernetes.version_of(KUBERNETES)?.to_owned();
    let name = format!("control-plane-{release}-etcd-{}", etcd.version_of(ETCD)?);
    let dir = paths::cache()?.join(name);
    let _lock = if complete(&dir) {
        None
    } else {
        Some(lock("control-plane")?)
    };
    for program in &PROGRAMS {
        let module = if program.module == "etcd" {
            &etcd
        } else {
            &kubernetes
        };
        let target = dir.join(program.name);
        let name = format!(
            "{} {}",
            program.name,
            module.version_of(program.requirement())?
        );
        step(&name, target.is_file(), || {
            build(program, module, &release, &target)
        })?;
    }
    Ok(dir)
}

impl Program {
    /// The requirement in go.mod that decides its version.
    fn requirement(&self) -> &'static str {
        if self.module == "etcd" {
            ETCD
        } else {
            KUBERNETES
        }
    }
}

fn complete(dir: &Path) -> bool {
    PROGRAMS
        .iter()
        .all(|program| dir.join(program.name).is_file())
}

/// A folder that the user names must have everything: half of one version and
/// half of another would test neither.
fn check(dir: &Path) -> Result<()> {
    for Program { name, .. } in &PROGRAMS {
        if !dir.join(name).is_file() {
            bail!(
                "{READY_MADE} names {}, which has no {name}: add it, or unset the variable",
                dir.display()
            );
        }
    }
    Ok(())
}

fn build(program: &Program, module: &GoModule, release: &str, target: &Path) -> Result<()> {
    let Some(go) = paths::on_path("go") else {
        bail!(
            "could not build {}: no `go` on PATH; install Go 1.21 or newer (it fetches the one that \
             go.mod names), or name a folder with ready programs in {READY_MADE}",
            program.name
        );
    };
    let partial = target.with_extension("partial");
    clear(&partial)?;
    command::logged(
        command::clean(go)
            .current_dir(&module.dir)
            .args([
                "build",
                "-mod=readonly",
                "-trimpath",
                "-ldflags",
                &link_flags(release),
                "-o",
            ])
            .args([partial.as_os_str(), program.package.as_ref()])
            .env("CGO_ENABLED", "0")
            .env("GOTOOLCHAIN", module.toolchain()?),
        &paths::cache()?.join(format!("logs/{}.log", program.name)),
    )
    .with_context(|| {
        format!(
            "could not build {}: the Go module proxy must be reachable, and 5 GB of disk free",
            program.name
        )
    })?;
    fs::rename(&partial, target)
        .with_context(|| format!("cannot rename {} to its place", partial.display()))
}

/// No debug information (it doubles the size), and the version that a release
/// build would carry: clients see it in /version.
fn link_flags(release: &str) -> String {
    let mut parts = release.trim_start_matches('v').split('.');
    let (major, minor) = (
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default(),
    );
    let package = "k8s.io/component-base/version";
    format!(
        "-s -w -X {package}.gitVersion={release} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
    )
}

/// A go.mod of ours: the one place that names versions.
struct GoModule {
    dir: PathBuf,
    text: String,
}

impl GoModule {
    fn read(folder: &str) -> Result<Self> {
        let dir = paths::root().join("tests/cluster/tools").join(folder);
        let path = dir.join("go.mod");
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Self { dir, text })
    }

    /// The version of a requirement.
    fn version_of(&self, requirement: &str) -> Result<&str> {
        self.words()
            .find_map(|words| match words.as_slice() {
                [name, version, ..] | ["require", name, version, ..] if *name == requirement => {
                    Some(*version)
                }
                _ => None,
            })
            .with_context(|| {
                format!(
                    "{}/go.mod does not require {requirement}",
                    self.dir.display()
                )
            })
    }

    /// The Go release that the programs are built with.
    fn toolchain(&self) -> Result<&str> {
        self.words()
            .find_map(|words| match words.as_slice() {
                ["toolchain", version] => Some(*version),
                _ => None,
            })
            .with_context(|| format!("{}/go.mod names no toolchain", self.dir.display()))
    }

    fn words(&self) -> impl Iterator<Item = Vec<&str>> {
        self.text
            .lines()
            .map(|line| line.split_whitespace().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_go_modules_name_their_versions_and_toolchain() {
        for program in &PROGRAMS {
            let module = GoModule::read(program.module).expect("a go.mod");
            let version = module
                .version_of(program.requirement())
                .expect("a requirement");
            assert!(version.starts_with('v'), "{version}");
            assert!(module.toolchain().expect("a toolchain").starts_with("go1."));
            assert!(
                module.text.contains(program.package),
                "no tool line for {}",
                program.package
            );
        }
    }

    #[test]
    fn the_version_reaches_the_programs() {
        let flags = link_flags("v1.37.2");
        assert!(
            flags.contains("gitVersion=v1.37.2") && flags.contains("gitMinor=37"),
            "{flags}"
        );
    }
}
