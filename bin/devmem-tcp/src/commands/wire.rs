//! `devmem-tcp wire`: two kernel hosts on an imperfect cable.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant as Clock};

use anyhow::Context;
use devmem_linux::netns::NetNs;
use devmem_linux::tap::{Tap, TapOffloads, TapOptions, VnetHeader};
use nic::Impairment;
use nic::{Conditioner, MAX_FRAME_LEN};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, readv, writev};
use serde::Serialize;
use wire::Instant;

use crate::counters::Lane;
use crate::output::{Failure, note, print_json, say};
use crate::plan::{WireEnd, WirePlan};
use crate::signals::StopFlag;

/// Frames taken from one end before the other gets its turn.
const BATCH_FRAMES: usize = 64;
/// How long a wait lasts before looking around for signals: they interrupt it, too.
const LOOK_AROUND: Duration = Duration::from_millis(100);
/// The virtio-net header before each frame. Without offloads it is all zero, both ways.
const VNET_HEADER: VnetHeader = VnetHeader::Short;
const NO_OFFLOAD: [u8; VNET_HEADER.len_bytes() as usize] = [0; VNET_HEADER.len_bytes() as usize];

/// Joins the two ends until told to stop.
///
/// # Errors
///
/// A TAP that cannot be had, or that failed.
pub fn run(plan: &WirePlan) -> Result<(), Failure> {
    let stop = StopFlag::install().context("install signal handlers")?;
    let [a, b] = &plan.ends;
    let mut cable = Cable::new(open(a, plan.mtu)?, open(b, plan.mtu)?, plan.impairment)?;
    note(format_args!(
        "{} and {} are joined: {}",
        a.tap, b.tap, plan.impairment
    ));
    while !stop.is_set() && plan.limit.is_none_or(|limit| cable.start.elapsed() < limit) {
        let left = plan
            .limit
            .map(|limit| limit.saturating_sub(cable.start.elapsed()));
        cable.step(left.unwrap_or(LOOK_AROUND).min(LOOK_AROUND))?;
    }
    let [a_to_b, b_to_a] = &cable.lanes;
    let report = WireReport {
        seconds: cable.start.elapsed().as_secs_f64(),
        impair: plan.impairment.to_string(),
        a_to_b: a_to_b.report(),
        b_to_a: b_to_a.report(),
    };
    report.show();
    if plan.json {
        print_json(&report)?;
    }
    Ok(())
}

/// Opens one end in its network namespace, and sets the kernel's side of it up if it has an address to get.
fn open(end: &WireEnd, mtu: u16) -> Result<OwnedFd, Failure> {
    let open = || -> Result<Tap, Failure> {
        let options = TapOptions {
            offloads: TapOffloads::None,
            vnet_header: VNET_HEADER,
            ..TapOptions::new(&end.tap)
        };
        let tap = options.open()?;
        if let Some(address) = end.address {
            let mut host = tap.interface()?;
            host.set_mtu(u32::from(mtu))?;
            if address.address.is_ipv6() {
                host.quiet_ipv6();
            }
            host.add_address(address.address, address.len)?;
            host.set_up()?;
        }
        Ok(tap)
    };
    let tap = match &end.netns {
        Some(name) => NetNs::open(name)?.run(open)??,
        None => open()?,
    };
    let queue = tap.into_queues().pop();
    queue.ok_or_else(|| Failure::failed(format!("TAP {} has no queue", end.tap)))
}

/// Both directions of a cable.
#[derive(Debug)]
struct Cable {
    /// From the first end to the second, and back.
    lanes: [Direction; 2],
    start: Clock,
    incoming: Box<[u8]>,
    outgoing: Vec<u8>,
}

/// One direction.
#[derive(Debug)]
struct Direction {
    from: OwnedFd,
    to: OwnedFd,
    conditioner: Conditioner,
    /// Frames that the receiving end refused: its interface was down, or out of memory.
    refused: u64,
}

