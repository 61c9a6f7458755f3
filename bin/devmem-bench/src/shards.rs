//! `bench shards`: a NIC with several shards next to one with one shard, over in-memory wires, without a kernel in the way, or over
//! packet sockets.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use devmem_linux::netif::Interface;
use devmem_linux::{cpu, netns};
use devmem_tcp::{BoundTx, Dmabuf, Listener, Netdev, RxBatch, Stream};
use serde::Serialize;

use crate::chart::{Bar, Chart, Series};
use crate::form::FormArgs;
use crate::meter::SILENCE;
use crate::network::{FAR_VETH, VETH};
use crate::repetitions::Repetitions;
use crate::spread::Spread;
use tool::output::Failure;
use tool::size::Size;

/// Bytes of one send.
const CHUNK: usize = 1 << 20;
/// Frags of one receive call.
const BATCH_FRAGS: usize = 1024;

/// Receive on several shards of a NIC, compared with one shard
///
/// Each stream has a sending and a receiving thread on one processor, and each is on a different processor. The same streams
/// are measured on NICs with one shard, whose threads share one lock, and on NICs with a shard per stream. The ratio by CPU
/// time is what the streams would reach on processors without other work: their number, times the CPU time of one stream per
/// byte, divided by theirs.
#[derive(Debug, Args)]
pub struct ShardsArgs {
    /// Shards, and streams; as many processors are needed
    #[arg(long, value_name = "N", default_value_t = 2)]
    shards: u16,
    /// Link between the two NICs, which are in this process
    #[arg(long, value_enum, default_value_t = Link::Memory)]
    link: Link,
    /// Repetitions
    #[arg(long, value_name = "N", default_value_t = 7)]
    reps: usize,
    /// Bytes per stream and measurement
    #[arg(long, value_name = "SIZE", default_value = "2G")]
    bytes: Size,
    /// Size of the device memory of each stream
    #[arg(long, value_name = "SIZE", default_value = "32M")]
    mem_size: Size,
    #[command(flatten)]
    form: FormArgs,
}

/// A link between two NICs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Link {
    /// Wires in memory: no kernel in the way
    Memory,
    /// A veth pair in a network namespace, with packet sockets at both ends
    Veth,
}

impl Link {
    /// Returns the two ends, as the library takes them.
    fn ends(self) -> [String; 2] {
        match self {
            Self::Memory => ["mem:bench-shards", "mem:bench-shards"].map(str::to_owned),
            Self::Veth => [FAR_VETH, VETH].map(|end| format!("packet:{end}")),
        }
    }

    fn prepare(self) -> Result<()> {
        if self == Self::Memory {
            return Ok(());
        }
        netns::enter_new()?;
        // The pair ends with the namespace.
        let (near, far) = Interface::create_veth_pair(VETH, FAR_VETH)?;
        for mut end in [near, far] {
            end.quiet_ipv6();
            end.set_up()?;
        }
        Ok(())
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "in-memory wires",
            Self::Veth => "packet sockets on a veth pair",
        })
    }
}

/// The result. The field names are the JSON's and stay as they are.
#[derive(Debug, Serialize)]
struct ShardsReport {
    shards: u16,
    link: Link,
    bytes_per_stream: u64,
    /// Load averages of the machine over one minute, before and after.
    load: [f64; 2],
    samples: Vec<Sample>,
}

/// One repetition.
#[derive(Clone, Copy, Debug, Serialize)]
struct Sample {
    /// One stream on one shard.
    alone: Measured,
    /// All streams on one shard.
    one_shard: Measured,
    /// Each stream on a shard.
    shards: Measured,
}

/// One measurement.
#[derive(Clone, Copy, Debug, Serialize)]
struct Measured {
    streams: u16,
    gbit_per_s: f64,
    cpu_s_per_gb: f64,
}

/// Streams and shards of a measurement.
#[derive(Clone, Copy, Debug)]
struct Case {
    streams: u16,
    shards: u16,
}

