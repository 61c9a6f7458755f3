//! QEMU: command line and process.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context;
use devmem_linux::helper::Helper;
use devmem_uapi::text::PrintableLines;

use super::accel::{Accel, KVM_FAILED};
use super::job::{CONTROL_PORT, INIT_PATH, Job};
use super::kit::Kit;
use super::machine_plan::{Debugger, DebuggerStart, MachinePlan};
use super::scratch::Scratch;
use tool::output::Failure;

/// Signal number of a process that was killed by force.
const SIGKILL: i32 = 9;
/// Maximum bytes of QEMU's output that are read.
const SAID_BYTES_MAX: u64 = 64 << 10;

/// A running QEMU.
#[derive(Debug)]
pub struct Running {
    child: Helper,
    said: PathBuf,
}

impl Running {
    /// Starts QEMU with the kernel `image`.
    ///
    /// # Errors
    ///
    /// QEMU cannot be started.
    pub fn start(
        kit: &Kit,
        image: &Path,
        plan: &MachinePlan,
        job: &Job,
        accel: Accel,
        folder: &Scratch,
    ) -> Result<Self, Failure> {
        let mut command = kit.qemu.command().context("find QEMU's libraries")?;
        arguments(&mut command, image, plan, accel, folder);
        if job.interactive {
            command.args([
                "-chardev",
                "stdio,id=term,signal=off",
                "-device",
                "virtconsole,chardev=term,name=terminal",
            ]);
        } else {
            command.stdin(Stdio::null());
        }
        let said = File::create(folder.path("qemu.log"))?;
        // Not stdout: for an interactive shell, that is the guest's console.
        command.stderr(said);
        if !job.interactive {
            command.stdout(Stdio::null());
        }
        let child = Helper::start(&mut command).context("start QEMU")?;
        Ok(Self {
            child,
            said: folder.path("qemu.log"),
        })
    }

    /// Returns the exit status, if QEMU has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.ended().ok().flatten()
    }

    /// Waits at most `limit` for QEMU to end.
    pub fn end(&mut self, limit: Duration) {
        if !matches!(self.child.wait_at_most(limit), Ok(Some(_))) {
            self.child.kill();
        }
    }

    /// Waits at most `limit` for QEMU to end; returns whether it ended with an error, such as for a disk in use. A guest that
    /// powers off or panics ends QEMU without one.
    pub fn has_failed(&mut self, limit: Duration) -> bool {
        let status = self.child.wait_at_most(limit).ok().flatten();
        status.is_some_and(|status| !status.success())
    }

    /// Returns the error for a QEMU that has ended, with what it said.
    pub fn why_it_ended(&mut self) -> Failure {
        let said = self.read_said();
        let lines: Vec<&str> = said
            .lines()
            .filter(|line| !line.trim().is_empty() && !line.contains("warning:"))
            .collect();
        let said = match lines.is_empty() {
            true => "it said nothing".to_owned(),
            false => lines.join(": "),
        };
        let status = self.ended();
        let how = status.map_or_else(|| "exit status unknown".to_owned(), |it| it.to_string());
        let failure = Failure::failed(format!("QEMU ended ({how}): {said}"));
        match status.and_then(|status| status.signal()) {
            // Of the kernel, if there is no memory; or of a person.
            Some(SIGKILL) => failure.with_remedy(
                "if this machine or its control group has no memory left (`dmesg` says so), give the guest less with --memory",
            ),
            _ => failure,
        }
    }

    /// Returns whether KVM has failed: the guest is stopped, or QEMU has ended.
    pub fn lost_kvm(&self) -> bool {
        let said = self.read_said();
        KVM_FAILED.iter().any(|words| said.contains(words))
    }

    fn read_said(&self) -> String {
        let mut said = Vec::new();
        if let Ok(file) = File::open(&self.said) {
            // What was read before an error is as good.
            let _ = file.take(SAID_BYTES_MAX).read_to_end(&mut said);
        }
        PrintableLines(String::from_utf8_lossy(&said)).to_string()
    }

    /// Returns the output on stderr, for error messages.
    pub fn said(&self) -> String {
        let said = self.read_said();
        match said.is_empty() {
            true => String::new(),
            false => format!("output of QEMU: {}", said.trim()),
        }
    }
}

