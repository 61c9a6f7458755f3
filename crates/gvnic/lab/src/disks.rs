//! Disk images of a guest.
//!
//! QEMU never guesses the format of an image: a guest that writes the header of another format to its raw disk could
//! otherwise name files of this machine, and read them after the next start.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use clap::ValueEnum;
use serde_json::{Value, json};

use tool::output::Failure;

/// First bytes of a qcow2 image (QEMU docs/interop/qcow2.rst).
const QCOW2_MAGIC: &[u8; 4] = b"QFI\xfb";

/// Format of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DiskFormat {
    /// The bytes of the file are those of the disk
    Raw,
    /// QEMU's format
    Qcow2,
}

/// Whether the guest may write to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskAccess {
    /// It may.
    ReadWrite,
    /// It may not.
    ReadOnly,
}

/// A disk of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// The image.
    pub file: PathBuf,
    /// Its format.
    pub format: DiskFormat,
    /// Access by the guest.
    pub access: DiskAccess,
}

impl Disk {
    /// Parses `FILE[,ro][,format=FORMAT]`, and checks that the file can be opened.
    ///
    /// # Errors
    ///
    /// An option or the file is invalid; the format is not named, and the file is not raw.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        let mut words = text.split(',');
        let file = PathBuf::from(words.next().unwrap_or_default());
        let (mut access, mut format) = (DiskAccess::ReadWrite, None);
        for word in words {
            match (word, word.strip_prefix("format=")) {
                ("ro", _) => access = DiskAccess::ReadOnly,
                (_, Some(name)) => format = Some(parse_format(text, name)?),
                _ => {
                    return Err(Failure::usage(format!(
                        "--disk {text:?}: {word:?} is none of its options"
                    ))
                    .with_remedy("--disk FILE[,ro][,format=raw|qcow2]"));
                }
            }
        }
        let magic = first_bytes(&file, access).map_err(|error| {
            let failure = Failure::usage(format!("--disk {}: {error}", file.display()));
            match (error.kind(), access) {
                (io::ErrorKind::NotFound, _) => failure.with_remedy(format!(
                    "create a disk of 1 GiB: truncate -s 1G {}",
                    file.display()
                )),
                (io::ErrorKind::PermissionDenied, DiskAccess::ReadWrite) => {
                    failure.with_remedy(format!("read only: --disk {},ro", file.display()))
                }
                _ => failure,
            }
        })?;
        let format = match (format, &magic == QCOW2_MAGIC) {
            (Some(format), _) => format,
            (None, false) => DiskFormat::Raw,
            (None, true) => {
                return Err(Failure::usage(format!(
                    "--disk {text:?}: the file starts as a qcow2 image does, and its format is not named"
                ))
                .with_remedy(format!(
                    "--disk {text},format=qcow2, or format=raw if a guest wrote these bytes to a raw disk"
                )));
            }
        };
        Ok(Self {
            file,
            format,
            access,
        })
    }

    /// Returns QEMU's `-blockdev` and `-device` for disk `index`; the guest calls disk 0 /dev/vda.
    pub fn arguments(&self, index: usize) -> (Value, Value) {
        let node = format!("disk{index}");
        let format = match self.format {
            DiskFormat::Raw => "raw",
            DiskFormat::Qcow2 => "qcow2",
        };
        let read_only = self.access == DiskAccess::ReadOnly;
        let block = json!({
            "node-name": node,
            "driver": format,
            "read-only": read_only,
            "file": {
                "driver": "file",
                "filename": self.file.to_string_lossy(),
                "read-only": read_only,
            },
        });
        let device = json!({"driver": "virtio-blk-pci", "drive": node, "serial": node});
        (block, device)
    }
}

fn parse_format(text: &str, name: &str) -> Result<DiskFormat, Failure> {
    DiskFormat::from_str(name, false).map_err(|_| {
        Failure::usage(format!("--disk {text:?}: the format {name:?} is unknown"))
            .with_remedy("format=raw or format=qcow2")
    })
}

/// Opens a file as QEMU will, and returns its first bytes; zeros if it is shorter.
fn first_bytes(file: &PathBuf, access: DiskAccess) -> io::Result<[u8; 4]> {
    if !std::fs::metadata(file)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let write = access == DiskAccess::ReadWrite;
    let opened = File::options().read(true).write(write).open(file)?;
    let mut bytes = Vec::new();
    opened.take(4).read_to_end(&mut bytes)?;
    bytes.resize(4, 0);
    let mut magic = [0; 4];
    magic.copy_from_slice(&bytes);
    Ok(magic)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(folder: &tempfile::TempDir, name: &str, bytes: &[u8]) -> String {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_string_lossy().into_owned()
    }

    #[test]
    fn a_disk_is_raw_and_writable_unless_the_option_says_otherwise() {
        let scratch = tempfile::tempdir().unwrap();
        let file = image(&scratch, "disk", b"");
        let disk = Disk::parse(&file).unwrap();
        assert_eq!(
            (disk.format, disk.access),
            (DiskFormat::Raw, DiskAccess::ReadWrite)
        );
        let disk = Disk::parse(&format!("{file},format=qcow2,ro")).unwrap();
        assert_eq!(
            (disk.format, disk.access),
            (DiskFormat::Qcow2, DiskAccess::ReadOnly)
        );
        let (block, device) = disk.arguments(1);
        assert_eq!(block["driver"], "qcow2");
        assert_eq!(block["read-only"], true);
        assert_eq!(block["file"]["filename"], file.as_str());
        assert_eq!(device["drive"], block["node-name"]);
    }

    #[test]
    fn the_format_of_a_disk_is_never_taken_from_its_bytes() {
        let scratch = tempfile::tempdir().unwrap();
        let file = image(&scratch, "disk", b"QFI\xfb\0\0\0\x03");
        let said = Disk::parse(&file).unwrap_err().to_string();
        assert!(said.contains("its format is not named"), "{said}");
        assert!(said.contains("format=qcow2"), "{said}");
        let named = Disk::parse(&format!("{file},format=raw")).unwrap();
        assert_eq!(named.arguments(0).0["driver"], "raw");
    }

    #[test]
    fn a_disk_that_cannot_be_used_is_refused_with_its_option() {
        let scratch = tempfile::tempdir().unwrap();
        let file = image(&scratch, "disk", b"");
        let folder = scratch.path().display();
        let cases = [
            (format!("{folder}/none"), "truncate -s 1G"),
            (format!("{folder}"), "not a regular file"),
            (format!("{file},rw"), "none of its options"),
            (format!("{file},format=vmdk"), "format=raw or format=qcow2"),
            (String::new(), "--disk"),
        ];
        for (text, what) in cases {
            let said = Disk::parse(&text).unwrap_err().to_string();
            assert!(said.contains("--disk") && said.contains(what), "{said}");
        }
    }
}