/// Runs the benchmark and prints its report.
///
/// # Errors
///
/// An invalid option; too few processors; too little memory.
pub fn run(args: &ShardsArgs) -> Result<(), Failure> {
    let bytes = usize::try_from(args.bytes.0).unwrap_or(usize::MAX);
    let memory = usize::try_from(args.mem_size.0).unwrap_or(usize::MAX);
    if bytes == 0 || args.shards < 2 {
        return Err(Failure::usage("--bytes: 1 at least; --shards: 2 at least"));
    }
    if !memory.is_multiple_of(CHUNK) || memory < 8 * CHUNK {
        return Err(Failure::usage("--mem-size: a multiple of 1M, 8M at least"));
    }
    let cpus = cpu::allowed_cpus();
    if cpus.len() < usize::from(args.shards) {
        let (has, wants) = (cpus.len(), args.shards);
        return Err(Failure::usage(format_args!(
            "--shards {wants}: this process may use {has} processors only"
        )));
    }
    let repetitions = Repetitions::new("repetition", "--reps", args.reps as u64)?;
    args.link.prepare()?;
    let bench = Bench {
        link: args.link,
        bytes,
        memory,
        cpus,
    };
    let before = load()?;
    let mut samples = Vec::new();
    let measure = |_, (): &()| {
        let case = |streams, shards| {
            repetitions.check()?;
            bench.measure(Case { streams, shards })
        };
        Ok(Sample {
            alone: case(1, 1)?,
            one_shard: case(args.shards, 1)?,
            shards: case(args.shards, args.shards)?,
        })
    };
    let progress = repetitions.run(&[()], measure, |_, sample| samples.push(sample))?;
    let report = ShardsReport {
        shards: args.shards,
        link: args.link,
        bytes_per_stream: args.bytes.0,
        load: [before, load()?],
        samples,
    };
    args.form.print(progress, &report, &report.chart())
}

/// Returns the load average of the machine over one minute.
fn load() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").context("/proc/loadavg")?;
    let first = text.split_whitespace().next().unwrap_or_default();
    first
        .parse()
        .with_context(|| format!("/proc/loadavg: {text}"))
}

/// What all measurements have in common.
struct Bench {
    link: Link,
    bytes: usize,
    memory: usize,
    cpus: Vec<usize>,
}

/// A stream between two NICs.
struct Lane {
    sender: Stream,
    receiver: Stream,
    tx: BoundTx,
    cpu: usize,
}

impl Bench {
    fn measure(&self, case: Case) -> Result<Measured> {
        let Case { streams, shards } = case;
        let open = |end: &str, address| {
            let builder = Netdev::builder(end)?.address(address)?;
            builder.shards(shards).open()
        };
        let [from, to] = self.link.ends();
        let (from, to) = (open(&from, "10.77.0.1/24")?, open(&to, "10.77.0.2/24")?);
        let local = SocketAddr::new(to.addresses()[0], crate::sender::PORT);
        let target = Dmabuf::anonymous(self.memory * usize::from(streams))?;
        let setup = to.plan_receive(local).apply()?;
        let rx = to.bind_rx(&target, setup.queues())?;
        let listener = to.listen(local)?;
        listener.set_timeout(Some(SILENCE));
        let lanes: Result<Vec<_>> = self
            .cpus
            .iter()
            .take(streams.into())
            .map(|cpu| self.connect(&from, &listener, *cpu))
            .collect();
        let lanes = lanes?;
        let measured = self.transfer(lanes);
        drop(rx);
        measured
    }

    /// Connects on the next shard.
    fn connect(&self, from: &Netdev, listener: &Listener, cpu: usize) -> Result<Lane> {
        let source = Dmabuf::anonymous(self.memory)?;
        source.fill(0..self.memory, 1)?;
        let tx = from.bind_tx(&source)?;
        let sender = from.connect(listener.local_addr()?)?;
        let (receiver, _) = listener.accept()?;
        sender.set_timeout(Some(SILENCE));
        receiver.set_timeout(Some(SILENCE));
        Ok(Lane {
            sender,
            receiver,
            tx,
            cpu,
        })
    }

    /// Sends the bytes on all streams at the same time.
    fn transfer(&self, lanes: Vec<Lane>) -> Result<Measured> {
        let streams = lanes.len();
        // This thread, and two of each stream.
        let (ready, done) = (Barrier::new(2 * streams + 1), Barrier::new(2 * streams + 1));
        let (elapsed, used) = std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for lane in lanes {
                let Lane {
                    mut sender,
                    mut receiver,
                    tx,
                    cpu,
                } = lane;
                let (ready, done) = (&ready, &done);
                threads.push(scope.spawn(move || {
                    let pinned = cpu::pin_current_thread(cpu);
                    ready.wait();
                    let sent = send(&mut sender, &tx, self.bytes);
                    done.wait();
                    pinned?;
                    sent
                }));
                threads.push(scope.spawn(move || {
                    let pinned = cpu::pin_current_thread(cpu);
                    ready.wait();
                    let received = receive(&mut receiver, self.bytes);
                    done.wait();
                    pinned?;
                    received
                }));
            }
            ready.wait();
            let (started, before) = (Instant::now(), cpu::process_cpu_time());
            done.wait();
            let elapsed = started.elapsed();
            let used = cpu::process_cpu_time().saturating_sub(before);
            for thread in threads {
                match thread.join() {
                    Ok(result) => result?,
                    Err(_) => bail!("a thread of the benchmark panicked"),
                }
            }
            Ok((elapsed, used))
        })?;
        let bytes = (self.bytes * streams) as f64;
        let seconds = elapsed.max(Duration::from_nanos(1)).as_secs_f64();
        Ok(Measured {
            // As many as shards at most, which are a u16.
            streams: streams as u16,
            gbit_per_s: bytes * 8.0 / 1e9 / seconds,
            cpu_s_per_gb: used.as_secs_f64() / (bytes / 1e9),
        })
    }
}

