//! Checksums of what was loaded.

mod crc32c;
mod kinds;
mod stored;
mod xxh3;

pub use client::{SumKind, SumValue};
pub use crc32c::Crc32c;
pub use kinds::RunningSum;
pub(crate) use stored::StoredPart;
pub use stored::{Compared, NoSum, StoredSum};
pub use xxh3::Xxh3;
