//! The other end: a process that returns messages, or takes or opens short connections.

use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use devmem_linux::cpu;
use devmem_tcp::Netdev;
use serde::{Deserialize, Serialize};

use super::line::{Host, receive, send};
use super::rows::{SHORT, Wait};
use super::work::{connect_repeatedly, take_connections};
use crate::processes::EndArgs;
use crate::sender::{PORT, PREFIX, RECEIVER, SENDER};

/// What the other end does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Task {
    /// Returns each message
    Echo,
    /// Takes short connections
    Accept,
    /// Opens short connections
    Connect,
}

/// Arguments of the process.
#[derive(Debug, Args)]
pub struct FarArgs {
    #[arg(long)]
    task: Task,
    #[arg(long)]
    wait: Wait,
    // Without a socket, the kernel's TCP; otherwise a wire that shares memory.
    #[command(flatten)]
    end: EndArgs,
}

/// What the process reports at its end.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct FarReport {
    /// CPU time of the process, without its start.
    pub cpu_seconds: f64,
}

/// Runs the process: prints a line when it is ready, works, and prints its report.
///
/// # Errors
///
/// The link or a connection failed.
pub fn run(args: &FarArgs) -> Result<()> {
    cpu::pin_current_thread(args.end.cpu).context("pin the other end")?;
    let (host, local) = match &args.end.socket {
        Some(socket) => {
            let nic = Netdev::builder(format!("unix-listen:{}", socket.display()))?
                .address(&format!("{SENDER}/{PREFIX}"))?;
            (Host::Ours(nic.open()?), SENDER)
        }
        None => (Host::Kernel, Ipv4Addr::UNSPECIFIED),
    };
    let listening = match args.task {
        Task::Connect => None,
        Task::Echo | Task::Accept => Some(host.listen(SocketAddr::from((local, PORT)))?),
    };
    tool::output::print_line("ready")?;
    let clock = cpu::process_cpu_time();
    match (args.task, &listening) {
        (Task::Echo, Some(listening)) => {
            let mut line = listening.accept(args.wait)?;
            let mut bytes = vec![0; args.end.bytes];
            while receive(line.as_mut(), &mut bytes)? {
                send(line.as_mut(), &bytes)?;
            }
            line.finish().context("end the stream")?;
        }
        (Task::Accept, Some(listening)) => _ = take_connections(listening, &mut [0; SHORT])?,
        _ => {
            // The link is there only when the other process has set it up.
            io::stdin().read(&mut [0]).context("wait for the start")?;
            let time = Duration::from_secs_f64(args.end.seconds);
            connect_repeatedly(&host, SocketAddr::from((RECEIVER, PORT)), time)?;
        }
    }
    let report = FarReport {
        cpu_seconds: cpu::process_cpu_time().saturating_sub(clock).as_secs_f64(),
    };
    tool::output::print_line(serde_json::to_string(&report)?)
}
