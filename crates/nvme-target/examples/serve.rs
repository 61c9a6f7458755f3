//! Serves files as the namespaces of a subsystem, for tests in other languages: `serve [--blocks BYTES] [--read-only] NQN FILE...`
//!
//! Listens on a free port of all addresses, prints the port, and ends with its input.

use std::error::Error;
use std::fs::File;
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;

use nvme_target::{Disk, Subsystem, Target};

/// What the command line says.
#[derive(Default)]
struct Wanted {
    block_bytes: Option<u64>,
    is_read_only: bool,
    nqn: String,
    files: Vec<String>,
}

impl Wanted {
    fn parse(words: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let (mut wanted, mut words) = (Self::default(), words);
        while let Some(word) = words.next() {
            match word.as_str() {
                "--blocks" => wanted.block_bytes = Some(words.next().unwrap_or_default().parse()?),
                "--read-only" => wanted.is_read_only = true,
                _ if wanted.nqn.is_empty() => wanted.nqn = word,
                _ => wanted.files.push(word),
            }
        }
        match wanted.files.is_empty() {
            true => Err("serve [--blocks BYTES] [--read-only] NQN FILE...".into()),
            false => Ok(wanted),
        }
    }

    fn disk(&self, file: &str) -> io::Result<Arc<Disk>> {
        let block_bytes = self.block_bytes.unwrap_or(4096);
        let opened = File::options().read(true).write(true).open(file)?;
        // A power of two: at most 63.
        let disk = Disk::in_file(opened, block_bytes.trailing_zeros() as u8)?;
        disk.set_read_only(self.is_read_only);
        Ok(Arc::new(disk))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let wanted = Wanted::parse(std::env::args().skip(1))?;
    let disks = wanted.files.iter().map(|file| wanted.disk(file));
    let subsystem = Subsystem::new(&wanted.nqn, disks.collect::<io::Result<_>>()?);
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let target = Target::start(listener, subsystem)?;
    writeln!(io::stdout(), "{}", target.port())?;
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}
