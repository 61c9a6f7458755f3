//! A file that is being loaded: its bytes are in `NAME.part` beside it until all have come, and `NAME.part.state` says which have. An earlier file of the
//! name stays as it is until then, and a load that was ended goes on where it stopped.

mod error;
mod part;
mod state;

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use self::error::PartialError;
use self::error::failed;
use self::part::{Part, open};
pub use self::state::FileVersion;
use crate::parallel::Done;

/// Most symbolic links that are followed, one after another, as Linux does.
const MAX_LINKS: usize = 40;
/// Time between two records of what has come: what a killed program loads again.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);

/// A file that is being loaded.
#[derive(Debug)]
pub struct PartialFile {
    path: PathBuf,
    file: File,
    version: FileVersion,
    done: Done,
    /// Where the bytes are until all have come; `None` for what cannot be replaced, such as a device: they go there at once.
    part: Option<Part>,
}

impl PartialFile {
    /// Begins the file `path` from the start. What an earlier load has left beside it is overwritten.
    ///
    /// # Errors
    /// [`PartialError::Busy`], [`PartialError::Io`].
    pub fn create(path: &Path, version: FileVersion) -> Result<Self, PartialError> {
        let path = target_of(path);
        if !is_replaceable(&path) {
            let file = open(&path, false)?;
            return Ok(Self::new(path, file, version, Done::default(), None));
        }
        let part = Part::beside(&path);
        let file = part.open()?;
        Self::fresh(path, part, file, version)
    }

    /// Goes on with the file `path` where an earlier load has stopped, or from the start if nothing of one is there that can be trusted.
    ///
    /// # Errors
    /// [`PartialError::Other`] if the server has another version now; [`PartialError::Busy`], [`PartialError::Io`].
    pub fn resume(path: &Path, version: FileVersion) -> Result<Self, PartialError> {
        let target = target_of(path);
        if !is_replaceable(&target) {
            return Self::create(path, version);
        }
        let part = Part::beside(&target);
        let file = part.open()?;
        let len = file.metadata().map(|found| found.len()).ok();
        // A file of another length is not the one that the record is of.
        let found = state::read(&part.state);
        let Some((then, done)) = found.filter(|(then, _)| len == Some(then.len())) else {
            return Self::fresh(target, part, file, version);
        };
        if let Some(difference) = then.difference(&version) {
            let part = part.bytes;
            return Err(PartialError::Other { part, difference });
        }
        Ok(Self::new(target, file, version, done, Some(part)))
    }

    /// Begins with none of the bytes of `file`.
    fn fresh(
        path: PathBuf,
        part: Part,
        file: File,
        version: FileVersion,
    ) -> Result<Self, PartialError> {
        // First, so that no old record stands beside new bytes.
        remove(&part.state)?;
        // As long as it will be: holes of the source are never written.
        let emptied = file.set_len(0);
        emptied.map_err(failed("empty", &part.bytes))?;
        if let Err(error) = file.set_len(version.len()) {
            // The standard library says of numbers that no file has that a conversion failed.
            let is_known = error.raw_os_error().is_some();
            return Err(PartialError::TooLong {
                part: part.bytes,
                bytes: version.len(),
                error: match is_known {
                    true => error,
                    false => io::ErrorKind::FileTooLarge.into(),
                },
            });
        }
        Ok(Self::new(path, file, version, Done::default(), Some(part)))
    }

    fn new(
        path: PathBuf,
        file: File,
        version: FileVersion,
        done: Done,
        part: Option<Part>,
    ) -> Self {
        Self {
            path,
            file,
            version,
            done,
            part,
        }
    }

    /// Returns the ranges of the source that have not come.
    pub fn missing(&self) -> Vec<Range<u64>> {
        self.done.missing_in(self.version.range.clone())
    }

    /// Returns the number of bytes that have come.
    pub fn done_bytes(&self) -> u64 {
        self.done.bytes()
    }

    /// Returns the file that the bytes are written to; its first byte is the first one of the range.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the name of the file when all bytes have come.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the name of the file that has the bytes now.
    pub fn bytes_path(&self) -> &Path {
        self.part.as_ref().map_or(&self.path, |part| &part.bytes)
    }

    /// Returns whether a later load can go on with it.
    pub fn can_resume(&self) -> bool {
        self.part.is_some() && self.done.bytes() > 0
    }

    /// Records what has come, for a load that goes on. Otherwise that is done from time to time, and when the file is dropped.
    ///
    /// # Errors
    /// The record cannot be written: a later load begins at the start.
    pub fn record(&mut self) -> Result<(), PartialError> {
        let state = self.part.as_ref().map(|part| part.state.clone());
        let written = self.save();
        written.map_err(failed("write", &state.unwrap_or_default()))
    }

