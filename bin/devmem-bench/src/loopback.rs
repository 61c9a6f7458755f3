//! `bench loopback`: between two sockets of one stack, device memory to device memory, next to the plain copy of the same
//! bytes on the same processor.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use devmem_linux::cpu;
use devmem_tcp::{BindOptions, BoundTx, Dmabuf, Frag, Netdev, RxBatch, Stream};
use netmem::NiovSize;
use serde::Serialize;

use crate::chart::{Bar, Chart, Series};
use crate::form::FormArgs;
use crate::meter::SILENCE;
use crate::repetitions::Repetitions;
use crate::spread::Spread;
use pattern::{Expected, PositionPattern, Verifier};
use tool::memory::MemoryKind;
use tool::output::Failure;
use tool::size::Size;

/// Bytes of one send.
const CHUNK: usize = 1 << 20;
/// Bytes of one copy: the length of a super-packet.
const PIECE: usize = nic::BIG_PACKET_LEN;
/// Frags of one receive call.
const BATCH_FRAGS: usize = 1024;
/// Seed of the sent pattern.
const SEED: u64 = 1;

/// Send from device memory to device memory of this host, through the NIC, compared with a plain memory copy
///
/// One thread sends, polls and receives, and checks every byte of the first round. Then it alternates between sending --bytes
/// through TCP and copying as many bytes from one memory to the other in pieces of a super-packet. The rates are per second
/// of CPU time, including the library's background thread, so that other programs do not affect them.
#[derive(Debug, Args)]
pub struct LoopbackArgs {
    /// Repetitions
    #[arg(long, value_name = "N", default_value_t = 7)]
    reps: usize,
    /// Bytes per measurement
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    bytes: Size,
    /// Size of the device memory to send from and of that to receive into; should exceed the caches
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    mem_size: Size,
    /// Kind of both memories: anonymous, udmabuf, cuda:N or hip:N for GPU N, which then copies
    #[arg(long, value_name = "KIND", default_value = "anonymous")]
    memory: MemoryKind,
    /// Size of one net_iov: a power of two from 4K to 2M
    #[arg(long, value_name = "SIZE", default_value = "64K")]
    niov: Size,
    #[command(flatten)]
    form: FormArgs,
}

/// The result. The field names are the JSON's and stay as they are.
#[derive(Debug, Serialize)]
struct LoopbackReport {
    memory: String,
    page_kind: String,
    niov_bytes: usize,
    verified_bytes: u64,
    samples: Vec<Sample>,
    /// Median of the samples' ratios.
    ratio: Option<f64>,
}

/// One repetition.
#[derive(Clone, Copy, Debug, Serialize)]
struct Sample {
    loopback_gb_per_cpu_s: f64,
    copy_gb_per_cpu_s: f64,
    /// The first divided by the second.
    ratio: f64,
}

