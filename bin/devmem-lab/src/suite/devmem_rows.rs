//! Rows for device memory of the stock kernel with our gVNIC.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context as _, bail, ensure};
use devmem_linux::dmabuf::DmabufFd;
use devmem_linux::errors::CauseKind;
use devmem_linux::helper::Helper;
use devmem_linux::netdev::{DriverSupport, KernelRxQueueId, Netdev};
use lab::job::TOOL_PATH;

use super::devmem::bound::{Bound, DmabufKind, MEMORY_BYTES, Steering, bind, memory, require_rx};
use super::devmem::receiving::{Behaviour, RxReport, Stream, receive, rx};
use super::devmem::sending::tx;
use super::nic::{NIC, require_feature, without_gro};
use super::pods::LIMIT;
use super::row::{Context, PassedRow, Row, program};
use super::traffic::{self, Direction, Family, STUCK, pair};
use super::{broker_rows, lease_rows};
use crate::places::PROGRAM_PATH;

/// The first bound queue; queue 0 always stays with the driver.
const QUEUE: u32 = 2;
const OTHER_QUEUE: u32 = 3;
/// Payload bytes of each packet that the device leaves in host memory in [`KNOB_ROWS`].
pub const LINEAR_BYTES: usize = 64;

pub const ROWS: &[Row] = &[
    ("devmem rx, udmabuf, IPv4", |context| {
        receive_all(context, Family::V4, DmabufKind::Udmabuf)
    }),
    ("devmem rx, udmabuf, IPv6", |context| {
        receive_all(context, Family::V6, DmabufKind::Udmabuf)
    }),
    ("devmem rx, dma-heap", |context| {
        receive_all(context, Family::V4, DmabufKind::Heap)
    }),
    ("devmem tx, IPv4", |context| send_all(context, Family::V4)),
    ("devmem tx, IPv6", |context| send_all(context, Family::V6)),
    ("devmem rx, two queues in one binding", two_queues),
    ("devmem rx, two bindings at once", two_bindings),
    ("devmem rx, no coalescing", no_coalescing),
    ("devmem rx, starved and recovered", starvation),
    ("queue 0 stays with the host", others_go_on),
    ("devmem rx, unbound in mid-transfer", unbind),
    ("devmem rx, killed in mid-transfer", kill),
    ("refusals while bound", refusals),
    ("net_iovs of 16 KiB are refused", large_net_iovs),
    ("devmem rx, guest's netem loses 5 %", netem),
    ("lease: bound in a pod", lease_rows::bound_in_a_pod),
    (
        "lease: bound in a user namespace",
        lease_rows::in_a_user_namespace,
    ),
    ("lease: received by the tool", lease_rows::tool),
    (
        "lease: net_iovs counted at the NIC",
        lease_rows::counted_at_the_nic,
    ),
    ("lease: two pods", lease_rows::two_pods),
    ("lease: pod killed", lease_rows::pod_killed),
    ("lease: agent killed", lease_rows::agent_killed),
    ("lease: pod removed", lease_rows::pod_removed),
    (
        "broker: received as an ordinary user",
        broker_rows::right_user,
    ),
    ("broker: received by the tool", broker_rows::tool),
    (
        "broker: wrong user, wrong queue",
        broker_rows::wrong_user_and_wrong_queue,
    ),
    ("broker: client killed", broker_rows::client_killed),
    ("broker: killed", broker_rows::broker_killed),
    (
        "broker: a queue of the NIC, no pod",
        broker_rows::queue_of_the_nic,
    ),
    (
        "devmem tx as an ordinary user",
        broker_rows::sent_as_an_ordinary_user,
    ),
];

pub const LOSS_ROWS: &[Row] = &[
    ("bad wire: devmem rx", |context| {
        receive_all(context, Family::V4, DmabufKind::Udmabuf)
    }),
    ("bad wire: devmem tx", |context| {
        send_all(context, Family::V4)
    }),
];

pub const KNOB_ROWS: &[Row] = &[("linear bytes and unsplit packets: devmem rx", linear)];

pub const RESET_ROWS: &[Row] = &[
    ("20 resets asked by the device: devmem rx", |context| {
        through_resets(|| receive_all(context, Family::V4, DmabufKind::Udmabuf))
    }),
    ("20 resets asked by the device: devmem tx", |context| {
        through_resets(|| send_all(context, Family::V4))
    }),
];

