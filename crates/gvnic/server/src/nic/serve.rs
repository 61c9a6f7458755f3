//! The loop: waits for the virtual machine, the wire, a timer or a signal, and serves it.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant as Clock};

use anyhow::Context;
use gve::Faults;
use nic::WireHello;
use peer_socket::ListenError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use vfio_user::{Event, Interest, Server, ServerError};

use super::accepting::Accepting;
use super::control::{Control, ControlCommand};
use super::gvnic::Gvnic;
use super::port::{OpenPort, read_failed};
use super::report::NicReport;
use crate::plan::GvnicPlan;
use tool::capture::{self, Capture};
use tool::output::{Failure, note, print_json};
use tool::signals::Signals;
use tool::terminal::tell_table;

/// Maximum length of a sleep: the timeout of poll(2) is an int of milliseconds.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// Serves one device until a signal or command ends the run.
///
/// # Errors
///
/// The socket or the wire cannot be opened, or the wire failed.
pub fn serve(plan: &GvnicPlan) -> Result<(), Failure> {
    let signals = Signals::install().context("install signal handlers")?;
    let capture = open_capture(plan)?;
    let ours = WireHello {
        // Impairment needs single frames with complete checksums, so there are no offloads with it.
        offloads: plan.impairment.is_none(),
        mtu: plan.max_mtu,
        // The payload is in guest memory, which is not this process's to pass on.
        shares_memory: false,
        needs_offloads: false,
    };
    let port = OpenPort::open(&plan.wire, ours)?;
    let gvnic = Gvnic::new(plan, port, capture.clone())?;
    let server = Server::listen(&plan.socket, &gvnic).map_err(refused)?;
    note(format_args!(
        "a gVNIC {} with {} queue pairs at {}, on {}, {}",
        plan.mac,
        plan.queues,
        plan.socket.display(),
        plan.wire,
        plan.impairment
    ));
    let mut service = Service {
        plan,
        server,
        gvnic,
        signals,
        control: plan.control.then(Control::new),
        faults: plan.faults,
        start: Clock::now(),
        accepting: Accepting::default(),
        over: false,
    };
    let served = service.run();
    let Service {
        mut server,
        mut gvnic,
        ..
    } = service;
    server.disconnect(&mut gvnic);
    let report = NicReport::new(plan, &mut server, &gvnic, service.start.elapsed());
    drop(server);
    tell_table(&report);
    let printed = match plan.json {
        true => print_json(&report),
        false => Ok(()),
    };
    let ended = match plan.once && !service.over {
        true => Err(Failure::interrupted()),
        false => Ok(()),
    };
    capture::finish(capture, served.and(printed).and(ended))
}

fn open_capture(plan: &GvnicPlan) -> Result<Option<Capture>, Failure> {
    let path = plan.capture.as_ref();
    path.map(|path| Capture::create(path, "gvnic")).transpose()
}

fn refused(error: ServerError) -> Failure {
    let error = match error {
        ServerError::Listen(error) => error,
        ServerError::Interrupts(ref source) => return no_interrupts(&error, source),
    };
    let remedy = match &error {
        ListenError::InUse { .. } => "end that process, or choose another --socket",
        ListenError::NotASocket { .. } => "choose another --socket, or move that file away",
        ListenError::System { .. } => {
            "--socket must be a new path of at most 107 bytes, in a folder that you may write to"
        }
    };
    Failure::failed(format!("--socket: {error}")).with_remedy(remedy)
}

/// Returns the error, with its remedy, that asynchronous I/O, which raises interrupts, is not available.
fn no_interrupts(error: &ServerError, source: &io::Error) -> Failure {
    match Errno::from_io_error(source) {
        Some(Errno::AGAIN) => Failure::failed(error).with_remedy(
            "other processes use all contexts for asynchronous I/O: raise the limit with `sysctl fs.aio-max-nr=1048576`",
        ),
        _ => Failure::unsupported(error).with_remedy(
            "use a kernel with CONFIG_AIO, and a seccomp filter that allows io_setup, io_submit and io_getevents",
        ),
    }
}

/// The server of one device.
struct Service<'a> {
    plan: &'a GvnicPlan,
    server: Server,
    gvnic: Gvnic,
    signals: Signals,
    control: Option<Control>,
    faults: Faults,
    start: Clock,
    accepting: Accepting,
    /// The run has to end.
    over: bool,
}

/// Events that ended the last sleep.
#[derive(Clone, Copy, Debug, Default)]
struct Ready {
    machine: bool,
    wire: bool,
    room: bool,
    signal: bool,
    control: bool,
}

