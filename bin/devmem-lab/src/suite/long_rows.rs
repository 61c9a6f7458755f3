//! Rows that take minutes: many connections, iperf3, and changes of settings under traffic.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use devmem_linux::ethtool::Ethtool;

use super::devmem::bound::{Bound, DmabufKind, Steering};
use super::devmem::receiving::{Behaviour, Stream, receive};
use super::nic::{NIC, has_feature};
use super::row::{Context, PassedRow, Row, program};
use super::traffic::{self, Direction, Family, STUCK, pair};
use crate::places::ROOT;
use crate::root::set_up_root;

/// The bound queue.
const QUEUE: u32 = 2;
/// Number of simultaneous connections.
const CONNECTIONS: usize = 64;
/// Duration of the changes.
const CHANGES: Duration = Duration::from_secs(600);
/// Time between two changes.
const PAUSE: Duration = Duration::from_millis(500);

/// Port of iperf3.
const IPERF_PORT: u16 = 5201;

pub const ROWS: &[Row] = &[
    ("long: 64 connections to devmem rx", connections),
    ("long: iperf3 both ways", iperf),
    ("long: 10 minutes of changes under traffic", changes),
];

fn connections(context: &Context) -> anyhow::Result<PassedRow> {
    let mut steering = Steering::new(1)?;
    let bound = Bound::new(DmabufKind::Udmabuf, &[QUEUE])?;
    let listener = context.network()?.listen(Direction::In, Family::V4)?;
    steering.lead(listener.local_addr()?, QUEUE)?;
    let wanted = Stream::checked(context.few() / 2, Behaviour::Good);
    let pairs = (0..CONNECTIONS).map(|_| pair(context.network()?, Direction::In, &listener));
    let pairs = pairs.collect::<anyhow::Result<Vec<_>>>()?;
    let bound = &bound;
    thread::scope(|scope| {
        let start = |(sender, receiver)| {
            let sending = scope.spawn(move || traffic::send(sender, wanted.bytes));
            (
                sending,
                scope.spawn(move || receive(&receiver, bound, wanted)),
            )
        };
        let running: Vec<_> = pairs.into_iter().map(start).collect();
        for (sending, receiving) in running {
            traffic::join(receiving)?;
            traffic::join(sending)?;
        }
        anyhow::Ok(())
    })?;
    let all = wanted.bytes * CONNECTIONS as u64 / 1_000_000;
    Ok(format!("{all} MB verified on {CONNECTIONS} connections").into())
}

/// Runs iperf3 in both directions at the same time.
fn iperf(context: &Context) -> anyhow::Result<PassedRow> {
    set_up_root()?;
    let peer = traffic::address(0, Family::V4).to_string();
    let bytes = context.bytes.to_string();
    let server = ["iperf3", "--server", "--one-off", "--bind", &peer];
    let in_peer = ["ip", "netns", "exec", "peer", "chroot", ROOT];
    thread::scope(|scope| {
        let serving = scope.spawn(|| program(&[&in_peer[..], &server].concat()));
        wait_for_listener(IPERF_PORT)?;
        let client = [
            "chroot", ROOT, "iperf3", "--client", &peer, "--bidir", "--bytes", &bytes,
        ];
        let said = program(&[&client[..], &["--json"]].concat())?;
        traffic::join(serving)?;
        let report: serde_json::Value =
            serde_json::from_str(&said).context("read the JSON of iperf3")?;
        let received = |sum: &str| report["end"][sum]["bytes"].as_u64().unwrap_or(0);
        let (out, back) = (
            received("sum_received"),
            received("sum_received_bidir_reverse"),
        );
        ensure!(out > 0 && back > 0, "{out} bytes out, {back} bytes back");
        Ok(format!("{} MB out, {} MB in", out / 1_000_000, back / 1_000_000).into())
    })
}

/// Waits until the server listens. Does not connect, because the server accepts only one connection.
fn wait_for_listener(port: u16) -> anyhow::Result<()> {
    let start = Instant::now();
    let filter = format!("sport = :{port}");
    while start.elapsed() < STUCK {
        let listening = program(&["ip", "netns", "exec", "peer", "ss", "-Hltn", &filter])?;
        if !listening.trim().is_empty() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(100));
    }
    bail!("iperf3 does not listen on port {port}")
}

/// Changes rings, channels, RSS and features during streams in both directions; every byte of the streams is checked.
fn changes(context: &Context) -> anyhow::Result<PassedRow> {
    let over = AtomicBool::new(false);
    let streams = AtomicU64::new(0);
    let traffic_in = |direction| -> anyhow::Result<()> {
        while !over.load(Ordering::Relaxed) {
            let network = context.network()?;
            let stream = network.stream(direction, Family::V4, context.few(), &AtomicU64::new(0));
            stream.with_context(|| format!("{direction:?}"))?;
            streams.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    let made = thread::scope(|scope| {
        let threads = [Direction::In, Direction::Out]
            .map(|direction| scope.spawn(move || traffic_in(direction)));
        let made = change_until_over();
        over.store(true, Ordering::Relaxed);
        for thread in threads {
            traffic::join(thread)?;
        }
        made
    })?;
    let streams = streams.load(Ordering::Relaxed);
    Ok(format!("{made} changes, {streams} streams verified").into())
}

/// Makes one change after another, and returns their number. Each round restores the settings at its end.
fn change_until_over() -> anyhow::Result<u64> {
    let queues = Ethtool::by_name(NIC)?.channels()?.rx_queues().to_string();
    let start = Instant::now();
    let mut made = 0;
    while start.elapsed() < CHANGES {
        for change in round(&queues)? {
            let words: Vec<&str> = change.split_whitespace().collect();
            program(&words)?;
            made += 1;
            thread::sleep(PAUSE);
        }
    }
    Ok(made)
}

/// Returns the commands of one round, without features that the driver cannot switch.
fn round(queues: &str) -> anyhow::Result<Vec<String>> {
    let mut round = vec![
        format!("ethtool -G {NIC} rx 256 tx 256"),
        format!("ethtool -G {NIC} rx 4096 tx 4096"),
        format!("ethtool -G {NIC} rx 1024 tx 1024"),
        format!("ethtool -L {NIC} rx 1 tx 1"),
        format!("ethtool -L {NIC} rx 2 tx 2"),
        format!("ethtool -L {NIC} rx {queues} tx {queues}"),
        format!("ethtool -X {NIC} weight 0 1"),
        format!("ethtool -X {NIC} equal 2"),
        format!("ethtool -X {NIC} default"),
        format!("ethtool -G {NIC} tcp-data-split on"),
        format!("ethtool -G {NIC} tcp-data-split off"),
    ];
    for feature in ["rx-gro-hw", "tx-tcp-segmentation", "rx-gro"] {
        if has_feature(feature)? {
            round.push(format!("ethtool -K {NIC} {feature} off"));
            round.push(format!("ethtool -K {NIC} {feature} on"));
        }
    }
    Ok(round)
}