/// Minimum number of resets in a row of [`RESET_ROWS`].
const RESETS: u64 = 20;

fn seen(report: &RxReport) -> PassedRow {
    PassedRow {
        detail: format!(
            "{} MB correct in {} frags, {} B linear",
            report.bytes / 1_000_000,
            report.frags,
            report.linear_bytes
        ),
        rate: Some(report.rate()),
    }
}

fn receive_all(context: &Context, family: Family, kind: DmabufKind) -> anyhow::Result<PassedRow> {
    let wanted = Stream::checked(context.bytes, Behaviour::Good);
    let report = rx(context.network()?, family, kind, QUEUE, wanted)?;
    ensure!(report.frags > 0, "no data was received into device memory");
    Ok(seen(&report))
}

fn send_all(context: &Context, family: Family) -> anyhow::Result<PassedRow> {
    let (rate, copied) = tx(context.network()?, family, context.bytes)?;
    ensure!(copied == 0, "the kernel copied {copied} sends");
    Ok(rate.into())
}

/// Receives several streams at once, on both queues of one binding.
fn two_queues(context: &Context) -> anyhow::Result<PassedRow> {
    let bound = Bound::new(DmabufKind::Udmabuf, &[QUEUE, OTHER_QUEUE])?;
    at_once(context, &[(&bound, QUEUE), (&bound, OTHER_QUEUE)])
}

fn two_bindings(context: &Context) -> anyhow::Result<PassedRow> {
    let first = Bound::new(DmabufKind::Udmabuf, &[QUEUE])?;
    let second = Bound::new(DmabufKind::Heap, &[OTHER_QUEUE])?;
    ensure!(
        first.rx.id() != second.rx.id(),
        "two bindings with one name"
    );
    at_once(context, &[(&first, QUEUE), (&second, OTHER_QUEUE)])
}

/// Receives one stream for each of `ends`, all at the same time.
fn at_once(context: &Context, ends: &[(&Bound, u32)]) -> anyhow::Result<PassedRow> {
    let mut steering = Steering::new(1)?;
    let wanted = Stream::checked(context.bytes / 2, Behaviour::Good);
    let mut streams = Vec::new();
    for (bound, queue) in ends {
        let listener = context.network()?.listen(Direction::In, Family::V4)?;
        steering.lead(listener.local_addr()?, *queue)?;
        streams.push((pair(context.network()?, Direction::In, &listener)?, *bound));
    }
    let frags = thread::scope(|scope| {
        let running: Vec<_> = streams
            .into_iter()
            .map(|((sender, receiver), bound)| {
                scope.spawn(move || traffic::send(sender, wanted.bytes));
                scope.spawn(move || receive(&receiver, bound, wanted))
            })
            .collect();
        let reports = running
            .into_iter()
            .map(traffic::join)
            .collect::<anyhow::Result<Vec<_>>>()?;
        anyhow::Ok(
            reports
                .iter()
                .map(|report| report.frags)
                .collect::<Vec<_>>(),
        )
    })?;
    let each = wanted.bytes / 1_000_000;
    Ok(format!("{each} MB correct each, in {frags:?} frags").into())
}

fn no_coalescing(context: &Context) -> anyhow::Result<PassedRow> {
    require_feature("rx-gro-hw")?;
    program(&["ethtool", "-K", NIC, "rx-gro-hw", "off"])?;
    let seen = receive_all(context, Family::V4, DmabufKind::Udmabuf);
    program(&["ethtool", "-K", NIC, "rx-gro-hw", "on"])?;
    seen
}

fn starvation(context: &Context) -> anyhow::Result<PassedRow> {
    // Always more than the memory can hold.
    let bytes = context.bytes.max(3 * MEMORY_BYTES as u64);
    let wanted = Stream::checked(bytes, Behaviour::StarvesOnce);
    let report = rx(
        context.network()?,
        Family::V4,
        DmabufKind::Udmabuf,
        QUEUE,
        wanted,
    )?;
    let at = report.starved_at.context("it was never starved")?;
    ensure!(at < bytes, "all data fitted in the memory");
    Ok(format!(
        "stalled after {} MB, then {} MB correct",
        at / 1_000_000,
        bytes / 1_000_000
    )
    .into())
}

