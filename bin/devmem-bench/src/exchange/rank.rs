//! A rank of `bench exchange`: a process that sends and receives messages.

use std::io;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use devmem_linux::cpu;
use serde::{Deserialize, Serialize};

use super::bare::Bare;
use super::link::{Link, Side, open_nic};
use super::messages::{Mark, Messages};
use super::ours::{Ours, Place};
use super::rows::{Kind, Work};
use super::sockets::Sockets;
use crate::processes::EndArgs;

/// Arguments of a rank.
#[derive(Debug, Args)]
pub struct RankArgs {
    #[arg(long)]
    kind: Kind,
    #[arg(long)]
    work: Work,
    #[arg(long)]
    link: Link,
    #[arg(long)]
    side: Side,
    #[command(flatten)]
    end: EndArgs,
}

/// The result of a rank.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct RankReport {
    /// Messages that were moved; for round trips, those that were returned.
    pub messages: u64,
    /// Time until the last of them was answered.
    pub seconds: f64,
    /// CPU time of the process meanwhile.
    pub cpu_seconds: f64,
}

/// Runs one rank and prints its report.
///
/// # Errors
///
/// The other rank cannot be reached, or is gone.
pub fn run(args: &RankArgs) -> Result<()> {
    cpu::pin_current_thread(args.end.cpu).context("pin the rank")?;
    let mut connection = connect(args)?;
    let messages = connection.as_mut();
    // A first message and its answer, so that both sides are ready.
    match args.side {
        Side::Active => {
            messages.send(Mark::More)?;
            messages.receive()?;
        }
        Side::Passive => {
            messages.receive()?;
            messages.send(Mark::More)?;
        }
    }
    let (start, clock) = (Instant::now(), cpu::process_cpu_time());
    let sent = match args.side {
        Side::Active => send(
            messages,
            args.work,
            Duration::from_secs_f64(args.end.seconds),
        )?,
        Side::Passive => receive(messages, args.work)?,
    };
    let report = RankReport {
        messages: sent,
        seconds: start.elapsed().as_secs_f64(),
        cpu_seconds: cpu::process_cpu_time().saturating_sub(clock).as_secs_f64(),
    };
    connection.finish()?;
    tool::output::print_line(serde_json::to_string(&report)?)
}

/// Sends messages for `time`; the last one is answered. Returns how many were moved, or returned.
fn send(messages: &mut dyn Messages, work: Work, time: Duration) -> Result<u64> {
    let start = Instant::now();
    let mut sent = 0;
    loop {
        let mark = match start.elapsed() < time {
            true => Mark::More,
            false => Mark::Last,
        };
        messages.send(mark)?;
        sent += 1;
        if work == Work::RoundTrip || mark == Mark::Last {
            messages.receive()?;
        }
        if mark == Mark::Last {
            // The answer to messages in one direction is as long as one of them.
            return Ok(sent + u64::from(work == Work::Rate));
        }
    }
}

fn receive(messages: &mut dyn Messages, work: Work) -> Result<u64> {
    let mut received = 0;
    loop {
        let mark = messages.receive()?;
        received += 1;
        if work == Work::RoundTrip || mark == Mark::Last {
            messages.send(mark)?;
        }
        if mark == Mark::Last {
            return Ok(received);
        }
    }
}

fn connect(args: &RankArgs) -> Result<Box<dyn Messages>> {
    let (bytes, socket) = (args.end.bytes, args.end.socket.as_deref());
    // The link of the active rank may be there only when the other one has started.
    let contact = match args.side {
        Side::Active => contact()?,
        Side::Passive => String::new(),
    };
    let nic = || open_nic(args.link, args.side, socket);
    let device = match args.link {
        Link::Shared => Place::File,
        Link::Tap | Link::Unix | Link::Veth | Link::Copied => Place::Device,
    };
    Ok(match (args.kind, args.side) {
        (Kind::Ours, Side::Passive) => Box::new(Ours::accept(nic()?, bytes, Place::Host)?),
        (Kind::Ours, Side::Active) => {
            Box::new(Ours::connect(nic()?, &contact, bytes, Place::Host)?)
        }
        (Kind::Device, Side::Passive) => Box::new(Ours::accept(nic()?, bytes, device)?),
        (Kind::Device, Side::Active) => Box::new(Ours::connect(nic()?, &contact, bytes, device)?),
        (Kind::Stream, Side::Passive) => Box::new(Bare::accept(nic()?, bytes)?),
        (Kind::Stream, Side::Active) => Box::new(Bare::connect(nic()?, &contact, bytes)?),
        (Kind::Sockets, Side::Passive) => Box::new(Sockets::accept(bytes)?),
        (Kind::Sockets, Side::Active) => Box::new(Sockets::connect(&contact, bytes)?),
    })
}

/// Reads what the passive rank has printed.
fn contact() -> Result<String> {
    let mut line = String::new();
    if io::stdin()
        .read_line(&mut line)
        .context("read the address")?
        == 0
    {
        bail!("the other rank has not started");
    }
    Ok(line.trim().to_owned())
}
