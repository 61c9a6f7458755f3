//! `devmem-tcp demo`: the whole thing on one machine.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};

use anyhow::Context;
use devmem_linux::{cpu, netns, probe};
use devmem_tcp::Netdev;

use crate::args::DemoLink;
use crate::output::{Failure, note, print_json};
use crate::pattern::Expected;
use crate::plan::DemoPlan;
use crate::progress::Progress;
use crate::receiver::Receiver;
use crate::report::RunReport;
use crate::sender::{Share, pattern_of, send, shares};
use crate::signals::StopFlag;
use crate::transfer::{Go, Task, Totals};

/// The TAP interface, in a network of its own.
const TAP: &str = "tap:dm0";
/// The in-memory wire.
const WIRE: &str = "mem:demo";
/// Where the receiver listens.
const PORT: u16 = 5201;

/// Shows it. Must be called while the process has one thread: see [`netns::enter_new`].
///
/// # Errors
///
/// Whatever kept it from that; wrong or missing bytes; memory that did not come home.
pub fn run(plan: &DemoPlan) -> Result<(), Failure> {
    let link = choose_link(plan)?;
    let stop = StopFlag::install().context("install signal handlers")?;
    let cpus = match cpu::allowed_cpus().as_slice() {
        [receiver, sender, ..] => Some((*receiver, *sender)),
        _ => None,
    };
    if let Some((receiver, _)) = cpus {
        cpu::pin_current_thread(receiver).context("pin the receiver")?;
    }
    let mut builder = Netdev::builder(link)?.address(&plan.ours.to_string())?;
    if link == TAP {
        builder = builder.peer_address(&plan.peers.to_string())?;
    }
    let local = SocketAddr::new(plan.ours.address, PORT);
    let mut receiver = Receiver::open(builder, &plan.nic, local)?;
    let mut sender = Sender::start(plan, link, local, cpus.map(|(_, sender)| sender))?;
    let totals = receive(&mut receiver, plan, &mut sender, &stop)?;
    if !stop.is_set() {
        sender.finish()?;
    }

    let link = if link == WIRE {
        "wire".to_owned()
    } else {
        link.to_owned()
    };
    let mut report = RunReport::of("user", link, &plan.nic, plan.ours.address);
    totals.fill(&mut report);
    receiver.finish(&mut report);
    eprint!("{report}");
    if plan.json {
        print_json(&report)?;
    }
    match report.complaint() {
        Some(complaint) => Err(Failure::failed(complaint)),
        None if stop.is_set() => Err(Failure::failed("interrupted")),
        None if report.bytes != plan.bytes => Err(Failure::failed(format!(
            "{} bytes were sent and {} received",
            plan.bytes, report.bytes
        ))),
        None => Ok(()),
    }
}

/// Decides what to run over, and enters a network of our own if that needs one.
fn choose_link(plan: &DemoPlan) -> Result<&'static str, Failure> {
    if plan.link == DemoLink::Wire {
        return Ok(WIRE);
    }
    match probe::tap_in_namespace() {
        probe::Verdict::Works => {
            netns::enter_new()?;
            Ok(TAP)
        }
        missing if plan.link == DemoLink::Tap => Err(Failure::unsupported(missing)),
        missing => {
            note(format_args!("{missing}"));
            note("running over an in-memory wire between two stacks of ours instead");
            Ok(WIRE)
        }
    }
}

fn receive(
    receiver: &mut Receiver,
    plan: &DemoPlan,
    sender: &mut Sender,
    stop: &StopFlag,
) -> Result<Totals, Failure> {
    let mut progress = Progress::new(Some(plan.bytes));
    let clock = match sender {
        Sender::Process(_) => cpu::process_cpu_time,
        // The sender's stack has threads in this process, too.
        Sender::Thread(_) => cpu::thread_cpu_time,
    };
    let totals = receiver.run(Task {
        connections: plan.connections,
        keep_listening: false,
        expected: &|peer| Some(Expected::Position(pattern_of(peer.port()))),
        output: None,
        keep_tokens: 0,
        clock,
        watch: &mut |sofar| {
            progress.at(sofar.bytes, sofar.elapsed);
            let waits_for_sender = sofar.accepted < u64::from(plan.connections);
            if waits_for_sender {
                sender.check()?;
            }
            Ok(if stop.is_set() { Go::Stop } else { Go::On })
        },
    });
    progress.finish();
    totals
}

/// Who sends.
#[derive(Debug)]
enum Sender {
    /// A kernel socket in a process of its own.
    Process(Child),
    /// A stack of ours in this process.
    Thread(Option<JoinHandle<Result<(), Failure>>>),
}

