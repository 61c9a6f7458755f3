//! `devmem-tcp store`: stores a file in an export of a stock NBD server, or in a namespace of an NVMe subsystem.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::Context;
use devmem_linux::cpu;
use devmem_tcp::{Dmabuf, Netdev, choice::Purpose};

use crate::client::Client;
use crate::load_failure::load_failure;
use crate::plan::StorePlan;
use crate::receiver::BoundNic;
use crate::report::{MemoryAndLink, StoreReport, verdict};
use tool::memory::PAGE_BYTES;
use tool::output::{Failure, note};
use tool::progress::Progress;
use tool::signals::StopFlag;
use tool::size::Size;
use transfer::load::{Crc32c, Loader, Origin};
use transfer::store::{Durability, Input, Sink, StoreError, Stored, Storer};

/// Requests in flight on a connection.
const WINDOW: usize = 16;

/// Stores by `plan`.
///
/// # Errors
///
/// A failed step, or a wrong result.
pub fn run(plan: &StorePlan) -> Result<(), Failure> {
    let mut input = Input::open(&plan.file)?;
    let StorePlan {
        link, nic, kernel, ..
    } = plan;
    let stop = StopFlag::install().context("install signal handlers")?;
    let client = Client::open(link, nic, kernel, Purpose::Send, &stop)?;
    let sink = Sink::open_cancellable(&client.nic, &plan.sink, &mut || stop.control_flow());
    let sink = sink.map_err(|error| failure(error, &plan.sink, &stop))?;
    // One half of the memory is bound for receiving, the other has the chunks.
    let (mem_bytes, niov) = client.mem_bytes();
    let half = mem_bytes / 2 / niov * niov;
    let local = client.local(sink.addresses())?;
    let bound = client.bind(half, local, sink.addresses())?;
    let memory = client.allocate(chunk_bytes(plan, input.bytes(), half))?;
    note(format_args!("storing {} in {}", input.name(), sink));

    let outcome = transfer(plan, &client.nic, &mut input, &sink, &memory, &stop)?;
    let stored = outcome.stored;
    let mut report = StoreReport {
        interrupted: outcome.interrupted,
        file: input.name().to_owned(),
        url: sink.to_string(),
        durable: stored.flushes > 0 || plan.durability == Durability::EachWrite,
        backend: client.backend,
        link: client.link.clone(),
        ..StoreReport::default()
    };
    report.set_stored(&stored, outcome.used, outcome.filling);
    if plan.verify && !outcome.interrupted {
        match loaded_back(plan, &sink, &memory, &client.nic, &input, &stop) {
            Err(_) if stop.is_set() => report.interrupted = true,
            read => {
                let (stored, device) = read?;
                let file = input.crc32c().context("read the file again")?;
                report.set_verified(file, stored, device);
            }
        }
    }
    drop(bound.map(BoundNic::finish));
    report.memory_and_link = MemoryAndLink::of(&client.nic, &memory, local.ip(), nic.impairment);
    plan.form.print(&report)?;
    match report.complaint() {
        Some(complaint) => {
            let remedy = "unless one of them was changed meanwhile, look at the server's log";
            Err(Failure::failed(complaint).with_remedy(remedy))
        }
        None => verdict(None::<&str>, report.interrupted),
    }
}

/// What was stored.
struct Outcome {
    stored: Stored,
    /// A signal has ended it.
    interrupted: bool,
    /// CPU time, and that of reading the file.
    used: Duration,
    filling: Duration,
}

