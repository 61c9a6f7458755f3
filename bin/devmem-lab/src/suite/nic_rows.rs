//! Rows for the gVNIC as an ordinary NIC, with the stock driver and stack.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use devmem_linux::ethtool::Ethtool;
use devmem_linux::netif::Interface;

use lab::guest::network::load_driver_and_set_up;
use lab::job::Job;

use super::nic::{NIC, require_feature, restore_addresses};
use super::row::{Context, PassedRow, Row, Skip, program};
use super::traffic::{self, Direction, Family, STUCK};

/// The peer's NIC.
const PEER_NIC: &str = "eth0";
/// Number of device resets during a stream.
const RESETS: u64 = 20;
/// Number of times that the link goes down and up.
const FLAPS: u32 = 10;
/// Time between checks for work that a driver does in the background.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

pub(super) const ROWS: &[Row] = &[
    ("probe by the stock gve driver", probe),
    ("ping, IPv4 and IPv6", ping),
    ("tcp in, IPv4", |context| {
        tcp(context, Direction::In, Family::V4)
    }),
    ("tcp out, IPv4", |context| {
        tcp(context, Direction::Out, Family::V4)
    }),
    ("tcp in, IPv6", |context| {
        tcp(context, Direction::In, Family::V6)
    }),
    ("tcp out, IPv6", |context| {
        tcp(context, Direction::Out, Family::V6)
    }),
    ("mtu 4148", |context| mtu(context, 4148)),
    ("mtu 9000", |context| mtu(context, 9000)),
    ("mtu 1500", |context| mtu(context, 1500)),
    ("-K rx-gro-hw off, on (coalescing)", coalescing),
    ("-K tso off, on", |context| {
        feature(context, "tx-tcp-segmentation")
    }),
    ("-G rx-buf-len 2048, 4096", buffer_len),
    ("-G rx, tx ring sizes", ring_sizes),
    ("-G tcp-data-split on, off", data_split),
    ("-L channels", channels),
    ("-X table, -x", indirection),
    ("-N rule, list, delete", rule),
    ("-S statistics", statistics),
    ("large ping and IP fragments", large_ping),
    ("link flap", flap),
    ("20 device resets in mid-transfer", resets),
    ("rmmod, insmod", reload),
];

fn probe(_: &Context) -> anyhow::Result<PassedRow> {
    let driver = Ethtool::by_name(NIC)?.driver()?;
    ensure!(driver.driver == "gve", "the driver is {}", driver.driver);
    carrier()?;
    Ok(format!("{} {} at {}", driver.driver, driver.version, driver.bus).into())
}

