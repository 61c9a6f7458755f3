//! Check that a file is a kernel that QEMU can boot, by its first bytes, before anything is fetched.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use devmem_linux::small_file::{self, OpenFor};

use crate::elf::{PROGRAM_HEADER_BYTES, u16_at, u32_at, u64_at};
use tool::output::Failure;

/// Bytes at the start of a file that are examined, enough for the x86 boot header.
const HEAD_BYTES: usize = 1024;
/// Offset of the magic of the x86 boot header; the version of the protocol follows it (linux
/// Documentation/arch/x86/boot.rst, "The Real-Mode Kernel Header").
const BOOT_MAGIC_AT: usize = 0x202;
const BOOT_VERSION_AT: usize = 0x206;
/// First version that supports a RAM disk.
const BOOT_VERSION_MIN: u16 = 0x0200;
/// XEN_ELFNOTE_PHYS32_ENTRY (xen include/public/elfnote.h): the entry point that QEMU uses for an ELF image.
const PVH_NOTE: u32 = 18;
const EM_X86_64: u16 = 62;
const PT_NOTE: u32 = 4;
/// Maximum bytes of program headers, and of one segment of notes, that are examined.
const TABLE_BYTES_MAX: usize = 64 << 10;

/// Kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Image {
    /// An x86 kernel with a boot header.
    X86 { version: u16 },
    /// An ELF file for x86-64, with or without the entry point that QEMU needs.
    Elf { pvh: bool },
    /// An ELF file for another processor.
    ForeignElf { machine: u16 },
    /// Another known kind of file.
    Other(&'static str),
    /// An unknown kind of file.
    Unknown,
}

/// Other kinds of files that people pass as kernels, by bytes at an offset.
const MAGICS: &[(usize, &[u8], &str)] = &[
    (
        0x38,
        b"ARM\x64",
        "an Image for arm64, and the guest's processor is x86-64",
    ),
    (
        0x38,
        b"RSC\x05",
        "an Image for RISC-V, and the guest's processor is x86-64",
    ),
    (
        0x24,
        &[0x18, 0x28, 0x6f, 0x01],
        "a zImage for arm, and the guest's processor is x86-64",
    ),
    (4, b"zimg", "a compressed EFI image of another processor"),
    (
        0,
        &[0x27, 0x05, 0x19, 0x56],
        "a U-Boot image, which QEMU cannot start on x86-64",
    ),
    (0, &[0x1f, 0x8b], "compressed by gzip"),
    (0, b"\xfd7zXZ\0", "compressed by xz"),
    (0, &[0x28, 0xb5, 0x2f, 0xfd], "compressed by zstd"),
    (0, &[0x02, 0x21, 0x4c, 0x18], "compressed by lz4"),
    (0, b"BZh", "compressed by bzip2"),
    (0, b"070701", "an initramfs (a cpio archive)"),
    (0, b"!<arch>\n", "an archive: a package or a library"),
    (0, b"#!", "a script"),
    (0, b"MZ", "an EFI program without a Linux boot header"),
];

impl Image {
    fn of(file: &File) -> io::Result<Self> {
        let mut head = vec![0; HEAD_BYTES];
        let len = read_up_to(file, &mut head, 0)?;
        head.truncate(len);
        let is_at = |at: usize, magic: &[u8]| {
            let found = head.get(at..).and_then(|bytes| bytes.get(..magic.len()));
            found == Some(magic)
        };
        if has_boot_header(&head) {
            let version = u16_at(&head, BOOT_VERSION_AT).unwrap_or(0);
            return Ok(Self::X86 { version });
        }
        if is_at(0, b"\x7fELF") {
            let machine = u16_at(&head, 18).unwrap_or(0);
            // 64 bits, little-endian.
            return Ok(match is_at(4, &[2, 1]) && machine == EM_X86_64 {
                true => Self::Elf {
                    pvh: has_pvh_entry(file, &head)?,
                },
                false => Self::ForeignElf { machine },
            });
        }
        if is_at(0x1fe, &[0x55, 0xaa]) && !is_at(0, b"MZ") {
            return Ok(Self::Other("a boot sector without a Linux boot header"));
        }
        let known = MAGICS.iter().find(|(at, magic, _)| is_at(*at, magic));
        Ok(match known {
            Some((_, _, what)) => Self::Other(what),
            None if head.is_empty() => Self::Other("empty"),
            None => Self::Unknown,
        })
    }

