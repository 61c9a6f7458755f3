//! The demo's NVMe target: a process that serves a file until it is ended.

use std::fs::File;
use std::net::TcpListener;
use std::sync::Arc;

use anyhow::Context;
use nvme_target::{Disk, Subsystem, Target};

use crate::args::DemoNvmeTarget;
use tool::output::Failure;

/// Size of a block, as a power of two: that of most SSDs.
const BLOCK_LOG2: u8 = 12;

/// Serves the file until a signal.
///
/// # Errors
///
/// The file cannot be opened, or the address is in use.
pub fn run(args: &DemoNvmeTarget) -> Result<(), Failure> {
    let DemoNvmeTarget { listen, nqn, file } = args;
    let opened = File::options().read(true).write(true).open(file);
    let opened = opened.with_context(|| format!("open {}", file.display()))?;
    let disk = Disk::in_file(opened, BLOCK_LOG2).context("read the size of the file")?;
    let listener = TcpListener::bind(listen).with_context(|| format!("listen on {listen}"))?;
    let subsystem = Subsystem::new(nqn, vec![Arc::new(disk)]);
    let _target = Target::start(listener, subsystem).context("start the target")?;
    loop {
        std::thread::park();
    }
}
