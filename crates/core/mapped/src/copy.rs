//! Copies that are defined while others write the same bytes.
//!
// UNSAFETY: a plain copy (`ptr::copy_nonoverlapping`) of bytes that another thread writes is a data race, and the
// compiler may make it read a byte again later. Here no access to mapped memory is a plain one:
//
// - On x86-64 it is a block of assembly, which is opaque to the compiler: it neither repeats nor removes the copy and
//   assumes nothing about the bytes. For the abstract machine the block is one relaxed atomic load and one
//   relaxed atomic store of each byte, which may race; the processor's loads and stores of 1 to 16
//   bytes guarantee at least that.
// - Elsewhere, under Miri, and with `--cfg devmem_word_copies` for ThreadSanitizer (neither tool analyses assembly), it is
//   a relaxed atomic access of one aligned `usize`, always of that size: in Rust, races of atomic accesses
//   of different sizes are undefined. A store of part of a word is a compare-and-exchange of the word.
#![allow(unsafe_code)]

#[cfg(all(target_arch = "x86_64", not(any(miri, devmem_word_copies))))]
pub(crate) use assembly::{ALIGNMENT, forward, load, store};
#[cfg(not(all(target_arch = "x86_64", not(any(miri, devmem_word_copies)))))]
pub(crate) use words::{ALIGNMENT, forward, load, store};

#[cfg(all(target_arch = "x86_64", not(any(miri, devmem_word_copies))))]
mod assembly {
    use std::arch::asm;

    /// Alignment of the beginning and the end of memory that is copied: its bytes alone are accessed.
    pub(crate) const ALIGNMENT: usize = 1;

    /// Bytes from which the string instruction is used: it writes whole cache lines without reading them first.
    const STRING_BYTES: usize = 4096;

    /// Copies mapped bytes from `from` to all of `out`.
    ///
    /// # Safety
    /// `out.len()` bytes can be read at `from`, and no reference points to any of them.
    #[inline]
    pub(crate) unsafe fn load(from: *const u8, out: &mut [u8]) {
        // SAFETY: 1. readable: guaranteed by the caller; 2. `out` has the same length and is borrowed exclusively.
        unsafe { forward(from, out.as_mut_ptr(), out.len()) };
    }

