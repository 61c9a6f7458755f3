//! `devmem-tcp send`: sends from device memory, like netcat.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use anyhow::Context;
use devmem_linux::cpu;
use devmem_tcp::{BoundTx, Dmabuf, ErrorKind, Netdev, Stream, choice::Purpose};

use crate::backend::{self, Backend};
use crate::kernel;
use crate::kernels_end;
use crate::plan::{Input, SendPlan};
use crate::receiver::{open_until_signal, with_mtu};
use crate::report::{MemoryAndLink, SendReport, verdict};
use pattern::RepeatingPattern;
use tool::capture::{self, Capture};
use tool::connect::connect_until_signal;
use tool::display::Display;
use tool::memory::{MEM_SIZE, MemoryKind};
use tool::output::{Failure, note};
use tool::sender::pattern_of;
use tool::signals::StopFlag;
use tool::source::{GeneratedPattern, Source};
use tool::transmit::{SendStats, Transmit};

/// Sends by `plan`.
///
/// # Errors
///
/// A failed step, or a peer that did not receive everything.
pub fn run(plan: &SendPlan) -> Result<(), Failure> {
    let file = open_input(&plan.input)?;
    let capture = Capture::open(
        plan.capture.as_deref(),
        &plan.link.tap.link.kind().to_string(),
    )?;
    let stop = StopFlag::install().context("install signal handlers")?;
    let sent = End::open(plan, capture.as_ref(), &stop);
    let sent = sent.and_then(|end| send(plan, file, end, &stop));
    capture::finish(capture, sent)
}

/// Sends over an open NIC and prints the report.
fn send(plan: &SendPlan, file: Option<File>, end: End, stop: &StopFlag) -> Result<(), Failure> {
    let (nic, to) = (&end.nic, plan.to);
    let tx = nic.bind_tx(&end.memory)?;
    let warning = kernels_end::unreachable(&plan.link.tap);
    if let Some(warning) = warning.filter(|_| end.backend == "user") {
        note(warning);
    }
    let connected = connect_until_signal(nic, to, stop);
    let sent = match connected.map_err(|error| not_connected(to, error))? {
        Some(stream) => {
            note(format_args!("sending to {to} over {}", end.link));
            transmit(plan, file, &end, &tx, stream, stop)?
        }
        None => SendStats {
            is_interrupted: true,
            ..SendStats::default()
        },
    };
    let report = SendReport {
        chunk_bytes: plan.chunk as u64,
        memory_and_link: MemoryAndLink::of(nic, &end.memory, to.ip(), plan.impairment),
        ..SendReport::of(end.backend, end.link, to, &sent)
    };
    plan.form.print(&report)?;
    verdict(report.complaint(), report.interrupted)
}

/// Sends the input over a connection.
fn transmit(
    plan: &SendPlan,
    file: Option<File>,
    end: &End,
    tx: &BoundTx,
    mut stream: Stream,
    stop: &StopFlag,
) -> Result<SendStats, Failure> {
    let (mut source, total) = source(&plan.input, file, &stream)?;
    let title = plan
        .watch
        .then(|| format!("send  to {} over {}", plan.to, end.link));
    let mut display = Display::start(title, total, &end.nic, stop)?;
    let (start, clock) = (std::time::Instant::now(), cpu::process_cpu_time());
    let transmit = Transmit::new(&mut stream, tx, 0..end.memory.size(), plan.chunk)?;
    let sent = transmit.run(&mut source, &mut |transmit| {
        display.sending(0, transmit.bytes(), start.elapsed(), transmit);
        !stop.is_set()
    });
    let used = cpu::process_cpu_time().saturating_sub(clock);
    display.finish();
    let mut sent = sent?;
    // Includes the library's thread, which sends while this one waits for input.
    sent.sending = used.saturating_sub(sent.filling);
    Ok(sent)
}