/// Stores the file through `memory`, or a part of it until a signal.
///
/// # Errors
///
/// A failed step.
fn transfer(
    plan: &StorePlan,
    nic: &Netdev,
    input: &mut Input,
    sink: &Sink,
    memory: &Dmabuf,
    stop: &StopFlag,
) -> Result<Outcome, Failure> {
    let range = target(plan.at, input.bytes())?;
    let progress = Progress::transfer(Some(input.bytes()));
    let (start, clock) = (Instant::now(), cpu::process_cpu_time());
    let mut filling = Duration::ZERO;
    let mut fill = |target: Range<u64>, place| {
        let before = cpu::thread_cpu_time();
        let range = target.start - range.start..target.end - range.start;
        let filled = input.fill(range, memory, place);
        filling += cpu::thread_cpu_time().saturating_sub(before);
        filled
    };
    let ranges = std::slice::from_ref(&range);
    let stored = storer(plan, nic).store_from(sink, memory, ranges, &mut fill, &mut |so_far| {
        progress.transferred(so_far.bytes, start.elapsed());
        stop.control_flow()
    });
    let used = cpu::process_cpu_time().saturating_sub(clock);
    progress.finish();
    let (stored, interrupted) = match stored {
        Err(StoreError::Cancelled { acknowledged, .. }) if stop.is_set() => {
            let stored = Stored {
                bytes: acknowledged,
                elapsed: start.elapsed(),
                ..Stored::default()
            };
            (stored, true)
        }
        stored => (
            stored.map_err(|error| failure(error, &plan.sink, stop))?,
            false,
        ),
    };
    Ok(Outcome {
        stored,
        interrupted,
        used,
        filling,
    })
}

fn storer(plan: &StorePlan, nic: &Netdev) -> Storer {
    Storer::new(nic)
        .connections(usize::from(plan.connections))
        .piece_bytes(plan.piece_bytes)
        .window(WINDOW)
        .durability(plan.durability)
}

/// Returns the range of the export that `bytes` are stored in.
fn target(at: u64, bytes: u64) -> Result<Range<u64>, Failure> {
    let end = at.checked_add(bytes);
    let end =
        end.ok_or_else(|| Failure::usage(format!("--at {}: no export is so long", Size(at))))?;
    Ok(at..end)
}

/// Returns the bytes of all chunks: enough for all requests in flight, and `most` at most.
fn chunk_bytes(plan: &StorePlan, bytes: u64, most: usize) -> usize {
    let in_flight = u64::from(plan.connections) * WINDOW as u64;
    // The server may prefer larger pieces: twice as much has room for them.
    let wanted = in_flight.saturating_mul(plan.piece_bytes).saturating_mul(2);
    let wanted = usize::try_from(wanted.min(bytes.max(plan.piece_bytes))).unwrap_or(usize::MAX);
    wanted.min(most).next_multiple_of(PAGE_BYTES)
}

/// Returns the error of a store, with the next command.
fn failure(error: StoreError, origin: &Origin, stop: &StopFlag) -> Failure {
    match error {
        StoreError::Cancelled { .. } if stop.is_set() => Failure::interrupted(),
        StoreError::Export(error) => load_failure(error, origin, stop),
        error => error.into(),
    }
}

/// Loads the stored bytes back through `memory`. Returns their checksum, and the device that has computed it; `None`: the CPU.
fn loaded_back(
    plan: &StorePlan,
    sink: &Sink,
    memory: &Dmabuf,
    nic: &Netdev,
    input: &Input,
    stop: &StopFlag,
) -> Result<(u32, Option<String>), Failure> {
    let loader = Loader::new(nic)
        .connections(usize::from(plan.connections))
        .piece_bytes(plan.piece_bytes)
        .pipeline(WINDOW);
    let progress = Progress::bytes("verifying", input.bytes());
    let (mut stored, mut device) = (Crc32c::default(), None);
    let range = target(plan.at, input.bytes())?;
    let read = loader.read_through(
        sink,
        range,
        memory,
        &mut |range| {
            // The last bytes may be too few for the device.
            device = stored.add_memory(memory, range)?.or_else(|| device.take());
            Ok(())
        },
        &mut |so_far| {
            progress.at(so_far.bytes);
            stop.control_flow()
        },
    );
    read.map_err(|error| load_failure(error, &plan.sink, stop))?;
    progress.finish();
    Ok((stored.value(), device))
}
