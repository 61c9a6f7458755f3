//! The folder where fetched things stay: complete or not there, whatever happens while they are fetched.

use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::Context;
use devmem_linux::small_file::{self, OpenFor};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use tool::output::{Failure, note};

/// The file that says that a folder is complete. It is written last.
const MANIFEST: &str = "manifest.json";
/// No manifest is longer: it has a line for each package.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;
/// Name of a folder in the making.
const STAGING: &str = "staging";

/// What a complete folder has in it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// Packages with their versions.
    pub packages: Vec<String>,
}

/// The lab's cache folder.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
}

/// The right to write to the cache: one process has it.
#[derive(Debug)]
pub struct Locked<'a> {
    cache: &'a Cache,
    _lock: File,
}

impl Cache {
    /// The cache at `folder`, or where XDG's base directories say that caches are.
    ///
    /// # Errors
    ///
    /// There is no home folder to put it in.
    pub fn new(folder: Option<PathBuf>) -> Result<Self, Failure> {
        if let Some(folder) = folder {
            return Ok(Self { folder });
        }
        let variable = |name: &str| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let base = variable("XDG_CACHE_HOME").filter(|path| path.is_absolute());
        let base = base.or_else(|| Some(variable("HOME")?.join(".cache")));
        let base = base.ok_or_else(|| {
            Failure::usage("neither XDG_CACHE_HOME nor HOME is set")
                .with_remedy("--cache names a folder")
        })?;
        Ok(Self {
            folder: base.join("devmem-tcp/lab"),
        })
    }

    /// Returns where the cache is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the folder `key` with what it has in it, if it is complete.
    ///
    /// # Errors
    ///
    /// The folder is there, and its manifest is damaged or cannot be read: its path and what is wrong with it.
    pub fn get(&self, key: &str) -> Result<Option<(PathBuf, Manifest)>, String> {
        let folder = self.folder.join(key);
        let manifest = folder.join(MANIFEST);
        let damaged = |why: &dyn fmt::Display| format!("{}: {why}", manifest.display());
        let text = match small_file::read(&manifest, MANIFEST_BYTES_MAX) {
            Ok(text) => text,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(damaged(&error)),
        };
        match serde_json::from_slice(&text) {
            Ok(found) => Ok(Some((folder, found))),
            Err(error) => Err(damaged(&error)),
        }
    }

    /// Waits until no other process writes to the cache.
    ///
    /// # Errors
    ///
    /// The folder cannot be made or written to.
    pub fn lock(&self) -> Result<Locked<'_>, Failure> {
        let shown = self.folder.display();
        fs::create_dir_all(&self.folder)
            .with_context(|| format!("make the cache folder {shown}"))?;
        let lock = small_file::open(&self.folder.join("lock"), OpenFor::Writing);
        let lock = lock.with_context(|| format!("lock the cache folder: {shown}/lock"))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                note("another devmem-tcp fetches the lab; waiting for it");
                flock(&lock, FlockOperation::LockExclusive).context("lock the cache")?;
            }
            other => other.context("lock the cache")?,
        }
        Ok(Locked {
            cache: self,
            _lock: lock,
        })
    }
}

impl Locked<'_> {
    /// Has `fill` fill a folder, then makes it the folder `key` in one step. What stopped half-way leaves nothing that
    /// [`Cache::get`] finds.
    ///
    /// # Errors
    ///
    /// What `fill` said, or a folder that cannot be written.
    pub fn put(
        &self,
        key: &str,
        fill: impl FnOnce(&Path) -> Result<Manifest, Failure>,
    ) -> Result<(), Failure> {
        let staging = self.cache.folder.join(STAGING);
        let place = self.cache.folder.join(key);
        // What a run that was killed left behind.
        remove(&staging)?;
        fs::create_dir_all(&staging)?;
        let filled = fill(&staging).and_then(|manifest| {
            fs::write(
                staging.join(MANIFEST),
                serde_json::to_vec_pretty(&manifest)?,
            )?;
            remove(&place)?;
            fs::rename(&staging, &place)?;
            Ok(())
        });
        if filled.is_err() {
            remove(&staging)?;
        }
        filled
    }
}

fn remove(folder: &Path) -> std::io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    fn cache(name: &str) -> Cache {
        let folder =
            std::env::temp_dir().join(format!("devmem-tcp-cache-{name}-{}", std::process::id()));
        remove(&folder).unwrap();
        Cache { folder }
    }

    #[test]
    fn a_folder_is_there_when_it_is_complete_and_not_before() {
        let cache = cache("complete");
        let manifest = || Manifest {
            packages: vec!["a 1".to_owned()],
        };
        assert!(cache.get("x").unwrap().is_none());
        let locked = cache.lock().unwrap();
        let broken = locked.put("x", |folder| {
            fs::write(folder.join("half"), "").unwrap();
            Err(Failure::failed("no network"))
        });
        assert!(broken.is_err() && cache.get("x").unwrap().is_none());
        assert!(!cache.folder.join(STAGING).exists());
        locked
            .put("x", |folder| {
                assert!(!folder.join("half").exists());
                fs::write(folder.join("whole"), "").unwrap();
                assert!(cache.get("x").unwrap().is_none());
                Ok(manifest())
            })
            .unwrap();
        let (folder, found) = cache.get("x").unwrap().unwrap();
        assert!(folder.join("whole").exists());
        assert_eq!(found.packages, manifest().packages);
        fs::remove_dir_all(cache.folder()).unwrap();
    }

    #[test]
    fn a_failed_refresh_keeps_what_was_there() {
        let cache = cache("refresh");
        let locked = cache.lock().unwrap();
        locked
            .put("x", |_| {
                Ok(Manifest {
                    packages: Vec::new(),
                })
            })
            .unwrap();
        assert!(
            locked
                .put("x", |_| Err(Failure::failed("no network")))
                .is_err()
        );
        assert!(cache.get("x").unwrap().is_some());
        fs::remove_dir_all(cache.folder()).unwrap();
    }

    #[test]
    fn a_damaged_manifest_is_named_and_what_is_no_file_is_not_waited_for() {
        let cache = cache("damaged");
        let folder = cache.folder.join("x");
        fs::create_dir_all(&folder).unwrap();
        let manifest = folder.join(MANIFEST);
        fs::write(&manifest, "{\"packages\": [").unwrap();
        let said = cache.get("x").unwrap_err();
        assert!(said.contains("manifest.json: EOF while parsing"), "{said}");
        fs::remove_file(&manifest).unwrap();
        let fifo = |path: &Path| {
            let mode = Mode::RUSR | Mode::WUSR;
            mknodat(CWD, path, FileType::Fifo, mode, 0).unwrap();
        };
        fifo(&manifest);
        assert!(cache.get("x").unwrap_err().contains("it is a FIFO"));
        fifo(&cache.folder.join("lock"));
        let said = cache.lock().unwrap_err().to_string();
        assert!(said.contains("/lock: it is a FIFO"), "{said}");
        fs::remove_dir_all(cache.folder()).unwrap();
    }

    #[test]
    fn two_cannot_write_at_once() {
        let cache = cache("lock");
        let first = cache.lock().unwrap();
        let file = File::open(cache.folder.join("lock")).unwrap();
        assert_eq!(
            flock(&file, FlockOperation::NonBlockingLockExclusive),
            Err(Errno::WOULDBLOCK)
        );
        drop(first);
        assert_eq!(
            flock(&file, FlockOperation::NonBlockingLockExclusive),
            Ok(())
        );
        fs::remove_dir_all(cache.folder()).unwrap();
    }
}