/// Waits until our NIC has a carrier.
fn carrier() -> anyhow::Result<()> {
    let start = Instant::now();
    let path = format!("/sys/class/net/{NIC}/carrier");
    while std::fs::read_to_string(&path)
        .map(|text| text.trim() != "1")
        .unwrap_or(true)
    {
        ensure!(start.elapsed() < STUCK, "no carrier");
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

fn ping(_: &Context) -> anyhow::Result<PassedRow> {
    for address in ["10.77.0.1", "fd77::1"] {
        program(&["ping", "-c", "3", "-i", "0.1", "-W", "10", address])?;
    }
    Ok("3 of 3 each".to_owned().into())
}

fn large_ping(_: &Context) -> anyhow::Result<PassedRow> {
    for size in ["1472", "1473", "8000", "20000"] {
        program(&[
            "ping",
            "-c",
            "2",
            "-i",
            "0.1",
            "-W",
            "10",
            "-s",
            size,
            "10.77.0.1",
        ])?;
    }
    Ok("1472 to 20000 bytes".to_owned().into())
}

fn tcp(context: &Context, direction: Direction, family: Family) -> anyhow::Result<PassedRow> {
    Ok(context
        .network()?
        .stream(direction, family, context.bytes, &AtomicU64::new(0))?
        .into())
}

/// Runs short streams in both directions, to check that a setting does not break anything.
fn both_ways(context: &Context) -> anyhow::Result<()> {
    for direction in [Direction::In, Direction::Out] {
        let stream =
            context
                .network()?
                .stream(direction, Family::V4, context.few(), &AtomicU64::new(0));
        stream.with_context(|| format!("{direction:?}"))?;
    }
    Ok(())
}

fn mtu(context: &Context, mtu: u32) -> anyhow::Result<PassedRow> {
    Interface::by_name(NIC)?.set_mtu(mtu)?;
    context
        .network()?
        .peer
        .run(|| Interface::by_name(PEER_NIC)?.set_mtu(mtu))??;
    carrier()?;
    let size = (mtu - 28).to_string();
    program(&["ping", "-c", "1", "-W", "10", "-s", &size, "10.77.0.1"])?;
    tcp(context, Direction::In, Family::V4)?;
    tcp(context, Direction::Out, Family::V6)
}

fn coalescing(context: &Context) -> anyhow::Result<PassedRow> {
    feature(context, "rx-gro-hw")
}

fn feature(context: &Context, name: &str) -> anyhow::Result<PassedRow> {
    require_feature(name)?;
    for value in ["off", "on"] {
        program(&["ethtool", "-K", NIC, name, value])?;
        both_ways(context).with_context(|| format!("with {name} {value}"))?;
    }
    Ok("streams in both directions with each".to_owned().into())
}

/// Changes a setting with ethtool, checks that ethtool shows it, runs streams in both directions, and restores it.
fn with_setting(
    context: &Context,
    change: &[&str],
    show: &[&str],
    line: &str,
    back: &[&str],
) -> anyhow::Result<()> {
    program(change)?;
    carrier()?;
    let shown = program(show)?;
    let tidy = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let found = shown.lines().any(|shown| tidy(shown) == line);
    let result = both_ways(context);
    program(back)?;
    carrier()?;
    result.with_context(|| format!("with {}", change.join(" ")))?;
    ensure!(
        found,
        "{} does not print {line:?}, but: {shown}",
        show.join(" ")
    );
    Ok(())
}

fn buffer_len(context: &Context) -> anyhow::Result<PassedRow> {
    if Ethtool::by_name(NIC)?.rings()?.rx_buf_len.is_none() {
        return Err(Skip("this driver has no rx-buf-len".to_owned()).into());
    }
    // Buffers can have other lengths than a page only with header split.
    for len in ["2048", "4096"] {
        let line = format!("RX Buf Len: {len}");
        with_setting(
            context,
            &["ethtool", "-G", NIC, "rx-buf-len", len],
            &["ethtool", "-g", NIC],
            &line,
            &["ethtool", "-G", NIC, "rx-buf-len", "4096"],
        )?;
    }
    Ok("streams in both directions with each".to_owned().into())
}

fn ring_sizes(context: &Context) -> anyhow::Result<PassedRow> {
    for (rx, tx) in [("256", "256"), ("4096", "4096")] {
        with_setting(
            context,
            &["ethtool", "-G", NIC, "rx", rx, "tx", tx],
            &["ethtool", "-g", NIC],
            &format!("RX: {rx}"),
            &["ethtool", "-G", NIC, "rx", "1024", "tx", "1024"],
        )?;
    }
    Ok("256 and 4096 entries".to_owned().into())
}

fn data_split(context: &Context) -> anyhow::Result<PassedRow> {
    with_setting(
        context,
        &["ethtool", "-G", NIC, "tcp-data-split", "on"],
        &["ethtool", "-g", NIC],
        "TCP data split: on",
        &["ethtool", "-G", NIC, "tcp-data-split", "off"],
    )?;
    Ok("streams in both directions while on".to_owned().into())
}

fn channels(context: &Context) -> anyhow::Result<PassedRow> {
    let before = Ethtool::by_name(NIC)?.channels()?;
    let count = before.rx_queues().to_string();
    for fewer in ["1", "2"] {
        with_setting(
            context,
            &["ethtool", "-L", NIC, "rx", fewer, "tx", fewer],
            &["ethtool", "-l", NIC],
            &format!("RX: {fewer}"),
            &["ethtool", "-L", NIC, "rx", &count, "tx", &count],
        )?;
    }
    Ok(format!("1, 2 and {count} queues").into())
}

/// Returns the byte counter of each RX queue.
fn rx_bytes() -> anyhow::Result<Vec<u64>> {
    let text = program(&["ethtool", "-S", NIC])?;
    let counts = text.lines().filter_map(|line| {
        let (name, value) = line.trim().split_once(':')?;
        name.strip_prefix("rx_bytes[")?;
        value.trim().parse().ok()
    });
    let counts: Vec<u64> = counts.collect();
    ensure!(!counts.is_empty(), "ethtool -S has no rx_bytes[N]");
    Ok(counts)
}

/// Sends a stream and returns the queue on which most of it arrived.
fn queue_of_stream(context: &Context) -> anyhow::Result<usize> {
    let before = rx_bytes()?;
    tcp(context, Direction::In, Family::V4)?;
    let after = rx_bytes()?;
    let grown = before
        .iter()
        .zip(&after)
        .map(|(before, after)| after.saturating_sub(*before));
    let most = grown.enumerate().max_by_key(|(_, bytes)| *bytes);
    most.map(|(queue, _)| queue).context("no queues")
}

fn indirection(context: &Context) -> anyhow::Result<PassedRow> {
    for queue in [1usize, 2] {
        let weights: Vec<&str> = (0..=queue)
            .map(|at| if at == queue { "1" } else { "0" })
            .collect();
        let mut words = vec!["ethtool", "-X", NIC, "weight"];
        words.extend(weights);
        program(&words)?;
        let found = queue_of_stream(context)?;
        ensure!(
            found == queue,
            "a table with only queue {queue} steers to queue {found}"
        );
    }
    program(&["ethtool", "-X", NIC, "default"])?;
    let shown = program(&["ethtool", "-x", NIC])?;
    ensure!(shown.contains("RSS hash key:"), "no key in {shown}");
    Ok("a table with one queue steers to it".to_owned().into())
}

fn rule(context: &Context) -> anyhow::Result<PassedRow> {
    program(&["ethtool", "-K", NIC, "ntuple", "on"])?;
    for queue in [3usize, 1] {
        let action = queue.to_string();
        program(&[
            "ethtool",
            "-N",
            NIC,
            "flow-type",
            "tcp4",
            "dst-ip",
            "10.77.0.2",
            "action",
            &action,
            "loc",
            "5",
        ])?;
        let shown = program(&["ethtool", "-n", NIC])?;
        let found = queue_of_stream(context);
        program(&["ethtool", "-N", NIC, "delete", "5"])?;
        ensure!(
            shown.contains("Filter: 5"),
            "the rule is not in the list: {shown}"
        );
        let found = found?;
        ensure!(
            found == queue,
            "a rule for queue {queue} steers to queue {found}"
        );
    }
    let shown = program(&["ethtool", "-n", NIC])?;
    ensure!(
        !shown.contains("Filter: 5"),
        "the rule is still there: {shown}"
    );
    Ok("a rule steers to its queue".to_owned().into())
}

fn statistics(context: &Context) -> anyhow::Result<PassedRow> {
    let before: u64 = rx_bytes()?.iter().sum();
    both_ways(context)?;
    let after: u64 = rx_bytes()?.iter().sum();
    ensure!(after > before, "{before} bytes before, {after} after");
    Ok(format!("{} bytes counted", after - before).into())
}

fn flap(context: &Context) -> anyhow::Result<PassedRow> {
    for _ in 0..FLAPS {
        let mut interface = Interface::by_name(NIC)?;
        interface.set_down()?;
        interface.set_up()?;
    }
    carrier()?;
    restore_addresses()?;
    both_ways(context)?;
    Ok(format!("{FLAPS} times").into())
}

/// Resets the device repeatedly during a stream, and checks that the stream makes progress after each reset.
fn resets(context: &Context) -> anyhow::Result<PassedRow> {
    let arrived = AtomicU64::new(0);
    let step = context.bytes / (RESETS + 2);
    thread::scope(|scope| {
        let resetting = scope.spawn(|| -> anyhow::Result<()> {
            for reset in 1..=RESETS {
                let start = Instant::now();
                while arrived.load(Ordering::Relaxed) < reset * step {
                    if start.elapsed() > STUCK {
                        bail!("stuck before reset {reset}");
                    }
                    thread::sleep(Duration::from_millis(1));
                }
                program(&["ethtool", "--reset", NIC, "all"])
                    .with_context(|| format!("reset {reset}"))?;
            }
            Ok(())
        });
        let rate = context
            .network()?
            .stream(Direction::In, Family::V4, context.bytes, &arrived);
        traffic::join(resetting)?;
        let rate = rate?;
        restore_addresses()?;
        Ok(PassedRow {
            detail: format!("{RESETS} resets, {} MB correct", rate.bytes / 1_000_000),
            rate: Some(rate),
        })
    })
}

fn reload(context: &Context) -> anyhow::Result<PassedRow> {
    for _ in 0..2 {
        program(&["rmmod", "gve"])?;
        load_driver_and_set_up(&Job::read()?)?;
        carrier()?;
        both_ways(context)?;
    }
    Ok("twice, with streams in both directions after each"
        .to_owned()
        .into())
}
