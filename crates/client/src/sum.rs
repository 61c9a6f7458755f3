//! The kinds of checksums that object stores keep, and their values.

use std::fmt;

/// A kind of checksum that S3-compatible stores and Google's keep of an object. Of several, the first in this order is compared: the one that a GPU
/// computes, then the faster ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SumKind {
    /// CRC-32C (RFC 3720 12.1).
    Crc32c,
    /// CRC-64/NVME (NVM Express NVM Command Set Specification 1.0 5.2.1.3.4), which Amazon's S3 computes for objects that come without a checksum.
    Crc64Nvme,
    /// CRC-32 of Ethernet and gzip (RFC 1952 8), which Amazon's libraries send with an upload.
    Crc32,
    /// SHA-256 (FIPS 180-4).
    Sha256,
    /// SHA-1 (FIPS 180-4): against accidents, not against an attacker.
    Sha1,
}

impl SumKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [
        Self::Crc32c,
        Self::Crc64Nvme,
        Self::Crc32,
        Self::Sha256,
        Self::Sha1,
    ];

    /// Returns the name, as specifications write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Crc32c => "CRC-32C",
            Self::Crc64Nvme => "CRC-64/NVME",
            Self::Crc32 => "CRC-32",
            Self::Sha256 => "SHA-256",
            Self::Sha1 => "SHA-1",
        }
    }

    /// Returns the length of a checksum in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::Crc32c | Self::Crc32 => 4,
            Self::Crc64Nvme => 8,
            Self::Sha256 => 32,
            Self::Sha1 => 20,
        }
    }
}

impl fmt::Display for SumKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The value of a checksum, the high byte first. `Display` writes it in hexadecimal.
#[derive(Clone, PartialEq, Eq)]
pub struct SumValue(Vec<u8>);

impl SumValue {
    /// Returns the value with these bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    /// Returns its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for SumValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SumValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