/// Runs the benchmark and prints its report.
///
/// # Errors
///
/// An invalid option; too little memory; a wrong byte.
pub fn run(args: &LoopbackArgs) -> Result<(), Failure> {
    let size = usize::try_from(args.mem_size.0).unwrap_or(usize::MAX);
    let bytes = usize::try_from(args.bytes.0).unwrap_or(usize::MAX);
    let niov = usize::try_from(args.niov.0).unwrap_or(usize::MAX);
    let niov = NiovSize::new(niov).map_err(|error| Failure::usage(format!("--niov: {error}")))?;
    if !size.is_multiple_of(NiovSize::MAX.bytes()) || size < 8 * CHUNK {
        let (unit, least) = (NiovSize::MAX, Size(8 * CHUNK as u64));
        return Err(Failure::usage(format_args!(
            "--mem-size {}: a multiple of {unit}, {least} at least",
            args.mem_size
        )));
    }
    if bytes == 0 {
        return Err(Failure::usage("--bytes: 1 at least"));
    }
    let repetitions = Repetitions::new("repetition", "--reps", args.reps as u64)?;
    if let Some(&cpu) = cpu::allowed_cpus().first() {
        cpu::pin_current_thread(cpu)?;
    }
    let mut bench = Bench::new(args.memory, size, niov)?;
    let verified_bytes = bench.verify()?;
    let mut samples = Vec::new();
    let measure = |_, (): &()| {
        let loopback = timed(bytes, || bench.transfer(bytes))?;
        repetitions.check()?;
        let copy = timed(bytes, || bench.copy(bytes))?;
        Ok(Sample {
            loopback_gb_per_cpu_s: loopback,
            copy_gb_per_cpu_s: copy,
            ratio: loopback / copy,
        })
    };
    let progress = repetitions.run(&[()], measure, |_, sample| samples.push(sample))?;
    let report = LoopbackReport {
        memory: args.memory.to_string(),
        page_kind: bench.source.page_kind().to_string(),
        niov_bytes: niov.bytes(),
        verified_bytes,
        ratio: Spread::of(samples.iter().map(|sample| sample.ratio)).map(|it| it.median),
        samples,
    };
    args.form.print(progress, &report, &report.chart())
}

/// Returns the rate of `work` in 10^9 bytes per second of CPU time.
fn timed(bytes: usize, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let before = cpu::process_cpu_time();
    work()?;
    let used = cpu::process_cpu_time().saturating_sub(before);
    Ok(bytes as f64 / 1e9 / used.max(Duration::from_nanos(1)).as_secs_f64())
}

/// A connection between two sockets of one stack, and the memory of both. The fields are dropped in this order.
struct Bench {
    sender: Stream,
    receiver: Stream,
    batch: RxBatch,
    tx: BoundTx,
    _rx: devmem_tcp::BoundRx,
    _setup: devmem_tcp::Setup,
    source: Dmabuf,
    target: Dmabuf,
    /// Offset of the next send in the source.
    at: usize,
}

impl Bench {
    fn new(kind: MemoryKind, size: usize, niov: NiovSize) -> Result<Self, Failure> {
        let nic = Netdev::builder("mem:bench-loopback")?
            .address("10.77.0.2/24")?
            .open()?;
        let local = SocketAddr::new(nic.addresses()[0], crate::sender::PORT);
        let (source, target) = (
            kind.allocate(size, "--size")?,
            kind.allocate(size, "--size")?,
        );
        let pattern = PositionPattern::new(SEED);
        let mut block = vec![0; CHUNK];
        for at in (0..size).step_by(CHUNK) {
            pattern.fill(at as u64, &mut block);
            source.copy_in(at, &block)?;
        }
        let setup = nic.plan_receive(local).queues(1).apply()?;
        let rx = nic.bind_rx_with(&target, setup.queues(), BindOptions::new().niov_size(niov))?;
        let tx = nic.bind_tx(&source)?;
        let listener = nic.listen(local)?;
        listener.set_timeout(Some(SILENCE));
        let sender = nic.connect(local)?;
        let (receiver, _) = listener.accept()?;
        sender.set_timeout(Some(SILENCE));
        receiver.set_timeout(Some(SILENCE));
        Ok(Self {
            sender,
            receiver,
            batch: RxBatch::with_capacity(BATCH_FRAGS),
            tx,
            _rx: rx,
            _setup: setup,
            source,
            target,
            at: 0,
        })
    }

    /// Sends all of the source once and checks the received bytes; returns their number.
    fn verify(&mut self) -> Result<u64> {
        let mut verifier = Verifier::new(Expected::Position(PositionPattern::new(SEED)));
        let target = self.target.clone();
        let mut block = Vec::new();
        self.send_and_receive(self.source.size(), &mut |frag| {
            match frag {
                Frag::Linear(bytes) => verifier.check(bytes),
                Frag::Device { range, .. } => {
                    block.resize(range.len(), 0);
                    target.copy_out(range.start, &mut block)?;
                    verifier.check(&block);
                }
            }
            Ok(())
        })?;
        match verifier.first_bad() {
            Some(position) => bail!("byte {position} is wrong"),
            None => Ok(verifier.good_bytes()),
        }
    }

