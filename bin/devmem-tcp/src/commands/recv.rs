//! `devmem-tcp recv`: receives into device memory, like netcat.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::AsFd;

use anyhow::Context;
use devmem_linux::cpu;
use devmem_tcp::choice::Purpose;

use crate::backend::{self, Backend};
use crate::kernel;
use crate::kernels_end;
use crate::plan::{Destination, RecvPlan};
use crate::receiver::{AddressWatch, LinkWatch, Receiver};
use crate::report::{RunReport, connections, verdict};
use pattern::{Expected, RepeatingPattern};
use tool::capture::{self, Capture};
use tool::display::Display;
use tool::intervals::Intervals;
use tool::output::{Failure, note};
use tool::rate::Rate;
use tool::receive::{Ended, Next, Task};
use tool::signals::StopFlag;
use tool::size::Size;
use tool::terminal;

/// Receives by `plan`.
///
/// # Errors
///
/// A failed step; wrong bytes; net_iovs that were not returned.
pub fn run(plan: &RecvPlan) -> Result<(), Failure> {
    let users_alone = plan.kernel.users_alone;
    match backend::choose(&plan.link, users_alone, Purpose::Receive)? {
        Backend::User => on_tap(plan),
        Backend::Kernel(name) => on_kernel(&name, plan),
        Backend::Sockets => backend::no_sockets("recv"),
    }
}

/// Receives with our stack.
fn on_tap(plan: &RecvPlan) -> Result<(), Failure> {
    if plan.kernel.dry_run {
        return Err(nothing_to_change(plan));
    }
    let output = open_output(plan.output.as_ref())?;
    let tap = &plan.link.tap;
    let link = tap.link.kind().to_string();
    let capture = Capture::open(plan.capture.as_deref(), &link)?;
    let mut builder = tap.builder()?;
    if let Some(capture) = &capture {
        capture.set_net_iovs(plan.nic.niov.bytes());
        builder = builder.capture(Box::new(capture.clone()));
    }
    let local = tap.local(plan.port);
    // Before the NIC is open: a sender may connect at once.
    let stop = StopFlag::install().context("install signal handlers")?;
    let receiver = Receiver::open(builder, &plan.nic, local, &stop)?;
    if let Some(warning) = kernels_end::unreachable(tap) {
        note(warning);
    }
    let report = RunReport::of("user", link, &plan.nic, main_address(&receiver));
    let received = receive(plan, &stop, receiver, output, report, capture.as_ref());
    capture::finish(capture, received)
}

/// Returns the error of `--dry-run` with the user backend, which has no NIC to set up.
fn nothing_to_change(plan: &RecvPlan) -> Failure {
    let text = "--dry-run: the user backend does not change the settings of a NIC";
    match (&plan.link.interface, plan.kernel.users_alone) {
        (Some(name), None) => Failure::unsupported(text).with_remedy(format!(
            "`devmem-tcp doctor {name}` lists the missing features of {name}"
        )),
        _ => Failure::usage(text),
    }
}

/// Receives with the kernel's stack, on a NIC that supports device memory.
fn on_kernel(name: &str, plan: &RecvPlan) -> Result<(), Failure> {
    let stop = StopFlag::install().context("install signal handlers")?;
    let nic = plan.link.open_kernel(name)?;
    let local = kernel::local(&nic, &plan.link, plan.port)?;
    if plan.kernel.dry_run {
        return kernel::dry_run(&nic, local, plan.kernel.queues);
    }
    kernel::check_support(name, Purpose::Receive)?;
    let output = open_output(plan.output.as_ref())?;
    let receiver = Receiver::on_kernel(nic, &plan.kernel, local)?;
    let report = RunReport::of("kernel", name.to_owned(), &plan.nic, local.ip());
    receive(plan, &stop, receiver, output, report, None)
}

/// Returns the address that the receiver listens on, or if that is any, the one that peers are most likely to use.
fn main_address(receiver: &Receiver) -> IpAddr {
    let local = receiver.local_addr().ip();
    let addresses = receiver.nic().addresses();
    let v4 = addresses.iter().find(|ip| ip.is_ipv4()).copied();
    match local.is_unspecified() {
        true => v4.or(addresses.first().copied()).unwrap_or(local),
        false => local,
    }
}

