//! Older kernels from Debian's archive, unpacked but not installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{clear, lock, step};
use crate::{command, paths};

/// A kernel to run on: its short name, and the Debian release that has it. All
/// of them are in the security archive.
pub(crate) struct Kernel {
    pub(crate) name: &'static str,
    suite: &'static str,
}

/// The kernels that we promise to support and that can be had.
pub(crate) const KERNELS: [Kernel; 2] = [
    Kernel {
        name: "5.10",
        suite: "bullseye-security",
    },
    Kernel {
        name: "6.1",
        suite: "bookworm-security",
    },
];

/// The plain flavour: the cloud one has no 9p, which the virtual machine reads
/// its root file system with.
const METAPACKAGE: &str = "linux-image-amd64";

impl Kernel {
    /// The kernel's image, with its modules where virtme-ng looks for them.
    pub(crate) fn image(&self) -> Result<PathBuf> {
        let home = paths::cache()?.join("kernels").join(self.name);
        let _lock = if image_in(&home).is_some() {
            None
        } else {
            Some(lock("kernels")?)
        };
        step(
            &format!("kernel {}", self.name),
            image_in(&home).is_some(),
            || self.fetch(&home),
        )?;
        image_in(&home).with_context(|| {
            format!(
                "{} has no boot/vmlinuz-…; remove it to fetch it again",
                home.display()
            )
        })
    }

    fn fetch(&self, home: &Path) -> Result<()> {
        let partial = home.with_extension("partial");
        clear(&partial)?;
        let apt = Apt::new(&partial.join("apt"), self.suite)?;
        let package = apt.image_package().with_context(|| {
            format!(
                "could not find a kernel {}: the mirror of the security archive must have {}",
                self.name, self.suite
            )
        })?;
        let tree = partial.join("tree");
        fs::create_dir_all(&tree).with_context(|| format!("cannot create {}", tree.display()))?;
        command::output(
            apt.command("apt-get")
                .args(["download", &package])
                .current_dir(&partial),
        )?;
        command::output(
            command::clean("dpkg")
                .arg("-x")
                .arg(downloaded(&partial)?)
                .arg(&tree),
        )?;
        let release = package.trim_start_matches("linux-image-");
        command::output(command::clean("depmod").arg("-b").arg(&tree).arg(release))?;
        clear(home)?;
        fs::rename(&tree, home)
            .with_context(|| format!("cannot rename {} to its place", tree.display()))?;
        clear(&partial)
    }
}

/// The image in an unpacked kernel package.
fn image_in(home: &Path) -> Option<PathBuf> {
    find(&home.join("boot"), |name| name.starts_with("vmlinuz-"))
}

fn downloaded(dir: &Path) -> Result<PathBuf> {
    find(dir, |name| name.ends_with(".deb"))
        .with_context(|| format!("apt-get left no package in {}", dir.display()))
}

fn find(dir: &Path, fits: impl Fn(&str) -> bool) -> Option<PathBuf> {
    let mut entries = fs::read_dir(dir).ok()?.filter_map(Result::ok);
    entries
        .find(|entry| fits(&entry.file_name().to_string_lossy()))
        .map(|entry| entry.path())
}

/// apt with sources and state of its own: the machine's own must not learn of
/// another Debian release.
struct Apt {
    dir: PathBuf,
}

impl Apt {
    fn new(dir: &Path, suite: &str) -> Result<Self> {
        for folder in ["state/lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(dir.join(folder))
                .with_context(|| format!("cannot create {}", dir.display()))?;
        }
        let archive = security_archive()?;
        let keys = "/usr/share/keyrings/debian-archive-keyring.gpg";
        let source = format!("deb [signed-by={keys} arch=amd64] {archive} {suite} main\n");
        fs::write(dir.join("sources.list"), source).context("cannot write sources.list")?;
        let apt = Self {
            dir: dir.to_owned(),
        };
        command::output(apt.command("apt-get").arg("update"))?;
        Ok(apt)
    }

    /// The package with the image, which the metapackage depends on.
    fn image_package(&self) -> Result<String> {
        let depends = command::output(self.command("apt-cache").args(["depends", METAPACKAGE]))?;
        let package = depends
            .lines()
            .find_map(|line| line.trim().strip_prefix("Depends: "));
        Ok(package
            .with_context(|| format!("{METAPACKAGE} depends on nothing"))?
            .to_owned())
    }

    fn command(&self, program: &str) -> Command {
        let dir = self.dir.display();
        let mut command = command::clean(program);
        for option in [
            format!("Dir::State={dir}/state"),
            "Dir::State::status=/dev/null".into(),
            format!("Dir::Cache={dir}/cache"),
            format!("Dir::Etc::sourcelist={dir}/sources.list"),
            "Dir::Etc::sourceparts=/dev/null".into(),
            "Dir::Etc::preferences=/dev/null".into(),
            "Dir::Etc::preferencesparts=/dev/null".into(),
            // The cache may be where apt's own user cannot write.
            "APT::Sandbox::User=root".into(),
        ] {
            command.args(["-o", &option]);
        }
        command
    }
}

/// Where this machine's apt gets security updates from: a mirror keeps all
/// releases at one place, so the older ones are there too.
fn security_archive() -> Result<String> {
    let listing = command::output(command::clean("apt-get").args([
        "indextargets",
        "--format",
        "$(RELEASE) $(REPO_URI)",
        "Created-By: Packages",
    ]))?;
    let archive =
        archive_in(&listing).context("apt's sources name no Debian security archive: add one")?;
    Ok(archive.to_owned())
}

fn archive_in(listing: &str) -> Option<&str> {
    listing
        .lines()
        .find_map(|line| match line.split_once(' ')? {
            (release, archive) if release.ends_with("-security") => Some(archive),
            _ => None,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_security_archive_is_found_among_apts_sources() {
        let listing = "bookworm file:/main/\nbookworm-updates file:/main/\nbookworm-security file:/security/\n";
        assert_eq!(archive_in(listing), Some("file:/security/"));
        assert_eq!(archive_in("sid file:/main/\n"), None);
    }
}
