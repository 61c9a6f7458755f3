//! Rows for queues that are leased to a pod: a network namespace that has a netkit, and no NIC. The tool is the agent that makes the
//! leases, and restores what a killed one has left.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use devmem_linux::dmabuf::DmabufFd;
use devmem_linux::ethtool::{DataSplit, Ethtool, InstalledRule, NTUPLE};
use devmem_linux::helper::Helper;
use devmem_linux::netdev::{BoundRx, KernelRxQueueId, Netdev, QueueUser};
use devmem_linux::netif;
use devmem_linux::netns::{self, NetNs};
use devmem_linux::nic_setup::{Configured, Flow, QueueChoice, SetupRequest};
use lab::job::{PEER_NETNS, TOOL_PATH};
use serde::Deserialize;

use super::devmem::bound::{Bound, DmabufKind, bind, memory, unless_unsupported};
use super::devmem::receiving::{Habit, Stream, receive};
use super::nic::NIC;
use super::row::{Context, Seen, Skip, program};
use super::traffic::{self, Family, Way, pair};
use crate::places::PROGRAM_PATH;

/// The interface of each pod.
const POD_INTERFACE: &str = "dm0";
const FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";
/// Longest wait for an agent to end.
const LIMIT: Duration = Duration::from_secs(30);
/// Exit status of the tool for what this kernel cannot do.
const UNSUPPORTED: i32 = 3;

/// The way from the peer to a pod, through this namespace. Dropping it removes the route.
struct Reach {
    /// An address that only the peer's route leads to, and the port that the agent steers.
    local: SocketAddr,
    /// What this machine's forwarding is set back to, if it was switched on for this pod.
    forwarding: Option<String>,
}

impl Reach {
    fn new(number: u8) -> anyhow::Result<Self> {
        let now = fs::read_to_string(FORWARD)?;
        let reach = Self {
            local: local(number),
            forwarding: Some(now).filter(|now| now.trim() != "1"),
        };
        fs::write(FORWARD, "1")?;
        let ours = traffic::address(1, Family::V4).to_string();
        route(&["add", &reach.local.ip().to_string(), "via", &ours])?;
        Ok(reach)
    }

    /// Returns the settings for the agent of the pod in this namespace.
    fn settings(&self, netns: &str) -> String {
        let (address, port) = (self.local.ip(), self.local.port());
        format!("netns={netns},addr={address},port={port},name={POD_INTERFACE}")
    }
}

impl Drop for Reach {
    fn drop(&mut self) {
        let _ = route(&["del", &self.local.ip().to_string()]);
        if let Some(before) = &self.forwarding {
            let _ = fs::write(FORWARD, before);
        }
    }
}

/// A pod: a network namespace. Dropping it removes it.
struct Pod {
    name: &'static str,
    namespace: NetNs,
    reach: Reach,
}

impl Pod {
    fn new(number: u8) -> anyhow::Result<Self> {
        let name = ["pod0", "pod1"][usize::from(number)];
        program(&["ip", "netns", "add", name])?;
        Ok(Self {
            name,
            namespace: NetNs::open(name)?,
            reach: Reach::new(number)?,
        })
    }

    /// Returns its settings for the agent.
    fn settings(&self) -> String {
        self.reach.settings(self.name)
    }

    /// Binds memory to queues of its interface.
    fn bind(&self, queues: &[u32], memory: &DmabufFd) -> anyhow::Result<BoundRx> {
        let queues: Vec<_> = queues.iter().copied().map(KernelRxQueueId).collect();
        self.namespace.run(|| {
            let bound = Netdev::by_name(POD_INTERFACE)?.bind_rx(memory.as_fd(), &queues);
            bound.map_err(unless_unsupported)
        })?
    }

