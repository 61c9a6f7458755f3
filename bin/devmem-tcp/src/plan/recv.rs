//! A run of `recv`.

use std::io::{self, IsTerminal};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use devmem_tcp::NiovSize;
use tool::memory::MemoryKind;

use super::checks::{check_connections, check_period};
use super::link::users_alone;
use super::nic::parse_niov;
use super::{LinkPlan, NicPlan};
use crate::args;
use tool::output::Failure;
use tool::parse::{OutputArgs, to_usize};
use tool::watch;

/// Values of `--interval`: a shorter one would print more than a person can read.
const INTERVALS: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(86_400);

/// A run of `recv`.
#[derive(Clone, Debug)]
pub struct RecvPlan {
    /// The backend and its link.
    pub link: LinkPlan,
    /// Address and port to listen on.
    pub port: u16,
    /// Number of simultaneous connections.
    pub connections: u16,
    /// Whether to accept more connections afterwards.
    pub keep_listening: bool,
    /// Length of the intervals to print.
    pub interval: Option<Duration>,
    /// The pattern to check.
    pub validate: Option<u16>,
    /// Destination of the payload.
    pub output: Option<Destination>,
    /// Number of frags to keep before returning them.
    pub keep_tokens: usize,
    /// File of the packet capture.
    pub capture: Option<PathBuf>,
    /// Show the transfer live on the terminal.
    pub watch: bool,
    /// Our NIC.
    pub nic: NicPlan,
    /// Options for a NIC of the kernel.
    pub kernel: KernelPlan,
    /// How to print the report.
    pub form: OutputArgs,
}

/// Options for a NIC of the kernel.
#[derive(Clone, Debug)]
pub struct KernelPlan {
    /// RX queues to bind.
    pub queues: u16,
    /// Size of one net_iov; by default a page.
    pub niov: Option<NiovSize>,
    /// Device memory to bind, in bytes.
    pub mem_bytes: usize,
    /// Kind of that memory, if it was given.
    pub memory: Option<MemoryKind>,
    /// Print the planned changes, and exit.
    pub dry_run: bool,
    /// The first queue to bind, on an interface that an agent has set up; by default the agent's.
    pub first_queue: Option<u32>,
    /// A given option that only our NIC supports, if any.
    pub users_alone: Option<&'static str>,
}

impl KernelPlan {
    /// Returns the plan of a NIC that is set up. `users_alone` is a given option that only our NIC supports.
    pub(super) fn new(
        nic: &args::NicArgs,
        users_alone: Option<&'static str>,
    ) -> Result<Self, Failure> {
        let mem_size = nic.mem_size.unwrap_or(super::nic::KERNEL_MEM_SIZE);
        Ok(Self {
            queues: nic.queues,
            niov: parse_niov(nic.niov)?,
            mem_bytes: to_usize("--mem-size", mem_size)?,
            memory: nic.memory,
            dry_run: false,
            first_queue: None,
            users_alone,
        })
    }
}

/// Destination of the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Standard output: `-`.
    Stdout,
    /// A file.
    File(PathBuf),
}

/// Refuses port 0, with which the kernel would choose one, and a port that a shared link leaves to the kernel.
fn check_port(port: u16, link: &LinkPlan) -> Result<(), Failure> {
    match &link.tap.link.shared_ports() {
        _ if port == 0 => Err(Failure::usage("--port 0: the sender must know the port")),
        Some(ours) if !ours.contains(&port) => {
            let (first, last) = (ours.start(), ours.end());
            let text = format!(
                "--port {port} is not one of the ports {first}-{last} that --link leaves to us"
            );
            Err(Failure::usage(text).with_remedy("name one of them, or change ports= of --link"))
        }
        _ => Ok(()),
    }
}

impl RecvPlan {
    /// Validates the command line.
    ///
    /// # Errors
    ///
    /// A usage error that names the option.
    pub fn new(args: args::Recv) -> Result<Self, Failure> {
        let others = [
            ("--linear", args.linear != 0),
            ("--capture", args.capture.is_some()),
        ];
        let users_alone = users_alone(&args.link, args.nic.mtu, &args.nic.impair, &others);
        let args::Recv {
            link,
            dry_run,
            first_queue,
            listen: _,
            port,
            connections,
            keep_listening,
            interval,
            validate,
            output_file,
            keep_tokens,
            linear,
            capture,
            watch,
            nic,
            output,
        } = args;
        let link = LinkPlan::new(&link)?;
        check_port(port, &link)?;
        let connections = check_connections(connections)?;
        check_period(validate)?;
        let several = connections > 1 || keep_listening;
        let destination = destination(output_file, several, output.json)?;
        if watch {
            check_watch(destination.as_ref())?;
        }
        let kernel = KernelPlan {
            dry_run,
            first_queue,
            ..KernelPlan::new(&nic, users_alone)?
        };
        Ok(Self {
            port,
            connections,
            keep_listening,
            interval: interval.map(check_interval).transpose()?,
            validate,
            output: destination,
            keep_tokens,
            capture,
            watch,
            nic: NicPlan::new(&nic, linear, link.tap.ours.address, link.tap.shards)?,
            kernel,
            link,
            form: output,
        })
    }
}

/// Checks that the live view can be shown, and has the terminal for itself.
fn check_watch(destination: Option<&Destination>) -> Result<(), Failure> {
    watch::check()?;
    if destination == Some(&Destination::Stdout) && io::stdout().is_terminal() {
        return Err(Failure::usage(
            "--watch and --output-file - both write to this terminal",
        ));
    }
    Ok(())
}

/// Validates the value of `--interval`.
fn check_interval(seconds: f64) -> Result<Duration, Failure> {
    let interval = Duration::try_from_secs_f64(seconds).ok();
    interval
        .filter(|interval| INTERVALS.contains(interval))
        .ok_or_else(|| Failure::usage(format!("--interval {seconds}: 0.1 to 86400 seconds")))
}

/// Validates the destination of the payload.
fn destination(
    path: Option<PathBuf>,
    several: bool,
    json: bool,
) -> Result<Option<Destination>, Failure> {
    let destination = path.map(|path| match path.to_str() {
        Some("-") => Destination::Stdout,
        _ => Destination::File(path),
    });
    if destination.is_some() && several {
        return Err(Failure::usage(
            "--output-file takes one connection: the bytes of several would mix",
        ));
    }
    if destination == Some(Destination::Stdout) && json {
        return Err(Failure::usage(
            "--output-file - and --json both write to stdout",
        ));
    }
    Ok(destination)
}
