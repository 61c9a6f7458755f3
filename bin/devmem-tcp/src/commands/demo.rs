//! `devmem-tcp demo`: sender, link and receiver on one machine.

mod load;
mod tx;

use std::net::SocketAddr;
use std::process::Stdio;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Context;
use devmem_linux::helper::Helper;
use devmem_linux::netif::{GSO_MAX_SIZE, Interface};
use devmem_linux::{cpu, netns, probe};
use devmem_tcp::{Netdev, tcp::TcpOptions};

use crate::args::{DemoLink, Direction};
use crate::plan::DemoPlan;
use crate::receiver::{Receiver, with_mtu};
use crate::report::{RunReport, Sending, verdict};
use pattern::Expected;
use tool::capture::{self, Capture};
use tool::display::Display;
use tool::output::{Failure, note, print_json};
use tool::peer;
use tool::receive::{Next, Task, Totals};
use tool::sender::{Share, pattern_of, send, shares};
use tool::signals::StopFlag;
use tool::terminal::tell_table;
use tool::transmit::SendStats;

/// The TAP interface, in a separate network namespace.
const TAP: &str = "tap:dm0";
/// Our end of a veth pair there, and the name of the kernel's end.
const PACKET: &str = "packet:dm1";
const VETH: (&str, &str) = ("dm0", "dm1");
/// The in-memory wire.
const WIRE: &str = "wire";
/// MTU of the veth pair unless another is requested: Ethernet's.
const DEFAULT_MTU: u16 = 1500;
/// Port of the receiver.
const PORT: u16 = 5201;
/// Longest time from the last byte that is sent to the last acknowledgement.
const LONGEST_END: Duration = Duration::from_secs(60);

/// Runs the demo. Must be called while the process has one thread: see [`netns::enter_new`].
///
/// # Errors
///
/// A failed step; wrong or missing bytes; net_iovs that were not returned.
pub fn run(plan: &DemoPlan) -> Result<(), Failure> {
    if let Some(server) = plan.load {
        return load::run(plan, server);
    }
    let link = choose_link(plan)?;
    let stop = StopFlag::install().context("install signal handlers")?;
    let cpus = match cpu::allowed_cpus().as_slice() {
        [ours, peers, ..] => Some((*ours, *peers)),
        _ => None,
    };
    if let Some((ours, _)) = cpus {
        cpu::pin_current_thread(ours).context("pin our end")?;
    }
    let peers_cpu = cpus.map(|(_, peers)| peers);
    let one = |direction| one_way(plan, direction, link, peers_cpu, &stop);
    if plan.direction != Direction::Both {
        let report = one(plan.direction)?;
        if plan.form.json {
            print_json(&report)?;
        }
        return judge(plan, &report);
    }
    let rx = one(Direction::Rx)?;
    let rx_judged = judge(plan, &rx);
    // The JSON is printed even if one direction failed.
    let tx = rx_judged.and_then(|()| one(Direction::Tx));
    if plan.form.json {
        let tx = tx.as_ref().ok();
        print_json(&serde_json::json!({ "direction": "both", "rx": rx, "tx": tx }))?;
    }
    judge(plan, &tx?)
}

/// Runs in one direction and prints the table.
fn one_way(
    plan: &DemoPlan,
    direction: Direction,
    link: &'static str,
    peers_cpu: Option<usize>,
    stop: &StopFlag,
) -> Result<RunReport, Failure> {
    let report = if direction == Direction::Tx && link != WIRE {
        tx::run(plan, link, stop, peers_cpu)?
    } else {
        into_our_memory(plan, direction, link, peers_cpu, stop)?
    };
    tell_table(&report);
    Ok(report)
}

