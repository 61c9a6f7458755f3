//! `devmem-tcp store`: stores a file in an export of a stock NBD server.

mod input;

use std::ops::{ControlFlow, Range};
use std::time::Instant;

use anyhow::Context;
use devmem_linux::cpu;
use devmem_tcp::{Dmabuf, Netdev, Purpose};

use super::load;
use crate::client::Client;
use crate::plan::{Protocol, StorePlan};
use crate::report::{Circumstances, StoreReport};
use input::Input;
use tool::output::{Failure, note};
use tool::progress::Progress;
use tool::signals::StopFlag;
use tool::size::Size;
use transfer::load::{Crc32c, Loader, Part};
use transfer::store::{Durability, NbdExport, StoreError, Storer};

/// Requests in flight on a connection.
const WINDOW: usize = 16;
/// Device memory is allocated in pages.
const PAGE_BYTES: usize = 4096;

/// Stores by `plan`.
///
/// # Errors
///
/// A failed step, or a wrong result.
pub fn run(plan: &StorePlan) -> Result<(), Failure> {
    let stop = StopFlag::install().context("install signal handlers")?;
    let mut input = Input::open(&plan.file)?;
    let StorePlan {
        link, nic, kernel, ..
    } = plan;
    let client = Client::open(link, nic, kernel, Purpose::Send)?;
    let export = NbdExport::open(&client.nic, plan.url.clone());
    let export = export.map_err(|error| failure(error.into(), &stop))?;
    // One half of the memory is bound for receiving, the other has the chunks.
    let (mem_bytes, niov) = client.mem_bytes();
    let half = mem_bytes / 2 / niov * niov;
    let local = client.local(export.addresses())?;
    let bound = client.bind(half, local, export.addresses())?;
    let memory = client.allocate(chunk_bytes(plan, input.bytes, half))?;
    note(format_args!("storing {} in {}", input.name, export.url()));

    let storer = Storer::new(&client.nic)
        .connections(usize::from(plan.connections))
        .piece_bytes(plan.piece_bytes)
        .window(WINDOW)
        .durability(plan.durability);
    let range = target(plan.at, input.bytes)?;
    let progress = Progress::transfer(Some(input.bytes));
    let (start, clock) = (Instant::now(), cpu::process_cpu_time());
    let mut fill = |target: Range<u64>, place| {
        let range = target.start - range.start..target.end - range.start;
        input.fill(range, &memory, place)
    };
    let ranges = std::slice::from_ref(&range);
    let stored = storer.store_from(&export, &memory, ranges, &mut fill, &mut |sofar| {
        progress.transferred(sofar.bytes, start.elapsed());
        go_on(&stop)
    });
    let used = cpu::process_cpu_time().saturating_sub(clock);
    progress.finish();
    let stored = stored.map_err(|error| failure(error, &stop))?;

    let mut report = StoreReport {
        file: input.name.clone(),
        url: export.url().to_string(),
        durable: stored.flushes > 0 || plan.durability == Durability::EachWrite,
        backend: client.backend,
        link: client.link.clone(),
        ..StoreReport::default()
    };
    report.set_stored(&stored, used, input.filling);
    if plan.verify {
        let compared =
            Verification::of(&client.nic, plan, &export, &memory).run(&mut input, &stop)?;
        report.crc32c = Some(format!("{:08x}", compared.file));
        report.crc32c_matches = Some(compared.file == compared.export);
    }
    let unused = bound.finish();
    report.circumstances = Circumstances::of(&unused.nic, &memory, local.ip(), nic.impairment);
    plan.form.print(&report)?;
    match report.complaint() {
        Some(complaint) => {
            let remedy = "unless one of them was changed meanwhile, look at the server's log";
            Err(Failure::failed(complaint).with_remedy(remedy))
        }
        None => Ok(()),
    }
}

fn go_on(stop: &StopFlag) -> ControlFlow<()> {
    match stop.is_set() {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    }
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
fn failure(error: StoreError, stop: &StopFlag) -> Failure {
    match error {
        StoreError::Cancelled { .. } if stop.is_set() => {
            Failure::failed(format!("interrupted: {error}"))
        }
        StoreError::Export(error) => load::failure(error, Protocol::Nbd, stop),
        error => error.into(),
    }
}

/// The bytes of the file and of the export, compared.
struct Verification<'a> {
    loader: Loader,
    export: &'a NbdExport,
    /// Room for the bytes that are loaded back.
    memory: &'a Dmabuf,
    /// First byte in the export.
    at: u64,
}

/// The checksums.
struct Compared {
    file: u32,
    export: u32,
}

impl<'a> Verification<'a> {
    fn of(nic: &Netdev, plan: &StorePlan, export: &'a NbdExport, memory: &'a Dmabuf) -> Self {
        Self {
            loader: Loader::new(nic)
                .connections(usize::from(plan.connections))
                .piece_bytes(plan.piece_bytes)
                .pipeline(WINDOW),
            export,
            memory,
            at: plan.at,
        }
    }

    /// Loads the bytes back, as many at a time as there is memory for.
    fn run(&self, input: &mut Input, stop: &StopFlag) -> Result<Compared, Failure> {
        let (mut file, mut export) = (Crc32c::default(), Crc32c::default());
        let progress = Progress::bytes("verifying", input.bytes);
        let mut block = vec![0; self.memory.size().min(1 << 20)];
        let mut done = 0;
        while done < input.bytes {
            let now = (input.bytes - done).min(self.memory.size() as u64);
            let part = Part {
                source: self.at + done..self.at + done + now,
                memory: self.memory.clone(),
                offset: 0,
            };
            let loaded = self.loader.load(self.export, &[part], &mut |sofar| {
                progress.at(done + sofar.bytes);
                go_on(stop)
            });
            loaded.map_err(|error| load::failure(error, Protocol::Nbd, stop))?;
            // Fits: it is at most the size of the memory.
            let len = usize::try_from(now).context("a part of the file")?;
            for start in (0..len).step_by(block.len()) {
                let bytes = &mut block[..(len - start).min(1 << 20)];
                self.memory
                    .copy_out(start, bytes)
                    .context("read the memory")?;
                export.add(bytes);
                let bytes = input.read(done + start as u64, bytes.len());
                file.add(bytes.context("read the file again")?);
            }
            done += now;
        }
        progress.finish();
        Ok(Compared {
            file: file.value(),
            export: export.value(),
        })
    }
}
