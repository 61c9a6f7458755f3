//! Rows for programs without privileges: a broker binds for them, and to send from device memory they need none.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Lines};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};
use devmem_linux::broker::{self, BrokerError};
use devmem_linux::helper::Helper;
use devmem_linux::netdev::{BoundRx, KernelRxQueueId};
use devmem_uapi::Errno;
use lab::job::TOOL_PATH;
use pattern::PositionPattern;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::devmem::bound::{Bound, DmabufKind, Steering, memory, require_rx};
use super::devmem::receiving::{Behaviour, Stream, rx_into};
use super::devmem::sending::{require_tx, send_to};
use super::nic::NIC;
use super::pods::{Agent, LIMIT, LISTENING, POD_INTERFACE, Pod, READY, Settings, bind_here};
use super::row::{Context, PassedRow};
use super::traffic::{self, Direction, Family, pair};
use crate::places::PROGRAM_PATH;

/// The socket of the broker.
const SOCKET: &str = "/run/devmem-broker";
/// The user that has a grant, and one that has none; both are ordinary.
const USER: u32 = 1000;
const STRANGER: u32 = 1001;
/// A queue of the NIC that is not leased.
const NIC_QUEUE: u32 = 2;
const UDMABUF: &str = "/dev/udmabuf";

/// /dev/udmabuf for everybody, as a pod gets it. Dropping it restores the mode.
struct OpenDevice(u32);

impl OpenDevice {
    fn new() -> anyhow::Result<Self> {
        let mode = fs::metadata(UDMABUF)?.permissions().mode();
        fs::set_permissions(UDMABUF, Permissions::from_mode(0o666))?;
        Ok(Self(mode))
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        let _ = fs::set_permissions(UDMABUF, Permissions::from_mode(self.0));
    }
}

/// Runs `work` on a thread as an ordinary user without capabilities (capabilities(7), "Effect of user ID changes on capabilities").
fn as_user<T: Send>(
    user: u32,
    work: impl FnOnce() -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    std::thread::scope(|scope| {
        let running = scope.spawn(move || {
            let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
            set_thread_groups(&[])?;
            set_thread_res_gid(gid, gid, gid)?;
            set_thread_res_uid(uid, uid, uid)?;
            work()
        });
        traffic::join(running)
    })
}

/// A broker: `devmem-tcp broker`. Dropping it kills it.
struct Broker(Helper);

impl Broker {
    /// Starts the broker of a pod, which grants [`USER`] its leased queue.
    fn start(pod: &Pod) -> anyhow::Result<Self> {
        let grant = format!("uid={USER}:{POD_INTERFACE}:1");
        Self::start_with(&["--netns", pod.name, "--allow", &grant])
    }

    /// Starts a broker and waits until it listens.
    fn start_with(options: &[&str]) -> anyhow::Result<Self> {
        let mut command = Command::new(TOOL_PATH);
        command.args(["broker", SOCKET]).args(options);
        command.stderr(Stdio::piped());
        let mut broker = Helper::start(&mut command)?;
        let said = broker.take_stderr().context("it was piped")?;
        let mut said = BufReader::new(said).lines();
        match said.next().transpose()? {
            Some(line) if line.contains("serving") => {}
            other => bail!("the broker said {other:?}"),
        }
        // What it says later is not read, and it must not wait for that.
        std::thread::spawn(move || said.count());
        Ok(Self(broker))
    }

    fn kill(mut self) -> anyhow::Result<()> {
        self.0.kill();
        self.0.wait()?;
        Ok(())
    }
}

/// A process of the pod that receives as an ordinary user.
struct Program {
    process: Helper,
    said: Lines<BufReader<ChildStdout>>,
}

impl Program {
    /// Starts it, and waits until its queue is bound and it listens. To be called, as all that follows, on a thread in the pod.
    fn start(pod: &Pod, bytes: u64) -> anyhow::Result<Self> {
        let mut command = Command::new(PROGRAM_PATH);
        command
            .args(["__pod", "--local", &pod.route.local.to_string()])
            .args(["--bytes", &bytes.to_string(), "--broker", SOCKET])
            .uid(USER)
            .gid(USER)
            .stdout(Stdio::piped());
        let mut process = Helper::start(&mut command)?;
        let said = process.take_stdout().context("it was piped")?;
        let mut program = Self {
            process,
            said: BufReader::new(said).lines(),
        };
        for expected in [READY, LISTENING] {
            let said = program.next()?;
            ensure!(said == expected, "{said}");
        }
        Ok(program)
    }