/// Returns the error of a failed connect, with the next command.
fn not_connected(to: SocketAddr, error: devmem_tcp::Error) -> Failure {
    let (host, port) = (to.ip(), to.port());
    if error.kind() == ErrorKind::ConnectionRefused {
        let text = format!("{host} refuses the connection: no program listens on port {port}");
        return Failure::failed(text).with_remedy(format!(
            "start one there, for example `nc -l -p {port} > copy`"
        ));
    }
    anyhow::Error::from(error)
        .context(format!("connect to {to}"))
        .into()
}

/// A NIC, and memory to send from.
struct End {
    /// Name of the backend in the report.
    backend: &'static str,
    link: String,
    nic: Netdev,
    memory: Dmabuf,
}

impl End {
    fn open(plan: &SendPlan, capture: Option<&Capture>, stop: &StopFlag) -> Result<Self, Failure> {
        Ok(
            match backend::choose(&plan.link, plan.users_alone, Purpose::Send)? {
                Backend::User => {
                    let mut tcp = plan.link.tap.tcp.clone();
                    tcp.ecn = plan.ecn;
                    let memory = plan.memory.unwrap_or(MemoryKind::Anonymous);
                    let builder = plan.link.tap.builder()?.tcp(tcp);
                    let mut builder = with_mtu(builder, plan.mtu);
                    if let Some(capture) = capture {
                        builder = builder.capture(Box::new(capture.clone()));
                    }
                    let builder = builder.impair(plan.impairment);
                    Self {
                        backend: "user",
                        link: plan.link.tap.link.kind().to_string(),
                        nic: open_until_signal(builder, stop)?,
                        memory: memory.allocate(plan.mem_bytes, MEM_SIZE)?,
                    }
                }
                Backend::Kernel(name) => {
                    let nic = plan.link.open_kernel(&name)?;
                    kernel::check_support(&name, Purpose::Send)?;
                    Self {
                        backend: "kernel",
                        nic,
                        memory: kernel::memory(plan.memory, plan.mem_bytes, None)?,
                        link: name,
                    }
                }
                Backend::Sockets => return backend::no_sockets("send"),
            },
        )
    }
}

/// Opens the input. This is the first step, so that an error leaves nothing behind.
fn open_input(input: &Input) -> Result<Option<File>, Failure> {
    Ok(match input {
        Input::Stdin => {
            // Not `Stdin`, because its buffer would be one more copy.
            let stdin = io::stdin().as_fd().try_clone_to_owned();
            Some(File::from(stdin.context("duplicate stdin")?))
        }
        Input::File(path) => {
            let name = path.display();
            let file = File::open(path).with_context(|| format!("open {name}"))?;
            // A folder can be opened, but reading it fails, which would happen only after connecting.
            if file.metadata().is_ok_and(|facts| facts.is_dir()) {
                return Err(Failure::failed(format!("{name} is a folder")));
            }
            Some(file)
        }
        Input::Position(_) | Input::Repeating(..) => None,
    })
}

/// Returns the source of the bytes, and its size if known.
fn source(
    input: &Input,
    file: Option<File>,
    stream: &Stream,
) -> Result<(Source, Option<u64>), Failure> {
    if let Some(file) = file {
        // Only regular files have a known size.
        let size = file.metadata().ok().filter(std::fs::Metadata::is_file);
        return Ok((Source::File(file), size.map(|size| size.len())));
    }
    let (pattern, bytes) = match input {
        Input::Repeating(bytes, period) => (
            GeneratedPattern::Repeating(RepeatingPattern::new(*period)),
            *bytes,
        ),
        Input::Position(bytes) => {
            let local = stream.local_addr().context("the connection has ended")?;
            (GeneratedPattern::Position(pattern_of(local.port())), *bytes)
        }
        Input::Stdin | Input::File(_) => unreachable!("they have a file"),
    };
    Ok((Source::made(pattern, bytes), Some(bytes)))
}