/// Receives into device memory, from the sender of this direction.
fn into_our_memory(
    plan: &DemoPlan,
    direction: Direction,
    link: &'static str,
    senders_cpu: Option<usize>,
    stop: &StopFlag,
) -> Result<RunReport, Failure> {
    // A wire can be used only once, by two NICs.
    let spec = if link == WIRE {
        format!("mem:demo-{direction:?}")
    } else {
        link.to_owned()
    };
    let builder = Netdev::builder(&spec)?.address(&plan.ours.to_string())?;
    let mut builder = builder.tcp(plan.tcp.clone());
    if link == TAP {
        builder = builder.peer_address(&plan.peers.to_string())?;
    }
    let local = SocketAddr::new(plan.ours.address, PORT);
    let capture = Capture::open(plan.capture.as_deref(), link)?;
    if let Some(capture) = &capture {
        capture.set_net_iovs(plan.nic.niov.bytes());
        builder = builder.capture(Box::new(capture.clone()));
    }
    let mut receiver = Receiver::open(builder, &plan.nic, local, stop)?;
    let mut sender = match direction {
        Direction::Loopback => SenderHandle::start_thread(
            plan,
            receiver.nic(),
            SendMemory::Device,
            local,
            senders_cpu,
        )?,
        _ if link != WIRE => SenderHandle::Process(start_process(plan, local, senders_cpu)?),
        _ => {
            let memory = if direction == Direction::Tx {
                SendMemory::Device
            } else {
                SendMemory::Host
            };
            let nic = wire_end(plan, &spec)?;
            SenderHandle::start_thread(plan, nic, memory, local, senders_cpu)?
        }
    };
    let totals = receive(&mut receiver, plan, &mut sender, stop, capture.as_ref())?;
    let sent = match totals.is_interrupted {
        true => None,
        false => sender.finish()?,
    };
    let mut report = RunReport::of("user", link.to_owned(), &plan.nic, plan.ours.address);
    report.direction = direction;
    report.sending = sent.as_ref().map(Sending::of);
    report.set_received(&totals);
    receiver.finish(&mut report);
    capture::finish(capture, Ok(()))?;
    Ok(report)
}

fn judge(plan: &DemoPlan, report: &RunReport) -> Result<(), Failure> {
    verdict(report.complaint(), report.interrupted)?;
    match report.verified_bytes == Some(plan.bytes) {
        true => Ok(()),
        false => Err(Failure::failed(format!(
            "{} bytes were requested and {} received",
            plan.bytes,
            report.verified_bytes.unwrap_or(report.bytes)
        ))),
    }
}

/// Chooses the link, and enters a new network namespace if the link needs one.
fn choose_link(plan: &DemoPlan) -> Result<&'static str, Failure> {
    if plan.link == DemoLink::Wire {
        return Ok(WIRE);
    }
    if plan.link == DemoLink::Packet {
        netns::enter_new()?;
        make_veth_pair(plan)?;
        return Ok(PACKET);
    }
    match probe::tap_in_namespace() {
        probe::Verdict::Works => {
            netns::enter_new()?;
            Ok(TAP)
        }
        missing if plan.link == DemoLink::Tap || plan.load.is_some() => {
            Err(Failure::unsupported(missing))
        }
        missing => {
            note(format_args!("{missing}"));
            note("using an in-memory wire between two of our stacks instead");
            Ok(WIRE)
        }
    }
}

/// Makes a veth pair in this network namespace. The kernel has the peer's address at its end, and no address at ours: all
/// packets to our address pass the pair.
fn make_veth_pair(plan: &DemoPlan) -> Result<(), Failure> {
    let mtu = u32::from(plan.nic.mtu.unwrap_or(DEFAULT_MTU));
    let is_big = Interface::kernel_has_big_tcp()?;
    let (mut kernels, mut ours) = Interface::create_veth_pair(VETH.0, VETH.1)?;
    for end in [&mut kernels, &mut ours] {
        end.set_mtu(mtu)?;
        if is_big {
            end.set_gso_max_size(GSO_MAX_SIZE)?;
        }
        end.quiet_ipv6();
        end.set_up()?;
    }
    kernels.add_address(plan.peers.address, plan.peers.len)?;
    Ok(())
}

fn receive(
    receiver: &mut Receiver,
    plan: &DemoPlan,
    sender: &mut SenderHandle,
    stop: &StopFlag,
    capture: Option<&Capture>,
) -> Result<Totals, Failure> {
    let title = format!("demo  into device memory, {}", receiver.local_addr());
    let title = plan.watch.then_some(title);
    let mut display = Display::start(title, Some(plan.bytes), &receiver.nic(), stop)?;
    let clock = match sender {
        SenderHandle::Process(_) => cpu::process_cpu_time,
        // The process also contains the threads of the sender's stack.
        SenderHandle::Thread { .. } => cpu::thread_cpu_time,
    };
    let totals = receiver.run(Task {
        connections: plan.connections,
        keep_listening: false,
        expected: &|peer| Some(Expected::Position(pattern_of(peer.port()))),
        output: None,
        keep_tokens: 0,
        clock,
        watch: &mut |view| {
            display.receiving(view);
            let waits_for_sender = view.counts.accepted < u64::from(plan.connections);
            if waits_for_sender {
                sender.check()?;
            }
            Ok(if stop.is_set() {
                Next::Stop
            } else {
                Next::Continue
            })
        },
        lent: &|batch| capture::lent(capture, batch),
        ended: &mut |_| {},
    });
    display.finish();
    totals
}

