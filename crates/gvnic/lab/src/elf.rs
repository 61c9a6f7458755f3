//! Loader and shared libraries of a program.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// `e_ident` of a 64-bit little-endian file, and offsets of header fields for the program headers (elf.h).
const MAGIC: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];
/// Bytes of a program header.
pub(crate) const PROGRAM_HEADER_BYTES: usize = 56;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;

/// Returns the loader and the libraries of a program on this machine, or the libraries of a shared object; an empty list
/// for a statically linked program and for other files.
///
/// # Errors
///
/// The file cannot be read, or its loader does not list the libraries.
pub fn needs(program: &Path) -> io::Result<Vec<PathBuf>> {
    let elf = fs::read(program)?;
    let Some(loader) = interpreter(&elf) else {
        return Ok(if is_dynamic(&elf) {
            shared_object_needs(program)
        } else {
            Vec::new()
        });
    };
    let mut needs = list(Command::new(&loader).arg("--list").arg(program))?;
    needs.push(loader);
    needs.sort();
    needs.dedup();
    Ok(needs)
}

/// Returns the libraries of a shared object by the loader of this process; none if it cannot be loaded, because it would
/// not work in a guest either.
fn shared_object_needs(object: &Path) -> Vec<PathBuf> {
    let me = std::env::current_exe().and_then(fs::read);
    let Some(loader) = me.ok().as_deref().and_then(interpreter) else {
        return Vec::new();
    };
    list(Command::new(loader).arg("--list").arg(object)).unwrap_or_default()
}

/// The loader and the library folder of an unpacked distribution.
#[derive(Debug)]
pub struct Packaged {
    /// The loader.
    pub loader: PathBuf,
    /// The folder with the libraries.
    pub libraries: PathBuf,
}

impl Packaged {
    /// Finds loader and libraries below `root`.
    ///
    /// # Errors
    ///
    /// They do not exist there.
    pub fn new(root: &Path) -> io::Result<Self> {
        let found = |places: &[&str]| {
            let paths = places.iter().map(|place| root.join(place));
            paths.into_iter().find(|path| path.exists())
        };
        let loader = found(&[
            "usr/lib64/ld-linux-x86-64.so.2",
            "lib64/ld-linux-x86-64.so.2",
        ]);
        let libraries = found(&["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"]);
        match (loader, libraries) {
            (Some(loader), Some(libraries)) => Ok(Self { loader, libraries }),
            _ => Err(io::Error::other(format!(
                "no C library below {}",
                root.display()
            ))),
        }
    }

    /// Returns a command that runs `program` with these libraries.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(&self.loader);
        command
            .arg("--library-path")
            .arg(&self.libraries)
            .arg(program);
        command
    }

    /// Returns the libraries that `program` needs.
    ///
    /// # Errors
    ///
    /// As [`needs`].
    pub fn needs(&self, program: &Path) -> io::Result<Vec<PathBuf>> {
        let mut command = Command::new(&self.loader);
        command.arg("--library-path").arg(&self.libraries);
        list(command.arg("--list").arg(program))
    }
}

/// Runs a loader and returns the paths in its lines `NAME => PATH (ADDRESS)`.
fn list(command: &mut Command) -> io::Result<Vec<PathBuf>> {
    let output = command.output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("{command:?}: {}", said.trim())));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(parse_list(&text))
}

/// Parses the list of a loader.
pub fn parse_list(text: &str) -> Vec<PathBuf> {
    let paths = text.lines().filter_map(|line| {
        let (_, right) = line.split_once(" => ")?;
        let (path, _address) = right.rsplit_once(" (")?;
        path.starts_with('/').then(|| PathBuf::from(path))
    });
    paths.collect()
}

/// Returns the loader that a program names.
pub fn interpreter(elf: &[u8]) -> Option<PathBuf> {
    let header = program_header(elf, PT_INTERP)?;
    let offset = usize::try_from(u64_at(header, 8)?).ok()?;
    let len = usize::try_from(u64_at(header, 32)?).ok()?;
    let text = elf.get(offset..)?.get(..len)?.strip_suffix(&[0])?;
    std::str::from_utf8(text).ok().map(PathBuf::from)
}

/// Returns whether the file is dynamically linked.
pub fn is_dynamic(elf: &[u8]) -> bool {
    program_header(elf, PT_DYNAMIC).is_some()
}

/// Finds the first program header of a type.
fn program_header(elf: &[u8], wanted: u32) -> Option<&[u8]> {
    if !elf.starts_with(&MAGIC) {
        return None;
    }
    let table = usize::try_from(u64_at(elf, 32)?).ok()?;
    let count = u16_at(elf, 56)?;
    let headers = elf.get(table..)?.chunks_exact(PROGRAM_HEADER_BYTES);
    let mut headers = headers.take(usize::from(count));
    headers.find(|header| header.starts_with(&wanted.to_le_bytes()))
}

/// Returns the number at an offset; `None`: the bytes end before.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// As [`u16_at`].
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// As [`u16_at`].
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_binary_names_its_loader_and_needs_the_c_library() {
        let me = std::env::current_exe().unwrap();
        let Some(loader) = interpreter(&fs::read(&me).unwrap()) else {
            assert!(needs(&me).unwrap().is_empty(), "static");
            return;
        };
        assert!(loader.exists(), "{loader:?}");
        let needs = needs(&me).unwrap();
        assert!(needs.contains(&loader), "{needs:?}");
        assert!(needs.len() > 1, "{needs:?}");
    }

    #[test]
    fn a_shared_object_needs_libraries_and_has_no_loader() {
        let me = std::env::current_exe().unwrap();
        let needs = needs(&me).unwrap();
        let Some(object) = needs.iter().find(|path| path.ends_with("libgcc_s.so.1")) else {
            assert!(needs.is_empty(), "static");
            return;
        };
        let elf = fs::read(object).unwrap();
        assert_eq!((interpreter(&elf), is_dynamic(&elf)), (None, true));
        let found = super::needs(object).unwrap();
        assert!(found.iter().any(|path| path.ends_with("libc.so.6")));
    }

    #[test]
    fn other_files_need_no_libraries() {
        for bytes in [
            &b""[..],
            b"#!/bin/sh\n",
            &MAGIC,
            &[0x7f, b'E', b'L', b'F', 1, 1, 0, 0],
        ] {
            assert_eq!(interpreter(bytes), None);
        }
        let mut far = vec![0; 64];
        far[..6].copy_from_slice(&MAGIC);
        far[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        far[56] = 9;
        assert_eq!(interpreter(&far), None, "a table beyond the end");
    }

    #[test]
    fn the_list_of_a_loader_is_parsed_without_the_vdso() {
        let text = "\tlinux-vdso.so.1 (0x00007f)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x00007f)\n\t/lib64/ld.so (0x7f)\n";
        assert_eq!(parse_list(text), [PathBuf::from("/lib/x/libc.so.6")]);
    }
}
