//! Device memory streams: the guest's kernel receives into, or sends from, a bound dma-buf of our NIC.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use devmem_linux::dmabuf::{Access, DmabufFd};
use devmem_linux::ethtool::{
    DataSplit, Ethtool, MAIN_CONTEXT, NTUPLE, RingsChange, RuleAction, TcpFlow,
};
use devmem_linux::netdev::{BoundRx, Netdev, RxQueueId};
use devmem_linux::socket::{
    Content, ErrorQueue, FragReturns, RecvBuffer, RecvError, RxFrag, SendIds, enable_zerocopy,
    send_dmabuf,
};
use devmem_uapi::MsgFlags;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::traffic::{self, Family, Network, Rate, STUCK, Way};
use crate::pattern::{PositionPattern, Verifier};

/// Our NIC in a guest with two.
pub const NIC: &str = "eth1";
/// Bytes bound: more than the buffers of a ring (1,024 of 4 KiB), within udmabuf's default limit of 64 MiB.
pub const MEMORY_BYTES: usize = 32 << 20;
/// Most bytes and frags of one receive.
const RECV_BYTES: usize = 1 << 20;
const RECV_FRAGS: usize = 512;
/// Bytes of one zero-copy send, and how many of them the ring holds.
const SEND_BYTES: usize = 256 << 10;
const SEND_SLOTS: usize = 64;
/// A receiver that got nothing for so long, though the peer has more, is starved.
const STARVED: Duration = Duration::from_millis(1500);
/// The largest frame the copy out of device memory is checked by.
const CHECK_BYTES: usize = 64 << 10;

/// Our NIC: the only one, or that which is not the peer's.
pub fn nic() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| std::env::var("DEVMEM_TEST_NIC").unwrap_or_else(|_| NIC.to_owned()))
}

/// Where the bound memory is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Pages of a memfd.
    Udmabuf,
    /// /dev/dma_heap/system.
    Heap,
}

/// Allocates device memory.
///
/// # Errors
///
/// The exporter refused.
pub fn memory(kind: Memory) -> anyhow::Result<DmabufFd> {
    Ok(match kind {
        Memory::Udmabuf => DmabufFd::udmabuf(MEMORY_BYTES)?,
        Memory::Heap => DmabufFd::heap("system", MEMORY_BYTES)?,
    })
}

/// Our NIC with some queues kept for device memory, and rules that lead there. Dropping it takes them away.
#[derive(Debug)]
pub struct Steering {
    ethtool: Ethtool,
    rules: Vec<u32>,
}

impl Steering {
    /// Keeps all queues from `first` on out of RSS, with header split and rules on.
    ///
    /// # Errors
    ///
    /// The driver refused.
    pub fn new(first: u32) -> anyhow::Result<Self> {
        let mut ethtool = Ethtool::by_name(nic())?;
        let split = RingsChange {
            data_split: Some(DataSplit::Enabled),
            ..RingsChange::default()
        };
        ethtool.set_rings(split)?;
        ethtool.set_feature(NTUPLE, true)?;
        let entries = ethtool.rss()?.table.len();
        let table: Vec<u32> = (0..first).cycle().take(entries).collect();
        ethtool.set_rss_table(MAIN_CONTEXT, &table)?;
        Ok(Self {
            ethtool,
            rules: Vec::new(),
        })
    }

    /// Leads what arrives for `to` to a queue.
    ///
    /// # Errors
    ///
    /// The driver refused.
    pub fn lead(&mut self, to: SocketAddr, queue: u32) -> anyhow::Result<()> {
        let flow = TcpFlow {
            ipv6: to.is_ipv6(),
            source: None,
            source_port: None,
            destination: Some(to.ip()),
            destination_port: Some(to.port()),
        };
        self.rules.push(
            self.ethtool
                .insert_rule(&flow, RuleAction::Queue(RxQueueId(queue)))?,
        );
        Ok(())
    }
}

