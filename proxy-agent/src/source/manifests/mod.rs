//! A directory of manifests: Services, EndpointSlices, Nodes, and Pods and
//! Namespaces for their opt-outs, as YAML or JSON.
//!
//! Files named `*.yaml`, `*.yml` and `*.json` count, hidden ones and
//! sub-directories do not. The directory may appear later and may be replaced,
//! also as Kubernetes does with a mounted ConfigMap (a symbolic link `..data`
//! that is swapped). While it is missing, and while a file is broken, the last
//! good objects stay. A symbolic link to a file elsewhere is read, but writes
//! to that file are not noticed.
//!
//! [`directory`] tells which files changed, [`parse`] reads one, [`claims`]
//! decides which file an object comes from and what changed.

mod claims;
mod directory;
mod parse;
#[cfg(test)]
mod tests;

use crate::model::{Interner, Kind, Reason, Warning};
use crate::source::Event;
use claims::{Claims, Duplicate, FileName, Outcome};
use directory::{Change, Changes, Directory, Signature};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::mpsc::{self, error::SendError};
use tokio::time::Instant;

/// How long a file must be gone before its objects are: editors move the old
/// file away just before they write the new one.
const VANISH_DELAY: Duration = Duration::from_millis(20);

/// Sends the objects of a directory and their changes until the receiver is
/// gone. Fails only if inotify cannot be had.
pub async fn run(path: PathBuf, events: mpsc::Sender<Event>) -> io::Result<()> {
    let mut directory = Directory::open(&path)?;
    let mut manifests = Manifests::new(events.clone());
    // An error is the receiver's end.
    let mut alive = manifests.rescan(&directory).await.is_ok();
    while alive {
        let changes = tokio::select! {
            () = events.closed() => break,
            changes = directory.changes() => changes?,
            () = manifests.vanish_due() => Changes::default(),
        };
        alive = manifests.take(&directory, changes).await.is_ok();
    }
    Ok(())
}

/// Pause before a file that could not be read is tried again.
const READ_AGAIN: Duration = Duration::from_secs(5);

type Sent = Result<(), SendError<Event>>;

/// What is known of the directory's files.
struct Manifests {
    events: mpsc::Sender<Event>,
    interner: Interner,
    claims: Claims,
    /// Of each file when it was last read.
    signatures: BTreeMap<FileName, Signature>,
    /// Files that went away, and when that becomes true.
    vanishing: BTreeMap<FileName, Instant>,
    /// Whether a complete list was sent.
    listed: bool,
}

impl Manifests {
    fn new(events: mpsc::Sender<Event>) -> Self {
        Self {
            events,
            interner: Interner::default(),
            claims: Claims::default(),
            signatures: BTreeMap::new(),
            vanishing: BTreeMap::new(),
            listed: false,
        }
    }

    async fn vanish_due(&self) {
        match self.vanishing.values().min() {
            Some(&due) => tokio::time::sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    async fn take(&mut self, directory: &Directory, changes: Changes) -> Sent {
        let now = Instant::now();
        for (file, change) in changes.files {
            match change {
                Change::Written => self.read(directory, &file).await?,
                Change::Vanished => {
                    self.vanishing.insert(file, now + VANISH_DELAY);
                }
            }
        }
        let due = |at: &Instant| *at <= now;
        let gone: Vec<FileName> = self
            .vanishing
            .iter()
            .filter(|(_, at)| due(at))
            .map(|(file, _)| file.clone())
            .collect();
        for file in gone {
            self.read(directory, &file).await?;
        }
        if changes.rescan {
            self.rescan(directory).await
        } else {
            Ok(())
        }
    }

    /// Compares all files with what is known. A missing directory changes
    /// nothing: an empty one and one that is not mounted yet differ.
    async fn rescan(&mut self, directory: &Directory) -> Sent {
        let files = match directory.files() {
            Ok(files) => files,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                tracing::info!(directory = %directory.path().display(), "no such directory of manifests yet");
                return Ok(());
            }
            Err(error) => {
                let message = format!("cannot be listed: {error}; correct its permissions");
                return self
                    .warn(&directory.path().to_string_lossy(), message)
                    .await;
            }
        };
        if !self.listed {
            for kind in Kind::ALL {
                self.events.send(Event::Begin(kind)).await?;
            }
        }
        let gone: BTreeSet<FileName> = self
            .signatures
            .keys()
            .filter(|file| !files.contains(*file))
            .cloned()
            .collect();
        let changed = |file: &&FileName| {
            self.signatures.get(*file) != directory.signature(file).ok().as_ref()
        };
        let changed: Vec<FileName> = files.iter().filter(changed).chain(&gone).cloned().collect();
        for file in changed {
            self.read(directory, &file).await?;
        }
        if !self.listed {
            for kind in Kind::ALL {
                self.events.send(Event::Done(kind)).await?;
            }
            self.listed = true;
        }
        Ok(())
    }

    /// Reads a file, or notes that it is gone, and sends what that changes.
    async fn read(&mut self, directory: &Directory, file: &FileName) -> Sent {
        self.vanishing.remove(file);
        let mut files = vec![file.clone()];
        while let Some(file) = files.pop() {
            let signature = directory.signature(&file);
            let parsed = match directory.read(&file) {
                Ok(text) => parse::parse(&file, &text, &mut self.interner),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    Ok(parse::Parsed::default())
                }
                Err(error) => {
                    // What stands in the way may pass: no descriptors, say.
                    self.vanishing
                        .insert(file.clone(), Instant::now() + READ_AGAIN);
                    Err(error.to_string())
                }
            };
            match signature {
                Ok(signature) => self.signatures.insert(file.clone(), signature),
                Err(_) => self.signatures.remove(&file),
            };
            match parsed {
                Ok(parsed) => {
                    let outcome = self
                        .claims
                        .replace(&file, parsed.objects, parsed.unreadable);
                    for warning in parsed.warnings {
                        self.events.send(Event::Warning(warning)).await?;
                    }
                    files.extend(outcome.inherited.iter().cloned());
                    self.send(directory, outcome).await?;
                }
                Err(error) => {
                    let message = format!(
                        "cannot be read, its last good objects stay: {error}; correct the file"
                    );
                    self.warn(&file, message).await?;
                }
            }
        }
        Ok(())
    }

    async fn send(&self, directory: &Directory, outcome: Outcome) -> Sent {
        for event in outcome.events {
            self.events.send(event).await?;
        }
        for Duplicate {
            kind,
            name,
            used,
            unused,
        } in outcome.duplicates
        {
            // A file that was renamed claims its objects twice for a moment.
            if used == unused
                || directory.signature(&used).is_ok() && directory.signature(&unused).is_ok()
            {
                let message =
                    format!("defined in {used} and in {unused}; {used} is used, remove one");
                let warning = Warning::new(kind, &name, Reason::DuplicateObject, message);
                self.events.send(Event::Warning(warning)).await?;
            }
        }
        Ok(())
    }

    async fn warn(&self, file: &str, message: String) -> Sent {
        self.events
            .send(Event::Warning(Warning::manifest(
                file,
                Reason::UnreadableManifest,
                message,
            )))
            .await
    }
}