impl Cable {
    fn new(a: OwnedFd, b: OwnedFd, impairment: Impairment) -> Result<Self, Failure> {
        // Each direction rolls its own dice.
        let other = Impairment {
            seed: !impairment.seed,
            ..impairment
        };
        let copy = |fd: &OwnedFd| fd.try_clone().context("duplicate a descriptor");
        let there = Direction::new(copy(&a)?, copy(&b)?, impairment);
        let back = Direction::new(b, a, other);
        Ok(Self {
            lanes: [there, back],
            start: Clock::now(),
            incoming: vec![0; MAX_FRAME_LEN].into_boxed_slice(),
            outgoing: Vec::new(),
        })
    }

    fn now(&self) -> Instant {
        // 2^64 ns are 584 years.
        Instant::from_nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Waits for something to do, at most `limit`, and does it.
    fn step(&mut self, limit: Duration) -> Result<(), Failure> {
        let now = self.now();
        let due = self
            .lanes
            .iter()
            .filter_map(|lane| lane.conditioner.next_due())
            .min();
        let limit = due.map_or(limit, |due| due.saturating_since(now).min(limit));
        let limit = Timespec::try_from(limit).expect("less than a second");
        let [there, back] = &self.lanes;
        let mut fds = [&there.from, &back.from].map(|fd| PollFd::new(fd, PollFlags::IN));
        match poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Failure::from(anyhow::Error::from(errno).context("poll"))),
        }
        let now = self.now();
        for lane in &mut self.lanes {
            lane.take_in(&mut self.incoming, now)?;
        }
        let now = self.now();
        for lane in &mut self.lanes {
            lane.let_out(&mut self.outgoing, now)?;
        }
        Ok(())
    }
}

impl Direction {
    fn new(from: OwnedFd, to: OwnedFd, impairment: Impairment) -> Self {
        Self {
            from,
            to,
            conditioner: Conditioner::new(impairment),
            refused: 0,
        }
    }

    fn take_in(&mut self, frame: &mut [u8], now: Instant) -> Result<(), Failure> {
        for _ in 0..BATCH_FRAMES {
            let mut header = NO_OFFLOAD;
            let mut parts = [IoSliceMut::new(&mut header), IoSliceMut::new(frame)];
            let len = match readv(self.from.as_fd(), &mut parts) {
                Ok(len) => len.saturating_sub(NO_OFFLOAD.len()),
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(errno) => return Err(failed(errno, "read from a TAP")),
            };
            if let Some(frame) = frame.get(..len) {
                self.conditioner.push(frame, now);
            }
        }
        Ok(())
    }

    fn let_out(&mut self, frame: &mut Vec<u8>, now: Instant) -> Result<(), Failure> {
        while self.conditioner.pop(now, frame) {
            let parts = [IoSlice::new(&NO_OFFLOAD), IoSlice::new(frame)];
            match writev(self.to.as_fd(), &parts) {
                Ok(_) => {}
                // The interface is down, the kernel is out of memory or room, or the damage we did
                // made the frame one that the driver refuses.
                Err(Errno::IO | Errno::NOBUFS | Errno::NOMEM | Errno::AGAIN | Errno::INVAL) => {
                    self.refused += 1;
                }
                Err(errno) => return Err(failed(errno, "write to a TAP")),
            }
        }
        Ok(())
    }

    fn report(&self) -> LaneReport {
        let lane = Lane::from(self.conditioner.stats());
        LaneReport {
            lane: Lane {
                delivered: lane.delivered - self.refused,
                ..lane
            },
            refused: self.refused,
        }
    }
}

fn failed(errno: Errno, what: &'static str) -> Failure {
    let failure = Failure::from(anyhow::Error::from(errno).context(what));
    match errno {
        Errno::BADFD => failure.with_remedy("the interface was deleted: start again"),
        _ => failure,
    }
}

/// The result of `wire`. The field names are the JSON's and stay as they are.
#[derive(Clone, Debug, Serialize)]
struct WireReport {
    seconds: f64,
    impair: String,
    a_to_b: LaneReport,
    b_to_a: LaneReport,
}

/// Frames of one direction.
#[derive(Clone, Copy, Debug, Serialize)]
struct LaneReport {
    #[serde(flatten)]
    lane: Lane,
    refused: u64,
}

impl WireReport {
    fn show(&self) {
        for (name, LaneReport { lane, refused }) in
            [("a to b", self.a_to_b), ("b to a", self.b_to_a)]
        {
            say!("{name:>13}  {lane}, {refused} refused");
        }
    }
}