impl Drop for Steering {
    fn drop(&mut self) {
        for rule in &self.rules {
            let _ = self.ethtool.delete_rule(*rule);
        }
        let _ = self.ethtool.reset_rss_table();
    }
}

/// Memory, and its binding to queues of our NIC.
#[derive(Debug)]
pub struct Bound {
    /// The binding.
    pub rx: BoundRx,
    /// The memory.
    pub memory: DmabufFd,
}

impl Bound {
    /// Allocates memory and binds it.
    ///
    /// # Errors
    ///
    /// The exporter or the kernel refused.
    pub fn new(kind: Memory, queues: &[u32]) -> anyhow::Result<Self> {
        let memory = memory(kind)?;
        Ok(Self {
            rx: bind(&memory, queues)?,
            memory,
        })
    }
}

/// A stream that is to be received.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    /// Its bytes.
    pub bytes: u64,
    /// What the receiver is like.
    pub habit: Habit,
    /// The seed of its pattern; `None` counts bytes and looks at none, as a program does that leaves them to a device.
    pub seed: Option<u64>,
    /// Most bytes of one receive that may come as ordinary data, which says that the packet was not of the bound queue.
    pub ordinary_max: usize,
}

impl Stream {
    /// A stream from a sender of ours, every byte of which is looked at.
    pub fn checked(bytes: u64, habit: Habit) -> Self {
        Self {
            bytes,
            habit,
            seed: Some(0),
            ordinary_max: 0,
        }
    }
}

/// Binds memory to queues of our NIC.
///
/// # Errors
///
/// The kernel refused.
pub fn bind(memory: &DmabufFd, queues: &[u32]) -> anyhow::Result<BoundRx> {
    let queues: Vec<RxQueueId> = queues.iter().copied().map(RxQueueId).collect();
    Ok(Netdev::by_name(nic())?.bind_rx(memory.as_fd(), &queues)?)
}

/// How a receiver behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habit {
    /// Gives frags back at once.
    Good,
    /// Keeps all of them until nothing comes any more, once; then is good.
    StarvesOnce,
    /// Stops after so many bytes, whatever is to come.
    Leaves(u64),
}

/// What a stream into device memory was like.
#[derive(Clone, Debug, Default)]
pub struct RxReport {
    /// Bytes that arrived and were right.
    pub bytes: u64,
    /// Frags in device memory.
    pub frags: u64,
    /// Bytes in host memory, beside device memory.
    pub linear_bytes: u64,
    /// From the connection to the end of the stream.
    pub elapsed: Duration,
    /// From the connection to the first bytes.
    pub first: Duration,
    /// Bytes after which a keeper of frags was starved.
    pub starved_at: Option<u64>,
}

impl RxReport {
    /// Returns how fast it was.
    pub fn rate(&self) -> Rate {
        Rate {
            bytes: self.bytes,
            elapsed: self.elapsed,
        }
    }
}

/// Receives a stream into `memory` and checks every byte of it, `bytes` in all unless the habit is to leave.
///
/// # Errors
///
/// A wrong byte; ordinary data where device memory should be; a frag that does not come home; a stream that is stuck.
pub fn receive(stream: &TcpStream, bound: &Bound, wanted: Stream) -> anyhow::Result<RxReport> {
    let Stream { bytes, habit, .. } = wanted;
    let starving = habit == Habit::StarvesOnce;
    stream.set_read_timeout(Some(if starving { STARVED } else { STUCK }))?;
    let mut receiver = Receiver::new(stream, bound, wanted);
    let mut keeping = starving;
    loop {
        match receiver.step() {
            Ok(0) => break,
            Ok(_) if !keeping => receiver.give_back()?,
            Ok(_) => {}
            Err(StepError::Nothing) if keeping => {
                receiver.report.starved_at = Some(receiver.received);
                keeping = false;
                receiver.give_back()?;
                stream.set_read_timeout(Some(STUCK))?;
            }
            Err(StepError::Nothing) => {
                bail!("stuck after {} bytes", receiver.received)
            }
            Err(StepError::Failed(error)) => return Err(error),
        }
        if matches!(habit, Habit::Leaves(after) if receiver.received >= after) {
            receiver.check_verdict()?;
            return Ok(receiver.report);
        }
    }
    receiver.report.elapsed = receiver.start.elapsed();
    receiver.give_back()?;
    ensure!(
        receiver.received == bytes,
        "{} of {bytes} bytes arrived",
        receiver.received
    );
    receiver.check_verdict()?;
    receiver.report.bytes = bytes;
    Ok(receiver.report)
}

