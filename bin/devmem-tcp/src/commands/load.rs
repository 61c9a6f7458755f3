//! `devmem-tcp load`: loads a file from a stock HTTP server.

use std::fs::File;
use std::io;
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use devmem_linux::cpu;
use devmem_tcp::{BoundRx, Dmabuf, ErrorKind, Netdev, Setup};

use crate::kernels_end;
use crate::plan::{LoadPlan, LoadTarget};
use crate::report::LoadReport;
use crate::transfer::for_each_block;
use tool::output::{Failure, note, print_json};
use tool::pattern::BLOCK_BYTES;
use tool::progress::Progress;
use tool::signals::StopFlag;
use tool::size::Size;
use tool::terminal::tell_table;
use tool::undelivered::Undelivered;
use transfer::load::{Crc32c, HttpFile, Landed, LoadError, Loaded, Loader, Part};

/// Device memory is allocated in pages.
const PAGE_BYTES: usize = 4096;

/// Loads by `plan`.
///
/// # Errors
///
/// A failed step, or a wrong result.
pub fn run(plan: &LoadPlan) -> Result<(), Failure> {
    let stop = StopFlag::install().context("install signal handlers")?;
    let client = Client::open(plan)?;
    if let Some(warning) = kernels_end::unreachable(&plan.link.tap) {
        note(warning);
    }
    let file = HttpFile::open(&client.nic, plan.request.clone());
    let file = file.map_err(|error| failure(error, &stop))?;
    let range = range(plan, &file)?;
    let size = range.end - range.start;
    note(format_args!(
        "loading {} of {}",
        Size(size),
        file.request().url()
    ));

    let target = Target::open(&plan.target, size)?;
    let progress = Progress::transfer(Some(size));
    let (start, clock) = (Instant::now(), cpu::process_cpu_time());
    let loaded = load(plan, &client, &file, &range, &target, &mut |sofar| {
        progress.transferred(sofar.bytes, start.elapsed());
        match stop.is_set() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    let used = cpu::process_cpu_time().saturating_sub(clock);
    progress.finish();
    let loaded = loaded.map_err(|error| failure(error, &stop))?;

    let mut report = LoadReport {
        backend: "user",
        link: plan.link.tap.link.to_string(),
        url: file.request().url().to_string(),
        to: target.name(),
        serves_ranges: file.serves_ranges(),
        mtu: plan.nic.mtu,
        ip_version: if plan.link.tap.ours.address.is_ipv4() {
            4
        } else {
            6
        },
        impair: plan.nic.impairment.to_string(),
        ..LoadReport::default()
    };
    report.set_loaded(&loaded, used);
    if plan.verify {
        let sum = target.checksum(size)?;
        report.crc32c = Some(format!("{sum:08x}"));
        let is_whole = file.size() == Some(size);
        let theirs = file.crc32c().filter(|_| is_whole);
        report.crc32c_matches = theirs.map(|theirs| theirs == sum);
    }
    client.finish(&mut report);
    tell_table(&report);
    if plan.json {
        print_json(&report)?;
    }
    match report.complaint() {
        Some(complaint) => Err(Failure::failed(complaint)),
        None => Ok(()),
    }
}

fn load(
    plan: &LoadPlan,
    client: &Client,
    file: &HttpFile,
    range: &Range<u64>,
    target: &Target,
    progress: &mut dyn FnMut(transfer::load::Progress) -> ControlFlow<()>,
) -> Result<Loaded, LoadError> {
    let loader = Loader::new(&client.nic)
        .connections(usize::from(plan.connections))
        .piece_bytes(plan.piece_bytes);
    match target {
        Target::Memory(memory) => {
            let part = Part {
                source: range.clone(),
                memory: memory.clone(),
                offset: 0,
            };
            loader.load(file, &[part], progress)
        }
        Target::File(out, _) => {
            let mut block = vec![0; BLOCK_BYTES];
            let mut write = |landed: Landed<'_>| {
                let mut at = landed.at - range.start;
                for_each_block(landed.batch, &client.memory, &mut block, |bytes| {
                    out.write_all_at(bytes, at)?;
                    at += bytes.len() as u64;
                    Ok(())
                })
            };
            loader.deliver(file, std::slice::from_ref(range), &mut write, progress)
        }
    }
}

/// Returns the range to load.
fn range(plan: &LoadPlan, file: &HttpFile) -> Result<Range<u64>, Failure> {
    match (&plan.range, file.size()) {
        (Some(range), _) => Ok(range.clone()),
        (None, Some(size)) => Ok(0..size),
        (None, None) => Err(
            Failure::failed("the server does not tell the size of the file")
                .with_remedy("name it with --range 0-SIZE"),
        ),
    }
}

/// Returns the error of a load, with the next command.
fn failure(error: LoadError, stop: &StopFlag) -> Failure {
    let remedy = match &error {
        LoadError::Cancelled if stop.is_set() => return Failure::failed("interrupted"),
        LoadError::Connect { source, .. } => match source.kind() {
            ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable => {
                Some("--gateway ADDR names the router to other networks")
            }
            ErrorKind::ConnectionRefused => Some("start a server there: `python3 -m http.server`"),
            _ => None,
        },
        _ => None,
    };
    let failure = Failure::from(error);
    match remedy {
        Some(remedy) => failure.with_remedy(remedy),
        None => failure,
    }
}

/// A NIC with device memory bound to it. The fields are dropped in their order.
struct Client {
    bound: BoundRx,
    setup: Setup,
    memory: Dmabuf,
    nic: Netdev,
}

impl Client {
    fn open(plan: &LoadPlan) -> Result<Self, Failure> {
        let (tap, wanted) = (&plan.link.tap, &plan.nic);
        let nic = tap
            .builder()?
            .mtu(wanted.mtu)
            // Queue 0 receives into host memory.
            .rx_queues(wanted.queues + 1)
            .impair(wanted.impairment)
            .open()?;
        let memory = Dmabuf::anonymous(wanted.mem_bytes).context("get device memory")?;
        // Any port: that of a connection is chosen when it is made.
        let setup = nic
            .plan_receive(tap.local(0))
            .queues(wanted.queues)
            .apply()?;
        let bound = nic.bind_rx_sized(&memory, setup.queues(), wanted.niov)?;
        Ok(Self {
            bound,
            setup,
            memory,
            nic,
        })
    }

    /// Unbinds the memory and adds its counters to the report.
    fn finish(self, report: &mut LoadReport) {
        let Self {
            bound,
            setup,
            memory,
            nic,
        } = self;
        report.mem_bytes = memory.size() as u64;
        report.page_kind = memory.page_kind().to_string();
        let count = bound.unbind().net_iovs();
        report.net_iovs_total = count.total as u64;
        report.net_iovs_home = count.home as u64;
        drop(setup);
        report.undelivered = Undelivered::of(nic.drops());
    }
}

/// The open target.
enum Target {
    Memory(Dmabuf),
    File(File, String),
}

impl Target {
    fn open(target: &LoadTarget, size: u64) -> Result<Self, Failure> {
        match target {
            LoadTarget::Memory => {
                let bytes = usize::try_from(size).ok();
                let bytes =
                    bytes.and_then(|bytes| bytes.max(1).checked_next_multiple_of(PAGE_BYTES));
                let too_large =
                    || Failure::failed(format!("{} do not fit into memory", Size(size)));
                let memory = Dmabuf::anonymous(bytes.ok_or_else(too_large)?);
                let memory = memory.context("get device memory for the file");
                memory.map(Self::Memory).map_err(|error| {
                    Failure::from(error).with_remedy("--to FILE needs no memory for the file")
                })
            }
            LoadTarget::File(path) => {
                let name = path.display().to_string();
                Ok(Self::File(create(path)?, name))
            }
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Memory(_) => "memory".to_owned(),
            Self::File(_, name) => name.clone(),
        }
    }

    /// Returns the checksum of the loaded bytes, read back from where they are.
    fn checksum(&self, size: u64) -> Result<u32, Failure> {
        let mut block = vec![0; BLOCK_BYTES];
        let mut sum = Crc32c::default();
        let mut at = 0;
        while at < size {
            let len = usize::try_from(size - at)
                .unwrap_or(usize::MAX)
                .min(BLOCK_BYTES);
            let bytes = &mut block[..len];
            match self {
                Self::Memory(memory) => {
                    let start = usize::try_from(at).context("an offset in memory")?;
                    memory.copy_out(start, bytes).context("read the memory")?;
                }
                Self::File(file, name) => {
                    let read = file.read_exact_at(bytes, at);
                    read.with_context(|| format!("read {name} back"))?;
                }
            }
            sum.add(bytes);
            at += len as u64;
        }
        Ok(sum.value())
    }
}

fn create(path: &Path) -> Result<File, Failure> {
    let mut options = File::options();
    // Read back by --verify.
    let opened: io::Result<File> = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path);
    Ok(opened.with_context(|| format!("create {}", path.display()))?)
}