/// Adds QEMU's arguments. Guest memory is a shared memfd, so that the NIC servers can access it.
fn arguments(
    command: &mut Command,
    image: &Path,
    plan: &MachinePlan,
    accel: Accel,
    folder: &Scratch,
) {
    let memory = plan.memory_mib;
    let path = |name: &str| folder.path(name).to_string_lossy().into_owned();
    let how = match accel {
        Accel::Kvm => "kvm",
        Accel::Auto | Accel::Tcg => "tcg,thread=multi,tb-size=512",
    };
    command.args([
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-no-reboot",
    ]);
    command.args(["-accel", how, "-cpu", "max", "-smp", &plan.cpus.to_string()]);
    command.args([
        "-m",
        &format!("{memory}M"),
        "-machine",
        "q35,memory-backend=ram0,usb=off,vmport=off",
    ]);
    command.args([
        "-object",
        &format!("memory-backend-memfd,id=ram0,size={memory}M,share=on"),
    ]);
    command.args(["-serial", &format!("file:{}", path("kernel.log"))]);
    command.arg("-kernel").arg(image).args([
        "-initrd",
        &path("initrd"),
        "-append",
        &command_line(plan, accel),
    ]);
    command.args([
        "-chardev",
        &format!("socket,id=control,path={}", path("control")),
    ]);
    command.args(["-device", "virtio-serial-pci,disable-legacy=on"]);
    command.args([
        "-device",
        &format!("virtserialport,chardev=control,name={CONTROL_PORT}"),
    ]);
    for socket in plan.nics.sockets(folder.folder()) {
        let device = serde_json::json!({
            "driver": "vfio-user-pci",
            "socket": {"type": "unix", "path": socket.to_string_lossy()},
        });
        command.args(["-device", &device.to_string()]);
    }
    extra_devices(command, plan, folder);
}

/// Whether the kernel starts with one processor, and process 1 starts the others. While Linux boots it replaces instructions of
/// its own, by way of a breakpoint that it removes when all processors have seen the new ones (linux arch/x86/kernel/alternative.c
/// `smp_text_poke_batch_finish`). On a busy machine about 1 of 100 boots with two processors ended in a panic at such a place, behind
/// the byte of the breakpoint: an emulated processor seems to execute it afterwards.
pub fn boots_on_one_processor(accel: Accel) -> bool {
    accel != Accel::Kvm
}

/// Returns the kernel's command line.
fn command_line(plan: &MachinePlan, accel: Accel) -> String {
    let mut line = format!(
        "console=ttyS0,115200 panic=-1 quiet loglevel=7 mitigations=off rdinit={INIT_PATH}"
    );
    // The kernel's self-tests of its cryptography take most of a second under software emulation.
    line.push_str(" cryptomgr.notests=1");
    // On a busy machine the emulated timer may be late, and the kernel would panic.
    line.push_str(" no_timer_check");
    if accel != Accel::Kvm {
        // QEMU has one time stamp counter for all emulated processors: there is nothing to watch. Linux 7.3's watchdog hangs
        // about 1 of 50 boots. It runs on one processor with interrupts off until the other has answered, for a limited time
        // by the current clock. If that is still the jiffies, and the other processor waits with interrupts off for the
        // switch to the next clock, nobody counts jiffies (linux kernel/time/clocksource.c watchdog_check_skew).
        line.push_str(" tsc=nowatchdog");
        // On a busy machine an emulated processor may get no time for longer than the 20 s after which the kernel reports a
        // soft lockup, which would fail the run; 120 s.
        line.push_str(" watchdog_thresh=60");
    }
    if boots_on_one_processor(accel) {
        line.push_str(" maxcpus=1");
    }
    if plan.debugger.is_some() {
        // The addresses of symbols are those of the image.
        line.push_str(" nokaslr");
    }
    format!("{line} {}", plan.append)
}

