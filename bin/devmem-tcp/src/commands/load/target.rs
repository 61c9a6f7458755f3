//! Where `load` puts the bytes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::Context;
use devmem_tcp::Dmabuf;

use crate::plan::LoadTarget;
use tool::memory::MemoryKind;
use tool::output::Failure;
use tool::pattern::BLOCK_BYTES;
use tool::size::Size;
use transfer::load::Crc32c;

/// Device memory is allocated in pages.
const PAGE_BYTES: usize = 4096;

/// The open target.
pub enum Target {
    Memory(Dmabuf),
    File(File, String),
}

impl Target {
    /// Makes room for `size` bytes: device memory of `kind`, or a new file.
    ///
    /// # Errors
    ///
    /// There is not enough.
    pub fn open(target: &LoadTarget, kind: MemoryKind, size: u64) -> Result<Self, Failure> {
        match target {
            LoadTarget::Memory => {
                let bytes = usize::try_from(size).ok();
                let bytes =
                    bytes.and_then(|bytes| bytes.max(1).checked_next_multiple_of(PAGE_BYTES));
                let too_large =
                    || Failure::failed(format!("{} do not fit into memory", Size(size)));
                let bytes = bytes.ok_or_else(too_large)?;
                if !matches!(kind, MemoryKind::Cuda(_)) {
                    check_free(bytes)?;
                }
                kind.allocate(bytes).map(Self::Memory)
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
            Self::Memory(_) => "memory".to_owned(),
            Self::File(_, name) => name.clone(),
        }
    }

    /// Returns the memory, unless the target is a file.
    pub fn memory(&self) -> Option<&Dmabuf> {
        match self {
            Self::Memory(memory) => Some(memory),
            Self::File(..) => None,
        }
    }

    /// Returns the checksum of the loaded bytes, read back from where they are.
    pub fn checksum(&self, size: u64) -> Result<u32, Failure> {
        let mut block = vec![0; BLOCK_BYTES];
        let mut sum = Crc32c::default();
        let mut at = 0;
        while at < size {
            let len = usize::try_from(size - at)
                .unwrap_or(usize::MAX)
                .min(BLOCK_BYTES);
            let bytes = &mut block[..len];
            match self {
                Self::Memory(memory) => {
                    let start = usize::try_from(at).context("an offset in memory")?;
                    memory.copy_out(start, bytes).context("read the memory")?;
                }
                Self::File(file, name) => {
                    let read = file.read_exact_at(bytes, at);
                    read.with_context(|| format!("read {name} back"))?;
                }
            }
            sum.add(bytes);
            at += len as u64;
        }
        Ok(sum.value())
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
    Ok(opened.with_context(|| format!("create {}", path.display()))?)
}

/// Refuses a size that this machine has no memory for: the server chooses it, and memory is touched when it is allocated.
fn check_free(bytes: usize) -> Result<(), Failure> {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    match available(&text) {
        Some(free) if bytes as u64 > free => {
            let (size, free) = (Size(bytes as u64), Size(free));
            let text = format!("{size} do not fit into the free memory of {free}");
            Err(Failure::failed(text).with_remedy("--to FILE needs no memory for the file"))
        }
        _ => Ok(()),
    }
}

/// Returns the free bytes by the text of /proc/meminfo (proc_meminfo(5)).
fn available(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_is_read_and_too_much_is_refused() {
        let text = "MemTotal:       100 kB\nMemAvailable:    7 kB\n";
        assert_eq!(available(text), Some(7 * 1024));
        assert_eq!(available("MemTotal: 1 kB\n"), None);
        let refused = check_free(usize::MAX / 2).unwrap_err().to_string();
        assert!(
            refused.ends_with("--to FILE needs no memory for the file"),
            "{refused}"
        );
    }
}
