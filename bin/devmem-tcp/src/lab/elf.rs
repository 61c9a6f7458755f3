//! What a program needs to run elsewhere: its loader and its shared libraries.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// `e_ident` of a 64-bit little-endian file, and where the header says its program headers are (elf.h).
const MAGIC: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];
const PROGRAM_HEADER_BYTES: usize = 56;
const PT_INTERP: u32 = 3;

/// Returns the loader and the libraries that `program` needs on this machine; nothing for one that is linked statically or is
/// no program.
///
/// # Errors
///
/// It cannot be read, or its loader cannot say what it needs.
pub fn needs(program: &Path) -> io::Result<Vec<PathBuf>> {
    let Some(loader) = interpreter(&fs::read(program)?) else {
        return Ok(Vec::new());
    };
    let mut needs = list(Command::new(&loader).arg("--list").arg(program))?;
    needs.push(loader);
    needs.sort();
    needs.dedup();
    Ok(needs)
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
    /// Finds them below `root`.
    ///
    /// # Errors
    ///
    /// They are not there.
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

    /// A command that runs `program` with these libraries.
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

/// Reads the lines `NAME => PATH (ADDRESS)` of a loader.
fn list(command: &mut Command) -> io::Result<Vec<PathBuf>> {
    let output = command.output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("{command:?}: {}", said.trim())));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(parse_list(&text))
}

fn parse_list(text: &str) -> Vec<PathBuf> {
    let paths = text.lines().filter_map(|line| {
        let (_, right) = line.split_once(" => ")?;
        let (path, _address) = right.rsplit_once(" (")?;
        path.starts_with('/').then(|| PathBuf::from(path))
    });
    paths.collect()
}

/// Returns the loader that a program names.
fn interpreter(elf: &[u8]) -> Option<PathBuf> {
    if !elf.starts_with(&MAGIC) {
        return None;
    }
    let table = usize::try_from(u64_at(elf, 32)?).ok()?;
    let count = u16::from_le_bytes(*elf.get(56..)?.first_chunk()?);
    for index in 0..usize::from(count) {
        let at = table.checked_add(index * PROGRAM_HEADER_BYTES)?;
        let header = elf.get(at..)?.get(..PROGRAM_HEADER_BYTES)?;
        if u32::from_le_bytes(*header.first_chunk()?) != PT_INTERP {
            continue;
        }
        let offset = usize::try_from(u64_at(header, 8)?).ok()?;
        let len = usize::try_from(u64_at(header, 32)?).ok()?;
        let text = elf.get(offset..)?.get(..len)?.strip_suffix(&[0])?;
        return std::str::from_utf8(text).ok().map(PathBuf::from);
    }
    None
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
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
    fn what_is_no_program_needs_nothing() {
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
        assert_eq!(interpreter(&far), None, "a table past the end");
    }

    #[test]
    fn a_loaders_list_is_read_without_the_vdso() {
        let text = "\tlinux-vdso.so.1 (0x00007f)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x00007f)\n\t/lib64/ld.so (0x7f)\n";
        assert_eq!(parse_list(text), [PathBuf::from("/lib/x/libc.so.6")]);
    }
}
