//! What the rows of pods share. A pod is a network namespace that has a netkit, and no NIC. The tool is the agent that leases queues of
//! our NIC to it.

use std::fs;
use std::io::{self, BufRead, BufReader, Lines, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{ChildStderr, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use devmem_linux::broker;
use devmem_linux::dmabuf::DmabufFd;
use devmem_linux::ethtool::{DataSplit, Ethtool, InstalledRule, NTUPLE};
use devmem_linux::helper::Helper;
use devmem_linux::netdev::{BoundRx, KernelRxQueueId, Netdev, QueueUser};
use devmem_linux::netif;
use devmem_linux::netns::NetNs;
use devmem_linux::nic_setup::{Configured, Flow, QueueChoice, SetupRequest};
use lab::job::{PEER_NETNS, TOOL_PATH};
use serde::Deserialize;

use super::devmem::bound::{Bound, DmabufKind, memory, unless_unsupported};
use super::devmem::receiving::{Behaviour, Stream, receive};
use super::nic::NIC;
use super::row::{Context, Skip, program};
use super::traffic::{self, Direction, Family, pair};
use crate::args;

/// The interface of each pod.
pub const POD_INTERFACE: &str = "dm0";
const FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";
/// Longest wait for an agent, or for a process of a pod.
pub const LIMIT: Duration = Duration::from_secs(30);
/// Exit status of the tool for what this kernel cannot do.
const UNSUPPORTED: i32 = 3;

/// The route from the peer to a pod, through this namespace. Dropping it removes it.
pub struct PodRoute {
    /// An address that only the peer's route leads to, and the port that the agent steers.
    pub local: SocketAddr,
    /// What this machine's forwarding is set back to, if it was switched on for this pod.
    forwarding: Option<String>,
}

impl PodRoute {
    pub fn new(number: u8) -> anyhow::Result<Self> {
        let now = fs::read_to_string(FORWARD)?;
        let route = Self {
            local: local(number),
            forwarding: Some(now).filter(|now| now.trim() != "1"),
        };
        fs::write(FORWARD, "1")?;
        let ours = traffic::address(1, Family::V4).to_string();
        ip_route(&["add", &route.local.ip().to_string(), "via", &ours])?;
        Ok(route)
    }

    /// Returns the settings for the agent of the pod in this namespace.
    pub fn settings(&self, netns: &str) -> String {
        let (address, port) = (self.local.ip(), self.local.port());
        format!("netns={netns},addr={address},port={port},name={POD_INTERFACE}")
    }
}

impl Drop for PodRoute {
    fn drop(&mut self) {
        let _ = ip_route(&["del", &self.local.ip().to_string()]);
        if let Some(before) = &self.forwarding {
            let _ = fs::write(FORWARD, before);
        }
    }
}

/// A pod: a network namespace. Dropping it removes it.
pub struct Pod {
    pub name: &'static str,
    pub namespace: NetNs,
    pub route: PodRoute,
}

impl Pod {
    pub fn new(number: u8) -> anyhow::Result<Self> {
        let name = ["pod0", "pod1"][usize::from(number)];
        program(&["ip", "netns", "add", name])?;
        Ok(Self {
            name,
            namespace: NetNs::open(name)?,
            route: PodRoute::new(number)?,
        })
    }

    /// Returns its settings for the agent.
    pub fn settings(&self) -> String {
        self.route.settings(self.name)
    }

    /// Binds memory to queues of its interface.
    pub fn bind(&self, queues: &[u32], memory: &DmabufFd) -> anyhow::Result<BoundRx> {
        self.namespace.run(|| bind_here(queues, memory))?
    }

    /// Receives a stream of the peer into memory that is bound to the pod's leased queue, as a program in the pod does.
    pub fn receive(&self, context: &Context, bytes: u64) -> anyhow::Result<u64> {
        let memory = memory(DmabufKind::Udmabuf)?;
        let local = self.route.local;
        let queues = self.namespace.run(|| queues_of(local))??;
        ensure!(queues == [1], "the pod's queues are {queues:?}");
        let bound = Bound {
            rx: self.bind(&queues, &memory)?,
            memory,
        };
        let listener = self.namespace.run(|| TcpListener::bind(local))??;
        let (sender, receiver) = pair(context.network()?, Direction::In, &listener)?;
        let wanted = Stream::checked(bytes, Behaviour::Good);
        let report = thread::scope(|scope| {
            let sending = scope.spawn(move || traffic::send(sender, bytes));
            let report = receive(&receiver, &bound, wanted);
            // The sender waits for the close.
            drop(receiver);
            let sent = traffic::join(sending);
            let report = report?;
            sent?;
            anyhow::Ok(report)
        })?;
        ensure!(report.frags > 0, "nothing was received into device memory");
        ensure!(
            report.linear_bytes == 0,
            "{} bytes in host memory",
            report.linear_bytes
        );
        Ok(report.frags)
    }

    /// Receives a stream of the peer with the tool, as a user if one is named: what it writes is the stream, and none of it came by host
    /// memory.
    pub fn receive_by_tool(
        &self,
        context: &Context,
        bytes: u64,
        options: &[&str],
        user: Option<u32>,
    ) -> anyhow::Result<()> {
        let mut command = self.tool(options);
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        // The tool lives no longer than the thread that has started it.
        self.namespace
            .run(|| self.receive_by(command, context, bytes))?
    }

    /// Returns the tool's command line for receiving in the pod.
    fn tool(&self, options: &[&str]) -> Command {
        let local = self.route.local;
        let mut command = Command::new(TOOL_PATH);
        command
            .args(["recv", "--backend", "kernel", "--if", POD_INTERFACE])
            .args(options)
            .args(["--addr", &local.ip().to_string()])
            .args(["--port", &local.port().to_string()])
            .args(["--mem-size", "16M", "--output-file", "-"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Starts a receiver on this thread, which is in the pod, and sends it a stream.
    fn receive_by(&self, command: Command, context: &Context, bytes: u64) -> anyhow::Result<()> {
        let Receiver {
            mut process,
            mut stdout,
            lines,
            mut said,
        } = Receiver::start(command)?;
        let sender = context
            .network()?
            .connect(Direction::In, self.route.local)?;
        thread::scope(|scope| {
            let sending = scope.spawn(move || traffic::send(sender, bytes));
            let received = traffic::check_to_end(&mut stdout, bytes);
            let sent = traffic::join(sending);
            received?;
            sent
        })?;
        for line in lines {
            said = format!("{said}{}\n", line?);
        }
        ensure!(process.wait()?.success(), "{said}");
        ensure!(said.contains(", 0 bytes in host memory"), "{said}");
        Ok(())
    }

    /// Kills the tool in the middle of a stream: when it has received so many bytes, of many more.
    pub fn kill_in_mid_transfer(&self, context: &Context, bytes: u64) -> anyhow::Result<()> {
        let command = self.tool(&["--configured"]);
        self.namespace.run(|| {
            let mut receiver = Receiver::start(command)?;
            let sender = context
                .network()?
                .connect(Direction::In, self.route.local)?;
            thread::scope(|scope| {
                let sending = scope.spawn(move || traffic::send(sender, 64 * bytes));
                let mut part = Vec::new();
                let read = (&mut receiver.stdout).take(bytes).read_to_end(&mut part);
                receiver.process.kill();
                // Its receiver was closed.
                let _ = sending.join();
                ensure!(read? as u64 == bytes, "it ended after {} bytes", part.len());
                Ok(())
            })?;
            receiver.process.wait()?;
            Ok(())
        })?
    }
}

/// The tool, listening in a pod. Dropping it ends it.
struct Receiver {
    process: Helper,
    stdout: ChildStdout,
    /// What it has said on stderr, and what comes next.
    said: String,
    lines: Lines<BufReader<ChildStderr>>,
}

impl Receiver {
    /// Starts it and waits until it listens.
    fn start(mut command: Command) -> anyhow::Result<Self> {
        let mut process = Helper::start(&mut command)?;
        let stdout = process.take_stdout().context("it was piped")?;
        let stderr = process.take_stderr().context("it was piped")?;
        let mut lines = BufReader::new(stderr).lines();
        let mut said = String::new();
        while !said.contains("listening on") {
            let line = lines.next().with_context(|| said.clone())??;
            said = format!("{said}{line}\n");
        }
        Ok(Self {
            process,
            stdout,
            said,
            lines,
        })
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = program(&["ip", "netns", "del", self.name]);
    }
}

/// Binds memory to queues of the pod's interface, on a thread in the pod.
pub fn bind_here(queues: &[u32], memory: &DmabufFd) -> anyhow::Result<BoundRx> {
    let queues: Vec<_> = queues.iter().copied().map(KernelRxQueueId).collect();
    let bound = Netdev::by_name(POD_INTERFACE)?.bind_rx(memory.as_fd(), &queues);
    bound.map_err(unless_unsupported)
}

/// Finds the queues of the pod's interface that are leased for what arrives at `local`, as a program in the pod does.
fn queues_of(local: SocketAddr) -> anyhow::Result<Vec<u32>> {
    let found = Configured::find(&SetupRequest {
        interface: POD_INTERFACE.to_owned(),
        queues: QueueChoice::Count(1),
        flows: vec![Flow::to(local)],
        leases: Vec::new(),
        state_folder: None,
    })?;
    Ok(found.queues().iter().map(|queue| queue.0).collect())
}

/// Returns the address and the port of a pod.
fn local(number: u8) -> SocketAddr {
    let address = Ipv4Addr::new(10, 99, 0, 9 + number);
    SocketAddr::from((address, 5290 + u16::from(number)))
}

/// Changes a route in the peer's namespace.
fn ip_route(words: &[&str]) -> anyhow::Result<String> {
    let inside = ["ip", "netns", "exec", PEER_NETNS, "ip", "route"];
    program(&[&inside, words].concat())
}

/// The agent: `devmem-tcp lease`. Dropping it ends it, so that a row that fails leaves nothing behind.
pub struct Agent(pub Helper);

/// What it prints when the leases are made.
#[derive(Debug, Deserialize)]
struct LeasesMade {
    pods: Vec<PodLeases>,
}

#[derive(Debug, Deserialize)]
struct PodLeases {
    leases: Vec<Lease>,
}

#[derive(Debug, Deserialize)]
struct Lease {
    queue: u32,
    pod_queue: u32,
}

impl Agent {
    /// Starts it and waits until the leases are made, one for each pod. Returns it, and the queues of our NIC.
    ///
    /// # Errors
    ///
    /// [`Skip`] if the kernel cannot lease queues.
    pub fn start(pods: &[String]) -> anyhow::Result<(Self, Vec<u32>)> {
        let mut command = Command::new(TOOL_PATH);
        command.args(["lease", NIC, "--json"]);
        for pod in pods {
            command.args(["--pod", pod]);
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut agent = Helper::start(&mut command)?;
        let stdout = agent.take_stdout().context("it was piped")?;
        let mut stderr = agent.take_stderr().context("it was piped")?;
        // An object ends where it ends, so that this does not wait for the end of the output.
        let mut made = serde_json::Deserializer::from_reader(stdout).into_iter::<LeasesMade>();
        let Some(made) = made.next() else {
            let ended = agent.wait()?;
            let mut said = String::new();
            stderr.read_to_string(&mut said)?;
            return match ended.code() {
                Some(UNSUPPORTED) => Err(Skip(said.trim().to_owned()).into()),
                _ => bail!("{ended}: {}", said.trim()),
            };
        };
        let made = made.context("read what the agent has made")?;
        let leases: Vec<_> = made.pods.iter().flat_map(|pod| &pod.leases).collect();
        let is_first = |lease: &&Lease| lease.pod_queue == 1;
        ensure!(
            leases.len() == pods.len() && leases.iter().all(is_first),
            "it has made {leases:?}"
        );
        let queues = leases.iter().map(|lease| lease.queue);
        Ok((Self(agent), queues.collect()))
    }

    /// Waits until it has ended, and checks that it was content.
    pub fn end(mut self) -> anyhow::Result<()> {
        let ended = self.0.wait_at_most(LIMIT)?;
        let ended = ended.with_context(|| format!("it has not ended in {LIMIT:?}"))?;
        ensure!(ended.success(), "the agent: {ended}");
        Ok(())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.0.end_within(LIMIT);
    }
}

/// What a lease changes.
#[derive(Debug, PartialEq, Eq)]
pub struct Settings {
    split: Option<DataSplit>,
    thresh: Option<u32>,
    table: Vec<u32>,
    rules: Vec<InstalledRule>,
    ntuple: bool,
    users: Vec<(KernelRxQueueId, Option<QueueUser>)>,
    netkits: Vec<(u32, String)>,
}

impl Settings {
    pub fn read() -> anyhow::Result<Self> {
        let mut ethtool = Ethtool::by_name(NIC)?;
        let rings = ethtool.rings()?;
        Ok(Self {
            split: rings.data_split,
            thresh: rings.hds_thresh,
            table: ethtool.rss()?.table,
            rules: ethtool.rules()?,
            ntuple: ethtool.feature(NTUPLE)?.is_some_and(|found| found.active),
            users: Netdev::by_name(NIC)?.rx_queues()?,
            netkits: netif::netkits()?,
        })
    }

    pub fn check_restored(&self) -> anyhow::Result<()> {
        let now = Self::read()?;
        ensure!(now == *self, "before {self:?}, now {now:?}");
        Ok(())
    }
}

/// What the process of a pod says.
pub const READY: &str = "ready";
pub const LISTENING: &str = "listening";

/// Runs the process of a pod: waits for its interface, binds its queue, by the broker if there is one, and receives a stream.
///
/// # Errors
///
/// The kernel or the broker refused, or a byte is wrong.
pub fn be_the_pod(args: &args::Pod) -> anyhow::Result<()> {
    let args::Pod {
        local,
        bytes,
        broker,
    } = args;
    let mut stdout = io::stdout();
    writeln!(stdout, "{READY}")?;
    let started = Instant::now();
    let queues = loop {
        match queues_of(*local) {
            Ok(queues) => break queues,
            Err(error) if started.elapsed() > LIMIT => return Err(error),
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    };
    let queues: Vec<_> = queues.into_iter().map(KernelRxQueueId).collect();
    let memory = memory(DmabufKind::Udmabuf)?;
    let rx = match broker {
        None => Netdev::by_name(POD_INTERFACE)?
            .bind_rx(memory.as_fd(), &queues)
            .map_err(anyhow::Error::from),
        Some(path) => broker::bind_rx(path, POD_INTERFACE, memory.as_fd(), &queues, None)
            .map_err(anyhow::Error::from),
    };
    let rx = match rx {
        Ok(rx) => rx,
        Err(refused) => {
            writeln!(stdout, "{refused}")?;
            return Err(refused);
        }
    };
    let bound = Bound { rx, memory };
    let listener = TcpListener::bind(local)?;
    writeln!(stdout, "{LISTENING}")?;
    let (stream, _) = listener.accept()?;
    traffic::limit(&stream)?;
    let report = receive(&stream, &bound, Stream::checked(*bytes, Behaviour::Good))?;
    ensure!(
        report.linear_bytes == 0,
        "{} bytes in host memory",
        report.linear_bytes
    );
    writeln!(stdout, "{} frags", report.frags)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn the_pods_are_in_no_network_of_the_nics() {
        let IpAddr::V4(near) = traffic::address(1, Family::V4) else {
            panic!("an IPv4 address")
        };
        for number in [0, 1] {
            let IpAddr::V4(pod) = local(number).ip() else {
                panic!("an IPv4 address")
            };
            assert_ne!(near.octets()[..3], pod.octets()[..3]);
        }
    }
}