enum StepError {
    Nothing,
    Failed(anyhow::Error),
}

struct Receiver<'a> {
    stream: &'a TcpStream,
    bound: &'a Bound,
    buffer: RecvBuffer,
    returns: FragReturns,
    verifier: Option<Verifier>,
    received: u64,
    ordinary_max: usize,
    scratch: Vec<u8>,
    report: RxReport,
    start: Instant,
}

impl<'a> Receiver<'a> {
    fn new(stream: &'a TcpStream, bound: &'a Bound, wanted: Stream) -> Self {
        Self {
            stream,
            bound,
            buffer: RecvBuffer::new(RECV_BYTES, RECV_FRAGS),
            returns: FragReturns::new(),
            verifier: wanted.seed.map(traffic::verifier_of),
            ordinary_max: wanted.ordinary_max,
            received: 0,
            scratch: vec![0; CHECK_BYTES],
            report: RxReport::default(),
            start: Instant::now(),
        }
    }

    /// Receives once and checks what came; 0 at the end of the stream.
    fn step(&mut self) -> Result<usize, StepError> {
        let received = match self.buffer.recv(self.stream.as_fd(), MsgFlags::empty()) {
            Ok(received) => received,
            Err(RecvError::WouldBlock) => return Err(StepError::Nothing),
            Err(RecvError::Interrupted) => return Ok(usize::MAX),
            Err(error) => return Err(StepError::Failed(error.into())),
        };
        if self.report.first.is_zero() {
            self.report.first = self.start.elapsed();
        }
        let bytes = received.bytes;
        let frags = match received.content {
            Content::End => return Ok(0),
            Content::Readable(ordinary) if ordinary.len() <= self.ordinary_max => {
                if let Some(verifier) = &mut self.verifier {
                    verifier.check(ordinary);
                }
                self.report.linear_bytes += bytes as u64;
                self.received += bytes as u64;
                return Ok(bytes);
            }
            Content::Readable(bytes) => {
                let at = self.received;
                return Err(StepError::Failed(anyhow::anyhow!(
                    "{} ordinary bytes after {at}: not through the bound queue",
                    bytes.len()
                )));
            }
            Content::Devmem(frags) => frags,
        };
        let access = self
            .bound
            .memory
            .cpu_access(Access::Read)
            .map_err(|error| StepError::Failed(error.into()))?;
        for frag in frags {
            match frag {
                RxFrag::Linear(bytes) => {
                    if let Some(verifier) = &mut self.verifier {
                        verifier.check(bytes);
                    }
                    self.report.linear_bytes += bytes.len() as u64;
                }
                RxFrag::Device(cmsg) => {
                    self.returns.push(cmsg.frag_token);
                    self.report.frags += 1;
                    if let Some(verifier) = &mut self.verifier {
                        check_frag(&access, verifier, &mut self.scratch, &cmsg)
                            .map_err(StepError::Failed)?;
                    }
                    if cmsg.dmabuf_id != self.bound.rx.id() {
                        return Err(StepError::Failed(anyhow::anyhow!(
                            "a frag of dma-buf {:?}",
                            cmsg.dmabuf_id
                        )));
                    }
                }
            }
        }
        self.received += bytes as u64;
        Ok(bytes)
    }

    fn check_verdict(&self) -> anyhow::Result<()> {
        match &self.verifier {
            Some(verifier) => traffic::complete(verifier, self.received),
            None => Ok(()),
        }
    }