/// Checks that a stream with no reader does not block streams on other queues.
fn others_go_on(context: &Context) -> anyhow::Result<PassedRow> {
    let mut steering = Steering::new(1)?;
    let _bound = Bound::new(DmabufKind::Udmabuf, &[QUEUE])?;
    let listener = context.network()?.listen(Direction::In, Family::V4)?;
    steering.lead(listener.local_addr()?, QUEUE)?;
    let (sender, starved) = pair(context.network()?, Direction::In, &listener)?;
    let bytes = 4 * MEMORY_BYTES as u64;
    thread::scope(|scope| {
        let sending = scope.spawn(move || traffic::send(sender, bytes));
        let stream = context.network()?.stream(
            Direction::In,
            Family::V4,
            context.few(),
            &Default::default(),
        );
        // Closing resets the connection; an error of the sender is expected.
        drop(starved);
        let _ = sending.join();
        Ok(stream?.into())
    })
}

fn unbind(context: &Context) -> anyhow::Result<PassedRow> {
    let part = context.few() / 2;
    let mut steering = Steering::new(1)?;
    let bound = Bound::new(DmabufKind::Udmabuf, &[QUEUE])?;
    let listener = context.network()?.listen(Direction::In, Family::V4)?;
    steering.lead(listener.local_addr()?, QUEUE)?;
    let (sender, receiver) = pair(context.network()?, Direction::In, &listener)?;
    thread::scope(|scope| {
        let sending = scope.spawn(move || traffic::send(sender, 64 * part));
        let report = receive(
            &receiver,
            &bound,
            Stream::checked(64 * part, Behaviour::Leaves(part)),
        );
        drop(bound);
        drop(receiver);
        // Its receiver was closed.
        let _ = sending.join();
        report
    })?;
    drop(steering);
    receive_all(context, Family::V4, DmabufKind::Udmabuf).context("bound again")
}

/// Kills a receiver process that holds frags.
fn kill(context: &Context) -> anyhow::Result<PassedRow> {
    require_rx(QUEUE)?;
    let part = context.few() / 2;
    let mut command = Command::new(PROGRAM_PATH);
    command
        .args(["__victim", "--bytes", &part.to_string()])
        .stdout(Stdio::piped());
    let mut victim = Helper::start(&mut command)?;
    let mut said = BufReader::new(victim.take_stdout().context("it was piped")?);
    let mut line = String::new();
    said.read_line(&mut line)?;
    let to: std::net::SocketAddr = line.trim().parse().context("the victim's address")?;
    let sender = context.network()?.connect(Direction::In, to)?;
    let killed = thread::scope(|scope| {
        let sending = scope.spawn(move || traffic::send(sender, 64 * part));
        line.clear();
        let half = said.read_line(&mut line);
        victim.kill();
        // Its receiver was closed.
        let _ = sending.join();
        half?;
        anyhow::Ok(line.trim() == "half")
    })?;
    ensure!(killed, "the output of the victim was {line:?}");
    // Its settings are still in effect; a new set-up replaces them.
    clear_rules()?;
    receive_all(context, Family::V4, DmabufKind::Udmabuf).context("after the kill")
}

fn clear_rules() -> anyhow::Result<()> {
    let mut ethtool = devmem_linux::ethtool::Ethtool::by_name(NIC)?;
    for rule in ethtool.rules()? {
        ethtool.delete_rule(rule.location)?;
    }
    Ok(ethtool.reset_rss_table()?)
}

/// Runs the process that gets killed: receives `bytes` bytes of a stream, reports that, and keeps the frags.
///
/// # Errors
///
/// The stream could not be received.
pub fn be_the_victim(bytes: u64) -> anyhow::Result<()> {
    let mut steering = Steering::new(1)?;
    let bound = Bound::new(DmabufKind::Udmabuf, &[QUEUE])?;
    let address = traffic::address(1, Family::V4);
    let listener = std::net::TcpListener::bind((address, 0))?;
    let to = listener.local_addr()?;
    steering.lead(to, QUEUE)?;
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{to}")?;
    let (stream, _) = listener.accept()?;
    receive(
        &stream,
        &bound,
        Stream::checked(u64::MAX, Behaviour::Leaves(bytes)),
    )?;
    writeln!(stdout, "half")?;
    // Waits to be killed, for a bounded time.
    thread::sleep(STUCK);
    Ok(())
}