    fn starts(self) -> bool {
        match self {
            Self::X86 { version } => version >= BOOT_VERSION_MIN,
            Self::Elf { pvh } => pvh,
            Self::ForeignElf { .. } | Self::Other(_) | Self::Unknown => false,
        }
    }
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::X86 { version } => write!(
                f,
                "an x86 kernel of boot protocol {}.{:02}",
                version >> 8,
                version & 0xff
            ),
            Self::Elf { pvh: true } => f.write_str("an ELF image with a PVH entry"),
            Self::Elf { pvh: false } => f.write_str(
                "an ELF file without a PVH entry (a vmlinux without CONFIG_PVH, or not a kernel), which QEMU cannot start",
            ),
            Self::ForeignElf { machine } => write!(
                f,
                "an ELF file for another processor (machine {machine}, not {EM_X86_64})"
            ),
            Self::Other(what) => f.write_str(what),
            Self::Unknown => f.write_str("not a known kind of kernel"),
        }
    }
}

/// Returns whether a file starts with an x86 boot header.
pub fn has_boot_header(head: &[u8]) -> bool {
    let is_at = |at: usize, magic: &[u8]| {
        let found = head.get(at..).and_then(|bytes| bytes.get(..magic.len()));
        found == Some(magic)
    };
    is_at(0x1fe, &[0x55, 0xaa]) && is_at(BOOT_MAGIC_AT, b"HdrS")
}

/// Returns whether QEMU can boot a file.
///
/// # Errors
///
/// The file cannot be read.
pub fn starts(file: &File) -> io::Result<bool> {
    Ok(Image::of(file)?.starts())
}

/// Checks that QEMU can boot a file as the kernel of a guest.
///
/// # Errors
///
/// The file cannot be read, or is not such a kernel; the error says what it is, and what to pass instead.
pub fn check(path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    let open = || -> io::Result<File> {
        // Follows a symbolic link to a kernel.
        let path = fs::canonicalize(path)?;
        Ok(small_file::open(&path, OpenFor::Reading)?)
    };
    let file = open().map_err(|error| {
        Failure::from(anyhow::Error::from(error).context(format!("open the kernel {shown}")))
            .with_remedy("--kernel takes the image of a kernel: arch/x86/boot/bzImage of a tree, or /boot/vmlinuz-...")
    })?;
    let image = Image::of(&file)
        .map_err(|error| anyhow::Error::from(error).context(format!("read the kernel {shown}")))?;
    match image.starts() {
        true => Ok(()),
        false => Err(Failure::usage(format_args!("--kernel {shown}: it is {image}"))
            .with_remedy("give a bzImage: arch/x86/boot/bzImage of a kernel tree for x86-64, or /boot/vmlinuz-... of a distribution")),
    }
}

