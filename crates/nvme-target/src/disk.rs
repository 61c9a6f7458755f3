//! The bytes of a namespace.

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use nvme::Status;
use nvme::command::Blocks;
use nvme::identify::Namespace;

/// Bytes of a file that are read at a time.
const FILE_BYTES: usize = 1 << 20;

/// Where bytes are kept.
#[derive(Debug)]
pub enum Storage {
    /// In memory.
    Memory(RwLock<Vec<u8>>),
    /// In a file.
    File(File),
}

/// A namespace.
#[derive(Debug)]
pub struct Disk {
    storage: Storage,
    block_log2: u8,
    metadata_bytes: u16,
    blocks: AtomicU64,
    is_active: AtomicBool,
    is_read_only: AtomicBool,
    /// What was flushed, if the rest is lost in a crash.
    flushed: Option<Mutex<Vec<u8>>>,
}

impl Disk {
    /// Returns a namespace of `bytes` in memory, with blocks of `1 << block_log2` bytes.
    pub fn in_memory(bytes: Vec<u8>, block_log2: u8) -> Self {
        let len = bytes.len() as u64;
        Self::of(Storage::Memory(RwLock::new(bytes)), len, block_log2)
    }

    /// Returns a namespace of the bytes of a file.
    ///
    /// # Errors
    /// The file has no size.
    pub fn in_file(file: File, block_log2: u8) -> io::Result<Self> {
        let len = file.metadata()?.len();
        Ok(Self::of(Storage::File(file), len, block_log2))
    }

    fn of(storage: Storage, len: u64, block_log2: u8) -> Self {
        Self {
            storage,
            block_log2,
            metadata_bytes: 0,
            blocks: AtomicU64::new(len >> block_log2),
            is_active: AtomicBool::new(true),
            is_read_only: AtomicBool::new(false),
            flushed: None,
        }
    }

    /// Makes a crash lose what was not flushed.
    #[must_use]
    pub fn with_volatile_cache(mut self) -> Self {
        self.flushed = Some(Mutex::new(self.bytes()));
        self
    }

    /// Gives each block bytes of metadata, which are not kept.
    #[must_use]
    pub fn with_metadata(mut self, bytes: u16) -> Self {
        self.metadata_bytes = bytes;
        self
    }

    /// Makes the namespace shorter.
    pub fn shrink(&self, bytes: u64) {
        self.blocks
            .store(bytes >> self.block_log2, Ordering::Relaxed);
    }

    /// Sets whether the namespace is there.
    pub fn set_active(&self, is_active: bool) {
        self.is_active.store(is_active, Ordering::Relaxed);
    }

    /// Sets whether writes are refused.
    pub fn set_read_only(&self, is_read_only: bool) {
        self.is_read_only.store(is_read_only, Ordering::Relaxed);
    }

    /// Returns all bytes in memory; none of those in a file.
    pub fn bytes(&self) -> Vec<u8> {
        match &self.storage {
            Storage::Memory(bytes) => bytes.read().unwrap_or_else(PoisonError::into_inner).clone(),
            Storage::File(_) => Vec::new(),
        }
    }

    pub(crate) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    pub(crate) fn has_volatile_cache(&self) -> bool {
        self.flushed.is_some()
    }

    /// Returns what Identify says.
    pub(crate) fn identify(&self) -> Namespace {
        Namespace {
            blocks: match self.is_active() {
                true => self.blocks.load(Ordering::Relaxed),
                false => 0,
            },
            block_log2: self.block_log2,
            metadata_bytes: self.metadata_bytes,
            is_protected: false,
            is_read_only: self.is_read_only.load(Ordering::Relaxed),
        }
    }

    /// Returns the bytes of blocks.
    pub(crate) fn range(&self, blocks: Blocks) -> Result<Range<u64>, Status> {
        if !self.is_active() {
            return Err(Status::INVALID_NAMESPACE.do_not_retry());
        }
        let end = blocks.start.checked_add(blocks.count.into());
        let size = self.blocks.load(Ordering::Relaxed);
        let end = end.filter(|end| *end <= size);
        let end = end.ok_or(Status::LBA_OUT_OF_RANGE.do_not_retry())?;
        Ok(blocks.start << self.block_log2..end << self.block_log2)
    }

    /// The same for a write.
    pub(crate) fn writable_range(&self, blocks: Blocks) -> Result<Range<u64>, Status> {
        match self.is_read_only.load(Ordering::Relaxed) {
            true => Err(Status::WRITE_PROTECTED.do_not_retry()),
            false => self.range(blocks),
        }
    }

    /// Hands the bytes of a range to `take`, in parts.
    pub(crate) fn read(
        &self,
        range: Range<u64>,
        take: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        match &self.storage {
            Storage::Memory(bytes) => {
                let bytes = bytes.read().unwrap_or_else(PoisonError::into_inner);
                let place = to_usize(range.start)?..to_usize(range.end)?;
                take(bytes.get(place).ok_or(io::ErrorKind::UnexpectedEof)?)
            }
            Storage::File(file) => {
                let mut block = vec![0; FILE_BYTES];
                let mut at = range.start;
                while at < range.end {
                    let len = to_usize(range.end - at)?.min(FILE_BYTES);
                    file.read_exact_at(&mut block[..len], at)?;
                    take(&block[..len])?;
                    at += len as u64;
                }
                Ok(())
            }
        }
    }

    pub(crate) fn write(&self, at: u64, data: &[u8]) -> io::Result<()> {
        match &self.storage {
            Storage::Memory(bytes) => {
                let mut bytes = bytes.write().unwrap_or_else(PoisonError::into_inner);
                let start = to_usize(at)?;
                let end = start.checked_add(data.len());
                let place = end.and_then(|end| bytes.get_mut(start..end));
                place
                    .ok_or(io::ErrorKind::UnexpectedEof)?
                    .copy_from_slice(data);
                Ok(())
            }
            Storage::File(file) => file.write_all_at(data, at),
        }
    }

    pub(crate) fn write_zeroes(&self, range: Range<u64>) -> io::Result<()> {
        let zeros = vec![0; to_usize((range.end - range.start).min(FILE_BYTES as u64))?];
        let mut at = range.start;
        while at < range.end {
            let len = to_usize(range.end - at)?.min(zeros.len());
            self.write(at, &zeros[..len])?;
            at += len as u64;
        }
        Ok(())
    }

    pub(crate) fn flush(&self) -> io::Result<()> {
        if let Some(flushed) = &self.flushed {
            *flushed.lock().unwrap_or_else(PoisonError::into_inner) = self.bytes();
        }
        match &self.storage {
            Storage::Memory(_) => Ok(()),
            Storage::File(file) => file.sync_data(),
        }
    }

    pub(crate) fn lose_cache(&self) {
        if let (Some(flushed), Storage::Memory(bytes)) = (&self.flushed, &self.storage) {
            let flushed = flushed.lock().unwrap_or_else(PoisonError::into_inner);
            let mut bytes = bytes.write().unwrap_or_else(PoisonError::into_inner);
            bytes.copy_from_slice(&flushed);
        }
    }
}

/// Sends slices one after another, together where that is possible.
pub(crate) fn write_parts(stream: &mut impl Write, parts: [&[u8]; 3]) -> io::Result<()> {
    let mut slices = parts.map(io::IoSlice::new);
    let mut slices = &mut slices[..];
    io::IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match stream.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(sent) => io::IoSlice::advance_slices(&mut slices, sent),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn to_usize(value: u64) -> io::Result<usize> {
    usize::try_from(value).map_err(io::Error::other)
}
