//! Where `load` puts the bytes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::Context;
use devmem_tcp::Dmabuf;

use crate::plan::LoadTarget;
use tool::memory::{MemoryKind, PAGE_BYTES};
use tool::output::Failure;
use tool::pattern::BLOCK_BYTES;
use tool::size::Size;
use transfer::load::Crc32c;

/// The open target.
pub enum Target {
    /// Device memory, and its name in the report.
    Memory(Dmabuf, String),
    File(File, String),
}

impl Target {
    /// Makes room for `size` bytes: device memory, of `kind` unless the target has its own, or a new file.
    ///
    /// # Errors
    ///
    /// There is not enough.
    pub fn open(target: &LoadTarget, kind: MemoryKind, size: u64) -> Result<Self, Failure> {
        match target {
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
                let name = path.display().to_string();
                let file = create(path)?;
                // Holes of the source are never written.
                let sized = file.set_len(size);
                sized.with_context(|| format!("make {name} {} long", Size(size)))?;
                Ok(Self::File(file, name))
            }
        }
    }

    pub fn name(&self) -> String {
        match self {
            Self::Memory(_, name) | Self::File(_, name) => name.clone(),
        }
    }

    /// Returns the memory, unless the target is a file.
    pub fn memory(&self) -> Option<&Dmabuf> {
        match self {
            Self::Memory(memory, _) => Some(memory),
            Self::File(..) => None,
        }
    }

    /// Returns the CRC-32C of the first `size` bytes, and the device that has computed it; `None`: the CPU.
    ///
    /// # Errors
    ///
    /// The target cannot be read, or the device fails.
    pub fn crc32c(&self, size: u64) -> Result<(u32, Option<String>), Failure> {
        let mut sum = Crc32c::default();
        let device = match self {
            Self::Memory(memory, _) => {
                let size = usize::try_from(size).context("the size of the memory")?;
                let added = sum.add_memory(memory, 0..size);
                added.context("compute the checksum of the memory")?
            }
            Self::File(..) => {
                self.read_back(size, |bytes| sum.add(bytes))?;
                None
            }
        };
        Ok((sum.value(), device))
    }

    /// Hands the first `size` bytes to `look`, in blocks.
    ///
    /// # Errors
    ///
    /// The target cannot be read.
    pub fn read_back(&self, size: u64, mut look: impl FnMut(&[u8])) -> Result<(), Failure> {
        let mut block = vec![0; BLOCK_BYTES];
        let mut at = 0;
        while at < size {
            let len = usize::try_from(size - at)
                .unwrap_or(usize::MAX)
                .min(BLOCK_BYTES);
            let bytes = &mut block[..len];
            match self {
                Self::Memory(memory, _) => {
                    let start = usize::try_from(at).context("an offset in memory")?;
                    memory.copy_out(start, bytes).context("read the memory")?;
                }
                Self::File(file, name) => {
                    let read = file.read_exact_at(bytes, at);
                    read.with_context(|| format!("read {name} back"))?;
                }
            }
            look(bytes);
            at += len as u64;
        }
        Ok(())
    }
}

fn create(path: &Path) -> Result<File, Failure> {
    let mut options = File::options();
    // Read back by --verify.
    let opened: io::Result<File> = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path);
    opened.map_err(|error| {
        let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
        let failure = Failure::failed(format!("create {}: {error}", path.display()));
        match path.parent().filter(is_missing) {
            Some(folder) => {
                failure.with_remedy(format!("make its folder: mkdir -p {}", folder.display()))
            }
            None => failure.with_remedy("name a file that this user may write"),
        }
    })
}