    /// Receives a stream of the peer into memory that is bound to the pod's leased queue, as a program in the pod does.
    fn receive(&self, context: &Context, bytes: u64) -> anyhow::Result<u64> {
        let memory = memory(DmabufKind::Udmabuf)?;
        let local = self.reach.local;
        let queues = self.namespace.run(|| queues_of(local))??;
        ensure!(queues == [1], "the pod's queues are {queues:?}");
        let bound = Bound {
            rx: self.bind(&queues, &memory)?,
            memory,
        };
        let listener = self.namespace.run(|| TcpListener::bind(local))??;
        let (sender, receiver) = pair(context.network()?, Way::In, &listener)?;
        let wanted = Stream::checked(bytes, Habit::Good);
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
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = program(&["ip", "netns", "del", self.name]);
    }
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
fn route(words: &[&str]) -> anyhow::Result<String> {
    let inside = ["ip", "netns", "exec", PEER_NETNS, "ip", "route"];
    program(&[&inside, words].concat())
}

/// The agent: `devmem-tcp lease`. Dropping it ends it, so that a row that fails leaves nothing behind.
struct Agent(Helper);

/// What it prints when the leases are made.
#[derive(Debug, Deserialize)]
struct Made {
    pods: Vec<MadePod>,
}

#[derive(Debug, Deserialize)]
struct MadePod {
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
    fn start(pods: &[String]) -> anyhow::Result<(Self, Vec<u32>)> {
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
        let mut made = serde_json::Deserializer::from_reader(stdout).into_iter::<Made>();
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
    fn end(mut self) -> anyhow::Result<()> {
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
struct Settings {
    split: Option<DataSplit>,
    thresh: Option<u32>,
    table: Vec<u32>,
    rules: Vec<InstalledRule>,
    ntuple: bool,
    users: Vec<(KernelRxQueueId, Option<QueueUser>)>,
    netkits: Vec<(u32, String)>,
}

impl Settings {
    fn read() -> anyhow::Result<Self> {
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

    fn check_restored(&self) -> anyhow::Result<()> {
        let now = Self::read()?;
        ensure!(now == *self, "before {self:?}, now {now:?}");
        Ok(())
    }
}

/// A lease is made, bound in the pod, received into, unbound, bound again, and taken back.
pub fn bound_in_a_pod(context: &Context) -> anyhow::Result<Seen> {
    let before = Settings::read()?;
    let pod = Pod::new(0)?;
    let (agent, queues) = Agent::start(&[pod.settings()])?;
    let frags = pod.receive(context, context.few())?;
    // The program of the pod has ended; the lease has not.
    pod.receive(context, context.few()).context("bound again")?;
    let leases = Netdev::by_name(NIC)?.leases()?;
    let [(leased, end)] = leases[..] else {
        bail!("the leases are {leases:?}");
    };
    ensure!(
        [leased.0] == queues[..] && end.netns.is_some(),
        "{leases:?}"
    );
    let here = bind(&memory(DmabufKind::Udmabuf)?, &queues);
    let here = here.err().context("the leased queue was bound here")?;
    ensure!(here.to_string().contains("a lease to"), "{here:#}");
    agent.0.terminate();
    agent.end()?;
    before.check_restored()?;
    Ok(
        format!("queue {leased} leased to {end}: {frags} frags, all bytes correct; here: {here:#}")
            .into(),
    )
}

/// A process that has no rights but those over its own user and network namespace binds memory to its leased queue and receives. When it
/// has ended, so has its namespace, and the agent with it.
pub fn in_a_user_namespace(context: &Context) -> anyhow::Result<Seen> {
    let before = Settings::read()?;
    let reach = Reach::new(0)?;
    let bytes = context.few();
    let mut command = Command::new(PROGRAM_PATH);
    command
        .args(["__pod", "--local", &reach.local.to_string()])
        .args(["--bytes", &bytes.to_string()])
        .stdout(Stdio::piped());
    netns::start_in_new_user(&mut command);
    let mut pod = match Helper::start(&mut command) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Err(Skip(format!("no user namespaces here: {error}")).into());
        }
        started => started?,
    };
    let mut said = BufReader::new(pod.take_stdout().context("it was piped")?).lines();
    let mut next = || said.next().context("it has ended")?.context("read");
    ensure!(next()? == READY);
    let (agent, _) = Agent::start(&[reach.settings(&format!("pid:{}", pod.id()))])?;
    match next()?.as_str() {
        LISTENING => {}
        // Before Linux 7.2.
        refused if refused.contains("CAP_NET_ADMIN") => return Err(Skip(refused.to_owned()).into()),
        refused => bail!("{refused}"),
    }
    let sender = context.network()?.connect(Way::In, reach.local)?;
    traffic::send(sender, bytes)?;
    let frags = next()?;
    ensure!(pod.wait()?.success(), "the pod: {frags}");
    agent.end()?;
    before.check_restored()?;
    Ok(format!("{frags}, all bytes correct").into())
}

/// What the process of a pod says.
const READY: &str = "ready";
const LISTENING: &str = "listening";

/// Runs the process of a pod: waits for its interface, binds its queue, and receives a stream.
///
/// # Errors
///
/// The kernel refused, or a byte is wrong.
pub fn be_the_pod(local: SocketAddr, bytes: u64) -> anyhow::Result<()> {
    let mut stdout = io::stdout();
    writeln!(stdout, "{READY}")?;
    let started = Instant::now();
    let queues = loop {
        match queues_of(local) {
            Ok(queues) => break queues,
            Err(error) if started.elapsed() > LIMIT => return Err(error),
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    };
    let queues: Vec<_> = queues.into_iter().map(KernelRxQueueId).collect();
    let memory = memory(DmabufKind::Udmabuf)?;
    let rx = match Netdev::by_name(POD_INTERFACE)?.bind_rx(memory.as_fd(), &queues) {
        Ok(rx) => rx,
        Err(refused) => {
            writeln!(stdout, "{refused}")?;
            return Err(refused.into());
        }
    };
    let bound = Bound { rx, memory };
    let listener = TcpListener::bind(local)?;
    writeln!(stdout, "{LISTENING}")?;
    let (stream, _) = listener.accept()?;
    traffic::limit(&stream)?;
    let report = receive(&stream, &bound, Stream::checked(bytes, Habit::Good))?;
    writeln!(stdout, "{} frags", report.frags)?;
    Ok(())
}

/// Two pods receive at once, each into memory bound to a queue of its own; neither can bind another.
pub fn two_pods(context: &Context) -> anyhow::Result<Seen> {
    let before = Settings::read()?;
    let pods = [Pod::new(0)?, Pod::new(1)?];
    let [first, second] = &pods;
    let (agent, queues) = Agent::start(&[first.settings(), second.settings()])?;
    ensure!(queues[0] != queues[1], "both have queue {}", queues[0]);
    let frags = thread::scope(|scope| {
        let running =
            [first, second].map(|pod| scope.spawn(move || pod.receive(context, context.few())));
        running
            .into_iter()
            .map(traffic::join)
            .collect::<anyhow::Result<Vec<_>>>()
    })?;
    // The number that the NIC has for the other's queue, and the next one of its own.
    let memory = memory(DmabufKind::Udmabuf)?;
    for other in [queues[1].max(2), 2] {
        let refused = first.bind(&[other], &memory);
        refused.err().context("a pod bound a queue of another")?;
    }
    agent.0.terminate();
    agent.end()?;
    before.check_restored()?;
    Ok(format!("queues {queues:?}, {frags:?} frags, all bytes correct").into())
}

/// The agent is killed: the pod still receives, and `restore` takes everything back.
pub fn agent_killed(context: &Context) -> anyhow::Result<Seen> {
    let before = Settings::read()?;
    let pod = Pod::new(0)?;
    let (mut agent, _) = Agent::start(&[pod.settings()])?;
    agent.0.kill();
    agent.0.wait()?;
    pod.receive(context, context.few())
        .context("without the agent")?;
    ensure!(before != Settings::read()?, "nothing was left");
    program(&[TOOL_PATH, "restore", NIC])?;
    before.check_restored()?;
    Ok("received without the agent, restored".to_owned().into())
}

/// The pod's namespace ends: the agent notices, and restores the NIC.
pub fn pod_removed(context: &Context) -> anyhow::Result<Seen> {
    let before = Settings::read()?;
    let pod = Pod::new(0)?;
    let (agent, _) = Agent::start(&[pod.settings()])?;
    pod.receive(context, context.few())?;
    drop(pod);
    agent.end()?;
    before.check_restored()?;
    Ok("the agent ended with the pod, restored".to_owned().into())
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
