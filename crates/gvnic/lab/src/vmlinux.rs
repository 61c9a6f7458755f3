//! Unpacking a kernel image on this machine: the guest's own unpacking takes more than a second under software emulation.
//!
//! An x86 image (bzImage) has a compressed ELF file, which QEMU can start directly if it has a PVH entry. An image that
//! cannot be unpacked here is started as it is.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::image;

/// Start of the names of unpacked kernels in the cache.
const PREFIX: &str = "vmlinux-";
/// Number of unpacked kernels that are kept.
const MAX_CACHED: usize = 4;
/// Maximum bytes of a compressed kernel.
const PAYLOAD_MAX: usize = 256 << 20;
/// Offsets in the boot header, and the size of a sector (linux Documentation/arch/x86/boot.rst).
const SETUP_SECTORS_AT: usize = 0x1f1;
const PAYLOAD_AT: usize = 0x248;
const PAYLOAD_LEN_AT: usize = 0x24c;
const SECTOR: u64 = 512;
/// Bytes after a payload in a format that does not store the unpacked size: the kernel's build appends it (linux
/// scripts/Makefile.lib, `size_append`).
const SIZE_BYTES: usize = 4;

/// A compressed format: its first bytes, the program that unpacks it, and whether the size is appended.
struct Format {
    magic: &'static [u8],
    program: &'static str,
    appended: usize,
}

const FORMATS: &[Format] = &[
    Format {
        magic: &[0x28, 0xb5, 0x2f, 0xfd],
        program: "zstd",
        appended: SIZE_BYTES,
    },
    Format {
        magic: &[0x1f, 0x8b],
        program: "gzip",
        appended: 0,
    },
    Format {
        magic: b"\xfd7zXZ\0",
        program: "xz",
        appended: SIZE_BYTES,
    },
];

/// Returns the unpacked form of a kernel image, from `cache` if it has been unpacked before; `None` if QEMU cannot start it,
/// or the program that unpacks it is not installed.
pub fn unpacked(image: &Path, cache: &Path) -> Option<PathBuf> {
    let file = File::open(image).ok()?;
    let facts = file.metadata().ok()?;
    let mut hasher = DefaultHasher::new();
    let place = fs::canonicalize(image).ok()?;
    (
        place,
        facts.len(),
        facts.mtime(),
        facts.mtime_nsec(),
        facts.ino(),
    )
        .hash(&mut hasher);
    let known = cache.join(format!("{PREFIX}{:016x}", hasher.finish()));
    if known.exists() {
        return Some(known);
    }
    unpack(&file, &known).ok()?;
    forget_old(cache);
    Some(known)
}

/// Unpacks a kernel to `to`, which exists only if it is complete.
fn unpack(image: &File, to: &Path) -> io::Result<()> {
    let (payload, format) = payload(image)?;
    let folder = to.parent().ok_or(io::ErrorKind::NotFound)?;
    fs::create_dir_all(folder)?;
    let staged = tempfile::NamedTempFile::new_in(folder)?;
    let mut child = Command::new(format.program)
        .arg("-dc")
        .stdin(Stdio::piped())
        .stdout(staged.as_file().try_clone()?)
        .stderr(Stdio::null())
        .spawn()?;
    let written = match child.stdin.take() {
        Some(mut stdin) => stdin.write_all(&payload),
        None => Ok(()),
    };
    let status = child.wait()?;
    written?;
    if !status.success() || !image::starts(staged.as_file())? {
        return Err(io::ErrorKind::InvalidData.into());
    }
    staged.persist(to)?;
    Ok(())
}

/// Returns the compressed kernel in an x86 image.
fn payload(image: &File) -> io::Result<(Vec<u8>, &'static Format)> {
    let unknown = || io::Error::from(io::ErrorKind::InvalidData);
    let mut head = [0; 1024];
    image.read_exact_at(&mut head, 0)?;
    if !image::has_boot_header(&head) {
        return Err(unknown());
    }
    let word = |at: usize| head.get(at..).and_then(|rest| rest.first_chunk());
    let word = |at| {
        word(at)
            .map(|bytes| u32::from_le_bytes(*bytes))
            .ok_or_else(unknown)
    };
    // As the boot protocol says, 0 means 4.
    let sectors = match head[SETUP_SECTORS_AT] {
        0 => 4,
        sectors => u64::from(sectors),
    };
    let start = (sectors + 1) * SECTOR + u64::from(word(PAYLOAD_AT)?);
    let len = usize::try_from(word(PAYLOAD_LEN_AT)?).map_err(|_| unknown())?;
    if len > PAYLOAD_MAX {
        return Err(unknown());
    }
    let mut payload = vec![0; len];
    image.read_exact_at(&mut payload, start)?;
    let mut formats = FORMATS.iter();
    let format = formats.find(|format| payload.starts_with(format.magic));
    let format = format.ok_or_else(unknown)?;
    payload.truncate(len.saturating_sub(format.appended));
    Ok((payload, format))
}

