//! One guest, from start to power-off: the NIC servers, QEMU, and the data from the control port.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use devmem_uapi::text::PrintableLines;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use super::accel::{self, Accel, RunsBy};
use super::boot::{self, BootWatchdog};
use super::conversation::{BootTimes, Conversation, GuestMessage};
use super::frame;
use super::guest_files;
use super::job::Job;
use super::kernel::BOOT_OPTIONS;
use super::kit::Kit;
use super::klog;
use super::machine_plan::MachinePlan;
use super::pass_on::Output;
use super::qemu::{self, Running};
use super::scratch::Scratch;
use super::servers::Servers;
use super::vmlinux;
use tool::output::{Failure, note};
use tool::signals::StopFlag;

/// Maximum time until the guest has booted and sends its first frame.
const BOOT_LIMIT: Duration = Duration::from_secs(300);
/// Maximum time from the guest's last frame to its power-off; after it QEMU is killed.
const POWER_OFF_LIMIT: Duration = Duration::from_secs(20);
/// Maximum time from the end of the control connection to the end of QEMU, if it ends because of an error.
const QEMU_END_LIMIT: Duration = Duration::from_secs(1);
/// Maximum time to read the rest of a frame; signals are not checked meanwhile.
const FRAME_LIMIT: Duration = Duration::from_secs(60);
/// Time between two checks of the control socket.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Number of lines of the kernel's log in an error message.
const LOG_TAIL_LINES: usize = 25;

/// Result of a run.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// The command's exit code.
    pub exit_code: i32,
    /// Time from the first step of `boot` to the start of the command, in seconds.
    pub boot_s: f64,
    /// The steps of that time.
    pub boot: BootReport,
    /// Time of the whole run, in seconds.
    pub total_s: f64,
    /// How instructions were executed.
    pub accel: Accel,
    /// How often the guest was started again because it gave no sign of life while booting.
    pub boot_retries: u32,
    /// Warnings and errors in the kernel's log.
    pub kernel_complaints: Vec<String>,
    /// Files that could not be copied from the guest, and why.
    pub missing_files: Vec<String>,
}

/// Durations of the steps until the command starts, in seconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct BootReport {
    /// The guest's files are packed, and the kernel is unpacked if that was not done before.
    pub pack_s: f64,
    /// The servers of the NICs and of shared folders start.
    pub servers_s: f64,
    /// QEMU and the firmware start; a kernel that was not unpacked before unpacks itself.
    pub qemu_s: f64,
    /// The kernel starts, until its process 1.
    pub kernel_s: f64,
    /// The control port appears.
    pub port_s: f64,
    /// Modules are loaded, commands linked, and shared folders mounted.
    pub files_s: f64,
    /// The NICs are set up, with addresses and carrier.
    pub nics_s: f64,
}

/// Runs `job` in a guest.
///
/// # Errors
///
/// QEMU or a NIC server did not start; the guest did not boot, or ended without an exit code.
pub fn run(
    kit: &Kit,
    plan: &MachinePlan,
    job: &Job,
    output: &mut dyn Output,
) -> Result<RunReport, Failure> {
    let by = accel::decide(plan.accel, kit)?;
    if by != RunsBy::Kvm {
        let outcome = run_by(Accel::Tcg, kit, plan, job, output)?;
        return Ok(outcome.context("KVM failed")?);
    }
    if let Some(outcome) = run_by(Accel::Kvm, kit, plan, job, output)? {
        accel::remember(accel::KvmRecord::Works, kit);
        return Ok(outcome);
    }
    if plan.accel == Accel::Kvm {
        return Err(Failure::unsupported("KVM cannot run this guest here")
            .with_remedy("use --accel tcg, which works everywhere"));
    }
    accel::remember(accel::KvmRecord::IsBroken, kit);
    let by = RunsBy::EmulationWithoutKvm;
    note(format_args!("the guest runs by {by}"));
    let outcome = run_by(Accel::Tcg, kit, plan, job, output)?;
    Ok(outcome.context("KVM failed")?)
}

/// How an attempt to run a guest ended.
enum Attempt {
    Ended(RunReport),
    /// KVM failed before the command started.
    KvmFailed,
    /// The guest gave no sign of life while booting.
    Silent(Failure),
}

