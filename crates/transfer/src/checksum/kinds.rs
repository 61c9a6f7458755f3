//! The computation of the checksums that object stores keep.

use std::fmt;
use std::ops::Range;

use client::{SumKind, SumValue};
use crc_fast::{CrcAlgorithm, Digest};
use devmem_tcp::{Dmabuf, memory::CopyError};
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

use super::crc32c::Crc32c;

/// Bytes of memory that are read at a time.
const BLOCK_BYTES: usize = 1 << 20;

/// A checksum of bytes that are added in order.
pub struct RunningSum(Running);

enum Running {
    Crc32c(Crc32c),
    Crc(SumKind, Digest),
    Sha(Context),
}

impl From<Crc32c> for SumValue {
    fn from(sum: Crc32c) -> Self {
        Self::new(sum.value().to_be_bytes())
    }
}

impl RunningSum {
    /// Begins a checksum of a kind.
    pub fn begin(kind: SumKind) -> Self {
        Self(match kind {
            SumKind::Crc32c => Running::Crc32c(Crc32c::default()),
            SumKind::Crc64Nvme => Running::Crc(kind, Digest::new(CrcAlgorithm::Crc64Nvme)),
            SumKind::Crc32 => Running::Crc(kind, Digest::new(CrcAlgorithm::Crc32IsoHdlc)),
            SumKind::Sha256 => Running::Sha(Context::new(&SHA256)),
            SumKind::Sha1 => Running::Sha(Context::new(&SHA1_FOR_LEGACY_USE_ONLY)),
        })
    }

    /// Adds the next bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            Running::Crc32c(sum) => sum.add(bytes),
            Running::Crc(_, sum) => sum.update(bytes),
            Running::Sha(sum) => sum.update(bytes),
        }
    }

    /// Adds the bytes of a range of device memory: a CRC-32C without a copy to the host if the device can compute.
    ///
    /// # Errors
    /// [`CopyError`]: the range is not inside the memory, or the device fails.
    pub fn add_memory(&mut self, memory: &Dmabuf, range: Range<usize>) -> Result<(), CopyError> {
        if let Running::Crc32c(sum) = &mut self.0 {
            return sum.add_memory(memory, range).map(drop);
        }
        let mut block = vec![0; range.len().min(BLOCK_BYTES)];
        for start in range.clone().step_by(BLOCK_BYTES) {
            let bytes = &mut block[..(range.end - start).min(BLOCK_BYTES)];
            memory.copy_out(start, bytes)?;
            self.add(bytes);
        }
        Ok(())
    }

    /// Returns the checksum of all bytes.
    pub fn value(self) -> SumValue {
        match self.0 {
            Running::Crc32c(sum) => sum.into(),
            // A shorter checksum is in the low bytes.
            Running::Crc(kind, sum) => {
                let bytes = sum.finalize().to_be_bytes();
                SumValue::new(&bytes[bytes.len() - kind.bytes()..])
            }
            Running::Sha(sum) => SumValue::new(sum.finish().as_ref()),
        }
    }
}

impl fmt::Debug for RunningSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.0 {
            Running::Crc32c(_) => SumKind::Crc32c.name(),
            Running::Crc(kind, _) => kind.name(),
            Running::Sha(_) => "SHA",
        };
        write!(f, "RunningSum({kind})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check values of the catalogue of CRCs (reveng.sourceforge.io), and examples of FIPS 180-4 and of its predecessor.
    const VECTORS: [(SumKind, &str, &str); 9] = [
        (SumKind::Crc32c, "123456789", "e3069283"),
        (SumKind::Crc32, "123456789", "cbf43926"),
        (SumKind::Crc64Nvme, "123456789", "ae8b14860a799888"),
        (SumKind::Crc32, "", "00000000"),
        (SumKind::Crc64Nvme, "", "0000000000000000"),
        (
            SumKind::Sha256,
            "abc",
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        ),
        (
            SumKind::Sha256,
            "",
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        ),
        (
            SumKind::Sha1,
            "abc",
            "a9993e364706816aba3e25717850c26c9cd0d89d",
        ),
        (
            SumKind::Sha1,
            "",
            "da39a3ee5e6b4b0d3255bfef95601890afd80709",
        ),
    ];

    #[test]
    fn known_vectors_have_their_checksums_however_they_are_cut() {
        for (kind, text, expected) in VECTORS {
            for cut in 0..=text.len() {
                let (first, second) = text.as_bytes().split_at(cut);
                let mut sum = RunningSum::begin(kind);
                sum.add(first);
                sum.add(second);
                let value = sum.value();
                assert_eq!(value.to_string(), expected, "{kind} of {text:?}");
                assert_eq!(value.bytes().len(), kind.bytes(), "{kind}");
            }
        }
    }
}
