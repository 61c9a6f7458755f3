//! Rows for queues that are leased to a pod: made, bound, received into, and taken back, also after something was killed.

use std::io::{self, BufRead, BufReader};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use devmem_linux::helper::Helper;
use devmem_linux::netdev::{Netdev, PagePool};
use devmem_linux::netns;
use lab::job::TOOL_PATH;

use super::devmem::bound::{DmabufKind, bind, memory};
use super::nic::NIC;
use super::pods::{Agent, LIMIT, LISTENING, POD_INTERFACE, Pod, PodRoute, READY, Settings};
use super::row::{Context, PassedRow, Skip, program};
use super::traffic::{self, Direction};
use crate::places::PROGRAM_PATH;

/// A lease is made, bound in the pod, received into, unbound, bound again, and taken back.
pub fn bound_in_a_pod(context: &Context) -> anyhow::Result<PassedRow> {
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
    for (program, words) in [
        (
            vec![
                "ip",
                "netns",
                "exec",
                pod.name,
                TOOL_PATH,
                "doctor",
                POD_INTERFACE,
            ],
            "RX queue 1 is leased from a NIC of another network namespace".to_owned(),
        ),
        (
            vec![TOOL_PATH, "doctor", NIC],
            format!("queue {leased} is used by a lease to {end}"),
        ),
    ] {
        doctor_says(&program, &words)?;
    }
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

/// The tool receives in a pod with what the agent has set up, and writes to no interface.
pub fn tool(context: &Context) -> anyhow::Result<PassedRow> {
    let before = Settings::read()?;
    let pod = Pod::new(0)?;
    let (agent, _) = Agent::start(&[pod.settings()])?;
    let bytes = context.few();
    pod.receive_by_tool(context, bytes, &["--configured"], None)?;
    agent.0.terminate();
    agent.end()?;
    before.check_restored()?;
    Ok(format!("recv --configured: {bytes} bytes, all correct").into())
}

/// The net_iovs of a pod's binding are in the page pool of the NIC's queue: the kernel lists it in the network namespace of the NIC, with
/// the id that the pod knows, and not in that of the pod.
pub fn counted_at_the_nic(_context: &Context) -> anyhow::Result<PassedRow> {
    let before = Settings::read()?;
    let pod = Pod::new(0)?;
    let (agent, _) = Agent::start(&[pod.settings()])?;
    let memory = memory(DmabufKind::Udmabuf)?;
    let bound = pod.bind(&[1], &memory)?;
    let mut nic = Netdev::by_name(NIC)?;
    let mut of_binding = || -> anyhow::Result<Vec<PagePool>> {
        let mut pools = nic.page_pools()?;
        pools.retain(|pool| pool.dmabuf == Some(bound.id().0));
        Ok(pools)
    };
    let pools = of_binding()?;
    let [pool] = pools[..] else {
        bail!("the page pools of {:?} are {pools:?}", bound.id());
    };
    let in_use = pool.inflight.context("the kernel does not count")?;
    ensure!(in_use > 0, "a queue with no posted memory: {pool:?}");
    let index = Netdev::by_name(NIC)?.index();
    let listed = pod.namespace.run(|| {
        let mut listed = Netdev::by_name(POD_INTERFACE)?.page_pools()?;
        listed.extend(Netdev::with_index(NIC, index)?.page_pools()?);
        anyhow::Ok(listed)
    })??;
    ensure!(listed.is_empty(), "the pod sees {listed:?}");
    drop(bound);
    agent.0.terminate();
    agent.end()?;
    before.check_restored()?;
    Ok(
        format!(
            "{in_use} net_iovs in use, which the NIC's namespace tells, and the pod's does not"
        )
        .into(),
    )
}

/// Checks that the tool's doctor prints `words`, whatever else it finds.
fn doctor_says(command: &[&str], words: &str) -> anyhow::Result<()> {
    let (name, arguments) = command.split_first().context("a command has a name")?;
    let output = Command::new(name).args(arguments).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(said.contains(words), "{}: {said}", command.join(" "));
    Ok(())
}

/// A process that has no rights but those over its own user and network namespace binds memory to its leased queue and receives. When it
/// has ended, so has its namespace, and the agent with it.
pub fn in_a_user_namespace(context: &Context) -> anyhow::Result<PassedRow> {
    let before = Settings::read()?;
    let route = PodRoute::new(0)?;
    let bytes = context.few();
    let mut command = Command::new(PROGRAM_PATH);
    command
        .args(["__pod", "--local", &route.local.to_string()])
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
    let (agent, _) = Agent::start(&[route.settings(&format!("pid:{}", pod.id()))])?;
    match next()?.as_str() {
        LISTENING => {}
        // Before Linux 7.2.
        refused if refused.contains("CAP_NET_ADMIN") => return Err(Skip(refused.to_owned()).into()),
        refused => bail!("{refused}"),
    }
    let sender = context.network()?.connect(Direction::In, route.local)?;
    traffic::send(sender, bytes)?;
    let frags = next()?;
    ensure!(pod.wait()?.success(), "the pod: {frags}");
    agent.end()?;
    before.check_restored()?;
    Ok(format!("{frags}, all bytes correct").into())
}

/// Two pods receive at once, each into memory bound to a queue of its own; neither can bind another.
pub fn two_pods(context: &Context) -> anyhow::Result<PassedRow> {
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

/// The program of a pod is killed in mid-transfer: lease and settings stay as they are, and the next program receives.
pub fn pod_killed(context: &Context) -> anyhow::Result<PassedRow> {
    let before = Settings::read()?;
    let pod = Pod::new(0)?;
    let (agent, _) = Agent::start(&[pod.settings()])?;
    let leased = Settings::read()?;
    pod.kill_in_mid_transfer(context, context.few())?;
    leased.check_restored().context("after the kill")?;
    wait_until_free(&pod)?;
    let frags = pod.receive(context, context.few())?;
    agent.0.terminate();
    agent.end()?;
    before.check_restored()?;
    Ok(format!("the next program received {frags} frags, all bytes correct").into())
}

/// Waits until the pod's queue can be bound again, which it can as soon as the kernel has seen the end of a binding.
fn wait_until_free(pod: &Pod) -> anyhow::Result<()> {
    let memory = memory(DmabufKind::Udmabuf)?;
    let started = Instant::now();
    loop {
        match pod.bind(&[1], &memory) {
            Err(taken) if started.elapsed() < LIMIT && taken.to_string().contains("EEXIST") => {
                thread::sleep(Duration::from_millis(20));
            }
            bound => return bound.map(drop).context("the queue is not free again"),
        }
    }
}

/// The agent is killed: the pod still receives, and `restore` takes everything back.
pub fn agent_killed(context: &Context) -> anyhow::Result<PassedRow> {
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
pub fn pod_removed(context: &Context) -> anyhow::Result<PassedRow> {
    let before = Settings::read()?;
    let pod = Pod::new(0)?;
    let (agent, _) = Agent::start(&[pod.settings()])?;
    pod.receive(context, context.few())?;
    drop(pod);
    agent.end()?;
    before.check_restored()?;
    Ok("the agent ended with the pod, restored".to_owned().into())
}
