//! The guest's root file system: a cpio archive in the "newc" format (linux
//! Documentation/driver-api/early-userspace/buffer-format.rst). It is not compressed, because under software emulation
//! decompression takes longer than reading.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::elf;

const MODE_DIR: u32 = 0o040_755;
const MODE_FILE: u32 = 0o100_000;
const MODE_LINK: u32 = 0o120_777;
const MODE_CONSOLE: u32 = 0o020_600;
/// Major and minor number of /dev/console, which the kernel opens for process 1.
const CONSOLE: (u32, u32) = (5, 1);
/// Name of the last entry of an archive.
const TRAILER: &str = "TRAILER!!!";

/// An archive being written.
#[derive(Debug)]
pub struct Initramfs {
    bytes: Vec<u8>,
    entries: u32,
    names: BTreeSet<String>,
    /// Maximum bytes of the archive.
    limit: usize,
}

/// Metadata of an entry.
#[derive(Clone, Copy, Debug, Default)]
struct EntryMeta {
    mode: u32,
    /// Time of the last change, in seconds since 1970.
    changed: u32,
    device: (u32, u32),
}

impl Initramfs {
    /// Returns an archive with the folders and the device that every guest needs. Copied files may not make it longer than
    /// `limit` bytes.
    pub fn new(limit: usize) -> Self {
        let mut archive = Self {
            bytes: Vec::new(),
            entries: 0,
            names: BTreeSet::new(),
            limit,
        };
        for name in [
            "dev", "proc", "sys", "tmp", "run", "root", "etc", "bin", "mnt",
        ] {
            archive.folder(name);
        }
        let console = EntryMeta {
            mode: MODE_CONSOLE,
            device: CONSOLE,
            ..EntryMeta::default()
        };
        archive.entry("dev/console", console, &[]);
        archive
    }

    /// Adds a file with its folders. Does nothing if the name exists.
    pub fn file(&mut self, path: &str, mode: u32, bytes: &[u8]) {
        self.aged_file(path, mode, 0, bytes);
    }

    fn aged_file(&mut self, path: &str, mode: u32, changed: u32, bytes: &[u8]) {
        let name = self.with_parents(path);
        let kind = EntryMeta {
            mode: MODE_FILE | (mode & 0o777),
            changed,
            ..EntryMeta::default()
        };
        if !self.names.contains(&name) {
            self.entry(&name, kind, bytes);
        }
    }

    /// Adds a file of this machine, with its modification time, because Python discards compiled files if the time of their
    /// source differs.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or does not fit.
    pub fn copy(&mut self, from: &Path, path: &str) -> io::Result<()> {
        let facts = fs::metadata(from)?;
        let room = self.limit.saturating_sub(self.bytes.len());
        if usize::try_from(facts.len()).is_ok_and(|len| len <= room) {
            let changed = u32::try_from(facts.mtime()).unwrap_or_default();
            self.aged_file(path, facts.permissions().mode(), changed, &fs::read(from)?);
            return Ok(());
        }
        let limit = self.limit >> 20;
        Err(io::Error::other(format!(
            "{} does not fit: the limit for the guest's files is {limit} MiB",
            from.display()
        )))
    }

    /// Adds a file or a folder of this machine with its contents. Libraries of programs and shared objects are added, too;
    /// symbolic links are kept.
    ///
    /// # Errors
    ///
    /// An entry cannot be read, has a name that is not UTF-8, or is neither file nor folder nor link.
    pub fn put(&mut self, from: &Path, path: &str) -> io::Result<()> {
        let kind = fs::metadata(from)?.file_type();
        if kind.is_file() {
            return self.program(from, path);
        }
        if !kind.is_dir() {
            return Err(io::Error::other(format!(
                "{} is neither a file nor a folder nor a link",
                from.display()
            )));
        }
        // The root folder needs no entry.
        let path = path.trim_end_matches('/');
        let name = self.with_parents(path);
        if !name.is_empty() {
            self.folder(&name);
        }
        for (from, name) in entries(from)? {
            let place = format!("{path}/{name}");
            match fs::symlink_metadata(&from)?.is_symlink() {
                true => self.link(&place, &fs::read_link(&from)?),
                false => self.put(&from, &place)?,
            }
        }
        Ok(())
    }