    /// Returns the range of the source that is loaded.
    pub(crate) fn range(&self) -> Range<u64> {
        self.version.range.clone()
    }

    /// Records that a range has been written.
    pub(crate) fn wrote(&mut self, range: Range<u64>) -> io::Result<()> {
        self.done.add(range);
        let is_due = |part: &Part| part.saved.elapsed() >= SAVE_INTERVAL;
        match self.part.as_ref().is_some_and(is_due) {
            true => self.save(),
            false => Ok(()),
        }
    }

    fn save(&mut self) -> io::Result<()> {
        let Some(part) = &mut self.part else {
            return Ok(());
        };
        part.saved = Instant::now();
        state::write(&part.state, &self.version, &self.done)
    }

    /// Gives the file its name, in place of an earlier one. All bytes must have come.
    ///
    /// # Errors
    /// [`PartialError::Io`].
    pub fn commit(mut self) -> Result<(), PartialError> {
        let Some(part) = self.part.take() else {
            return Ok(());
        };
        if let Ok(old) = fs::metadata(&self.path) {
            // After a crash of the machine either the old file is there or all of the new one.
            let synced = self.file.sync_data();
            synced.map_err(failed("write", &part.bytes))?;
            // Where that is not possible, the new file has the usual permissions.
            let _ = self.file.set_permissions(old.permissions());
        }
        let renamed = fs::rename(&part.bytes, &self.path);
        renamed.map_err(failed("rename to its name", &part.bytes))?;
        remove(&part.state)
    }
}

/// A load that has failed leaves what has come, and a record of it; nothing if no byte has come.
impl Drop for PartialFile {
    fn drop(&mut self) {
        let is_empty = self.done.bytes() == 0;
        match &self.part {
            Some(part) if is_empty => {
                // Nothing can be done about a failure.
                let _ = fs::remove_file(&part.bytes);
                let _ = fs::remove_file(&part.state);
            }
            Some(_) => drop(self.save()),
            None => {}
        }
    }
}

/// Returns the file that a symbolic link leads to, which the link keeps leading to: also one that is not there yet.
fn target_of(path: &Path) -> PathBuf {
    if !path.is_symlink() {
        return path.to_owned();
    }
    if path.exists() {
        // A link of /proc to a pipe, as /dev/stdout, names no file.
        return fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    }
    let mut target = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(next) = fs::read_link(&target) else {
            return target;
        };
        // A relative one begins in the folder of the link.
        target = target.parent().unwrap_or(Path::new("")).join(next);
    }
    path.to_owned()
}

/// Returns whether another file can take the name: not that of a device, a FIFO or a folder.
fn is_replaceable(path: &Path) -> bool {
    fs::metadata(path).map_or(true, |found| found.is_file())
}