    fn next(&mut self) -> anyhow::Result<String> {
        Ok(self.said.next().context("the program has ended")??)
    }

    /// Sends it its stream, and returns what it says.
    fn finish(mut self, context: &Context, pod: &Pod, bytes: u64) -> anyhow::Result<String> {
        let sender = context.network()?.connect(Direction::In, pod.route.local)?;
        traffic::send(sender, bytes)?;
        let frags = self.next()?;
        ensure!(self.process.wait()?.success(), "the program: {frags}");
        ensure!(
            frags != "0 frags",
            "nothing was received into device memory"
        );
        Ok(frags)
    }
}

/// Asks the broker for queues of the pod's interface, as a user, on a thread in the pod.
fn ask(user: u32, queues: &[u32]) -> anyhow::Result<Result<BoundRx, BrokerError>> {
    as_user(user, || {
        let memory = memory(DmabufKind::Udmabuf)?;
        let queues: Vec<_> = queues.iter().copied().map(KernelRxQueueId).collect();
        let path = Path::new(SOCKET);
        Ok(broker::bind_rx(
            path,
            POD_INTERFACE,
            memory.as_fd(),
            &queues,
            None,
        ))
    })
}

/// Asks as the user with the grant until the queue is free, which it is as soon as the kernel has seen the end of a binding.
fn bound_again() -> anyhow::Result<BoundRx> {
    let started = Instant::now();
    loop {
        match ask(USER, &[1])? {
            Err(refused) if started.elapsed() < LIMIT && refused.errno() == Errno::EEXIST => {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            asked => return asked.context("the queue is not free again"),
        }
    }
}

/// A pod with an agent, and what the machine was like before.
struct Prepared {
    before: Settings,
    pod: Pod,
    agent: Agent,
    _device: OpenDevice,
}

impl Prepared {
    fn new() -> anyhow::Result<Self> {
        let before = Settings::read()?;
        let pod = Pod::new(0)?;
        let (agent, _) = Agent::start(&[pod.settings()])?;
        Ok(Self {
            before,
            agent,
            pod,
            _device: OpenDevice::new()?,
        })
    }

    /// Ends the agent and checks that everything is as before.
    fn end(self) -> anyhow::Result<()> {
        let Self { before, agent, .. } = self;
        agent.0.terminate();
        agent.end()?;
        before.check_restored()
    }
}

/// A program without capabilities finds its queue, has the broker bind it, and receives; its end ends the binding.
pub fn right_user(context: &Context) -> anyhow::Result<PassedRow> {
    let prepared = Prepared::new()?;
    let pod = &prepared.pod;
    let _broker = Broker::start(pod)?;
    let bytes = context.few();
    let frags = pod.namespace.run(|| {
        let frags = Program::start(pod, bytes)?.finish(context, pod, bytes)?;
        drop(bound_again()?);
        anyhow::Ok(frags)
    })??;
    prepared.end()?;
    Ok(format!("uid {USER} received {frags}, all bytes correct").into())
}

/// The tool receives as an ordinary user: what it writes is the stream, and none of it came by host memory.
pub fn tool(context: &Context) -> anyhow::Result<PassedRow> {
    let prepared = Prepared::new()?;
    let pod = &prepared.pod;
    let _broker = Broker::start(pod)?;
    let bytes = context.few();
    pod.receive_by_tool(context, bytes, &["--broker", SOCKET], Some(USER))?;
    prepared.end()?;
    Ok(format!("recv --broker as uid {USER}: {bytes} bytes, all correct").into())
}

/// A user without a grant, a queue without one, and a process of another network namespace are refused; the kernel refuses the user itself.
pub fn wrong_user_and_wrong_queue(_context: &Context) -> anyhow::Result<PassedRow> {
    let prepared = Prepared::new()?;
    let pod = &prepared.pod;
    let _broker = Broker::start(pod)?;
    let refused = |asked: Result<BoundRx, BrokerError>| {
        let refused = asked.err().context("it was bound")?;
        ensure!(refused.errno() == Errno::EPERM, "{refused}");
        anyhow::Ok(refused.to_string())
    };
    let said = pod.namespace.run(|| {
        let said = [ask(STRANGER, &[1])?, ask(USER, &[2])?, ask(USER, &[1, 0])?]
            .map(refused)
            .into_iter()
            .collect::<anyhow::Result<Vec<_>>>()?;
        let alone = as_user(USER, || {
            let memory = memory(DmabufKind::Udmabuf)?;
            Ok(bind_here(&[1], &memory).err())
        })?;
        let alone = alone.context("the kernel let an ordinary user bind")?;
        ensure!(alone.to_string().contains("CAP_NET_ADMIN"), "{alone:#}");
        // The queue is free: none of them has bound it.
        drop(ask(USER, &[1])?.context("the right one")?);
        anyhow::Ok(said)
    })??;
    let elsewhere = refused(ask(USER, &[1])?)?;
    ensure!(elsewhere.contains("network namespace"), "{elsewhere}");
    prepared.end()?;
    Ok(said.join("; ").into())
}

/// The program is killed: its queue is free for another.
pub fn client_killed(context: &Context) -> anyhow::Result<PassedRow> {
    let prepared = Prepared::new()?;
    let pod = &prepared.pod;
    let _broker = Broker::start(pod)?;
    let bytes = context.few();
    let frags = pod.namespace.run(|| {
        let mut program = Program::start(pod, bytes)?;
        let taken = ask(USER, &[1])?.err().context("a bound queue was bound")?;
        ensure!(taken.errno() == Errno::EEXIST, "{taken}");
        program.process.kill();
        program.process.wait()?;
        drop(bound_again()?);
        Program::start(pod, bytes)?.finish(context, pod, bytes)
    })??;
    prepared.end()?;
    Ok(format!("the next program received {frags}").into())
}

/// The broker is killed: a binding that it has made goes on, and the next broker takes its place.
pub fn broker_killed(context: &Context) -> anyhow::Result<PassedRow> {
    let prepared = Prepared::new()?;
    let pod = &prepared.pod;
    let first = Broker::start(pod)?;
    let bytes = context.few();
    let frags = pod.namespace.run(|| {
        let program = Program::start(pod, bytes)?;
        first.kill()?;
        let nobody = ask(USER, &[1])?.err().context("a killed broker answered")?;
        ensure!(matches!(nobody, BrokerError::Connect { .. }), "{nobody}");
        program.finish(context, pod, bytes)
    })??;
    let _second = Broker::start(pod)?;
    pod.namespace.run(|| bound_again().map(drop))??;
    prepared.end()?;
    Ok(format!("received {frags} without the broker, all bytes correct").into())
}

/// Without a pod: a user has the broker bind a queue of the NIC that its administrator has set up, receives, and gets no other queue.
pub fn queue_of_the_nic(context: &Context) -> anyhow::Result<PassedRow> {
    require_rx(NIC_QUEUE)?;
    let _device = OpenDevice::new()?;
    let steering = Steering::new(1)?;
    let grant = format!("uid={USER}:{NIC}:{NIC_QUEUE}");
    let _broker = Broker::start_with(&["--allow", &grant])?;
    let ask = |queue| {
        as_user(USER, move || {
            let memory = memory(DmabufKind::Udmabuf)?;
            let queue = [KernelRxQueueId(queue)];
            let asked = broker::bind_rx(Path::new(SOCKET), NIC, memory.as_fd(), &queue, None);
            Ok(asked.map(|rx| Bound { rx, memory }))
        })
    };
    let refused = ask(NIC_QUEUE + 1)?.err().context("it was bound")?;
    ensure!(refused.errno() == Errno::EPERM, "{refused}");
    let bound = ask(NIC_QUEUE)?.context("the right one")?;
    let wanted = Stream::checked(context.few(), Behaviour::Good);
    let report = rx_into(context.network()?, Family::V4, steering, &bound, wanted)?;
    ensure!(report.frags > 0, "nothing was received into device memory");
    Ok(format!("{} frags, all bytes correct; {refused}", report.frags).into())
}

/// An ordinary user binds memory for sending, and sends from it, without a broker.
pub fn sent_as_an_ordinary_user(context: &Context) -> anyhow::Result<PassedRow> {
    require_tx()?;
    let _device = OpenDevice::new()?;
    let network = context.network()?;
    let bytes = context.few();
    let listener = network.listen(Direction::Out, Family::V4)?;
    let (sender, mut receiver) = pair(network, Direction::Out, &listener)?;
    let copied = std::thread::scope(|scope| {
        let receiving = scope.spawn(move || traffic::check_to_end(&mut receiver, bytes));
        let pattern = PositionPattern::new(0);
        let sent = as_user(USER, || {
            send_to(&sender, bytes, &|position, out| pattern.fill(position, out))
        });
        let _ = sender.shutdown(std::net::Shutdown::Both);
        let received = traffic::join(receiving);
        let copied = sent?;
        received?;
        anyhow::Ok(copied)
    })?;
    ensure!(copied == 0, "the kernel copied {copied} sends");
    Ok(format!("uid {USER} sent {bytes} bytes, all correct").into())
}
