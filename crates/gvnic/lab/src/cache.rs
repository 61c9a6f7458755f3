//! The cache folder. An entry is complete or absent, even if fetching it was interrupted.

use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::Context;
use devmem_linux::small_file::{self, OpenFor};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use tool::output::{Failure, note};

/// File that marks a folder as complete; written last.
const MANIFEST: &str = "manifest.json";
/// Maximum bytes of a manifest, which has one line per package.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;
/// Name of an incomplete folder.
const STAGING: &str = "staging";

/// Contents of a complete folder.
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

/// Write lock of the cache, held by one process at a time.
#[derive(Debug)]
pub struct Locked<'a> {
    cache: &'a Cache,
    _lock: File,
}

impl Cache {
    /// Returns the cache at `folder`, or at the default path by the XDG base directory specification.
    ///
    /// # Errors
    ///
    /// Neither XDG_CACHE_HOME nor HOME is set.
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
                .with_remedy("name a folder with --cache")
        })?;
        Ok(Self {
            folder: base.join("devmem-tcp/lab"),
        })
    }

    /// Returns the path of the cache.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the folder `key` with its manifest, `None` if it is not complete.
    ///
    /// # Errors
    ///
    /// The manifest exists, but is damaged or unreadable; the error has its path and the reason.
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
    /// The cache folder cannot be created or written to.
    pub fn lock(&self) -> Result<Locked<'_>, Failure> {
        let shown = self.folder.display();
        fs::create_dir_all(&self.folder)
            .with_context(|| format!("create the cache folder {shown}"))?;
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
    /// Fills a staging folder with `fill`, then renames it to `key` in one step. [`Cache::get`] never finds an incomplete
    /// folder.
    ///
    /// # Errors
    ///
    /// `fill` failed, or the folder cannot be written.
    pub fn put(
        &self,
        key: &str,
        fill: impl FnOnce(&Path) -> Result<Manifest, Failure>,
    ) -> Result<(), Failure> {
        let staging = self.cache.folder.join(STAGING);
        let place = self.cache.folder.join(key);
        // A run that was killed may have left it.
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

    /// A cache that does not exist yet, and the guard that removes it.
    fn cache() -> (Cache, tempfile::TempDir) {
        let above = tempfile::tempdir().unwrap();
        let folder = above.path().join("cache");
        (Cache { folder }, above)
    }

    #[test]
    fn a_folder_is_found_only_when_it_is_complete() {
        let (cache, _above) = cache();
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
    }

    #[test]
    fn a_failed_refresh_keeps_the_old_folder() {
        let (cache, _above) = cache();
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
    }

    #[test]
    fn a_damaged_manifest_is_named_and_a_fifo_does_not_block() {
        let (cache, _above) = cache();
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
    }

    #[test]
    fn only_one_process_can_write_at_a_time() {
        let (cache, _above) = cache();
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
    }
}