/// Runs `job` in one guest; returns `None` if KVM failed. A guest that gives no sign of life while booting is started again.
fn run_by(
    accel: Accel,
    kit: &Kit,
    plan: &MachinePlan,
    job: &Job,
    output: &mut dyn Output,
) -> Result<Option<RunReport>, Failure> {
    let start = Instant::now();
    let mut retries = 0;
    loop {
        // The last attempt has all the time of a boot: a machine may be that busy.
        let silence = (retries < boot::RETRIES_MAX).then_some(plan.silence_limit);
        match attempt(accel, kit, plan, job, silence, output)? {
            Attempt::KvmFailed => return Ok(None),
            Attempt::Silent(failure) => {
                retries += 1;
                note(format_args!("{failure}; starting it again"));
            }
            Attempt::Ended(report) => {
                return Ok(Some(RunReport {
                    boot_retries: retries,
                    total_s: start.elapsed().as_secs_f64(),
                    ..report
                }));
            }
        }
    }
}

/// Runs `job` in one guest, whose boot is given up after `silence` without a sign of life.
fn attempt(
    accel: Accel,
    kit: &Kit,
    plan: &MachinePlan,
    job: &Job,
    silence: Option<Duration>,
    output: &mut dyn Output,
) -> Result<Attempt, Failure> {
    let folder = Scratch::new()?;
    let listener =
        UnixListener::bind(folder.path("control")).context("create the control socket")?;
    let mut guest = Guest::start(accel, kit, plan, job, &folder)?;
    // A debugger may stop the guest at any time, for as long as it likes.
    guest.life = BootWatchdog::of(
        guest.log.clone(),
        silence.filter(|_| plan.debugger.is_none()),
    );
    let ended = guest.converse(&listener, plan, job, output);
    // A guest that did not send its last frame will not power off by itself.
    guest.qemu.end(if ended.is_ok() {
        POWER_OFF_LIMIT
    } else {
        Duration::ZERO
    });
    guest.servers.stop();
    let log = klog::read(&guest.log);
    if let Some(kept) = &plan.log {
        fs::write(kept, &log).with_context(|| format!("write {}", kept.display()))?;
    }
    if ended.is_err() && accel == Accel::Kvm && guest.qemu.lost_kvm() {
        return Ok(Attempt::KvmFailed);
    }
    let said = match ended {
        Ok(said) => said,
        Err(failure) => {
            if !plan.stop.is_set() {
                tell_end_of_log(&log, &guest.qemu.said());
            }
            return match guest.is_silent {
                true => Ok(Attempt::Silent(failure)),
                false => Err(failure),
            };
        }
    };
    Ok(Attempt::Ended(RunReport {
        exit_code: said.exit_code,
        boot_s: said.ready.as_secs_f64(),
        boot: said.boot_report(guest.packed, guest.served),
        total_s: guest.start.elapsed().as_secs_f64(),
        accel,
        boot_retries: 0,
        kernel_complaints: klog::complaints(&log),
        missing_files: said.missing_files,
    }))
}

/// Shows the end of the log of a guest that failed, and what QEMU said. The guest has written the log.
fn tell_end_of_log(log: &str, qemu_said: &str) {
    let tail = klog::tail(log, LOG_TAIL_LINES);
    let tail = match tail.trim().is_empty() {
        true => "the guest's kernel has logged nothing".to_owned(),
        false => format!("the end of the guest's kernel log:\n{tail}"),
    };
    note(format!("{tail}\n{qemu_said}").trim_end());
}

/// Returns the kernel that QEMU starts: unpacked, except with KVM, where the guest unpacks it as fast as this machine.
fn image_to_start(kit: &Kit, accel: Accel) -> PathBuf {
    let image = &kit.kernel.image;
    let unpacked = match accel {
        Accel::Kvm => None,
        Accel::Auto | Accel::Tcg => vmlinux::unpacked(image, &kit.cache),
    };
    unpacked.unwrap_or_else(|| image.clone())
}

/// Data received from the guest.
#[derive(Debug, Default)]
struct GuestReport {
    exit_code: i32,
    /// When the Ready frame arrived.
    ready: Duration,
    /// Times in it, by the guest's clock.
    boot: BootTimes,
    missing_files: Vec<String>,
}

