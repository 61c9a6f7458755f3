//! Where `load` puts the bytes.

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::Context;
use devmem_tcp::Dmabuf;

use crate::load_failure::load_failure;
use crate::plan::{LoadJob, LoadTarget};
use tool::memory::{MemoryKind, PAGE_BYTES};
use tool::output::{Failure, note};
use tool::signals::StopFlag;
use tool::size::Size;
use transfer::load::{
    Crc32c, FileVersion, LoadError, PartialError, PartialFile, RunningSum, SumKind, SumValue,
};

/// Bytes that are read back at a time. Each read of a GPU's memory is a copy that is waited for.
const READ_BYTES: usize = 4 << 20;

/// The open target.
pub enum Target {
    /// Device memory, and its name in the report.
    Memory(Dmabuf, String),
    File(PartialFile),
}

impl Target {
    /// Makes room for `size` bytes: device memory, of `kind` unless the target has its own, or a file for what `version` tells.
    ///
    /// # Errors
    ///
    /// There is not enough; what is there of an earlier load is of another file.
    pub fn open(
        job: &LoadJob,
        kind: MemoryKind,
        size: u64,
        version: impl FnOnce() -> Option<FileVersion>,
    ) -> Result<Self, Failure> {
        match &job.target {
            LoadTarget::Memory(chosen) => {
                let kind = chosen.unwrap_or(kind);
                let bytes = usize::try_from(size).ok();
                let bytes =
                    bytes.and_then(|bytes| bytes.max(1).checked_next_multiple_of(PAGE_BYTES));
                let too_large =
                    || Failure::failed(format!("{} do not fit into memory", Size(size)));
                let bytes = bytes.ok_or_else(too_large)?;
                let name = chosen.map_or_else(|| "memory".to_owned(), |kind| kind.to_string());
                let memory =
                    kind.allocate(bytes, "all bytes (--to FILE needs no memory for them)")?;
                Ok(Self::Memory(memory, name))
            }
            LoadTarget::File(path) => {
                let version = version().expect("files are loaded as they are");
                let file = match job.resume {
                    true => PartialFile::resume(path, version),
                    false => PartialFile::create(path, version),
                };
                let file = file.map_err(|error| refused(error, path))?;
                if job.resume && file.done_bytes() == 0 {
                    note(format_args!(
                        "{}: nothing to go on with since the machine was started; it is loaded from the start",
                        file.bytes_path().display()
                    ));
                }
                Ok(Self::File(file))
            }
        }
    }

    pub fn name(&self) -> String {
        match self {
            Self::Memory(_, name) => name.clone(),
            Self::File(file) => file.path().display().to_string(),
        }
    }

    /// Returns the number of bytes that an earlier load has brought.
    pub fn done_bytes(&self) -> u64 {
        match self {
            Self::Memory(..) => 0,
            Self::File(file) => file.done_bytes(),
        }
    }

    /// Gives a file its name.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub fn commit(self) -> Result<(), Failure> {
        match self {
            Self::Memory(..) => Ok(()),
            Self::File(file) => Ok(file.commit()?),
        }
    }

    /// Says what a load that has ended early leaves behind.
    pub fn tell_rest(&mut self) {
        if let Self::File(file) = self
            && file.can_resume()
        {
            let recorded = file.record();
            let (name, done) = (file.bytes_path().display(), Size(file.done_bytes()));
            match recorded {
                Ok(()) => note(format_args!(
                    "{name} has {done} so far; --resume goes on with it"
                )),
                Err(error) => note(format_args!(
                    "{name} has {done}, and no record says which ({error}): the next load begins at the start"
                )),
            }
        }
    }

    /// Says what a load that has failed leaves behind, and returns its failure.
    pub fn failed(&mut self, error: LoadError, job: &LoadJob, stop: &StopFlag) -> Failure {
        self.tell_rest();
        match error {
            LoadError::Caller(source) => self.unwritten(&source),
            error => load_failure(error, &job.origin, stop),
        }
    }

    /// Returns the failure of a write of bytes that have come.
    fn unwritten(&self, error: &io::Error) -> Failure {
        let place = match self {
            Self::Memory(_, name) => name.clone(),
            Self::File(file) => file.bytes_path().display().to_string(),
        };
        let failure = Failure::failed(format!("write {place}: {error}"));
        match error.kind() {
            io::ErrorKind::StorageFull => {
                failure.with_remedy("make room there, or name a file elsewhere")
            }
            io::ErrorKind::NotSeekable => failure.with_remedy(
                "the bytes come in any order: name a file, which can be written at any place",
            ),
            _ => failure,
        }
    }

    /// Returns the memory, unless the target is a file.
    pub fn memory(&self) -> Option<&Dmabuf> {
        match self {
            Self::Memory(memory, _) => Some(memory),
            Self::File(..) => None,
        }
    }

    /// Returns a checksum of a range, and the device that has computed it; `None`: the CPU.
    ///
    /// # Errors
    ///
    /// The target cannot be read, or the device fails.
    pub fn sum(
        &self,
        kind: SumKind,
        range: Range<u64>,
    ) -> Result<(SumValue, Option<String>), Failure> {
        match self {
            // The only kind that devices compute.
            Self::Memory(memory, _) if kind == SumKind::Crc32c => {
                let at = |byte| usize::try_from(byte).context("an offset in memory");
                let mut sum = Crc32c::default();
                let added = sum.add_memory(memory, at(range.start)?..at(range.end)?);
                let device = added.context("compute the checksum of the memory")?;
                Ok((sum.into(), device))
            }
            Self::Memory(..) | Self::File(..) => {
                let mut sum = RunningSum::begin(kind);
                self.read_back(range, |bytes| sum.add(bytes))?;
                Ok((sum.value(), None))
            }
        }
    }

    /// Returns why the CPU computes a checksum of the target.
    pub fn why_cpu(&self) -> &'static str {
        match self {
            Self::Memory(memory, _) if memory.copy_engine().is_some() => {
                "there is no code for this GPU, or its driver refuses it"
            }
            Self::Memory(..) => "the memory is that of the CPU",
            Self::File(_) => "the bytes are in a file",
        }
    }

    /// Hands the bytes of a range to `look`, in blocks.
    ///
    /// # Errors
    ///
    /// The target cannot be read.
    pub fn read_back(&self, range: Range<u64>, mut look: impl FnMut(&[u8])) -> Result<(), Failure> {
        let mut block = vec![0; READ_BYTES];
        let mut at = range.start;
        while at < range.end {
            let len = usize::try_from(range.end - at)
                .unwrap_or(usize::MAX)
                .min(READ_BYTES);
            let bytes = &mut block[..len];
            match self {
                Self::Memory(memory, _) => {
                    let start = usize::try_from(at).context("an offset in memory")?;
                    memory.copy_out(start, bytes).context("read the memory")?;
                }
                Self::File(file) => {
                    let read = file.file().read_exact_at(bytes, at);
                    let name = file.bytes_path().display();
                    read.with_context(|| format!("read {name} back"))?;
                }
            }
            look(bytes);
            at += len as u64;
        }
        Ok(())
    }
}

/// Returns the failure of a file that cannot be loaded to, with the next command.
fn refused(error: PartialError, path: &Path) -> Failure {
    let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
    match (&error, path.parent().filter(is_missing)) {
        (PartialError::Io { .. }, Some(folder)) => {
            let remedy = format!("make its folder: mkdir -p {}", folder.display());
            Failure::from(error).with_remedy(remedy)
        }
        (PartialError::Io { .. }, None) => {
            Failure::from(error).with_remedy("name a file in a folder that this user may write to")
        }
        _ => error.into(),
    }
}