fn remove(path: &Path) -> Result<(), PartialError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn version(validator: Option<&str>) -> FileVersion {
        FileVersion {
            size: Some(100),
            validator: validator.map(str::to_owned),
            range: 10..60,
        }
    }

    #[test]
    fn a_load_that_stopped_goes_on_and_keeps_the_earlier_file_until_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        fs::write(&path, "old").unwrap();
        let mut file = PartialFile::create(&path, version(Some("\"1\""))).unwrap();
        file.file().write_all_at(b"12345", 20).unwrap();
        file.wrote(30..35).unwrap();
        assert_eq!(file.missing(), [10..30, 35..60]);
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"old");

        let mut file = PartialFile::resume(&path, version(Some("\"1\""))).unwrap();
        assert_eq!(
            (file.done_bytes(), file.missing()),
            (5, vec![10..30, 35..60])
        );
        file.wrote(10..30).unwrap();
        file.wrote(35..60).unwrap();
        assert_eq!(file.missing(), []);
        file.commit().unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!((bytes.len(), &bytes[20..25]), (50, &b"12345"[..]));
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            1,
            "nothing else is left"
        );
    }

    #[test]
    fn bytes_of_another_version_are_not_gone_on_with() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        let mut file = PartialFile::create(&path, version(Some("\"1\""))).unwrap();
        file.wrote(10..20).unwrap();
        drop(file);
        let mut longer = version(Some("\"1\""));
        longer.size = Some(101);
        let mut other_range = version(Some("\"1\""));
        other_range.range = 0..60;
        for other in [version(Some("\"2\"")), longer, other_range] {
            let refused = PartialFile::resume(&path, other).unwrap_err();
            assert!(matches!(refused, PartialError::Other { .. }), "{refused}");
        }
        // From the start it is possible.
        let file = PartialFile::create(&path, version(Some("\"2\""))).unwrap();
        assert_eq!(file.done_bytes(), 0);
        drop(file);
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            0,
            "no byte has come"
        );
        let fresh = PartialFile::resume(&path, version(None)).unwrap();
        assert_eq!(fresh.missing(), [10..60]);
    }

    #[test]
    fn a_file_belongs_to_one_load_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        let mut first = PartialFile::create(&path, version(None)).unwrap();
        first.wrote(10..30).unwrap();
        for second in [
            PartialFile::create(&path, version(None)),
            PartialFile::resume(&path, version(None)),
        ] {
            let refused = second.unwrap_err();
            assert!(matches!(refused, PartialError::Busy { .. }), "{refused}");
        }
        assert_eq!(first.done_bytes(), 20, "it was left alone");
        first.wrote(30..60).unwrap();
        first.commit().unwrap();
        drop(PartialFile::create(&path, version(None)).unwrap());
    }

    #[test]
    fn a_record_is_not_believed_of_a_file_of_another_length_or_before_a_restart_of_the_machine() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        let (part, state) = (
            folder.path().join("model.part"),
            folder.path().join("model.part.state"),
        );
        let begun = || {
            let mut file = PartialFile::create(&path, version(None)).unwrap();
            file.wrote(10..30).unwrap();
        };
        let resumed = || {
            let file = PartialFile::resume(&path, version(None)).unwrap();
            assert_eq!(file.file().metadata().unwrap().len(), 50);
            file.done_bytes()
        };
        begun();
        assert_eq!(resumed(), 20);
        File::options()
            .write(true)
            .open(&part)
            .unwrap()
            .set_len(49)
            .unwrap();
        assert_eq!(resumed(), 0, "somebody has cut it");
        begun();
        fs::remove_file(&part).unwrap();
        assert_eq!(resumed(), 0, "somebody has removed it");
        begun();
        let text = fs::read_to_string(&state).unwrap();
        let other = text.replace("\nboot ", "\nboot not-");
        assert_ne!(text, other);
        fs::write(&state, other).unwrap();
        assert_eq!(resumed(), 0, "bytes may never have reached the disk");
    }

    #[test]
    fn a_state_that_makes_no_sense_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        for state in [
            "",
            "devmem-tcp part 9\n",
            "devmem-tcp part 1\nrange 9-1\n",
            "\u{0}",
        ] {
            fs::write(folder.path().join("model.part.state"), state).unwrap();
            fs::write(folder.path().join("model.part"), "x").unwrap();
            let file = PartialFile::resume(&path, version(None)).unwrap();
            assert_eq!(file.done_bytes(), 0, "{state:?}");
        }
    }

    #[test]
    fn a_device_is_written_at_once_and_a_link_keeps_leading_to_its_file() {
        let null = PartialFile::create(Path::new("/dev/null"), version(None)).unwrap();
        assert_eq!(null.bytes_path(), Path::new("/dev/null"));
        null.commit().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("model"), folder.path().join("link"));
        fs::write(&path, "old").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let mut file = PartialFile::create(&link, version(None)).unwrap();
        file.wrote(10..60).unwrap();
        file.commit().unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&path).unwrap().len(), 50);
    }

    #[test]
    fn links_keep_leading_to_the_file_also_to_one_that_is_not_there_yet() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("disk")).unwrap();
        std::os::unix::fs::symlink("disk/model", at("link")).unwrap();
        std::os::unix::fs::symlink(at("link"), at("model")).unwrap();
        for _ in 0..2 {
            let mut file = PartialFile::create(&at("model"), version(None)).unwrap();
            assert_eq!(file.bytes_path(), at("disk/model.part"));
            file.wrote(10..60).unwrap();
            file.commit().unwrap();
            assert!(at("model").is_symlink() && at("link").is_symlink());
            assert_eq!(fs::metadata(at("disk/model")).unwrap().len(), 50);
        }
    }

    #[test]
    fn a_record_that_cannot_be_written_is_told_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        let mut file = PartialFile::create(&path, version(None)).unwrap();
        file.wrote(10..30).unwrap();
        file.record().unwrap();
        // No file takes the name of a folder that is not empty.
        let state = folder.path().join("model.part.state");
        fs::remove_file(&state).unwrap();
        fs::create_dir_all(state.join("full")).unwrap();
        let refused = file.record().unwrap_err().to_string();
        assert!(refused.contains("model.part.state"), "{refused}");
        assert!(!folder.path().join("model.part.state.new").exists());
    }

    #[test]
    fn more_bytes_than_a_file_can_have_are_refused_as_such() {
        let folder = tempfile::tempdir().unwrap();
        for bytes in [u64::MAX, i64::MAX as u64] {
            let mut version = version(None);
            version.range = 0..bytes;
            let refused = PartialFile::create(&folder.path().join("model"), version).unwrap_err();
            let text = refused.to_string();
            assert!(
                text.contains(&format!("the {bytes} bytes of the source")),
                "{text}"
            );
            assert!(!text.contains("conversion"), "{text}");
        }
    }
}