    fn give_back(&mut self) -> anyhow::Result<()> {
        if self.returns.is_empty() {
            return Ok(());
        }
        let freed = self.returns.flush(self.stream.as_fd())?;
        ensure!(
            freed.missing() == 0,
            "{} frags were not freed",
            freed.missing()
        );
        Ok(())
    }
}

fn check_frag(
    access: &devmem_linux::dmabuf::CpuAccess<'_>,
    verifier: &mut Verifier,
    scratch: &mut [u8],
    cmsg: &devmem_uapi::DmabufCmsg,
) -> anyhow::Result<()> {
    let mut offset = usize::try_from(cmsg.frag_offset)?;
    let mut left = usize::try_from(cmsg.frag_size)?;
    while left > 0 {
        let now = left.min(scratch.len());
        access.copy_out(offset, &mut scratch[..now])?;
        verifier.check(&scratch[..now]);
        offset += now;
        left -= now;
    }
    Ok(())
}

/// One stream from the peer into device memory, with a binding of its own.
///
/// # Errors
///
/// As [`receive`].
pub fn rx(
    network: &Network,
    family: Family,
    kind: Memory,
    queue: u32,
    wanted: Stream,
) -> anyhow::Result<RxReport> {
    let mut steering = Steering::new(1)?;
    let bound = Bound::new(kind, &[queue])?;
    let listener = network.listen(Way::In, family)?;
    steering.lead(listener.local_addr()?, queue)?;
    let (sender, receiver) = pair(network, Way::In, &listener)?;
    thread::scope(|scope| {
        let sending = scope.spawn(move || traffic::send(sender, wanted.bytes));
        let report = receive(&receiver, &bound, wanted);
        // The sender waits for it.
        drop(receiver);
        let sent = traffic::join(sending);
        let report = report?;
        sent?;
        Ok(report)
    })
}

/// Both ends of a connection.
///
/// # Errors
///
/// What the kernel said.
pub fn pair(
    network: &Network,
    way: Way,
    listener: &TcpListener,
) -> anyhow::Result<(TcpStream, TcpStream)> {
    let sender = network.connect(way, listener.local_addr()?)?;
    let (receiver, _) = listener.accept()?;
    traffic::limit(&receiver)?;
    Ok((sender, receiver))
}

/// One stream from device memory to the peer, whose kernel socket checks it. Returns its rate and how many sends the
/// kernel copied.
///
/// # Errors
///
/// A wrong byte; a send that is not completed; a stream that is stuck.
pub fn tx(network: &Network, family: Family, bytes: u64) -> anyhow::Result<(Rate, u64)> {
    let memory = DmabufFd::udmabuf(SEND_BYTES * SEND_SLOTS)?;
    let bound = Netdev::by_name(nic())?.bind_tx(memory.as_fd())?;
    let listener = network.listen(Way::Out, family)?;
    let (sender, mut receiver) = pair(network, Way::Out, &listener)?;
    enable_zerocopy(sender.as_fd())?;
    let start = Instant::now();
    thread::scope(|scope| {
        let receiving = scope.spawn(move || -> anyhow::Result<Duration> {
            let mut verifier = traffic::verifier();
            let mut buffer = vec![0; SEND_BYTES];
            loop {
                let count = std::io::Read::read(&mut receiver, &mut buffer).context("receive")?;
                if count == 0 {
                    traffic::complete(&verifier, bytes)?;
                    return Ok(start.elapsed());
                }
                verifier.check(&buffer[..count]);
            }
        });
        let pattern = PositionPattern::new(0);
        let sent = Sender::new(&sender, &memory, bound.source())
            .send(bytes, &|position, out| pattern.fill(position, out));
        if sent.is_err() {
            let _ = sender.shutdown(std::net::Shutdown::Both);
        }
        let received = traffic::join(receiving);
        let copied = sent?;
        Ok((
            Rate {
                bytes,
                elapsed: received?,
            },
            copied,
        ))
    })
}