/// A running sender.
#[derive(Debug)]
enum SenderHandle {
    /// A kernel socket in a separate process.
    Process(Helper),
    /// One of our stacks, in this process.
    Thread {
        handle: Option<JoinHandle<SenderResult>>,
        /// Statistics of sending from device memory, after the end.
        sent: Option<SendStats>,
    },
}

/// Statistics of sending from device memory; `None` if host memory was sent.
type SenderResult = Result<Option<SendStats>, Failure>;

/// The memory that one of our stacks sends from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendMemory {
    Host,
    Device,
}

impl SenderHandle {
    fn start_thread(
        plan: &DemoPlan,
        nic: Netdev,
        memory: SendMemory,
        to: SocketAddr,
        cpu: Option<usize>,
    ) -> Result<Self, Failure> {
        let plan = plan.clone();
        let work = move || match memory {
            SendMemory::Host => {
                let shares = shares(plan.bytes, plan.connections, plan.write_size);
                send_all(&nic, to, &shares.collect::<Vec<_>>(), cpu)?;
                end(nic).map(|()| None)
            }
            SendMemory::Device => tx::send_all(&nic, &plan, to, cpu, &|_, _, _| true).map(Some),
        };
        let handle = thread::Builder::new().name("sender".into()).spawn(work);
        Ok(Self::Thread {
            handle: Some(handle.context("start the sender's thread")?),
            sent: None,
        })
    }

    /// Fails if the sender has failed, because then the expected connections will not come.
    fn check(&mut self) -> Result<(), Failure> {
        match self {
            Self::Process(child) => match child.ended().context("wait for the sender")? {
                Some(status) if !status.success() => Err(peer::failure("sender", child)),
                _ => Ok(()),
            },
            Self::Thread { handle, sent } => {
                if let Some(handle) = handle.take_if(|handle| handle.is_finished()) {
                    *sent = handle.join().expect("the sender does not panic")?;
                }
                Ok(())
            }
        }
    }

    /// Waits for the end of the sender.
    fn finish(mut self) -> SenderResult {
        match &mut self {
            Self::Process(child) => {
                let status = child.wait().context("wait for the sender")?;
                if status.success() {
                    Ok(None)
                } else {
                    Err(peer::failure("sender", child))
                }
            }
            Self::Thread { handle, sent } => match handle.take() {
                Some(handle) => handle.join().expect("the sender does not panic"),
                None => Ok(*sent),
            },
        }
    }
}

/// The sending end of the in-memory wire.
fn wire_end(plan: &DemoPlan, spec: &str) -> Result<Netdev, Failure> {
    let builder = Netdev::builder(spec)?.address(&plan.peers.to_string())?;
    // The receiving end impairs both directions.
    let builder = with_mtu(builder, plan.nic.mtu).tcp(sender_tcp(plan));
    Ok(builder.open()?)
}

/// TCP options of our stack as a sender: its connections share the host memory of one NIC.
fn sender_tcp(plan: &DemoPlan) -> TcpOptions {
    /// Half of the default host memory of a NIC; the rest is for headers and for receiving.
    const SEND_BYTES: usize = 8 << 20;
    /// Room for two super-packets: one in flight, and the next.
    const LEAST_BYTES: usize = 128 << 10;
    let mut tcp = plan.tcp.clone();
    let share = (SEND_BYTES / usize::from(plan.connections)).max(LEAST_BYTES);
    tcp.send_buffer = tcp.send_buffer.min(share);
    tcp
}

fn start_process(plan: &DemoPlan, to: SocketAddr, cpu: Option<usize>) -> Result<Helper, Failure> {
    let mut command = Helper::this_program();
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
    Ok(peer::start_apart(&mut command).context("start the sender")?)
}

/// Sends over one of our stacks, one thread per connection.
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

/// Closes a NIC after all that was sent has arrived. A NIC that is dropped waits for that for half a second only, which a lossy
/// wire can exceed; the receiver would wait for the rest for ever.
fn end(nic: Netdev) -> Result<(), Failure> {
    match nic.close(LONGEST_END) {
        true => Ok(()),
        false => Err(Failure::failed(format!(
            "the receiver did not acknowledge the last bytes for {LONGEST_END:?}"
        ))),
    }
}

fn send_one(nic: &Netdev, to: SocketAddr, share: Share, cpu: Option<usize>) -> Result<(), Failure> {
    if let Some(cpu) = cpu {
        cpu::pin_current_thread(cpu).context("pin the sender")?;
    }
    let mut stream = nic.connect(to)?;
    let local = stream.local_addr();
    let pattern = pattern_of(local?.port());
    send(&mut stream, pattern, share).with_context(|| format!("send to {to}"))?;
    stream.shutdown_write()?;
    Ok(())
}