impl GuestReport {
    /// Returns the durations of the steps; `packed` and `served` are when the steps before QEMU were done.
    fn boot_report(&self, packed: Duration, served: Duration) -> BootReport {
        let seconds = |from: Duration, to: Duration| to.saturating_sub(from).as_secs_f64();
        let BootTimes {
            init,
            port,
            files,
            nics,
        } = self.boot;
        BootReport {
            pack_s: packed.as_secs_f64(),
            servers_s: seconds(packed, served),
            // The guest's clock starts with its kernel.
            qemu_s: seconds(served + nics, self.ready),
            kernel_s: init.as_secs_f64(),
            port_s: seconds(init, port),
            files_s: seconds(port, files),
            nics_s: seconds(files, nics),
        }
    }
}

/// A running guest.
#[derive(Debug)]
struct Guest {
    qemu: Running,
    servers: Servers,
    start: Instant,
    /// When its files were packed, and when its servers had started.
    packed: Duration,
    served: Duration,
    life: BootWatchdog,
    /// It gave no sign of life while booting.
    is_silent: bool,
    /// The kernel's log.
    log: PathBuf,
    stop: StopFlag,
}

impl Guest {
    /// Packs the guest's files and starts its servers and QEMU, which find their sockets in `folder`.
    fn start(
        accel: Accel,
        kit: &Kit,
        plan: &MachinePlan,
        job: &Job,
        folder: &Scratch,
    ) -> Result<Self, Failure> {
        let start = Instant::now();
        let job = Job {
            starts_processors: qemu::boots_on_one_processor(accel),
            ..job.clone()
        };
        folder.write("initrd", &guest_files::pack(kit, plan, &job)?)?;
        let image = image_to_start(kit, accel);
        let packed = start.elapsed();
        let mut servers = Servers::default();
        plan.nics.serve(folder.folder(), &mut servers)?;
        plan.shares.serve(folder.folder(), &mut servers)?;
        let served = start.elapsed();
        let log = folder.path("kernel.log");
        let qemu = Running::start(kit, &image, plan, &job, accel, folder)?;
        Ok(Self {
            qemu,
            servers,
            start,
            packed,
            served,
            life: BootWatchdog::of(log.clone(), None),
            is_silent: false,
            log,
            stop: plan.stop.clone(),
        })
    }

    /// Receives frames from the guest until the last one.
    fn converse(
        &mut self,
        listener: &UnixListener,
        plan: &MachinePlan,
        job: &Job,
        output: &mut dyn Output,
    ) -> Result<GuestReport, Failure> {
        let mut guest = self.accept(listener)?;
        // A debugger may stop the guest at any time, for as long as it likes.
        let frame_limit = plan.debugger.is_none().then_some(FRAME_LIMIT);
        guest.set_read_timeout(frame_limit)?;
        let mut said = GuestReport::default();
        let mut conversation = Conversation::new(plan.get.len().min(job.get.len()));
        let mut file: Option<File> = None;
        loop {
            let limit = match conversation.is_ready() {
                // A debugger may stop the guest before it has booted.
                false => match plan.debugger {
                    None => Some(BOOT_LIMIT),
                    Some(_) => plan.limit,
                },
                true => plan.limit,
            };
            let left = limit.map(|limit| limit.saturating_sub(self.start.elapsed()));
            self.wait(&guest, left, conversation.is_ready())?;
            let frame = frame::read(&mut guest).context("read from the guest")?;
            let Some((kind, payload)) = frame else {
                return Err(self.ended_early(conversation.is_ready()));
            };
            let message = conversation.take(kind, &payload);
            let message = message.map_err(|said| Failure::failed(PrintableLines(said)))?;
            match message {
                GuestMessage::Ready(times) => {
                    said.ready = self.start.elapsed();
                    said.boot = times;
                    if job.stdin {
                        let to = guest.try_clone().context("clone the control socket")?;
                        // The thread may wait for input for ever; it ends with the process.
                        thread::spawn(move || frame::pass_in(io::stdin().lock(), to));
                    }
                }
                GuestMessage::Stdout(bytes) => output
                    .stdout(bytes)
                    .context("pass on the command's output")?,
                GuestMessage::Stderr(bytes) => output
                    .stderr(bytes)
                    .context("pass on the command's errors")?,
                GuestMessage::File(place) => file = Some(create_file(plan, place)?),
                GuestMessage::FileBytes(bytes) => {
                    if let Some(file) = &mut file {
                        file.write_all(bytes).context("write a file of --get")?;
                    }
                }
                GuestMessage::FileMissing(why) => {
                    said.missing_files.push(PrintableLines(why).to_string())
                }
                GuestMessage::Exit => {}
                GuestMessage::Bye(exit_code) => return Ok(GuestReport { exit_code, ..said }),
            }
        }
    }