fn send(stream: &mut Stream, tx: &BoundTx, bytes: usize) -> Result<()> {
    let size = tx.memory().size();
    let mut sent = 0;
    while sent < bytes {
        let at = sent % size;
        let len = CHUNK.min(bytes - sent).min(size - at);
        let range = at..at + len;
        sent += stream.send(tx, std::slice::from_ref(&range))?.bytes();
    }
    Ok(())
}

fn receive(stream: &mut Stream, bytes: usize) -> Result<()> {
    let mut batch = RxBatch::with_capacity(BATCH_FRAGS);
    let mut received = 0;
    while received < bytes {
        match stream.recv(&mut batch)? {
            0 => bail!("the stream ended after {received} bytes"),
            more => received += more,
        }
    }
    batch.release()?;
    Ok(())
}

type Pick = fn(&Sample) -> Measured;

impl ShardsReport {
    /// Returns the cases, with the names of their rows.
    fn rows(&self) -> [(String, Pick); 3] {
        let streams = self.shards;
        [
            ("1 stream, 1 shard".to_owned(), |sample| sample.alone),
            (format!("{streams} streams, 1 shard"), |sample| {
                sample.one_shard
            }),
            (format!("{streams} streams, {streams} shards"), |sample| {
                sample.shards
            }),
        ]
    }

    fn spread(&self, value: impl Fn(&Sample) -> f64) -> Option<Spread> {
        Spread::of(self.samples.iter().map(value))
    }

    /// Returns the rates as a chart.
    fn chart(&self) -> Chart {
        let bar = |(name, pick): (String, Pick)| {
            let rates = self.spread(|sample| pick(sample).gbit_per_s)?;
            Some(Bar::new(name, rates, Series::Ours))
        };
        Chart {
            title: format!("shards over {}", self.link),
            unit: "Gbit/s",
            bars: self.rows().into_iter().filter_map(bar).collect(),
        }
    }
}

impl fmt::Display for ShardsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = Size(self.bytes_per_stream);
        let ([before, after], link) = (self.load, self.link);
        writeln!(
            f,
            "{bytes} per stream over {link}; load of the machine {before} before, {after} after; median [min to max]\n"
        )?;
        for (name, pick) in self.rows() {
            let text = |value: &dyn Fn(&Sample) -> f64| {
                self.spread(value)
                    .map_or_else(String::new, |Spread { median, min, max }| {
                        format!("{median:>7.2} [{min:.2} to {max:.2}]")
                    })
            };
            let rate = text(&|sample| pick(sample).gbit_per_s);
            let cost = text(&|sample| pick(sample).cpu_s_per_gb);
            let ratio = text(&|it| pick(it).gbit_per_s / it.alone.gbit_per_s);
            let by_cpu = text(&|it| {
                let streams = f64::from(pick(it).streams);
                streams * it.alone.cpu_s_per_gb / pick(it).cpu_s_per_gb
            });
            writeln!(
                f,
                "{name:<22} {rate} Gbit/s, {cost} CPU s/GB; {ratio} x the rate of one stream, {by_cpu} x by CPU time"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use devmem_linux::test_util::in_netns;

    use super::*;

    fn moves_all_bytes(link: Link) {
        let bench = Bench {
            link,
            bytes: 3 * CHUNK + 1,
            memory: 8 * CHUNK,
            cpus: vec![cpu::allowed_cpus()[0]; 2],
        };
        for shards in [1, 2] {
            let measured = bench.measure(Case { streams: 2, shards }).unwrap();
            assert!(measured.gbit_per_s > 0.0 && measured.cpu_s_per_gb > 0.0);
        }
    }

    #[test]
    fn a_measurement_moves_all_bytes_of_all_streams() {
        moves_all_bytes(Link::Memory);
    }

    #[test]
    fn a_measurement_over_packet_sockets_moves_all_bytes_of_all_streams() {
        in_netns(
            "shards::tests::a_measurement_over_packet_sockets_moves_all_bytes_of_all_streams",
            || {
                Link::Veth.prepare().unwrap();
                moves_all_bytes(Link::Veth);
            },
        );
    }
}
