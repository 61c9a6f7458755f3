//! `devmem-tcp load`: loads a file from a stock HTTP server, an export of an NBD server or a namespace of an NVMe subsystem.

mod contents;
mod judged;
mod list;
mod target;

use std::time::Instant;

use anyhow::Context;
use devmem_linux::cpu;

use crate::client::Client;
use crate::plan::{LoadJob, LoadPlan, NicPlan, strict_https};
use crate::receiver::BoundNic;
use crate::report::{LoadReport, verdict};
use contents::{Contents, ServerSums};
pub use target::Target;
use tool::output::{Failure, note};
use tool::parse::OutputArgs;
use tool::progress::Progress;
use tool::signals::StopFlag;
use transfer::load::{LoadError, Loader, NoSum};

/// Loads by `plan`.
///
/// # Errors
///
/// A failed step, or a wrong result.
pub fn run(plan: &LoadPlan) -> Result<(), Failure> {
    let stop = StopFlag::install().context("install signal handlers")?;
    let client = Client::of_load(plan, &stop)?;
    if let Some(host) = list::host_of(&plan.job.origin) {
        return list::run(&client.nic, host, plan.form, &stop);
    }
    let mut loaded = transfer(&client, &plan.nic, &plan.job, &stop)?;
    if let Some(kind) = plan.verify.filter(|_| !loaded.report.interrupted) {
        loaded.add_checksum(kind)?;
    }
    loaded.end(plan.form)
}

/// What was loaded.
pub struct LoadedTarget {
    pub report: LoadReport,
    pub target: Target,
    /// Bytes of the target.
    size: u64,
    /// The servers' checksums of these bytes.
    server: ServerSums,
}

impl LoadedTarget {
    /// Gives a file its name if all of it has come and is right, and prints the report.
    ///
    /// # Errors
    ///
    /// The result is wrong.
    pub fn end(self, form: OutputArgs) -> Result<(), Failure> {
        let Self {
            report, mut target, ..
        } = self;
        let complaint = report.complaint();
        match complaint.is_none() && !report.interrupted {
            true => target.commit()?,
            false => target.tell_rest(),
        }
        form.print(&report)?;
        verdict(complaint, report.interrupted)
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
    let loader = loader(client, job);
    let contents = Contents::open(job, &loader, stop)?;
    let size = contents.memory_bytes();
    note(format_args!("loading {}", contents.name()));

    let servers = contents.addresses();
    let local = client.local(&servers)?;
    let bound = match contents.is_encrypted() {
        true if job.strict => return Err(strict_https()),
        // What the CPU must decrypt is received in host memory: device memory would be one copy more.
        true => None,
        false => client.bind(client.mem_bytes_for(contents.bytes()), local, &servers)?,
    };
    let mut target = Target::open(job, nic.memory, size, || contents.version())?;
    let resumed = target.done_bytes();
    let progress = Progress::transfer(Some(contents.bytes()));
    let (start, clock) = (Instant::now(), cpu::process_cpu_time());
    let mut bytes = 0;
    let loaded = contents.load(&loader, &mut target, &mut |so_far| {
        bytes = so_far.bytes;
        progress.transferred(bytes, start.elapsed());
        stop.control_flow()
    });
    let used = cpu::process_cpu_time().saturating_sub(clock);
    progress.finish();
    let loaded = match loaded {
        Err(LoadError::Cancelled) if stop.is_set() => None,
        Ok(loaded) => Some(loaded),
        Err(error) => return Err(target.failed(error, job, stop)),
    };

    let mut report = LoadReport {
        backend: client.backend,
        link: client.link.clone(),
        url: contents.name(),
        to: target.name(),
        tensors: contents.tensors(),
        serves_ranges: contents.serves_ranges(),
        resumed_bytes: Some(resumed).filter(|bytes| *bytes > 0),
        ..LoadReport::default()
    };
    match &loaded {
        Some(loaded) => report.set_loaded(loaded, used),
        None => report.set_interrupted(bytes, start.elapsed(), &client.nic.queue_stats()),
    }
    report.set_moved(&client.nic.queue_stats());
    match bound.map(BoundNic::finish) {
        Some(unused) => report.set_unused(&unused, local.ip(), nic.impairment),
        None => report.set_unbound(&client.nic, local.ip()),
    }
    let server = match job.compares && !report.interrupted {
        true => contents.server_sums(&loader, &target, stop)?,
        false => ServerSums::File(Err(NoSum::None)),
    };
    Ok(LoadedTarget {
        report,
        target,
        size,
        server,
    })
}

/// Returns the loader of a job.
fn loader(client: &Client<'_>, job: &LoadJob) -> Loader {
    let mut loader = Loader::new(&client.nic)
        .idle_limit(job.idle_limit)
        .on_notice(|text| note(text));
    if let Some(connections) = job.connections {
        loader = loader.connections(usize::from(connections));
    }
    if let Some(bytes) = job.piece_bytes {
        loader = loader.piece_bytes(bytes);
    }
    loader
}
