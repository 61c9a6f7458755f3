//! `devmem-tcp load`: loads a file from a stock HTTP server, an export of an NBD server or a namespace of an NVMe subsystem.

mod contents;
mod list;
mod target;

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::Context;
use devmem_linux::cpu;
use devmem_tcp::{ErrorKind, choice::Purpose};

use crate::args::ChecksumKind;
use crate::client::Client;
use crate::plan::{LoadJob, LoadPlan, NicPlan};
use crate::report::{LoadReport, checksum_on, verdict};
use contents::Contents;
pub use target::Target;
use tool::output::{Failure, note};
use tool::parse::OutputArgs;
use tool::progress::Progress;
use tool::signals::StopFlag;
use transfer::load::{LoadError, Loader, Origin, Url, Xxh3};

/// Loads by `plan`.
///
/// # Errors
///
/// A failed step, or a wrong result.
pub fn run(plan: &LoadPlan) -> Result<(), Failure> {
    let LoadPlan {
        link,
        nic,
        kernel,
        job,
        ..
    } = plan;
    let stop = StopFlag::install().context("install signal handlers")?;
    let client = Client::open(link, nic, kernel, Purpose::Receive, &stop)?;
    if let Some(host) = list::host_of(&job.origin) {
        return list::run(&client.nic, host, plan.form, &stop);
    }
    let mut loaded = transfer(&client, nic, job, &stop)?;
    match plan.verify.filter(|_| !loaded.report.interrupted) {
        Some(ChecksumKind::Crc32c) => loaded.add_crc32c()?,
        Some(ChecksumKind::Xxh3) => loaded.add_xxh3()?,
        None => {}
    }
    loaded.end(plan.form)
}

/// What was loaded.
pub struct LoadedTarget {
    pub report: LoadReport,
    pub target: Target,
    /// Bytes of the target.
    size: u64,
    /// The server's checksum, if it sent one.
    theirs: Option<u32>,
}

impl LoadedTarget {
    fn add_crc32c(&mut self) -> Result<(), Failure> {
        let (sum, device) = self.target.crc32c(self.size)?;
        self.report.crc32c = Some(format!("{sum:08x}"));
        self.report.checksum_on = Some(checksum_on(device));
        self.report.crc32c_matches = self.theirs.map(|theirs| theirs == sum);
        Ok(())
    }

    fn add_xxh3(&mut self) -> Result<(), Failure> {
        let mut sum = Xxh3::default();
        self.target.read_back(self.size, |bytes| sum.add(bytes))?;
        self.report.checksum_on = Some(checksum_on(None));
        self.report.xxh3 = Some(format!("{:016x}", sum.value()));
        Ok(())
    }

    /// Prints the report.
    ///
    /// # Errors
    ///
    /// The result is wrong.
    pub fn end(&self, form: OutputArgs) -> Result<(), Failure> {
        form.print(&self.report)?;
        verdict(self.report.complaint(), self.report.interrupted)
    }
}

/// Does one job, or a part of it until a signal. All connections have ended afterwards, and the memory is not bound any more.
///
/// # Errors
///
/// A failed step, or a signal before the first byte was requested.
pub fn transfer(
    client: &Client<'_>,
    nic: &NicPlan,
    job: &LoadJob,
    stop: &StopFlag,
) -> Result<LoadedTarget, Failure> {
    let mut loader = Loader::new(&client.nic).connections(usize::from(job.connections));
    if let Some(bytes) = job.piece_bytes {
        loader = loader.piece_bytes(bytes);
    }
    let contents = Contents::open(job, &loader, stop)?;
    let size = contents.memory_bytes();
    note(format_args!("loading {}", contents.name()));

    let servers = contents.addresses();
    let local = client.local(&servers)?;
    let bound = client.bind(client.mem_bytes().0, local, &servers)?;
    let target = Target::open(&job.target, nic.memory, size)?;
    let progress = Progress::transfer(Some(contents.bytes()));
    let (start, clock) = (Instant::now(), cpu::process_cpu_time());
    let mut bytes = 0;
    let loaded = contents.load(&loader, &target, &mut |so_far| {
        bytes = so_far.bytes;
        progress.transferred(bytes, start.elapsed());
        stop.go_on()
    });
    let used = cpu::process_cpu_time().saturating_sub(clock);
    progress.finish();
    let loaded = match loaded {
        Err(LoadError::Cancelled) if stop.is_set() => None,
        loaded => Some(loaded.map_err(|error| failure(error, &job.origin, stop))?),
    };

    let mut report = LoadReport {
        backend: client.backend,
        link: client.link.clone(),
        url: contents.name(),
        to: target.name(),
        tensors: contents.tensors(),
        serves_ranges: contents.serves_ranges(),
        ..LoadReport::default()
    };
    match &loaded {
        Some(loaded) => report.set_loaded(loaded, used),
        None => report.set_interrupted(bytes, start.elapsed(), &client.nic.queue_stats()),
    }
    report.set_moved(&client.nic.queue_stats());
    report.set_unused(&bound.finish(), local.ip(), nic.impairment);
    Ok(LoadedTarget {
        report,
        target,
        size,
        theirs: contents.crc32c(),
    })
}

/// Returns the error of a load, with the next command.
pub fn failure(error: LoadError, origin: &Origin, stop: &StopFlag) -> Failure {
    let (text, remedy) = match &error {
        LoadError::Cancelled if stop.is_set() => return Failure::interrupted(),
        LoadError::Connect { address, source } => match source.kind() {
            ErrorKind::NetworkUnreachable => (
                format!("there is no route to {}", address.ip()),
                "--gateway ADDR names the router to other networks".to_owned(),
            ),
            ErrorKind::ConnectionRefused if proxy_of(origin).is_some() => (
                format!("{address}, the proxy of the environment, refuses the connection"),
                "correct http_proxy, or name the host in no_proxy if it needs no proxy".to_owned(),
            ),
            ErrorKind::ConnectionRefused => (
                format!("{address} refuses the connection: no program listens there"),
                format!("start one, for example `{}`", server(origin, *address)),
            ),
            _ => return error.into(),
        },
        _ => return error.into(),
    };
    Failure::failed(text).with_remedy(remedy)
}

fn proxy_of(origin: &Origin) -> Option<&Url> {
    match origin {
        Origin::Http(request) => request.proxy(),
        _ => None,
    }
}

/// Returns a command that starts a server on a port of an address.
fn server(origin: &Origin, at: SocketAddr) -> String {
    let port = at.port();
    // Their default is IPv4 alone, on many systems.
    let any = if at.is_ipv6() { " --bind ::" } else { "" };
    match origin {
        Origin::Nbd(_) => {
            format!("qemu-nbd --persistent --shared 16 --format raw{any} --port {port} FILE")
        }
        Origin::Nvme(_) => {
            format!("nvmetcli restore, with a port of addr_trtype tcp and addr_trsvcid {port}")
        }
        _ => format!("python3 -m http.server {port}{any}"),
    }
}
