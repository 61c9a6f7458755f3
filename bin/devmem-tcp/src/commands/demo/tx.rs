//! The demo's direction tx: from our device memory to the peer.

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::Context;
use devmem_linux::cpu;
use devmem_linux::helper::Helper;
use devmem_tcp::{BoundTx, Netdev};

use super::{PORT, TAP};
use crate::args::Direction;
use crate::commands::receiver::VerifiedBytes;
use crate::plan::DemoPlan;
use crate::receiver::with_mtu;
use crate::report::{RunReport, Sending};
use tool::capture::{self, Capture};
use tool::display::Display;
use tool::memory::{MEM_SIZE, PAGE_BYTES};
use tool::output::Failure;
use tool::peer::Peer;
use tool::rate::Rate;
use tool::sender::{Share, pattern_of, shares};
use tool::signals::StopFlag;
use tool::source::{GeneratedPattern, Source};
use tool::transmit::{SendStats, Transmit};
use tool::undelivered::Undelivered;

/// Device memory of the rings of all connections, unless their sends need more.
const RING_BYTES: usize = 16 << 20;

/// Sends over the link to a kernel receiver in a separate process, which checks every byte.
///
/// # Errors
///
/// A failed step, or wrong bytes.
pub fn run(
    plan: &DemoPlan,
    link: &'static str,
    stop: &StopFlag,
    cpu: Option<usize>,
) -> Result<RunReport, Failure> {
    let capture = Capture::open(plan.capture.as_deref(), link)?;
    let mut builder = Netdev::builder(link)?
        .address(&plan.ours.to_string())?
        .tcp(plan.tcp.clone())
        .impair(plan.nic.impairment);
    if link == TAP {
        builder = builder.peer_address(&plan.peers.to_string())?;
    }
    builder = with_mtu(builder, plan.nic.mtu);
    if let Some(capture) = &capture {
        builder = builder.capture(Box::new(capture.clone()));
    }
    let nic = builder.open()?;
    let to = SocketAddr::new(plan.peers.address, PORT);
    let mut peer = start_receiver(plan, to, cpu, stop)?;
    let clock = cpu::process_cpu_time();
    let title = format!("demo  from device memory to {to}");
    let title = plan.watch.then_some(title);
    let display = Mutex::new(Display::start(title, Some(plan.bytes), &nic, stop)?);
    let start = Instant::now();
    let mut sent = send_all(&nic, plan, to, None, &|index, bytes, transmit| {
        if let Ok(mut display) = display.try_lock() {
            display.sending(index, bytes, start.elapsed(), transmit);
        }
        !stop.is_set()
    })?;
    let used = cpu::process_cpu_time().saturating_sub(clock);
    // Includes the library's thread, which sends, too.
    sent.sending = used.saturating_sub(sent.filling);
    if let Ok(display) = display.into_inner() {
        display.finish();
    }
    let mut report = RunReport::of("user", link.to_owned(), &plan.nic, plan.ours.address);
    report.direction = Direction::Tx;
    report.interrupted = sent.is_interrupted;
    report.connections = u64::from(plan.connections);
    report.bytes = sent.bytes;
    report.seconds = sent.elapsed.as_secs_f64();
    report.gbit_per_s = Rate::of(sent.bytes, sent.elapsed).gbit_per_s();
    report.device_bytes = sent.bytes;
    report.sending = Some(Sending::of(&sent));
    if !sent.is_interrupted {
        match peer.hear_json::<VerifiedBytes>(stop) {
            Err(_) if stop.is_set() => report.interrupted = true,
            received => {
                let received = received?;
                report.verified_bytes = Some(received.good);
                report.bad_bytes = Some(received.bad);
                report.first_bad = received.first_bad;
            }
        }
    }
    report.mtu = nic.mtu();
    report.undelivered = Undelivered::of(nic.drops());
    drop(nic);
    capture::finish(capture, Ok(()))?;
    Ok(report)
}

/// Called by the thread of each connection with its index, the bytes of all connections, and its sender; returns whether to
/// continue.
type KeepGoing<'a> = &'a (dyn Fn(usize, u64, &Transmit<'_>) -> bool + Sync);

/// Sends the pattern from device memory of `nic`, one thread per connection.
pub fn send_all(
    nic: &Netdev,
    plan: &DemoPlan,
    to: SocketAddr,
    cpu: Option<usize>,
    keep_going: KeepGoing<'_>,
) -> Result<SendStats, Failure> {
    let connections = usize::from(plan.connections);
    // At least two chunks: one is written while the other is in flight.
    let ring = (RING_BYTES / connections).max(2 * plan.write_size);
    let size = (ring * connections).next_multiple_of(PAGE_BYTES);
    let memory = plan.nic.memory.allocate(size, MEM_SIZE)?;
    let tx = nic.bind_tx(&memory)?;
    let all_bytes = AtomicU64::new(0);
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for (index, share) in shares(plan.bytes, plan.connections, plan.write_size).enumerate() {
            let region = index * ring..(index + 1) * ring;
            let (tx, all_bytes) = (&tx, &all_bytes);
            threads.push(scope.spawn(move || {
                if let Some(cpu) = cpu {
                    cpu::pin_current_thread(cpu).context("pin the sender")?;
                }
                let mut before = 0;
                send_one(nic, tx, region, to, share, &mut |transmit| {
                    let bytes = transmit.bytes();
                    let all = all_bytes.fetch_add(bytes - before, Ordering::Relaxed);
                    let all = all + (bytes - before);
                    before = bytes;
                    keep_going(index, all, transmit)
                })
            }));
        }
        let mut all = SendStats::default();
        for thread in threads {
            all.add(&thread.join().expect("a sender does not panic")?);
        }
        Ok(all)
    })
}

fn send_one(
    nic: &Netdev,
    tx: &BoundTx,
    region: std::ops::Range<usize>,
    to: SocketAddr,
    share: Share,
    keep_going: &mut dyn FnMut(&Transmit<'_>) -> bool,
) -> Result<SendStats, Failure> {
    let mut stream = nic
        .connect(to)
        .with_context(|| format!("connect to {to}"))?;
    let local = stream.local_addr().context("the connection has ended")?;
    let mut source = Source::made(
        GeneratedPattern::Position(pattern_of(local.port())),
        share.bytes,
    );
    Transmit::new(&mut stream, tx, region, share.write_size)?.run(&mut source, keep_going)
}

/// Starts the kernel receiver and waits until it listens.
fn start_receiver(
    plan: &DemoPlan,
    listen: SocketAddr,
    cpu: Option<usize>,
    stop: &StopFlag,
) -> Result<Peer, Failure> {
    let mut command = Helper::this_program();
    command.args(["__receiver", "--listen", &listen.to_string()]);
    command.args(["--connections", &plan.connections.to_string()]);
    if let Some(cpu) = cpu {
        command.args(["--cpu", &cpu.to_string()]);
    }
    command.stdin(Stdio::null());
    let mut peer = Peer::start("receiver", &mut command)?;
    peer.hear(stop)?;
    Ok(peer)
}
