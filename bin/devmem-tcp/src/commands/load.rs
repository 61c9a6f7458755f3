//! `devmem-tcp load`: loads a file from a stock HTTP server.

mod source;
mod target;

use std::ops::ControlFlow;
use std::time::Instant;

use anyhow::Context;
use devmem_linux::cpu;
use devmem_tcp::{BoundRx, Dmabuf, ErrorKind, Netdev, Setup};

use crate::kernels_end;
use crate::plan::{LoadPlan, NicPlan, Protocol, TapPlan};
use crate::receiver::with_mtu;
use crate::report::LoadReport;
use source::Source;
use target::Target;
use tool::output::{Failure, note, print_json};
use tool::progress::Progress;
use tool::signals::StopFlag;
use tool::terminal::tell_table;
use tool::undelivered::Undelivered;
use transfer::load::{LoadError, Loader};

/// Loads by `plan`.
///
/// # Errors
///
/// A failed step, or a wrong result.
pub fn run(plan: &LoadPlan) -> Result<(), Failure> {
    let stop = StopFlag::install().context("install signal handlers")?;
    let client = Client::open(&plan.link.tap, &plan.nic, plan.nic.mem_bytes)?;
    if let Some(warning) = kernels_end::unreachable(&plan.link.tap) {
        note(warning);
    }
    let loader = Loader::new(&client.nic)
        .connections(usize::from(plan.connections))
        .piece_bytes(plan.piece_bytes);
    let source = Source::open(plan, &loader, &stop)?;
    let size = source.memory_bytes();
    note(format_args!("loading {}", source.name()));

    let target = Target::open(&plan.target, plan.nic.memory, size)?;
    let progress = Progress::transfer(Some(source.bytes()));
    let (start, clock) = (Instant::now(), cpu::process_cpu_time());
    let loaded = source.load(&loader, &client.memory, &target, &mut |sofar| {
        progress.transferred(sofar.bytes, start.elapsed());
        match stop.is_set() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    let used = cpu::process_cpu_time().saturating_sub(clock);
    progress.finish();
    let loaded = loaded.map_err(|error| failure(error, plan.origin.protocol(), &stop))?;

    let mut report = LoadReport {
        backend: "user",
        link: plan.link.tap.link.to_string(),
        url: source.name(),
        to: target.name(),
        tensors: source.tensors(),
        serves_ranges: source.serves_ranges(),
        mtu: client.nic.mtu(),
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
        report.crc32c_matches = source.crc32c().map(|theirs| theirs == sum);
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

/// Returns the error of a load, with the next command.
pub fn failure(error: LoadError, protocol: Protocol, stop: &StopFlag) -> Failure {
    let (text, remedy) = match &error {
        LoadError::Cancelled if stop.is_set() => return Failure::failed("interrupted"),
        LoadError::Connect { address, source } => match source.kind() {
            ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable => (
                format!("there is no route to {}", address.ip()),
                "--gateway ADDR names the router to other networks".to_owned(),
            ),
            ErrorKind::ConnectionRefused => (
                format!("{address} refuses the connection: no program listens there"),
                format!(
                    "start one, for example `{}`",
                    protocol.server(address.port())
                ),
            ),
            _ => return error.into(),
        },
        _ => return error.into(),
    };
    Failure::failed(text).with_remedy(remedy)
}

/// A NIC with device memory bound to it. The fields are dropped in their order.
pub struct Client {
    bound: BoundRx,
    setup: Setup,
    memory: Dmabuf,
    pub nic: Netdev,
}

impl Client {
    /// Opens the NIC, and binds `mem_bytes`.
    ///
    /// # Errors
    ///
    /// The link or the memory is not available.
    pub fn open(tap: &TapPlan, wanted: &NicPlan, mem_bytes: usize) -> Result<Self, Failure> {
        let nic = with_mtu(tap.builder()?, wanted.mtu)
            // Queue 0 receives into host memory.
            .rx_queues(wanted.queues + 1)
            .impair(wanted.impairment)
            .open()?;
        let memory = wanted.memory.allocate(mem_bytes)?;
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

    /// Ends it, and returns the packets that were not delivered.
    pub fn end(self) -> Undelivered {
        Undelivered::of(self.nic.drops())
    }
}