    /// Adds a folder with its contents, or a file. The libraries of its programs are not added, because the folder has them.
    /// Entries that are not files, folders or links are left out.
    ///
    /// # Errors
    ///
    /// An entry cannot be read, does not fit, or has a name that is not UTF-8.
    pub fn tree(&mut self, from: &Path, path: &str) -> io::Result<()> {
        let kind = fs::symlink_metadata(from)?.file_type();
        if kind.is_symlink() {
            self.link(path, &fs::read_link(from)?);
        } else if kind.is_file() {
            self.copy(from, path)?;
        } else if kind.is_dir() {
            let name = self.with_parents(path);
            self.folder(&name);
            for (from, name) in entries(from)? {
                self.tree(&from, &format!("{path}/{name}"))?;
            }
        }
        Ok(())
    }

    /// Adds a symbolic link at `path` to `target`.
    pub fn link(&mut self, path: &str, target: &Path) {
        let name = self.with_parents(path);
        let kind = EntryMeta {
            mode: MODE_LINK,
            ..EntryMeta::default()
        };
        if !self.names.contains(&name) {
            self.entry(&name, kind, target.as_os_str().as_bytes());
        }
    }

    /// Adds a program of this machine with its loader and libraries, which keep their paths.
    ///
    /// # Errors
    ///
    /// One of them cannot be found or read.
    pub fn program(&mut self, from: &Path, path: &str) -> io::Result<()> {
        self.copy(from, path)?;
        for library in elf::needs(from)? {
            let place = library.to_string_lossy().into_owned();
            self.copy(&library, &place)?;
        }
        Ok(())
    }

    /// Adds a program from an unpacked distribution in `root`, with the loader and libraries from there, because those of
    /// this machine may be older.
    ///
    /// # Errors
    ///
    /// One of them cannot be found or read.
    pub fn packaged_program(&mut self, root: &Path, from: &Path, path: &str) -> io::Result<()> {
        let packaged = elf::Packaged::new(root)?;
        let name = file_name(from)?;
        self.copy(from, &format!("/lab/bin/{name}"))?;
        self.copy(&packaged.loader, "/lab/lib/ld.so")?;
        for library in packaged.needs(from)? {
            let place = format!("/lab/lib/{}", file_name(&library)?);
            self.copy(&library, &place)?;
        }
        let script = format!(
            "#!/bin/sh\nexec /lab/lib/ld.so --library-path /lab/lib /lab/bin/{name} \"$@\"\n"
        );
        self.file(path, 0o755, script.as_bytes());
        Ok(())
    }

