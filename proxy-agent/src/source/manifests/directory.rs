//! The directory itself: its files, and inotify.

use super::claims::FileName;
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tokio::io::unix::AsyncFd;

/// Size of a manifest that is still read: a million endpoints are about 200 MB.
const MANIFEST_BYTES_MAX: u64 = 1 << 30;

/// What happened to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// It has new content.
    Written,
    /// It is gone, perhaps only for a moment.
    Vanished,
}

/// What happened since the last look.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// The last thing that happened to each manifest.
    pub(super) files: BTreeMap<FileName, Change>,
    /// Anything may have happened: look at everything.
    pub(super) rescan: bool,
}

/// Tells whether a file is still the one that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Signature {
    inode: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// A directory that is watched, whether it exists or not.
pub(super) struct Directory {
    path: PathBuf,
    inotify: AsyncFd<Watcher>,
    watches: Vec<(WatchDescriptor, Watched)>,
}

/// What a watch is for.
#[derive(Debug, PartialEq, Eq)]
enum Watched {
    /// The directory's files.
    Content,
    /// The entry of this name in a directory above it: when it changes, the
    /// path leads elsewhere.
    Entry(OsString),
}

/// inotify as tokio wants it.
struct Watcher(Inotify);

impl AsRawFd for Watcher {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Directory {
    /// Starts to watch the path.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        // SAFETY: the Watcher owns its descriptor, and nothing replaces or
        // closes it while the AsyncFd has it.
        let inotify = unsafe { AsyncFd::register(Watcher(inotify)) }?;
        let mut directory = Self {
            path: std::path::absolute(path)?,
            inotify,
            watches: Vec::new(),
        };
        directory.watch();
        Ok(directory)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Names of the manifests that are there now.
    pub(super) fn files(&self) -> io::Result<BTreeSet<FileName>> {
        let mut files = BTreeSet::new();
        for entry in fs::read_dir(&self.path)? {
            if let Some(name) = manifest_name(&entry?.file_name())
                && fs::metadata(self.path.join(&*name)).is_ok_and(|metadata| metadata.is_file())
            {
                files.insert(name);
            }
        }
        Ok(files)
    }

    pub(super) fn signature(&self, file: &str) -> io::Result<Signature> {
        let metadata = fs::metadata(self.path.join(file))?;
        Ok(Signature {
            inode: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }

    /// Reads a regular file: anything else could keep the reader for ever.
    pub(super) fn read(&self, file: &str) -> io::Result<String> {
        let path = self.path.join(file);
        // A FIFO or device opens without a wait, and is then refused.
        let mut file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        if metadata.len() > MANIFEST_BYTES_MAX {
            let message = format!("it is larger than {MANIFEST_BYTES_MAX} bytes");
            return Err(io::Error::other(message));
        }
        let mut text = String::with_capacity(usize::try_from(metadata.len()).unwrap_or(0));
        file.read_to_string(&mut text)?;
        Ok(text)
    }

    /// Waits for changes and gives all that are known by then. Nothing is lost
    /// when the call is dropped.
    pub(super) async fn changes(&mut self) -> io::Result<Changes> {
        let mut events = Vec::new();
        loop {
            let mut guard = self.inotify.readable().await?;
            loop {
                match guard.get_inner().0.read_events() {
                    Ok(more) => events.extend(more),
                    Err(Errno::EAGAIN) => break,
                    Err(Errno::EINTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            guard.clear_ready();
            if !events.is_empty() {
                return Ok(self.interpret(&events));
            }
        }
    }

    fn interpret(&mut self, events: &[InotifyEvent]) -> Changes {
        let mut changes = Changes::default();
        let mut moved = false;
        for event in events {
            if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                tracing::warn!(directory = %self.path.display(), "inotify lost events, reading all manifests again");
                changes.rescan = true;
            }
            let Some((_, watched)) = self.watches.iter().find(|(wd, _)| *wd == event.wd) else {
                continue;
            };
            match (watched, &event.name) {
                // The watched directory itself went away.
                (_, None) => moved = true,
                (Watched::Entry(entry), Some(name)) => moved |= entry == name,
                (Watched::Content, Some(name)) if name == "..data" => changes.rescan = true,
                (Watched::Content, Some(name)) => self.file_event(name, event.mask, &mut changes),
            }
        }
        if moved {
            self.watch();
            changes.rescan = true;
        }
        changes
    }

    fn file_event(&self, name: &OsStr, mask: AddWatchFlags, changes: &mut Changes) {
        let Some(file) = manifest_name(name) else {
            return;
        };
        if mask.intersects(AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_MOVED_TO) {
            changes.files.insert(file, Change::Written);
        } else if mask.intersects(AddWatchFlags::IN_DELETE | AddWatchFlags::IN_MOVED_FROM) {
            changes.files.insert(file, Change::Vanished);
        } else if mask.contains(AddWatchFlags::IN_CREATE) {
            // A file that is created is closed later; a link is complete at once.
            let link = fs::symlink_metadata(self.path.join(name))
                .is_ok_and(|it| it.is_symlink() || it.nlink() > 1);
            if link {
                changes.files.insert(file, Change::Written);
            }
        }
    }

    /// Watches the directory and each one above it, from the root down: what
    /// changes after a watch was set is told, so nothing falls between.
    fn watch(&mut self) {
        let entries = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        let mut watches = Vec::new();
        let mut ancestors: Vec<&Path> = self.path.ancestors().collect();
        ancestors.reverse();
        let inotify = &self.inotify.get_ref().0;
        for pair in ancestors.windows(2) {
            let Some(entry) = pair[1].file_name() else {
                continue;
            };
            add(
                inotify,
                pair[0],
                entries,
                Watched::Entry(entry.to_owned()),
                &mut watches,
            );
        }
        add(
            inotify,
            &self.path,
            entries | AddWatchFlags::IN_CLOSE_WRITE,
            Watched::Content,
            &mut watches,
        );
        for (wd, _) in &self.watches {
            if !watches.iter().any(|(new, _)| new == wd) {
                // Fails if the directory is deleted, which is as good.
                let _ = inotify.rm_watch(*wd);
            }
        }
        self.watches = watches;
    }
}

fn add(
    inotify: &Inotify,
    path: &Path,
    mask: AddWatchFlags,
    watched: Watched,
    watches: &mut Vec<(WatchDescriptor, Watched)>,
) {
    match inotify.add_watch(path, mask) {
        Ok(wd) => watches.push((wd, watched)),
        // Found by the watch on the directory above as soon as it appears.
        Err(Errno::ENOENT | Errno::ENOTDIR) => {}
        Err(error) => tracing::warn!(
            path = %path.display(),
            %error,
            "cannot watch this directory, changes in it will be missed; see fs.inotify.max_user_watches"
        ),
    }
}

/// The name if it is one of a manifest. Editors' temporary files have other
/// names: `.web.yaml.swp`, `web.yaml~`, `#web.yaml#`.
fn manifest_name(name: &OsStr) -> Option<FileName> {
    let name = name.to_str()?;
    let known = [".yaml", ".yml", ".json"]
        .iter()
        .any(|ending| name.ends_with(ending));
    (known && !name.starts_with('.')).then(|| name.into())
}