/// Removes all but the newest unpacked kernels.
fn forget_old(cache: &Path) {
    let entries = fs::read_dir(cache).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX))
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    found.sort();
    let old = found.len().saturating_sub(MAX_CACHED);
    for (_, path) in found.iter().take(old) {
        // Another run may have removed it.
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::tests::{boot_header, elf_with_pvh};

    /// Returns an x86 image with a compressed kernel.
    fn bz_image(payload: &[u8]) -> Vec<u8> {
        let mut image = boot_header(0x020f);
        image[SETUP_SECTORS_AT] = 3;
        image[PAYLOAD_AT..][..4].copy_from_slice(&100_u32.to_le_bytes());
        let len = u32::try_from(payload.len()).unwrap();
        image[PAYLOAD_LEN_AT..][..4].copy_from_slice(&len.to_le_bytes());
        image.resize(4 * 512 + 100, 0);
        image.extend_from_slice(payload);
        image.extend_from_slice(b"more of the image");
        image
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut child = Command::new("gzip")
            .arg("-c")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(bytes).unwrap();
        child.wait_with_output().unwrap().stdout
    }

    #[test]
    fn an_image_is_unpacked_once_and_again_when_it_has_changed() {
        let scratch = tempfile::tempdir().unwrap();
        let (image, cache) = (scratch.path().join("bzImage"), scratch.path().join("cache"));
        let mut kernel = elf_with_pvh();
        fs::write(&image, bz_image(&gzip(&kernel))).unwrap();
        let first = unpacked(&image, &cache).unwrap();
        assert_eq!(fs::read(&first).unwrap(), kernel);
        assert_eq!(unpacked(&image, &cache), Some(first.clone()));
        kernel.extend_from_slice(b"built again");
        fs::write(&image, bz_image(&gzip(&kernel))).unwrap();
        let second = unpacked(&image, &cache).unwrap();
        assert_eq!(fs::read(&second).unwrap(), kernel);
        assert_ne!(first, second);
    }

    #[test]
    fn an_image_that_cannot_be_unpacked_is_left_to_the_guest() {
        let scratch = tempfile::tempdir().unwrap();
        let cache = scratch.path().join("cache");
        let mut cut = bz_image(&gzip(&elf_with_pvh()));
        cut.truncate(2200);
        let mut huge = bz_image(b"");
        huge[PAYLOAD_LEN_AT..][..4].fill(0xff);
        let cases = [
            ("no header", vec![0; 2048]),
            ("short", b"MZ".to_vec()),
            ("cut", cut),
            ("huge", huge),
            (
                "damaged",
                bz_image(&[&[0x1f, 0x8b][..], &[0; 100]].concat()),
            ),
            ("unknown", bz_image(b"LZMA")),
            ("no PVH entry", bz_image(&gzip(b"\x7fELF\x02\x01"))),
        ];
        for (name, bytes) in cases {
            let image = scratch.path().join("bzImage");
            fs::write(&image, bytes).unwrap();
            assert_eq!(unpacked(&image, &cache), None, "{name}");
        }
        let left = fs::read_dir(&cache).map(Iterator::count).unwrap_or(0);
        assert_eq!(left, 0, "nothing incomplete stays in the cache");
    }

    #[test]
    fn only_the_newest_unpacked_kernels_are_kept() {
        let scratch = tempfile::tempdir().unwrap();
        for index in 0..MAX_CACHED as u64 + 3 {
            let path = scratch.path().join(format!("{PREFIX}{index}"));
            let age = std::time::Duration::from_secs(1000 - index);
            let file = File::create(path).unwrap();
            file.set_modified(std::time::SystemTime::now() - age)
                .unwrap();
        }
        fs::write(scratch.path().join("lock"), "").unwrap();
        forget_old(scratch.path());
        assert!(!scratch.path().join(format!("{PREFIX}2")).exists());
        assert!(scratch.path().join(format!("{PREFIX}3")).exists());
        assert_eq!(
            fs::read_dir(scratch.path()).unwrap().count(),
            MAX_CACHED + 1
        );
    }
}
