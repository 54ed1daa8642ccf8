//! The pin directory, and the stages in which one set of maps takes another's place.
//!
//! ```text
//! <pin-dir>/frontends …   the maps in force
//! <pin-dir>/links/        one link per hook
//! <pin-dir>/next/         a new set, not yet complete: discarded at start
//! <pin-dir>/ready/        the new set, complete; programs change over to it
//! <pin-dir>/moving/       what of it is not yet in its place
//! ```
//!
//! A stage ends with the rename of its directory, so a crash leaves one stage or
//! the next. From `ready` on every start of any build goes on forwards
//! ([`settle`]), and needs to know nothing of the maps for it. Programs hold
//! their maps themselves: which pins there are does not matter to them.

use crate::{crash, sys};
use anyhow::{Context, Result};
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

/// A new set of maps while it is filled.
pub(super) fn next(pin_dir: &Path) -> PathBuf {
    pin_dir.join("next")
}

fn ready(pin_dir: &Path) -> PathBuf {
    pin_dir.join("ready")
}

fn moving(pin_dir: &Path) -> PathBuf {
    pin_dir.join("moving")
}

/// Where the links of the hooks are pinned.
pub(super) fn links(pin_dir: &Path) -> PathBuf {
    pin_dir.join("links")
}

/// Where a new link is pinned until it takes another's place.
pub(super) fn next_link(pin_dir: &Path) -> PathBuf {
    pin_dir.join("next_link")
}

/// Whether a new set of maps is being made in the directory.
pub fn upgrade_is_under_way(pin_dir: &Path) -> bool {
    [next(pin_dir), ready(pin_dir), moving(pin_dir)]
        .iter()
        .any(|stage| stage.is_dir())
}

/// Names of the maps that are pinned in a directory.
pub(super) fn maps(directory: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // The kernel's own files at the root of a mount have a dot, which pins
        // cannot have (kernel/bpf/inode.c, `bpf_lookup`).
        if !entry.file_type()?.is_dir() && name != "next_link" && !name.contains('.') {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Finishes what a crash interrupted, or discards it.
pub(super) fn settle(pin_dir: &Path) -> Result<()> {
    discard(&next(pin_dir))?;
    if let Err(error) = fs::remove_file(next_link(pin_dir))
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error).context("removing a link that was not put to use");
    }
    finish(pin_dir)
}

/// The new set is complete.
pub(super) fn make_ready(pin_dir: &Path) -> Result<()> {
    crash::point();
    rename(&next(pin_dir), &ready(pin_dir))
}

/// Puts the complete new set, if there is one, in the old one's place.
pub(super) fn finish(pin_dir: &Path) -> Result<()> {
    let (ready, moving) = (ready(pin_dir), moving(pin_dir));
    if ready.is_dir() {
        let new = maps(&ready).context("listing the new maps")?;
        for old in maps(pin_dir).context("listing the old maps")? {
            if !new.contains(&old) {
                remove(&pin_dir.join(old))?;
            }
        }
        crash::point();
        rename(&ready, &moving)?;
    }
    if moving.is_dir() {
        for name in maps(&moving).context("listing the new maps")? {
            crash::point();
            rename(&moving.join(&name), &pin_dir.join(&name))?;
        }
        crash::point();
        fs::remove_dir(&moving).with_context(|| format!("removing {}", moving.display()))?;
    }
    Ok(())
}

/// Removes a set of maps that is not in use.
pub(super) fn discard(directory: &Path) -> Result<()> {
    if directory.is_dir() {
        fs::remove_dir_all(directory)
            .with_context(|| format!("removing {}", directory.display()))?;
    }
    Ok(())
}

/// Pins a link, or what stands for it, in place of whatever is pinned there: by
/// a rename, so that a crash leaves one of them.
pub(super) fn replace_link(object: BorrowedFd<'_>, pin_dir: &Path, pin: &Path) -> Result<()> {
    let next = next_link(pin_dir);
    crash::point();
    sys::pin(object, &next).with_context(|| format!("pinning {}", next.display()))?;
    crash::point();
    rename(&next, pin)
}

/// Removes one pin.
pub(super) fn remove(pin: &Path) -> Result<()> {
    crash::point();
    fs::remove_file(pin).with_context(|| format!("removing {}", pin.display()))
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).with_context(|| format!("renaming {} to {}", from.display(), to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// A directory as after `make_ready`, with files for pins.
    fn world() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in [
            ("frontends", "old"),
            ("vips", "old"),
            ("past", "old"),
            ("links/connect4", "link"),
            ("ready/frontends", "new"),
            ("ready/vips", "new"),
            ("ready/novelty", "new"),
        ] {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        dir
    }

    fn content(dir: &Path) -> BTreeMap<String, String> {
        let names = maps(dir).unwrap();
        let read = |name: String| (name.clone(), fs::read_to_string(dir.join(name)).unwrap());
        names.into_iter().map(read).collect()
    }

    fn is_finished(dir: &Path) {
        settle(dir).unwrap();
        let wanted = ["frontends", "novelty", "vips"].map(|it| (it.to_owned(), "new".to_owned()));
        assert_eq!(content(dir), wanted.into());
        assert!(!upgrade_is_under_way(dir));
        assert!(dir.join("links/connect4").is_file());
    }

    #[test]
    fn a_new_set_takes_the_old_ones_place() {
        is_finished(world().path());
    }

    #[test]
    fn whatever_was_done_before_a_crash_the_next_start_finishes_it() {
        // Each step of `finish` done by hand, then what is left by the code.
        let steps: [fn(&Path); 5] = [
            |dir| fs::remove_file(dir.join("past")).unwrap(),
            |dir| fs::rename(dir.join("ready"), dir.join("moving")).unwrap(),
            |dir| fs::rename(dir.join("moving/frontends"), dir.join("frontends")).unwrap(),
            |dir| fs::rename(dir.join("moving/novelty"), dir.join("novelty")).unwrap(),
            |dir| fs::rename(dir.join("moving/vips"), dir.join("vips")).unwrap(),
        ];
        for done in 1..=steps.len() {
            let world = world();
            steps[..done].iter().for_each(|step| step(world.path()));
            is_finished(world.path());
        }
    }

    #[test]
    fn an_incomplete_set_is_discarded() {
        let world = world();
        let dir = world.path();
        fs::rename(dir.join("ready"), dir.join("next")).unwrap();
        fs::write(dir.join("next_link"), "link").unwrap();
        settle(dir).unwrap();
        assert_eq!(content(dir).len(), 3);
        assert!(content(dir).values().all(|it| it == "old"));
        assert!(!upgrade_is_under_way(dir) && !dir.join("next_link").exists());
    }
}