impl Service<'_> {
    fn run(&mut self) -> Result<(), Failure> {
        while !self.over && !self.signals.stop().is_set() {
            let ready = self.sleep()?;
            self.gvnic.begin(self.server.bus());
            if self.accepting.is_due(Clock::now()) {
                self.server.listen_again();
            }
            if ready.signal {
                self.on_signal();
            }
            if ready.control {
                self.on_commands()?;
            }
            if ready.machine
                && let Some(event) = self.server.on_ready(&mut self.gvnic)
            {
                self.on_event(&event);
            }
            let bus = self.server.bus();
            if ready.room {
                self.gvnic.wire_has_room(bus);
            }
            // An impaired wire may have delayed frames that are due.
            if ready.wire || self.gvnic.wire().impairment().is_some() {
                self.gvnic.receive(bus).map_err(read_failed)?;
            }
            self.gvnic.settle(bus);
        }
        Ok(())
    }

    /// Waits for an event or the next deadline.
    fn sleep(&self) -> Result<Ready, Failure> {
        let (listener, client) = self.server.poll_fds();
        let (listeners, peer) = self.gvnic.wire().port().fds();
        let client = client.map(|(fd, interest)| match interest {
            Interest::Read => (fd, PollFlags::IN),
            Interest::Write => (fd, PollFlags::OUT),
        });
        let wire = match self.gvnic.wire().is_full() {
            true => PollFlags::IN | PollFlags::OUT,
            false => PollFlags::IN,
        };
        let control = self.control.as_ref().and_then(Control::fd);
        let wanted: [Option<(BorrowedFd<'_>, PollFlags)>; 5] = [
            listener.map(|fd| (fd, PollFlags::IN)),
            client,
            peer.map(|fd| (fd, wire)),
            Some((self.signals.fd(), PollFlags::IN)),
            control.map(|fd| (fd, PollFlags::IN)),
        ];
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(wanted.len());
        fds.extend(
            wanted
                .iter()
                .flatten()
                .map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)),
        );
        fds.extend(listeners.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        match poll(&mut fds, self.time_left().as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => {
                return Ok(Ready {
                    signal: true,
                    ..Ready::default()
                });
            }
            Err(errno) => return Err(anyhow::Error::from(errno).context("poll").into()),
        }
        let mut events = fds.iter().map(PollFd::revents);
        let [listener, client, peer, signal, control] = wanted.map(|wanted| match wanted {
            Some(_) => events.next().unwrap_or(PollFlags::empty()),
            None => PollFlags::empty(),
        });
        let listeners = events.fold(PollFlags::empty(), |all, one| all | one);
        Ok(Ready {
            machine: !(listener | client).is_empty(),
            // Includes a hang-up, which the read will report.
            wire: !(listeners | peer.difference(PollFlags::OUT)).is_empty(),
            room: peer.contains(PollFlags::OUT),
            signal: !signal.is_empty(),
            control: !control.is_empty(),
        })
    }

    /// Returns the maximum length of the sleep.
    fn time_left(&self) -> Option<Timespec> {
        let device = self.gvnic.next_due().map(|due| {
            let passed = self.gvnic.started().elapsed().as_nanos();
            let now = wire::Instant::from_nanos(u64::try_from(passed).unwrap_or(u64::MAX));
            due.saturating_since(now)
        });
        let accept = self.accepting.left(Clock::now());
        let left = device.into_iter().chain(accept).min()?;
        Timespec::try_from(left.min(LONGEST_SLEEP)).ok()
    }

    fn on_event(&mut self, event: &Event) {
        match event {
            Event::Joined => {
                self.accepting = Accepting::Yes;
                note("a virtual machine has connected");
            }
            Event::Refused => {
                self.accepting = Accepting::Yes;
                note("refused a second virtual machine: one at a time");
            }
            Event::NotAccepted(error) => {
                if self.accepting.failed(Clock::now()) {
                    note(format_args!(
                        "the virtual machine cannot be accepted: {error}; it waits"
                    ));
                }
            }
            Event::Left(gone) => {
                if let Some(refused) = self.server.stats().session.memory_refused {
                    note(format_args!(
                        "memory of the virtual machine was refused: {refused}"
                    ));
                }
                note(format_args!("{gone}; waiting for the next one"));
                self.over = self.plan.once;
            }
        }
    }

    fn on_signal(&mut self) {
        self.signals.clear();
        if self.signals.take_report() {
            tell_table(self.report());
        }
    }

    fn on_commands(&mut self) -> Result<(), Failure> {
        let commands = self.control.as_mut().map(Control::take);
        for command in commands.into_iter().flatten() {
            match command {
                Ok(command) => self.on_command(command)?,
                Err(error) => note(error),
            }
        }
        Ok(())
    }

    fn on_command(&mut self, command: ControlCommand) -> Result<(), Failure> {
        match command {
            ControlCommand::Reset => self.gvnic.request_reset(self.server.bus()),
            ControlCommand::Link(cable) => self.gvnic.set_cable(cable),
            ControlCommand::Stats => print_json(&self.report())?,
            ControlCommand::Quit => self.over = true,
            ControlCommand::Linear(_)
            | ControlCommand::UnsplitEvery(_)
            | ControlCommand::KeepBuffers(_) => {
                command.apply_to(&mut self.faults);
                self.gvnic.set_faults(self.faults);
            }
        }
        Ok(())
    }

    fn report(&mut self) -> NicReport {
        NicReport::new(
            self.plan,
            &mut self.server,
            &self.gvnic,
            self.start.elapsed(),
        )
    }
}