/// Checks the operations that the kernel refuses on a NIC with a binding, and their errors.
fn refusals(_: &Context) -> anyhow::Result<PassedRow> {
    let _steering = Steering::new(1)?;
    let memory = memory(DmabufKind::Udmabuf)?;
    let bound = bind(&memory, &[QUEUE])?;
    let again = bind(&memory, &[QUEUE])
        .err()
        .context("a queue was bound twice")?;
    let split = program(&["ethtool", "-G", NIC, "tcp-data-split", "off"]).err();
    let split = split.context("header split could be switched off")?;
    let fewer = program(&["ethtool", "-L", NIC, "rx", "1", "tx", "1"]).err();
    fewer.context("the bound queue could be removed")?;
    let user = Netdev::by_name(NIC)?
        .rx_queues()?
        .into_iter()
        .find(|(id, _)| id.0 == QUEUE);
    let user = user
        .and_then(|(_, user)| user)
        .context("the queue has no user")?;
    drop(bound);
    ensure!(
        bind(&memory, &[QUEUE]).is_ok(),
        "the queue is not free again"
    );
    Ok(format!("{again:#}; {split:#}; user {user:?}").into())
}

/// Huge pages of the machine. Dropping it restores their number.
struct HugePages(String);

impl HugePages {
    const COUNT: &str = "/proc/sys/vm/nr_hugepages";

    fn reserve(count: u32) -> anyhow::Result<Self> {
        let before = fs::read_to_string(Self::COUNT)?;
        fs::write(Self::COUNT, count.to_string())?;
        Ok(Self(before))
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = fs::write(Self::COUNT, &self.0);
    }
}

/// Net_iovs of another size than a page are refused, with the name of what refuses them: the kernel before Linux 7.3, then the pieces of the
/// memory, then the driver.
fn large_net_iovs(_: &Context) -> anyhow::Result<PassedRow> {
    const NIOV_BYTES: u32 = 16 << 10;
    let _steering = Steering::new(1)?;
    let _pages = HugePages::reserve(4)?;
    let mut netdev = Netdev::by_name(NIC)?;
    let knows_sizes = netdev.probe_niov_size() == DriverSupport::Yes;
    let mut refused = |memory: &DmabufFd| {
        let queue = [KernelRxQueueId(QUEUE)];
        let bound = netdev.bind_rx_sized(memory.as_fd(), &queue, Some(NIOV_BYTES));
        bound.err().context("gve bound net_iovs of 16 KiB")
    };
    let of_pages = refused(&memory(DmabufKind::Udmabuf)?)?;
    let of_huge_pages = refused(&DmabufFd::udmabuf_huge(MEMORY_BYTES / 8)?)?;
    let said = format!("pages: {of_pages}; huge pages: {of_huge_pages}");
    let kinds = [of_pages.cause.kind, of_huge_pages.cause.kind];
    if !knows_sizes {
        ensure!(kinds == [CauseKind::KernelTooOld; 2], "{kinds:?}: {said}");
        return Ok(said.into());
    }
    // In a guest that has just booted, pages may be adjacent by chance, so that the driver is asked.
    let by_chance = [CauseKind::DriverCannot; 2];
    let expected = [CauseKind::DmabufGeometry, CauseKind::DriverCannot];
    ensure!(kinds == expected || kinds == by_chance, "{kinds:?}: {said}");
    // The tool does not ask the kernel about ordinary pages, and takes huge ones by default.
    let pages = refused_by_tool(&["--memory", "udmabuf"])?;
    ensure!(pages.contains("pieces of 4096 bytes"), "{pages}");
    let huge_pages = refused_by_tool(&[])?;
    ensure!(
        huge_pages.contains("only net_iovs of one page"),
        "{huge_pages}"
    );
    Ok(format!("{said}; the tool: {pages}; {huge_pages}").into())
}