    /// Copies `bytes` to mapped memory at `to`.
    ///
    /// # Safety
    /// `bytes.len()` bytes can be written at `to`, and no reference points to any of them.
    #[inline]
    pub(crate) unsafe fn store(bytes: &[u8], to: *mut u8) {
        // SAFETY: 1. `bytes` has the same length and is borrowed; 2. writable: guaranteed by the caller.
        unsafe { forward(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies `len` bytes in ascending order; each is loaded once and stored once. 1, 2, 4 or 8 bytes are one load and
    /// one store. The ranges may overlap if `to` is below `from`.
    ///
    /// Long copies are one string instruction, which the processor executes in whole cache lines. Between two memories it
    /// is as fast as the C library's memcpy; a loop of 16-byte moves has 80 % of that rate (`devmem-bench loopback`).
    /// Short copies are such a loop, because the instruction takes tens of nanoseconds to start.
    ///
    /// # Safety
    /// `len` bytes can be read at `from` and written at `to`; the only references to any of them are those that the
    /// caller borrowed for this copy (exclusively, for `to`).
    #[inline]
    pub(crate) unsafe fn forward(from: *const u8, to: *mut u8, len: usize) {
        if len >= STRING_BYTES {
            // SAFETY: 1. the instruction reads exactly the `len` bytes at `from` and writes exactly the `len` bytes at
            // `to`, ascending, because the direction flag is clear at every call (System V psABI 3.2.1); 2. and 3. as below.
            unsafe {
                asm!(
                    "rep movsb",
                    inout("rsi") from => _,
                    inout("rdi") to => _,
                    inout("rcx") len => _,
                    options(nostack, preserves_flags),
                );
            }
            return;
        }
        // SAFETY: 1. the block reads exactly the `len` bytes at `from` and writes exactly the `len` bytes at `to`: the
        // loop while 64 or more are left, then 32, 16, 8, 4, 2 and 1 by the bits of the rest; 2. it uses no stack
        // and only registers that are declared; 3. by default a block may read and write any memory, so the compiler
        // keeps no bytes in registers across it.
        unsafe {
            asm!(
                "cmp {n}, 64",
                "jb 3f",
                "2:",
                "movups {a}, [{s}]; movups {b}, [{s} + 16]",
                "movups {c}, [{s} + 32]; movups {e}, [{s} + 48]",
                "movups [{d}], {a}; movups [{d} + 16], {b}",
                "movups [{d} + 32], {c}; movups [{d} + 48], {e}",
                "add {s}, 64; add {d}, 64; sub {n}, 64",
                "cmp {n}, 64",
                "jae 2b",
                "3: test {n:l}, 32",
                "jz 4f",
                "movups {a}, [{s}]; movups {b}, [{s} + 16]",
                "movups [{d}], {a}; movups [{d} + 16], {b}",
                "add {s}, 32; add {d}, 32",
                "4: test {n:l}, 16",
                "jz 5f",
                "movups {a}, [{s}]; movups [{d}], {a}",
                "add {s}, 16; add {d}, 16",
                "5: test {n:l}, 8",
                "jz 6f",
                "mov {t}, [{s}]; mov [{d}], {t}",
                "add {s}, 8; add {d}, 8",
                "6: test {n:l}, 4",
                "jz 7f",
                "mov {t:e}, [{s}]; mov [{d}], {t:e}",
                "add {s}, 4; add {d}, 4",
                "7: test {n:l}, 2",
                "jz 8f",
                "mov {t:x}, [{s}]; mov [{d}], {t:x}",
                "add {s}, 2; add {d}, 2",
                "8: test {n:l}, 1",
                "jz 9f",
                "mov {t:l}, [{s}]; mov [{d}], {t:l}",
                "9:",
                s = inout(reg) from => _,
                d = inout(reg) to => _,
                n = inout(reg) len => _,
                t = out(reg) _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                e = out(xmm_reg) _,
                options(nostack),
            );
        }
    }
}

#[cfg(any(
    test,
    not(all(target_arch = "x86_64", not(any(miri, devmem_word_copies))))
))]
mod words {
    use std::ops::Range;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    const WORD: usize = size_of::<usize>();

    /// Alignment of the beginning and the end of memory that is copied: the whole words of its bytes are accessed, and there may be
    /// something else in front of the first byte, or nothing.
    pub(crate) const ALIGNMENT: usize = WORD;

    /// Number of mapped bytes that [`forward`] moves at once, through a buffer.
    const STEP: usize = 256;

    /// As in `assembly`. In addition to the bytes, those in the same aligned words are read.
    ///
    /// # Safety
    /// As in `assembly`, for the aligned words that contain the bytes.
    pub(crate) unsafe fn load(from: *const u8, out: &mut [u8]) {
        // SAFETY: the caller's word.
        let words = unsafe { split(from.cast_mut(), out.len()) };
        for (word, inside, at) in words {
            let bytes = word.load(Relaxed).to_ne_bytes();
            out[at].copy_from_slice(&bytes[inside]);
        }
    }

    /// As in `assembly`.
    ///
    /// # Safety
    /// As in `assembly`, for the aligned words that contain the bytes.
    pub(crate) unsafe fn store(bytes: &[u8], to: *mut u8) {
        // SAFETY: the caller's word.
        let words = unsafe { split(to, bytes.len()) };
        for (word, inside, at) in words {
            if let Ok(whole) = <[u8; WORD]>::try_from(&bytes[at.clone()]) {
                word.store(usize::from_ne_bytes(whole), Relaxed);
                continue;
            }
            let with = |old: usize| {
                let mut new = old.to_ne_bytes();
                new[inside.clone()].copy_from_slice(&bytes[at.clone()]);
                Some(usize::from_ne_bytes(new))
            };
            let stored = word.fetch_update(Relaxed, Relaxed, with);
            debug_assert!(stored.is_ok(), "`with` always has a value");
        }
    }