/// Sends `bytes` of device memory on a connection to anybody. Returns how many sends the kernel copied.
///
/// # Errors
///
/// A send that is refused or not completed.
pub fn send_to(
    stream: &TcpStream,
    bytes: u64,
    fill: &dyn Fn(u64, &mut [u8]),
) -> anyhow::Result<u64> {
    let memory = DmabufFd::udmabuf(SEND_BYTES * SEND_SLOTS)?;
    let bound = Netdev::by_name(nic())?.bind_tx(memory.as_fd())?;
    enable_zerocopy(stream.as_fd())?;
    Sender::new(stream, &memory, bound.source()).send(bytes, fill)
}

struct Sender<'a> {
    stream: &'a TcpStream,
    memory: &'a DmabufFd,
    source: devmem_linux::socket::TxSource<'a>,
    ids: SendIds,
    errors: ErrorQueue,
    /// Sends that were made and that completed.
    made: u64,
    completed: u64,
    copied: u64,
}

impl<'a> Sender<'a> {
    fn new(
        stream: &'a TcpStream,
        memory: &'a DmabufFd,
        source: devmem_linux::socket::TxSource<'a>,
    ) -> Self {
        Self {
            stream,
            memory,
            source,
            ids: SendIds::new(),
            errors: ErrorQueue::default(),
            made: 0,
            completed: 0,
            copied: 0,
        }
    }

    fn send(mut self, bytes: u64, fill: &dyn Fn(u64, &mut [u8])) -> anyhow::Result<u64> {
        let mut chunk = vec![0; SEND_BYTES];
        let mut position = 0;
        let mut round = 0usize;
        while position < bytes {
            let count = usize::try_from(bytes - position)
                .unwrap_or(usize::MAX)
                .min(SEND_BYTES);
            // A slot is written again when every send from it has completed; all of them, for simplicity, once a round.
            if round > 0 && round.is_multiple_of(SEND_SLOTS) {
                self.wait_for_all()?;
            }
            let offset = (round % SEND_SLOTS) * SEND_BYTES;
            fill(position, &mut chunk[..count]);
            let access = self.memory.cpu_access(Access::Write)?;
            access.copy_in(offset, &chunk[..count])?;
            access.end()?;
            let mut range = offset as u64..(offset + count) as u64;
            while range.start < range.end {
                let sent = send_dmabuf(
                    self.stream.as_fd(),
                    self.source,
                    std::slice::from_ref(&range),
                    MsgFlags::empty(),
                )
                .with_context(|| format!("send after {position} bytes"))?;
                self.made += u64::from(self.ids.count(sent).is_some());
                range.start += sent as u64;
                self.collect()?;
            }
            position += count as u64;
            round += 1;
        }
        self.stream.shutdown(std::net::Shutdown::Write)?;
        self.wait_for_all()?;
        Ok(self.copied)
    }

    fn collect(&mut self) -> anyhow::Result<()> {
        self.errors.drain(self.stream.as_fd())?;
        for range in self.errors.completions.drain(..) {
            let sends = u64::from(range.hi.0.wrapping_sub(range.lo.0)) + 1;
            self.completed += sends;
            self.copied += if range.copied { sends } else { 0 };
        }
        Ok(())
    }

    fn wait_for_all(&mut self) -> anyhow::Result<()> {
        let limit = Timespec::try_from(STUCK)?;
        loop {
            self.collect()?;
            if self.completed >= self.made {
                ensure!(
                    self.completed == self.made,
                    "{} completions of {} sends",
                    self.completed,
                    self.made
                );
                return Ok(());
            }
            // POLLERR is always asked for.
            let mut fds = [PollFd::new(self.stream, PollFlags::empty())];
            ensure!(
                poll(&mut fds, Some(&limit))? > 0,
                "{} of {} sends completed",
                self.completed,
                self.made
            );
        }
    }
}
