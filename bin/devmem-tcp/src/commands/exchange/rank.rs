//! One rank of `demo --exchange`: a process with two NICs, one on the wire to each neighbour.

use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use devmem_linux::cpu;
use devmem_tcp::Netdev;
use exchange::{Dial, Fabric, Listener, Options, Pool, TICKET_BYTES, Ticket};
use serde::{Deserialize, Serialize};
use tool::memory::MemoryKind;
use tool::output::{Failure, print_json};

use super::ring::{Neighbours, Place, Ring};
use super::vectors::Vectors;
use crate::args::DemoRank;
use crate::report::Reduction;

/// Data streams between two neighbours, and the length of a chunk: several per block, so that both streams are used.
const STREAMS: u16 = 2;
const CHUNK: usize = 512 << 10;
/// Bytes of device memory that payload arrives in: some chunks, so that one is gathered while the next ones arrive.
pub const POOL_BYTES: usize = 16 << 20;
/// Time limit for the connections to the neighbours.
const CONNECT_LIMIT: Duration = Duration::from_secs(20);
/// Time between two looks at them.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// What the ranks measure.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RankReport {
    /// Seconds of each round.
    pub all_reduce: Vec<f64>,
    /// Seconds of each round.
    pub all_gather: Vec<f64>,
    /// Floats that differ from the serial result, over all rounds.
    pub wrong_sums: u64,
    /// Floats that differ from the serial result, over all rounds.
    pub wrong_gathered: u64,
    /// CPU seconds of the rounds.
    pub cpu_seconds: f64,
    /// Who has added.
    pub reduction: Reduction,
}

/// Runs one rank.
///
/// # Errors
///
/// A neighbour cannot be reached, or is gone.
pub fn run(args: &DemoRank) -> Result<(), Failure> {
    let place = Place {
        rank: args.rank.into(),
        ranks: args.ranks.into(),
    };
    // First, so that the parent hears of a refusal in place of the ticket.
    let vectors = Vectors::open(args.memory, args.floats, place.longest(args.floats))?;
    let neighbours = connect(args)?;
    let mut ring = Ring::new(place, args.floats, vectors, neighbours)?;
    let mut report = RankReport {
        reduction: ring.reduction(),
        ..RankReport::default()
    };
    // The first round of each is not counted: connections and memory are new.
    for round in 0..=args.rounds {
        ring.fill(place.rank)?;
        let (seconds, cpu) = timed(&mut ring, Ring::all_reduce)?;
        report.wrong_sums += ring.wrong(0..args.floats, 0..place.ranks)?;
        if round > 0 {
            report.all_reduce.push(seconds);
            report.cpu_seconds += cpu;
        }

        ring.fill_block(place.rank)?;
        let (seconds, cpu) = timed(&mut ring, Ring::all_gather)?;
        let mut wrong_gathered = 0;
        for rank in 0..place.ranks {
            wrong_gathered += ring.wrong(ring.block(rank), rank..rank + 1)?;
        }
        report.wrong_gathered += wrong_gathered;
        if round > 0 {
            report.all_gather.push(seconds);
            report.cpu_seconds += cpu;
        }
    }
    // Nobody closes while a neighbour still needs messages.
    ring.barrier()?;
    print_json(&report)
}

/// Runs a collective when all ranks are ready for it. Returns its time and CPU time in seconds.
fn timed(ring: &mut Ring, collective: impl Fn(&mut Ring) -> Result<()>) -> Result<(f64, f64)> {
    ring.barrier()?;
    let (start, clock) = (Instant::now(), cpu::process_cpu_time());
    collective(ring)?;
    let cpu = cpu::process_cpu_time().saturating_sub(clock);
    Ok((start.elapsed().as_secs_f64(), cpu.as_secs_f64()))
}

/// Opens both NICs, tells the parent the ticket for the previous rank, and connects to the next rank by its ticket.
fn connect(args: &DemoRank) -> Result<Neighbours> {
    // Wire N joins the ranks N, host 1, and N + 1, host 2.
    let previous = (args.rank + args.ranks - 1) % args.ranks;
    let kind = if args.listen { "unix-listen" } else { "unix" };
    let right = fabric(
        args,
        &format!("{kind}:{}", args.right.display()),
        args.rank,
        1,
        None,
    )?;
    wait_for(&args.left)?;
    let left = fabric(
        args,
        &format!("unix:{}", args.left.display()),
        previous,
        2,
        pool(args.memory)?,
    )?;
    let listener = left.listen()?;
    print_json(&listener.ticket().to_bytes().to_vec())
        .map_err(|failure| anyhow::anyhow!("{failure}"))?;
    let mut line = String::new();
    io::stdin()
        .read_line(&mut line)
        .context("read the ticket of the next rank")?;
    let bytes: Vec<u8> =
        serde_json::from_str(&line).context("parse the ticket of the next rank")?;
    let bytes: [u8; TICKET_BYTES] = bytes
        .as_slice()
        .try_into()
        .context("the length of a ticket")?;
    let dial = right.dial(&Ticket::from_bytes(&bytes)?)?;
    both(listener, dial, left, right)
}

/// Waits until the previous rank listens: all ranks start at the same time.
fn wait_for(socket: &Path) -> Result<()> {
    let start = Instant::now();
    while !socket.exists() {
        if start.elapsed() > CONNECT_LIMIT {
            bail!("the previous rank did not listen within {CONNECT_LIMIT:?}");
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

fn both(listener: Listener, mut dial: Dial, left: Fabric, right: Fabric) -> Result<Neighbours> {
    let (mut previous, mut next) = (None, None);
    let start = Instant::now();
    loop {
        if previous.is_none() {
            previous = listener.poll()?;
        }
        if next.is_none() {
            next = dial.poll().context("connect to the next rank")?;
        }
        match (previous, next) {
            (Some(previous), Some(next)) => {
                return Ok(Neighbours {
                    left: (left, previous),
                    right: (right, next),
                });
            }
            still => (previous, next) = still,
        }
        if start.elapsed() > CONNECT_LIMIT {
            bail!("the neighbours did not connect within {CONNECT_LIMIT:?}");
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Returns device memory for the payload of the previous rank to arrive in, of the kind that it is gathered to; none for a vector in host
/// memory.
fn pool(kind: MemoryKind) -> Result<Option<Pool>> {
    if kind == MemoryKind::Anonymous {
        return Ok(None);
    }
    let memory = kind.allocate(POOL_BYTES, "what is received");
    let memory = memory.map_err(|failure| anyhow::anyhow!("{failure}"))?;
    Ok(Some(Pool { memory, queues: 1 }))
}

/// Opens a NIC on a link to a wire: host `host` of the network `wire`.
fn fabric(args: &DemoRank, link: &str, wire: u16, host: u16, pool: Option<Pool>) -> Result<Fabric> {
    let address = match args.ipv6 {
        true => format!("fd77:0:0:{wire:x}::{host}/64"),
        false => format!("10.77.{wire}.{host}/24"),
    };
    // Both ends are ranks of this demonstration: either may read what the other one is about to send.
    let nic = Netdev::builder(link)?
        .address(&address)?
        .mtu(args.mtu)
        .share_send_memory()
        .open()?;
    let options = Options {
        streams: STREAMS,
        chunk: CHUNK,
        pool,
        ..Options::default()
    };
    Ok(Fabric::open(nic, options)?)
}