impl Sender {
    fn start(
        plan: &DemoPlan,
        link: &str,
        to: SocketAddr,
        cpu: Option<usize>,
    ) -> Result<Self, Failure> {
        if link == TAP {
            return start_process(plan, to, cpu).map(Self::Process);
        }
        let nic = Netdev::builder(link)?
            .address(&plan.peers.to_string())?
            // Impairment is the receiving end's business, for both directions.
            .mtu(plan.nic.mtu)
            .tcp(sender_tcp(plan.connections))
            .open()?;
        let shares: Vec<_> = shares(plan.bytes, plan.connections, plan.write_size).collect();
        let thread = thread::Builder::new()
            .name("sender".into())
            .spawn(move || send_all(&nic, to, &shares, cpu))
            .context("start the sender's thread")?;
        Ok(Self::Thread(Some(thread)))
    }

    /// Fails if the sender has failed: connections that are waited for will not come.
    fn check(&mut self) -> Result<(), Failure> {
        match self {
            Self::Process(child) => match child.try_wait().context("wait for the sender")? {
                Some(status) if !status.success() => Err(process_failure(child)),
                _ => Ok(()),
            },
            Self::Thread(thread) => match thread.take_if(|thread| thread.is_finished()) {
                Some(thread) => thread.join().expect("the sender does not panic"),
                None => Ok(()),
            },
        }
    }

    /// Waits for the sender's end.
    fn finish(mut self) -> Result<(), Failure> {
        match &mut self {
            Self::Process(child) => {
                let status = child.wait().context("wait for the sender")?;
                if status.success() {
                    Ok(())
                } else {
                    Err(process_failure(child))
                }
            }
            Self::Thread(thread) => match thread.take() {
                Some(thread) => thread.join().expect("the sender does not panic"),
                None => Ok(()),
            },
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if let Self::Process(child) = self {
            // It has ended already, unless the receiver failed or was interrupted.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// TCP for a sending stack of ours: its connections share the host memory of one NIC.
fn sender_tcp(connections: u16) -> tcp::Config {
    /// Half of what a NIC has unless told otherwise; the rest is for headers and for receiving.
    const SEND_BYTES: usize = 8 << 20;
    /// Room for a super-packet, and for the next one while that is under way.
    const LEAST_BYTES: usize = 128 << 10;
    let config = tcp::Config::default();
    let share = (SEND_BYTES / usize::from(connections)).max(LEAST_BYTES);
    tcp::Config {
        snd_buf_max: config.snd_buf_max.min(share),
        ..config
    }
}

fn start_process(plan: &DemoPlan, to: SocketAddr, cpu: Option<usize>) -> Result<Child, Failure> {
    // Not current_exe(): the file may have been replaced by a newer build meanwhile.
    let mut command = Command::new("/proc/self/exe");
    command.arg("__sender");
    command.args(["--to", &to.to_string()]);
    command.args(["--bytes", &plan.bytes.to_string()]);
    command.args(["--connections", &plan.connections.to_string()]);
    command.args(["--write-size", &plan.write_size.to_string()]);
    command.args(["--congestion", &plan.congestion]);
    if let Some(cpu) = cpu {
        command.args(["--cpu", &cpu.to_string()]);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    Ok(command.spawn().context("start the sender")?)
}

/// Returns what a failed sender said last.
fn process_failure(child: &mut Child) -> Failure {
    let mut said = String::new();
    if let Some(stderr) = &mut child.stderr {
        // What cannot be read is not there to be shown.
        let _ = stderr.take(64 << 10).read_to_string(&mut said);
    }
    let said = said.trim().trim_start_matches("devmem-tcp: ");
    Failure::failed(format!("the sender failed: {said}"))
}

/// Sends over a stack of ours, one thread per connection.
fn send_all(
    nic: &Netdev,
    to: SocketAddr,
    shares: &[Share],
    cpu: Option<usize>,
) -> Result<(), Failure> {
    thread::scope(|scope| {
        let threads: Vec<_> = shares
            .iter()
            .map(|share| scope.spawn(move || send_one(nic, to, *share, cpu)))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("a sender does not panic"))
    })
}

fn send_one(nic: &Netdev, to: SocketAddr, share: Share, cpu: Option<usize>) -> Result<(), Failure> {
    if let Some(cpu) = cpu {
        cpu::pin_current_thread(cpu).context("pin the sender")?;
    }
    let mut stream = nic.connect(to)?;
    let local = stream.local_addr().ok_or(io::ErrorKind::NotConnected);
    let pattern = pattern_of(local.map_err(io::Error::from)?.port());
    send(&mut stream, pattern, share).with_context(|| format!("send to {to}"))?;
    stream.shutdown_write()?;
    Ok(())
}
