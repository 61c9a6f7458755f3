//! `bench load`: a file of a stock server loaded into device memory, compared with curl, nbdcopy and a plain receiver.

mod https;
mod nvme;
mod report;
mod rows;
mod server;
mod tensors;

use anyhow::Context;
use clap::Args;
use devmem_linux::{cpu, netns};
use netmem::Dmabuf;

use crate::form::FormArgs;
use crate::network::require_tap;
use crate::plan::rows_named;
use crate::processors::{first_two, pinned};
use crate::repetitions::Repetitions;
pub use nvme::{NvmeTargetArgs, run_target as run_nvme_target};
use report::LoadReport;
use rows::{ROWS, Row, Setting};
use server::Files;
use tool::output::{Failure, note, say};
use tool::size::Size;
use tool::stock::{self, StockServer};

/// Device memory is allocated in pages.
const PAGE_BYTES: u64 = 4096;
/// Bytes that the alignment of the tensors adds to those of the file, at most.
const ALIGNED_BYTES: usize = 1 << 20;
/// Sizes of the file: less is only slow start.
const SIZES: std::ops::RangeInclusive<u64> = 64 << 20..=16 << 30;

/// Load a file from nginx, qemu-nbd, nbdkit and an NVMe target into device memory: this loader, curl, nbdcopy, and a plain receiver
///
/// nginx serves a file in /dev/shm with sendfile, on its own processor. `ours` loads it over a TAP. `curl` loads it over a veth
/// pair into another file there, which is then read once: the cheapest copy to a target. `recv` receives into a buffer that
/// stays in the cache, and copies from there to device memory. `readv` only reads the same packets from a TAP into the target, and
/// sends ACKs: the least CPU time of any receiver over a TAP. `nbdcopy` reads from an NBD server over a veth pair and drops the bytes,
/// or writes them to a new file in /dev/shm (`tmpfs`, 1 connection), with 4 connections or one; `ours` uses one, or up to 4. Each has 16
/// requests of 1 MiB in flight on a connection. `nbdkit-memory` is nbdkit's plugin `memory`, to which the file was written before. `nvme` is a
/// small NVMe/TCP target of ours with the file in memory, over one I/O queue or up to 4, without digests or with one kind. `4k-random` loads half of its
/// blocks, picked at random, each to a random place, with 128 reads of 4 KiB in flight; the loader sends them in the order of the blocks. In the
/// rows `in-place` the payload stays where it was received, and its memory is used again at once, as that of `nbdcopy` is.
/// `500-tensors` loads a checkpoint, each tensor to its place; `64k-parts` the file in parts of 64 KiB, each to a random place, and `64k-random-parts` half
/// of these, picked at random. `64k-pieces` asks for the file in requests of 64 KiB, `64m` and `1g` in longer ones than usual. `https` is nginx with TLS, whose bytes curl and this loader decrypt: both over the kernel's sockets and a
/// veth pair, as `ours/sockets` does without TLS. CPU time is that of the receiving process, and that of the server's;
/// a process that sends an ACK also does what the peer's TCP does with it. Every repetition runs all rows one after another; rows
/// without their programs are left out.
#[derive(Debug, Args)]
pub struct LoadArgs {
    /// Repetitions of all rows; use at least 5 to see the spread
    #[arg(long, value_name = "N", default_value_t = 7)]
    reps: usize,
    /// Size of the file
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    bytes: Size,
    /// Run only these rows
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<String>,
    /// List the rows and exit
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    form: FormArgs,
}

/// Runs the benchmark and prints its report.
///
/// # Errors
///
/// The network or a server cannot be set up, or a row fails.
pub fn run(args: &LoadArgs) -> Result<(), Failure> {
    let LoadArgs {
        reps,
        bytes,
        only,
        list,
        form,
    } = args;
    if *list {
        ROWS.iter().for_each(|row| say!("{}", row.name));
        return Ok(());
    }
    if !SIZES.contains(&bytes.0) || !bytes.0.is_multiple_of(PAGE_BYTES) {
        return Err(Failure::usage(format_args!(
            "--bytes {bytes}: a multiple of 4 KiB from 64M to 16G"
        )));
    }
    StockServer::Nginx.require()?;
    if stock::path_of("curl").is_none() {
        let missing = Failure::unsupported("there is no curl here");
        return Err(missing.with_remedy("apt install curl"));
    }
    let repetitions = Repetitions::new("repetition", "--reps", *reps as u64)?;
    let rows = available(rows_named(only, ROWS, |row| row.name)?);
    require_tap()?;
    // Before any thread is started, because an unprivileged caller also enters a user namespace.
    netns::enter_new()?;
    let (receiver_cpu, server_cpu) = first_two(&cpu::allowed_cpus())?;
    let size = usize::try_from(bytes.0).context("the size of the file")?;
    let files = Files::new(bytes.0)?;
    let setting = Setting {
        files: &files,
        target: Dmabuf::anonymous(size + ALIGNED_BYTES)?,
        bytes: bytes.0,
        server_cpu,
    };
    let mut report = LoadReport::new(&rows, bytes.0, *reps);
    let measure = |_, row: &Row| {
        let measured = pinned(receiver_cpu, || rows::run(&setting, row.kind));
        measured.with_context(|| row.name)
    };
    let progress = repetitions.run(&rows, measure, |row, reading| report.add(row, reading))?;
    form.print(progress, &report, &report.chart())
}

/// Returns the rows whose programs this machine has, and notes the others.
fn available(mut rows: Vec<Row>) -> Vec<Row> {
    rows.retain(|row| {
        let programs = row.programs().into_iter();
        let missing = programs.filter(|program| stock::path_of(program).is_none());
        let missing: Vec<_> = missing.collect();
        if !missing.is_empty() {
            let name = row.name;
            note(format_args!(
                "SKIP {name}: there is no {} here",
                missing.join(", ")
            ));
        }
        missing.is_empty()
    });
    rows
}