/// Prints where the receiver listens.
fn tell_address(receiver: &Receiver, link: &str) {
    let local = receiver.local_addr();
    note(format_args!("listening on {local} over {link}"));
    if local.ip().is_unspecified() {
        for address in receiver.nic().addresses() {
            note(format_args!("address of this NIC: {address}"));
        }
    }
}

/// Receives from the connections and prints the report.
fn receive(
    plan: &RecvPlan,
    stop: &StopFlag,
    mut receiver: Receiver,
    mut output: Option<Output>,
    mut report: RunReport,
    capture: Option<&Capture>,
) -> Result<(), Failure> {
    let local = receiver.local_addr();
    tell_address(&receiver, &report.link);
    let title = plan
        .watch
        .then(|| format!("recv  {local} over {}", report.link));
    let display = RefCell::new(Display::start(title, None, &receiver.nic(), stop)?);
    let mut link = LinkWatch::new(receiver.nic(), plan.link.tap.link.kind());
    let mut addresses = AddressWatch::new(receiver.nic());
    let mut intervals = plan.interval.map(Intervals::new);
    let totals = receiver.run(Task {
        connections: plan.connections,
        keep_listening: plan.keep_listening,
        expected: &|_| {
            plan.validate
                .map(|n| Expected::Repeating(RepeatingPattern::new(n)))
        },
        output: output.as_mut().map(|output| output as &mut dyn Write),
        keep_tokens: plan.keep_tokens,
        clock: cpu::process_cpu_time,
        watch: &mut |view| {
            let counts = view.counts;
            let ended = intervals
                .as_mut()
                .and_then(|intervals| intervals.line(&counts));
            let mut display = display.borrow_mut();
            if let Some(line) = ended {
                display.line(line);
            }
            let conflicts = addresses.lines().into_iter();
            conflicts.for_each(|line| display.line(line));
            display.receiving(view);
            if view.counts.open == 0 {
                link.check(&report.link)?;
            }
            Ok(if stop.is_set() {
                Next::Stop
            } else {
                Next::Continue
            })
        },
        lent: &|batch| capture::lent(capture, batch),
        ended: &mut |ended| {
            if plan.keep_listening {
                display.borrow().line(connection_line(ended));
            }
        },
    })?;
    let display = display.into_inner();
    let last = intervals.and_then(|mut intervals| intervals.line(&totals.counts()));
    if let Some(line) = last {
        display.line(line);
    }
    display.finish();

    report.set_received(&totals);
    report.is_written = plan.output.is_some();
    receiver.finish(&mut report);
    plan.form.print(&report)?;
    let failed = (totals.broken > 0 && !stop.is_set())
        .then(|| format!("{} failed", connections(totals.broken)));
    verdict(report.complaint().or(failed), report.interrupted)
}

/// Returns the line of `--keep-listening` for a connection that has ended.
fn connection_line(ended: &Ended) -> String {
    let Ended {
        peer,
        bytes,
        elapsed,
        bad_bytes,
    } = *ended;
    let (size, rate, seconds) = (Size(bytes), Rate::of(bytes, elapsed), elapsed.as_secs_f64());
    let verified = match bad_bytes {
        None => String::new(),
        Some(0) => ", every byte verified".to_owned(),
        Some(bad) => format!(", {bad} bytes BAD"),
    };
    let line = format!(
        "{:>13}  {size} from {peer}, {rate} for {seconds:.2} s{verified}",
        "connection"
    );
    match terminal::width(io::stderr()) {
        Some(width) => terminal::fold(&line, width, terminal::NAMES_WIDTH),
        None => line,
    }
}

/// Destination of the payload. Its errors name it.
struct Output {
    file: File,
    name: String,
}

impl Output {
    fn name(&self, error: io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}: {error}", self.name))
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes).map_err(|error| self.name(error))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush().map_err(|error| self.name(error))
    }
}

fn open_output(destination: Option<&Destination>) -> Result<Option<Output>, Failure> {
    Ok(match destination {
        None => None,
        Some(Destination::Stdout) => {
            // Not `Stdout`, which would flush at every line end in the payload.
            let stdout = io::stdout().as_fd().try_clone_to_owned();
            Some(Output {
                file: File::from(stdout.context("duplicate stdout")?),
                name: "stdout".to_owned(),
            })
        }
        Some(Destination::File(path)) => {
            let name = path.display().to_string();
            let file = File::create(path).with_context(|| format!("create {name}"))?;
            Some(Output { file, name })
        }
    })
}