/// Returns what the tool says to net_iovs of 16 KiB.
fn refused_by_tool(options: &[&str]) -> anyhow::Result<String> {
    let queue = QUEUE.to_string();
    let mut command = Command::new(TOOL_PATH);
    command
        .args(["recv", "--backend", "kernel", "--if", NIC])
        .args(["--configured", "--first-queue", &queue])
        .args(["--niov-size", "16K", "--mem-size", "4M"])
        .args(options)
        .stderr(Stdio::piped());
    let mut tool = Helper::start(&mut command)?;
    let mut stderr = tool.take_stderr().context("it was piped")?;
    let ended = tool.wait_at_most(LIMIT)?.context("it was not refused")?;
    let mut said = String::new();
    stderr.read_to_string(&mut said)?;
    ensure!(!ended.success(), "{said}");
    Ok(said.trim().to_owned())
}

fn netem(context: &Context) -> anyhow::Result<PassedRow> {
    let tc = |words: &[&str]| {
        let inside = ["ip", "netns", "exec", "peer", "tc"];
        program(&[&inside, words].concat())
    };
    let loss = ["netem", "loss", "5%", "limit", "10000"];
    tc(&[&["qdisc", "add", "dev", "eth0", "root"][..], &loss].concat())?;
    // netem drops whole TSO packets; the stream needs enough of them that some are dropped.
    let bytes = context.few().max(16 << 20);
    let wanted = Stream::checked(bytes, Behaviour::Good);
    let report = rx(
        context.network()?,
        Family::V4,
        DmabufKind::Udmabuf,
        QUEUE,
        wanted,
    );
    let statistics = tc(&["-s", "qdisc", "show", "dev", "eth0"]);
    tc(&["qdisc", "del", "dev", "eth0", "root"])?;
    let report = report?;
    let statistics = statistics?;
    let dropped = statistics
        .split("dropped ")
        .nth(1)
        .and_then(|rest| rest.split([',', ' ']).next()?.parse::<u64>().ok());
    let dropped = dropped.context("netem has no statistics")?;
    ensure!(dropped > 0, "netem lost nothing");
    Ok(PassedRow {
        detail: format!("{}, {dropped} packets lost", seen(&report).detail),
        rate: Some(report.rate()),
    })
}

/// Receives from a device that leaves the first bytes of each packet in host memory, and sometimes a whole packet, which a
/// bound queue drops and TCP retransmits.
fn linear(context: &Context) -> anyhow::Result<PassedRow> {
    without_gro(|| linear_streams(context))
}

/// Receives one stream without coalescing by the NIC, and one with it.
fn linear_streams(context: &Context) -> anyhow::Result<PassedRow> {
    let mut wanted = Stream::checked(context.bytes, Behaviour::Good);
    // A packet with at most this much payload has no bytes in device memory: the kernel treats it as an ordinary one.
    wanted.ordinary_max = LINEAR_BYTES;
    let mut last = PassedRow::default();
    for coalescing in ["off", "on"] {
        program(&["ethtool", "-K", NIC, "rx-gro-hw", coalescing])?;
        let network = context.network()?;
        let report = rx(network, Family::V4, DmabufKind::Udmabuf, QUEUE, wanted)
            .with_context(|| format!("with rx-gro-hw {coalescing}"))?;
        ensure!(report.linear_bytes > 0, "no linear bytes");
        last = seen(&report);
    }
    Ok(last)
}

/// Runs streams until there were enough resets of the device during them.
fn through_resets(stream: impl Fn() -> anyhow::Result<PassedRow>) -> anyhow::Result<PassedRow> {
    /// Each stream is long enough for several resets.
    const MAX_STREAMS: u64 = 40;
    let before = resets()?;
    for streams in 1..=MAX_STREAMS {
        stream().with_context(|| format!("stream {streams}"))?;
        let seen = resets()?.saturating_sub(before);
        if seen >= RESETS {
            return Ok(format!("{seen} resets in {streams} streams, every byte correct").into());
        }
    }
    bail!(
        "{} resets in {MAX_STREAMS} streams",
        resets()?.saturating_sub(before)
    )
}

/// Returns the number of device resets by the driver.
fn resets() -> anyhow::Result<u64> {
    let text = program(&["ethtool", "-S", NIC])?;
    let count = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("reset_cnt:"));
    Ok(count
        .context("ethtool -S has no reset_cnt")?
        .trim()
        .parse()?)
}