    /// Moves `total` bytes through TCP.
    fn transfer(&mut self, total: usize) -> Result<()> {
        self.send_and_receive(total, &mut |_| Ok(()))
    }

    fn send_and_receive(
        &mut self,
        total: usize,
        look: &mut dyn FnMut(Frag<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut left = total;
        while left > 0 {
            let len = CHUNK.min(left).min(self.source.size() - self.at);
            let range = self.at..self.at + len;
            let sent = self.sender.send(&self.tx, std::slice::from_ref(&range))?;
            self.at = (self.at + sent.bytes()) % self.source.size();
            left -= sent.bytes();
            let mut missing = sent.bytes();
            while missing > 0 {
                let len = self.receiver.recv(&mut self.batch)?;
                if len == 0 {
                    bail!("the stream ended");
                }
                for frag in &self.batch {
                    look(frag)?;
                }
                self.batch.release()?;
                missing = missing
                    .checked_sub(len)
                    .context("received more bytes than were sent")?;
            }
        }
        Ok(())
    }

    /// Copies `total` bytes from memory to memory.
    fn copy(&self, total: usize) -> Result<()> {
        let pieces = self.source.size() / PIECE;
        let mut left = total;
        for piece in (0..pieces).cycle() {
            if left == 0 {
                break;
            }
            let len = PIECE.min(left);
            let at = piece * PIECE;
            self.target.copy_from(&self.source, at, at, len)?;
            left -= len;
        }
        Ok(())
    }
}

impl LoopbackReport {
    /// Returns the rates as a chart.
    fn chart(&self) -> Chart {
        let bar = |name, series, rate: fn(&Sample) -> f64| {
            let rates = Spread::of(self.samples.iter().map(rate))?;
            Some(Bar::new(name, rates, series))
        };
        Chart {
            title: "device memory to device memory of one host".to_owned(),
            unit: "10^9 bytes per CPU second",
            bars: [
                bar("plain copy", Series::Other, |sample| {
                    sample.copy_gb_per_cpu_s
                }),
                bar("TCP loopback", Series::Ours, |sample| {
                    sample.loopback_gb_per_cpu_s
                }),
            ]
            .into_iter()
            .flatten()
            .collect(),
        }
    }
}

impl fmt::Display for LoopbackReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            memory,
            page_kind,
            niov_bytes,
            verified_bytes,
            samples,
            ratio,
        } = self;
        let verified = Size(*verified_bytes);
        let niov = Size(*niov_bytes as u64);
        writeln!(
            f,
            "{verified} verified; {memory} memory, {page_kind}, net_iovs of {niov}; 10^9 bytes per second of CPU time\n"
        )?;
        writeln!(f, "{:>10} {:>10} {:>7}", "loopback", "copy", "ratio")?;
        for Sample {
            loopback_gb_per_cpu_s,
            copy_gb_per_cpu_s,
            ratio,
        } in samples
        {
            writeln!(
                f,
                "{loopback_gb_per_cpu_s:>10.1} {copy_gb_per_cpu_s:>10.1} {ratio:>7.2}"
            )?;
        }
        match ratio {
            Some(ratio) => writeln!(f, "{:>21} {ratio:>7.2}", "median"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_transfers_over_the_loopback_are_complete() {
        let mut bench = Bench::new(MemoryKind::Anonymous, 8 * CHUNK, NiovSize::MIN).unwrap();
        assert_eq!(bench.verify().unwrap(), 8 * CHUNK as u64);
        bench.transfer(3 * CHUNK + 1).unwrap();
        bench.copy(9 * CHUNK).unwrap();
        assert_eq!(bench.at, 3 * CHUNK + 1);
    }
}