/// Adds the shared folders, the disks and the debugger's port.
fn extra_devices(command: &mut Command, plan: &MachinePlan, folder: &Scratch) {
    for (tag, socket) in plan.shares.sockets(folder.folder()) {
        let socket = socket.to_string_lossy();
        command.args(["-chardev", &format!("socket,id={tag},path={socket}")]);
        let device = serde_json::json!({"driver": "vhost-user-fs-pci", "chardev": tag, "tag": tag});
        command.args(["-device", &device.to_string()]);
    }
    for (index, disk) in plan.disks.iter().enumerate() {
        let (block, device) = disk.arguments(index);
        command.args(["-blockdev", &block.to_string()]);
        command.args(["-device", &device.to_string()]);
    }
    if let Some(Debugger { port, start }) = plan.debugger {
        command.args(["-gdb", &format!("tcp:127.0.0.1:{port}")]);
        if start == DebuggerStart::Waits {
            command.arg("-S");
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Run;
    use crate::plan::LabRunPlan;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        run: Run,
    }

    fn plan(words: &[&str]) -> Result<LabRunPlan, Failure> {
        let words = ["run"].iter().chain(words).chain(&["--", "true"]);
        LabRunPlan::run(CommandLine::try_parse_from(words).unwrap().run)
    }

    /// Returns QEMU's arguments for a guest.
    fn arguments_of(words: &[&str]) -> Vec<String> {
        let mut command = Command::new("qemu");
        let folder = Scratch::new().unwrap();
        let plan = plan(words).unwrap().machine;
        let image = Path::new("/boot/kernel");
        arguments(&mut command, image, &plan, Accel::Tcg, &folder);
        let words = command.get_args();
        words
            .map(|word| word.to_string_lossy().into_owned())
            .collect()
    }

    /// Returns the values of an option of QEMU.
    fn values<'a>(arguments: &'a [String], option: &str) -> Vec<&'a str> {
        let pairs = arguments.iter().zip(&arguments[1..]);
        let pairs = pairs.filter(|(name, _)| *name == option);
        pairs.map(|(_, value)| value.as_str()).collect()
    }

    #[test]
    fn qemus_own_error_is_told_apart_from_the_end_of_a_guest() {
        let scratch = tempfile::tempdir().unwrap();
        let error_of = |script: &str| {
            let said = scratch.path().join("qemu.log");
            let mut command = Command::new("sh");
            command
                .args(["-c", script])
                .stderr(File::create(&said).unwrap());
            let child = Helper::start(&mut command).unwrap();
            let mut qemu = Running { child, said };
            let has_failed = qemu.has_failed(Duration::from_secs(20));
            has_failed.then(|| qemu.why_it_ended().to_string())
        };
        let script = "echo 'x: warning: none' >&2; echo 'the disk is in use' >&2; exit 1";
        let said = error_of(script).unwrap();
        assert_eq!(said, "QEMU ended (exit status: 1): the disk is in use");
        let said = error_of("printf '\\033[2Jx\\n' >&2; exit 2").unwrap();
        assert_eq!(said, "QEMU ended (exit status: 2): \\u{1b}[2Jx");
        let said = error_of("kill -9 $$").unwrap();
        assert!(
            said.contains("(signal: 9 (SIGKILL)): it said nothing"),
            "{said}"
        );
        assert!(said.contains("--memory"), "{said}");
        assert_eq!(error_of("echo terminating >&2"), None);
    }

    #[test]
    fn only_an_emulated_guest_has_no_watchdog_of_its_clock_and_a_patient_one_of_its_processors() {
        let plan = plan(&[]).unwrap().machine;
        let emulated = command_line(&plan, Accel::Tcg);
        assert!(
            emulated.contains(" tsc=nowatchdog watchdog_thresh=60 "),
            "{emulated}"
        );
        let by_kvm = command_line(&plan, Accel::Kvm);
        assert!(!by_kvm.contains("watchdog"), "{by_kvm}");
    }

    #[test]
    fn only_an_emulated_guest_boots_on_one_processor() {
        let plan = plan(&["--append", "maxcpus=3"]).unwrap().machine;
        let emulated = command_line(&plan, Accel::Tcg);
        // The kernel takes the last one.
        assert!(emulated.ends_with(" maxcpus=1 maxcpus=3"), "{emulated}");
        let by_kvm = command_line(&plan, Accel::Kvm);
        assert!(!by_kvm.contains("maxcpus=1"), "{by_kvm}");
    }

    #[test]
    fn processors_nics_and_parameters_of_the_command_line_reach_qemu() {
        let append = "slub_debug=FZ page_owner=on";
        let words = ["--cpus", "3", "--nics", "4", "--append", append];
        let arguments = arguments_of(&words);
        assert_eq!(values(&arguments, "-smp"), ["3"]);
        assert!(values(&arguments, "-append")[0].ends_with(append));
        let devices = values(&arguments, "-device");
        let nics = devices.iter().filter(|it| it.contains("vfio-user-pci"));
        assert_eq!(nics.count(), 4);
        assert_eq!(values(&arguments_of(&["--smp", "5"]), "-smp"), ["5"]);
    }

    #[test]
    fn shared_folders_and_disks_are_devices_with_a_socket_or_a_named_format() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("disk");
        std::fs::write(&file, "").unwrap();
        let share = format!("{}:/src", scratch.path().display());
        let disk = format!("{},ro", file.display());
        let arguments = arguments_of(&["--share", &share, "--disk", &disk]);
        let devices = values(&arguments, "-device").join(" ");
        assert!(devices.contains(r#""driver":"vhost-user-fs-pci","tag":"share0""#));
        let blocks = values(&arguments, "-blockdev");
        assert_eq!(blocks.len(), 1);
        assert!(blocks[0].contains(r#""driver":"raw""#), "{blocks:?}");
        assert!(blocks[0].contains(r#""read-only":true"#), "{blocks:?}");
        assert!(!arguments.iter().any(|word| word == "-drive"));
    }

    #[test]
    fn a_guest_waits_for_a_debugger_only_if_asked() {
        let without = arguments_of(&[]);
        assert_eq!(values(&without, "-gdb"), Vec::<&str>::new());
        assert!(!values(&without, "-append")[0].contains("nokaslr"));
        // Connections of other tests do not get these ports: the kernel chooses from 32768 on.
        let gdb = arguments_of(&["--gdb=20123"]);
        assert_eq!(values(&gdb, "-gdb"), ["tcp:127.0.0.1:20123"]);
        assert!(values(&gdb, "-append")[0].contains("nokaslr"));
        assert!(!gdb.contains(&"-S".to_owned()));
        let waits = arguments_of(&["--gdb=20124", "--gdb-wait"]);
        assert!(waits.contains(&"-S".to_owned()));
    }

    #[test]
    fn numbers_ports_and_parameters_that_cannot_work_are_refused_with_their_option() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = format!("--gdb={}", taken.local_addr().unwrap().port());
        let long = "x".repeat(2000);
        let cases: [(&[&str], &str); 8] = [
            (&["--cpus", "0"], "--cpus 0: 1 to 255"),
            (&["--cpus", "256"], "--cpus 256: 1 to 255"),
            (&["--nics", "9"], "--nics 9: 0 to 8"),
            (&["--queues", "17"], "--queues 17: 1 to 16"),
            (&["--append", "a -- b"], "--append: `--` ends"),
            (&["--append", "a\nb"], "--append: it has a control"),
            (&["--append", &long], "--append: 2000 bytes"),
            (&[&port], "Address already in use"),
        ];
        for (words, what) in cases {
            let said = plan(words).unwrap_err().to_string();
            assert!(said.contains(what), "{words:?}: {said}");
        }
    }
}