/// Returns whether the file has the note with the entry point for QEMU.
fn has_pvh_entry(file: &File, head: &[u8]) -> io::Result<bool> {
    let (Some(at), Some(count)) = (u64_at(head, 32), u16_at(head, 56)) else {
        return Ok(false);
    };
    let bytes = usize::from(count) * PROGRAM_HEADER_BYTES;
    let table = read_at(file, at, bytes)?;
    for header in table.chunks_exact(PROGRAM_HEADER_BYTES) {
        if u32_at(header, 0) != Some(PT_NOTE) {
            continue;
        }
        let (Some(at), Some(len)) = (u64_at(header, 8), u64_at(header, 32)) else {
            continue;
        };
        let notes = read_at(file, at, usize::try_from(len).unwrap_or(usize::MAX))?;
        if is_among(&notes, PVH_NOTE) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether `notes` has a Xen note of type `wanted`. A note consists of the lengths of name and content, the type,
/// the name and the content, each padded to 4 bytes.
fn is_among(mut notes: &[u8], wanted: u32) -> bool {
    loop {
        let words = [u32_at(notes, 0), u32_at(notes, 4), u32_at(notes, 8)];
        let [Some(name_len), Some(len), Some(kind)] = words else {
            return false;
        };
        if kind == wanted && notes.get(12..16) == Some(b"Xen\0") {
            return true;
        }
        let padded = |len: u32| usize::try_from(len).ok()?.checked_next_multiple_of(4);
        let end = padded(name_len)
            .zip(padded(len))
            .and_then(|(name, content)| name.checked_add(content)?.checked_add(12));
        let Some(rest) = end.and_then(|end| notes.get(end..)) else {
            return false;
        };
        notes = rest;
    }
}

/// Reads `len` bytes, limited by [`TABLE_BYTES_MAX`] and the end of the file.
fn read_at(file: &File, at: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len.min(TABLE_BYTES_MAX)];
    let len = match i64::try_from(at) {
        Ok(_) => read_up_to(file, &mut bytes, at)?,
        // No file is that long.
        Err(_) => 0,
    };
    bytes.truncate(len);
    Ok(bytes)
}

fn read_up_to(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], at + done as u64) {
            Ok(0) => break,
            Ok(len) => done += len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

#[cfg(test)]
pub mod tests {
    use std::path::PathBuf;

    use super::*;

    fn file(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
        let path = folder.join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    fn judged(name: &str, bytes: &[u8]) -> Result<(), String> {
        let folder = tempfile::tempdir().unwrap();
        let path = file(folder.path(), name, bytes);
        check(&path).map_err(|error| error.to_string())
    }

    /// Returns a file with an x86 boot header.
    pub fn boot_header(version: u16) -> Vec<u8> {
        let mut bytes = vec![0; 2048];
        bytes[0x1fe..0x200].copy_from_slice(&[0x55, 0xaa]);
        bytes[BOOT_MAGIC_AT..][..4].copy_from_slice(b"HdrS");
        bytes[BOOT_VERSION_AT..][..2].copy_from_slice(&version.to_le_bytes());
        bytes
    }

    /// An ELF header with one segment of notes: one of another owner, and one of Xen with the type `note`.
    fn elf(machine: u16, note: u32) -> Vec<u8> {
        let mut bytes = vec![0; 64 + PROGRAM_HEADER_BYTES];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[32..40].copy_from_slice(&64u64.to_le_bytes());
        bytes[56..58].copy_from_slice(&1u16.to_le_bytes());
        bytes[64..68].copy_from_slice(&PT_NOTE.to_le_bytes());
        bytes[72..80].copy_from_slice(&120u64.to_le_bytes());
        let mut notes = [5u32, 3, PVH_NOTE].map(u32::to_le_bytes).concat();
        notes.extend_from_slice(b"Else\0\0\0\0abc\0");
        notes.extend([4u32, 4, note].map(u32::to_le_bytes).concat());
        notes.extend_from_slice(b"Xen\0\0\0\0\x01");
        bytes[96..104].copy_from_slice(&(notes.len() as u64).to_le_bytes());
        bytes.extend(notes);
        bytes
    }

    /// Returns an ELF file with the entry point that QEMU needs.
    pub fn elf_with_pvh() -> Vec<u8> {
        elf(EM_X86_64, PVH_NOTE)
    }

    #[test]
    fn a_kernel_that_qemu_can_boot_is_accepted() {
        assert_eq!(judged("bz", &boot_header(0x020f)), Ok(()));
        assert_eq!(judged("pvh", &elf(EM_X86_64, PVH_NOTE)), Ok(()));
    }

    #[test]
    fn other_files_are_refused_with_their_kind() {
        let mut arm = vec![0; 64];
        arm[0x38..0x3c].copy_from_slice(b"ARM\x64");
        let cases: [(&str, Vec<u8>, &str); 12] = [
            ("old", boot_header(0x0105), "boot protocol 1.05"),
            ("vmlinux", elf(EM_X86_64, 5), "without a PVH entry"),
            (
                "arm-elf",
                elf(183, PVH_NOTE),
                "another processor (machine 183",
            ),
            ("arm", arm, "an Image for arm64"),
            ("gz", vec![0x1f, 0x8b, 8, 0], "compressed by gzip"),
            ("deb", b"!<arch>\ndebian-binary".to_vec(), "a package"),
            ("text", b"hello".to_vec(), "not a known kind of kernel"),
            ("script", b"#!/bin/sh\n".to_vec(), "a script"),
            ("empty", Vec::new(), "it is empty"),
            (
                "cut",
                boot_header(0x020f)[..0x204].to_vec(),
                "a boot sector",
            ),
            ("cut-elf", elf(EM_X86_64, PVH_NOTE)[..70].to_vec(), "PVH"),
            ("efi", [&b"MZ"[..], &[0; 600]].concat(), "an EFI program"),
        ];
        for (name, bytes, what) in cases {
            let said = judged(name, &bytes).unwrap_err();
            assert!(said.contains(what), "{name}: {said}");
            assert!(said.contains("give a bzImage"), "{name}: {said}");
        }
    }

    #[test]
    fn headers_with_wrong_lengths_do_not_cause_reads_beyond_the_file() {
        let mut bytes = elf(EM_X86_64, 5);
        for (at, value) in [(32, u64::MAX), (72, u64::MAX - 1), (96, u64::MAX), (120, 0)] {
            let mut bytes = bytes.clone();
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            assert!(judged("lies", &bytes).is_err(), "{at}");
        }
        bytes[120..128].fill(0xff);
        assert!(judged("lies-notes", &bytes).is_err());
    }
}