    /// Finishes the archive and returns its bytes.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry(TRAILER, EntryMeta::default(), &[]);
        self.bytes
    }

    fn folder(&mut self, name: &str) {
        let kind = EntryMeta {
            mode: MODE_DIR,
            ..EntryMeta::default()
        };
        if !self.names.contains(name) {
            self.entry(name, kind, &[]);
        }
    }

    /// Adds the parent folders of a path, and returns its name in the archive.
    fn with_parents(&mut self, path: &str) -> String {
        let name = path.trim_start_matches('/').to_owned();
        for (at, _) in name.match_indices('/') {
            self.folder(&name[..at]);
        }
        name
    }

    fn entry(&mut self, name: &str, kind: EntryMeta, data: &[u8]) {
        self.names.insert(name.to_owned());
        self.entries += 1;
        let len = |bytes: usize| u32::try_from(bytes).expect("`limit` is below 4 GiB");
        let EntryMeta {
            mode,
            changed,
            device: (major, minor),
        } = kind;
        let fields = [
            self.entries, // inode
            mode,
            0, // user
            0, // group
            1, // links
            changed,
            len(data.len()),
            0,
            0,
            major,
            minor,
            len(name.len() + 1),
            0, // checksum, unused in this format
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

fn file_name(path: &Path) -> io::Result<String> {
    let name = path
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    name.ok_or_else(|| io::Error::other(format!("{} has no name", path.display())))
}

/// Returns the default path in the guest for a path of this machine: its file name in the root folder.
pub fn default_place(path: &Path) -> PathBuf {
    Path::new("/").join(path.file_name().unwrap_or(path.as_os_str()))
}

/// Returns the entries of a folder: path and name, in the order of their names.
fn entries(folder: &Path) -> io::Result<Vec<(PathBuf, String)>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().into_string().map_err(|name| {
            io::Error::other(format!("{}: the name is not UTF-8", name.display()))
        })?;
        all.push((entry.path(), name));
    }
    all.sort();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 1 << 30;

    fn field(archive: &[u8], at: usize, index: usize) -> usize {
        let start = at + 6 + 8 * index;
        usize::from_str_radix(std::str::from_utf8(&archive[start..start + 8]).unwrap(), 16).unwrap()
    }

    /// Parses an archive as the kernel does; returns names, modes and contents.
    fn list(archive: &[u8]) -> Vec<(String, usize, Vec<u8>)> {
        let mut entries = Vec::new();
        let mut at = 0;
        loop {
            assert_eq!(&archive[at..at + 6], b"070701");
            let (mode, size, name_len) = (
                field(archive, at, 1),
                field(archive, at, 6),
                field(archive, at, 11),
            );
            let name = &archive[at + 110..at + 110 + name_len - 1];
            let name = String::from_utf8(name.to_vec()).unwrap();
            let data = (at + 110 + name_len).next_multiple_of(4);
            if name == TRAILER {
                return entries;
            }
            entries.push((name, mode, archive[data..data + size].to_vec()));
            at = (data + size).next_multiple_of(4);
        }
    }

    #[test]
    fn an_archive_has_every_file_once_after_its_folders() {
        let mut archive = Initramfs::new(LIMIT);
        archive.file("/a/b/c", 0o755, b"hello");
        archive.file("/a/b/c", 0o644, b"not this");
        let entries = list(&archive.finish());
        let place = |name: &str| entries.iter().position(|(n, ..)| n == name).unwrap();
        assert!(place("a") < place("a/b") && place("a/b") < place("a/b/c"));
        let (_, mode, data) = &entries[place("a/b/c")];
        assert_eq!((*mode, data.as_slice()), (0o100_755, &b"hello"[..]));
        assert_eq!(entries.iter().filter(|(n, ..)| n == "a/b/c").count(), 1);
    }

    #[test]
    fn a_folder_is_added_with_its_contents_and_links_stay_links() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path();
        fs::create_dir_all(folder.join("a/empty")).unwrap();
        fs::write(folder.join("a/text"), b"hello").unwrap();
        std::os::unix::fs::symlink("../nowhere", folder.join("a/link")).unwrap();
        let me = std::env::current_exe().unwrap();
        fs::copy(&me, folder.join("program")).unwrap();

        let mut archive = Initramfs::new(LIMIT);
        archive.put(folder, "/opt/x/").unwrap();
        archive.put(folder, "/").unwrap();
        let mut small = Initramfs::new(1 << 16);
        let refused = small.put(folder, "/x").unwrap_err().to_string();
        let socket = std::os::unix::net::UnixListener::bind(folder.join("s")).unwrap();
        let strange = archive.put(folder, "/y").unwrap_err().to_string();
        drop(socket);
        let changed = fs::metadata(folder.join("a/text")).unwrap().mtime();
        drop(scratch);

        assert!(refused.contains("program does not fit"), "{refused}");
        assert!(strange.ends_with("s is neither a file nor a folder nor a link"));
        let bytes = archive.finish();
        let entries = list(&bytes);
        let found = |name: &str| entries.iter().find(|(n, ..)| n == name);
        let (_, mode, data) = found("opt/x/a/link").unwrap();
        assert_eq!((*mode, data.as_slice()), (0o120_777, &b"../nowhere"[..]));
        assert_eq!(found("opt/x/a/empty").unwrap().1, 0o040_755);
        for place in ["opt/x/a/text", "a/text"] {
            assert_eq!(found(place).unwrap().2, b"hello");
        }
        assert!(
            entries
                .iter()
                .all(|(n, ..)| !n.is_empty() && !n.ends_with('/'))
        );
        let changed = format!("{changed:08X}");
        assert!(String::from_utf8_lossy(&bytes).contains(&changed));
        for library in elf::needs(&me).unwrap() {
            assert!(found(&library.to_string_lossy()[1..]).is_some());
        }
    }

    #[test]
    fn a_program_is_added_with_its_libraries() {
        let mut archive = Initramfs::new(LIMIT);
        let me = std::env::current_exe().unwrap();
        archive.program(&me, "/bin/me").unwrap();
        let entries = list(&archive.finish());
        assert!(entries.iter().any(|(name, ..)| name == "bin/me"));
        for library in elf::needs(&me).unwrap() {
            let name = library.to_string_lossy();
            assert!(entries.iter().any(|(n, ..)| *n == name[1..]), "{name}");
        }
    }
}