    /// As in `assembly`; both ranges are mapped memory.
    ///
    /// # Safety
    /// As in `assembly`, for the aligned words that contain the bytes.
    pub(crate) unsafe fn forward(from: *const u8, to: *mut u8, len: usize) {
        let mut buffer = [0; STEP];
        for done in (0..len).step_by(STEP) {
            let step = &mut buffer[..STEP.min(len - done)];
            // SAFETY: part of the range that the caller guarantees.
            unsafe { load(from.wrapping_add(done), step) };
            // SAFETY: as above.
            unsafe { store(step, to.wrapping_add(done)) };
        }
    }

    /// Returns the aligned words that contain `len` bytes at `at`, with the bytes of each that belong to the range, and
    /// their position in the range.
    ///
    /// # Safety
    /// All of these words are mapped for `'a`, and accessed only by this module during `'a`.
    unsafe fn split<'a>(
        at: *mut u8,
        len: usize,
    ) -> impl Iterator<Item = (&'a AtomicUsize, Range<usize>, Range<usize>)> {
        let mut done = 0;
        std::iter::from_fn(move || {
            let here = at.wrapping_add(done);
            let skip = here.addr() % WORD;
            let take = (WORD - skip).min(len - done);
            if take == 0 {
                return None;
            }
            // SAFETY: 1. aligned: `skip` bytes before `here`; 2. mapped, and not accessed otherwise: guaranteed by the
            // caller. In a read-only mapping there are only relaxed loads of a word, by `load`, which Rust allows there.
            let word = unsafe { AtomicUsize::from_ptr(here.wrapping_sub(skip).cast()) };
            let item = (word, skip..skip + take, done..done + take);
            done += take;
            Some(item)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::words;

    const _: () = assert!(words::ALIGNMENT == size_of::<usize>());

    type Load = unsafe fn(*const u8, &mut [u8]);
    type Store = unsafe fn(&[u8], *mut u8);
    type Forward = unsafe fn(*const u8, *mut u8, usize);

    /// The functions of this architecture, and the portable ones.
    const BOTH: [(Load, Store, Forward); 2] = [
        (super::load, super::store, super::forward),
        (words::load, words::store, words::forward),
    ];

    /// Lengths around every step of the functions; fewer for Miri.
    fn lengths() -> impl Iterator<Item = usize> {
        let all = (0..140).chain([255, 256, 257, 511, 515]);
        all.step_by(if cfg!(miri) { 13 } else { 1 })
    }

    /// Places in two words; fewer for Miri.
    fn alignments() -> impl Iterator<Item = usize> {
        (0..9).step_by(if cfg!(miri) { 3 } else { 1 })
    }

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at % 251) as u8 + 1).collect()
    }

    #[test]
    fn every_length_at_every_alignment_moves_its_bytes_and_no_others() {
        for (load, store, forward) in BOTH {
            for (len, at) in lengths().flat_map(|len| alignments().map(move |at| (len, at))) {
                let bytes = pattern(len);
                let mut memory = [0_u64; 80];
                let base = memory.as_mut_ptr().cast::<u8>();
                // SAFETY: at most 515 bytes from 8 on, of 640.
                unsafe { store(&bytes, base.wrapping_add(8 + at)) };
                let mut all = vec![0; 640];
                // SAFETY: all of the memory.
                unsafe { load(base, &mut all) };
                let mut wanted = vec![0; 640];
                wanted[8 + at..][..len].copy_from_slice(&bytes);
                assert_eq!(all, wanted, "{len} bytes at {at}");
                // SAFETY: as above; the target begins before the source.
                unsafe { forward(base.wrapping_add(8 + at), base.wrapping_add(3), len) };
                let mut moved = vec![0; len];
                // SAFETY: the bytes that `forward` wrote.
                unsafe { load(base.wrapping_add(3), &mut moved) };
                assert_eq!(moved, bytes, "{len} bytes from {at}");
            }
        }
    }
}