    /// Returns the error for a guest that ended before its last frame, with the reason from the kernel's log.
    fn ended_early(&mut self, ready: bool) -> Failure {
        if self.qemu.has_failed(QEMU_END_LIMIT) {
            return self.qemu.why_it_ended();
        }
        let reason = klog::last_message(&klog::read(&self.log));
        let reason = reason.unwrap_or_else(|| "its log does not have the reason".to_owned());
        match ready {
            true => Failure::failed(format!("the guest ended before its command did: {reason}"))
                .with_remedy("--log FILE keeps the kernel's log"),
            false => {
                Failure::failed(format!("the guest did not start: {reason}")).with_remedy(format!(
                    "a kernel for the lab has {} built in; --log FILE keeps its log",
                    BOOT_OPTIONS.join(", ")
                ))
            }
        }
    }

    /// Waits until QEMU connects to the control socket.
    fn accept(&mut self, listener: &UnixListener) -> Result<UnixStream, Failure> {
        let start = Instant::now();
        loop {
            let soon = Timespec::try_from(POLL_INTERVAL).context("a short time")?;
            let mut fds = [PollFd::new(listener, PollFlags::IN)];
            // A signal interrupts it, and is checked below.
            if poll(&mut fds, Some(&soon)).is_ok_and(|ready| ready > 0) {
                return Ok(listener.accept().context("accept QEMU")?.0);
            }
            self.check_alive()?;
            if start.elapsed() > BOOT_LIMIT {
                return Err(Failure::failed("QEMU did not start in time"));
            }
        }
    }

    /// Waits until data from the guest is available.
    fn wait(
        &mut self,
        guest: &UnixStream,
        left: Option<Duration>,
        ready: bool,
    ) -> Result<(), Failure> {
        const SLICE: Duration = Duration::from_millis(200);
        let start = Instant::now();
        loop {
            let slice = left.map_or(SLICE, |left| {
                left.saturating_sub(start.elapsed()).min(SLICE)
            });
            let slice = Timespec::try_from(slice).context("a short time")?;
            match poll(&mut [PollFd::new(guest, PollFlags::IN)], Some(&slice)) {
                Ok(0) => {}
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => {
                    return Err(anyhow::Error::from(errno)
                        .context("read from the guest")
                        .into());
                }
            }
            self.check_alive()?;
            if !ready && self.life.is_missing() {
                self.is_silent = true;
                return Err(Failure::failed(
                    "the guest gives no sign of life while booting",
                ));
            }
            if left.is_some_and(|left| start.elapsed() >= left) {
                return Err(match ready {
                    false => Failure::failed(format!(
                        "the guest did not boot within {:.0} s",
                        self.start.elapsed().as_secs_f64()
                    )),
                    true => Failure::failed("the command took longer than --limit"),
                });
            }
        }
    }

    fn check_alive(&mut self) -> Result<(), Failure> {
        if self.stop.is_set() {
            return Err(Failure::interrupted());
        }
        if let Some(said) = self.servers.ended() {
            return Err(Failure::failed(said));
        }
        match self.qemu.ended() {
            None if self.qemu.lost_kvm() => Err(Failure::failed("the guest is stopped")),
            None => Ok(()),
            Some(_) => Err(self.qemu.why_it_ended()),
        }
    }
}

/// Creates the destination file for entry `place` of the `--get` list.
fn create_file(plan: &MachinePlan, place: usize) -> Result<File, Failure> {
    let (_, path) = plan
        .get
        .get(place)
        .context("the guest sent a file that was not requested")?;
    let file = File::create(path).with_context(|| format!("--get: write {}", path.display()))?;
    Ok(file)
}

#[cfg(test)]
mod tests;
