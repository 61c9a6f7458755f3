//! The checksums that servers have of what was loaded, compared.

use std::fmt;

use serde::Serialize;
use transfer::load::{Compared, ComparedFile};

use super::rows::row;

/// The checksum that a server has of a file, compared.
#[derive(Clone, Debug, Serialize)]
pub struct ServerSum {
    /// The kind of checksum: CRC-32C, CRC-64/NVME, CRC-32, SHA-256 or SHA-1.
    pub kind: &'static str,
    /// The number of parts of whose checksums it is one; 0: it is of the bytes.
    pub parts: usize,
    /// The server's, in hexadecimal.
    pub stored: String,
    /// That of the loaded bytes.
    pub loaded: String,
    /// Whether they are equal.
    pub matches: bool,
    /// The first part whose bytes have another checksum than the server has of it, counted from 1, its first byte, and the first one behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wrong_part: Option<(usize, u64, u64)>,
}

impl From<&Compared> for ServerSum {
    fn from(compared: &Compared) -> Self {
        let wrong = compared.wrong_part.as_ref();
        Self {
            kind: compared.kind.name(),
            parts: compared.parts,
            stored: compared.stored.to_string(),
            loaded: compared.loaded.to_string(),
            matches: compared.is_equal(),
            wrong_part: wrong.map(|(number, range)| (*number, range.start, range.end)),
        }
    }
}

impl ServerSum {
    /// Returns the error of wrong bytes of `file`, with what helps on a line below.
    pub fn complaint(&self, file: &str) -> Option<String> {
        let Self {
            kind,
            parts,
            stored,
            loaded,
            ..
        } = self;
        if self.matches {
            return None;
        }
        let of_parts = match self.wrong_part {
            _ if *parts == 0 => String::new(),
            None => format!(" of the checksums of {parts} parts"),
            Some((number, start, end)) => format!(
                " of the checksums of {parts} parts (bytes {start} to {end}, part {number}, are the first wrong ones)"
            ),
        };
        Some(format!(
            "the loaded bytes have another checksum than {file}: the {kind}{of_parts} is {loaded}, and the server has {stored}\n  \
             load it again; if the server's file is damaged, the same checksum comes again: upload it again from a good copy"
        ))
    }
}

/// The checksum that a server has of a file of a checkpoint, compared.
#[derive(Clone, Debug, Serialize)]
pub struct FileSum {
    /// URL of the file.
    pub file: String,
    /// Both checksums.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_checksum: Option<ServerSum>,
    /// Why they are not compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_compared: Option<String>,
}

impl From<&ComparedFile> for FileSum {
    fn from(compared: &ComparedFile) -> Self {
        let outcome = compared.outcome.as_ref();
        Self {
            file: compared.file.clone(),
            server_checksum: outcome.ok().map(ServerSum::from),
            not_compared: outcome.err().map(ToString::to_string),
        }
    }
}

impl FileSum {
    /// Returns the error of wrong bytes.
    pub fn complaint(&self) -> Option<String> {
        self.server_checksum.as_ref()?.complaint(&self.file)
    }

    /// Writes how many files have the checksums that their servers have, and of each other why not.
    pub fn rows(files: &[Self], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_equal = |file: &&Self| file.server_checksum.as_ref().is_some_and(|sum| sum.matches);
        let (equal, all) = (files.iter().filter(is_equal).count(), files.len());
        let text = format_args!("{equal} of {all} files have the checksums of their servers");
        row(f, "compared", text)?;
        for file in files {
            match (&file.server_checksum, &file.not_compared) {
                (Some(sum), _) if !sum.matches => {
                    let FileSum { file, .. } = file;
                    row(
                        f,
                        "",
                        format_args!("{file}: {} is NOT as the server says", sum.kind),
                    )?;
                }
                (_, Some(why)) => row(f, "", format_args!("{}: {why}", file.file))?,
                _ => {}
            }
        }
        Ok(())
    }
}
