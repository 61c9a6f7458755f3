//! Memory that another library has mapped.
//!
// UNSAFETY: a pointer of another library becomes a mapping; the caller promises that the memory stays mapped.
#![allow(unsafe_code)]

use std::any::Any;
use std::io;
use std::ptr::NonNull;

use super::{Backing, Mapping};
use crate::kinds::MapAccess;
use crate::{BASE_PAGE_BYTES, HUGE_PAGE_BYTES, copy};

impl Mapping {
    /// Takes over `len` bytes at `base`, a positive multiple of [`BASE_PAGE_BYTES`], that another library has mapped for
    /// reading and writing, such as the driver of a device. They need not be aligned to a page. `owner` is dropped with the mapping.
    ///
    /// # Errors
    /// `InvalidInput` for another `len`, and where memory is copied in words (not on x86-64) for a `base` that is no multiple of one:
    /// bytes that do not belong to the memory would be read and written with its first ones.
    ///
    /// # Safety
    /// Until `owner` is dropped, the bytes are mapped, readable and writable, and no Rust reference points to any of them.
    pub unsafe fn lent(
        base: NonNull<u8>,
        len: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> io::Result<Self> {
        // The largest size of an object, with room as for the other mappings.
        let is_possible = len <= (isize::MAX as usize) - HUGE_PAGE_BYTES;
        if len == 0 || !len.is_multiple_of(BASE_PAGE_BYTES) || !is_possible {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if !base.addr().get().is_multiple_of(copy::ALIGNMENT) {
            let text = format!(
                "memory at {base:p} cannot be lent: on this machine it has to begin at a multiple of {} bytes",
                copy::ALIGNMENT
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(Self {
            base,
            len,
            access: MapAccess::ReadWrite,
            _backing: Backing::Lent(owner),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Commit;

    #[test]
    fn lent_bytes_are_those_of_the_owner_and_it_is_dropped_with_the_mapping() {
        let owner = Arc::new(Mapping::anonymous(3 * BASE_PAGE_BYTES, Commit::Lazily).unwrap());
        let base = owner.base;
        let lend = |len, owner: &Arc<Mapping>| {
            // SAFETY: the bytes are the first ones of the owner's.
            unsafe { Mapping::lent(base, len, Box::new(Arc::clone(owner))) }
        };
        for len in [0, 1, BASE_PAGE_BYTES + 1, usize::MAX - 4095] {
            let refused = lend(len, &owner).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{len}");
        }
        let lent = lend(BASE_PAGE_BYTES, &owner).unwrap();
        lent.copy_in(BASE_PAGE_BYTES - 4, b"lent").unwrap();
        assert!(lent.copy_in(BASE_PAGE_BYTES - 3, b"lent").is_err());
        let mut seen = [0; 4];
        owner.copy_out(BASE_PAGE_BYTES - 4, &mut seen).unwrap();
        assert_eq!((&seen, Arc::strong_count(&owner)), (b"lent", 2));
        drop(lent);
        assert_eq!(Arc::strong_count(&owner), 1);
    }

    #[test]
    fn bytes_in_front_of_lent_memory_are_not_touched() {
        let owner = Arc::new(Mapping::anonymous(2 * BASE_PAGE_BYTES, Commit::Lazily).unwrap());
        owner.fill(0, 2 * BASE_PAGE_BYTES, 0xaa).unwrap();
        for at in 1..16 {
            // SAFETY: one page from there is inside of the owner's two.
            let base = unsafe { owner.base.add(at) };
            let owner = Arc::clone(&owner);
            // SAFETY: as above.
            let lent = unsafe { Mapping::lent(base, BASE_PAGE_BYTES, Box::new(owner.clone())) };
            let is_aligned = at.is_multiple_of(copy::ALIGNMENT);
            match lent {
                Ok(lent) => {
                    assert!(is_aligned, "words in front of {at} would be accessed");
                    lent.copy_in(0, &[1; 3]).unwrap();
                    let mut seen = [0; 5];
                    owner.copy_out(at - 1, &mut seen).unwrap();
                    assert_eq!(seen, [0xaa, 1, 1, 1, 0xaa]);
                    owner.fill(at, 3, 0xaa).unwrap();
                }
                Err(refused) => {
                    assert!(!is_aligned, "{refused}");
                    assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
                }
            }
        }
    }
}
