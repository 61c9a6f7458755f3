//! Receives a stream into device memory with the guest's kernel, and checks every byte in place.

use std::net::TcpStream;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use devmem_linux::dmabuf::{CpuAccess, CpuView};
use devmem_linux::socket::{Content, FragReturns, RecvBuffer, RecvError, RxFrag};
use devmem_uapi::{DmabufCmsg, MsgFlags};

use super::bound::{Bound, DmabufKind, Steering};
use crate::suite::traffic::{self, Direction, Family, Network, Rate, STUCK, pair};
use pattern::Verifier;

/// Maximum bytes and frags of one receive.
const RECV_BYTES: usize = 1 << 20;
const RECV_FRAGS: usize = 512;
/// Time without data after which a receiver counts as starved, although the peer has more to send.
const STARVED: Duration = Duration::from_millis(1500);
/// Maximum bytes that are copied out of device memory for one check.
const CHECK_BYTES: usize = 64 << 10;

/// A stream to receive.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    /// Bytes of the stream.
    pub bytes: u64,
    /// Behaviour of the receiver.
    pub behaviour: Behaviour,
    /// Seed of the pattern; `None` counts bytes without checking them.
    pub seed: Option<u64>,
    /// Maximum bytes of ordinary data in one receive; more means that the packet did not arrive on the bound queue.
    pub ordinary_max: usize,
}

impl Stream {
    /// Returns a stream with every byte checked.
    pub fn checked(bytes: u64, behaviour: Behaviour) -> Self {
        Self {
            bytes,
            behaviour,
            seed: Some(0),
            ordinary_max: 0,
        }
    }
}

/// Behaviour of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// It returns frags at once.
    Good,
    /// It keeps all frags until it is starved, once; afterwards it returns them at once.
    StarvesOnce,
    /// It stops after this many bytes.
    Leaves(u64),
}

/// Report on a stream into device memory.
#[derive(Clone, Debug, Default)]
pub struct RxReport {
    /// Bytes received correctly.
    pub bytes: u64,
    /// Frags in device memory.
    pub frags: u64,
    /// Linear bytes, in host memory.
    pub linear_bytes: u64,
    /// Time from the connection to the end of the stream.
    pub elapsed: Duration,
    /// Time from the connection to the first bytes.
    pub first: Duration,
    /// Bytes after which the receiver was starved.
    pub starved_at: Option<u64>,
}

impl RxReport {
    /// Returns the rate.
    pub fn rate(&self) -> Rate {
        Rate {
            bytes: self.bytes,
            elapsed: self.elapsed,
        }
    }
}

/// Receives a stream into `bound` and checks every byte.
///
/// # Errors
///
/// A byte is wrong, ordinary data arrived in place of device memory, a frag was not freed, or the stream is stuck.
pub fn receive(stream: &TcpStream, bound: &Bound, wanted: Stream) -> anyhow::Result<RxReport> {
    let Stream {
        bytes, behaviour, ..
    } = wanted;
    let starving = behaviour == Behaviour::StarvesOnce;
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
        if matches!(behaviour, Behaviour::Leaves(after) if receiver.received >= after) {
            receiver.check_verdict()?;
            return Ok(receiver.report);
        }
    }
    receiver.report.elapsed = receiver.start.elapsed();
    receiver.give_back()?;
    ensure!(
        receiver.received == bytes,
        "{} of {bytes} bytes received",
        receiver.received
    );
    receiver.check_verdict()?;
    receiver.report.bytes = bytes;
    Ok(receiver.report)
}

/// Receives one stream from the peer into device memory, with a separate binding.
///
/// # Errors
///
/// As [`receive`].
pub fn rx(
    network: &Network,
    family: Family,
    kind: DmabufKind,
    queue: u32,
    wanted: Stream,
) -> anyhow::Result<RxReport> {
    let steering = Steering::new(1)?;
    let bound = Bound::new(kind, &[queue])?;
    rx_into(network, family, steering, &bound, wanted)
}

/// Receives one stream from the peer into `bound`, led to the first of its queues.
///
/// # Errors
///
/// As [`receive`].
pub fn rx_into(
    network: &Network,
    family: Family,
    mut steering: Steering,
    bound: &Bound,
    wanted: Stream,
) -> anyhow::Result<RxReport> {
    let listener = network.listen(Direction::In, family)?;
    let queue = bound.rx.queues().first().context("it has a queue")?;
    steering.lead(listener.local_addr()?, queue.0)?;
    let (sender, receiver) = pair(network, Direction::In, &listener)?;
    thread::scope(|scope| {
        let sending = scope.spawn(move || traffic::send(sender, wanted.bytes));
        let report = receive(&receiver, bound, wanted);
        // The sender waits for the close.
        drop(receiver);
        let sent = traffic::join(sending);
        let report = report?;
        sent?;
        Ok(report)
    })
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

    /// Receives once and checks the bytes; returns their number, 0 at the end of the stream.
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
            .cpu_view(CpuAccess::Read)
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
                    if cmsg.dmabuf_id != self.bound.rx.id() {
                        return Err(StepError::Failed(anyhow::anyhow!(
                            "a frag of dma-buf {:?}",
                            cmsg.dmabuf_id
                        )));
                    }
                    if let Some(verifier) = &mut self.verifier {
                        check_frag(&access, verifier, &mut self.scratch, &cmsg)
                            .map_err(StepError::Failed)?;
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
    access: &CpuView<'_>,
    verifier: &mut Verifier,
    scratch: &mut [u8],
    cmsg: &DmabufCmsg,
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
