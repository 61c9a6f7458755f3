//! Guests that are played by a thread of the test: QEMU is a script that tells where its control socket is, and waits.

use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::accel::Accel;
use crate::frame::FrameKind;
use crate::kernel::Kernel;
use crate::kit::Qemu;
use crate::plan;

/// Longest time that a test waits for another process.
const PATIENCE: Duration = Duration::from_secs(60);

/// Takes the output of a command that prints nothing.
struct Nothing;

impl Output for Nothing {
    fn stdout(&mut self, bytes: &[u8]) -> io::Result<()> {
        panic!("{bytes:?}");
    }

    fn stderr(&mut self, bytes: &[u8]) -> io::Result<()> {
        panic!("{bytes:?}");
    }
}

/// A machine whose QEMU is a script.
struct FakeMachine {
    folder: tempfile::TempDir,
    kit: Kit,
    plan: MachinePlan,
}

impl FakeMachine {
    /// `script` runs with the paths of the control socket and of the kernel's log in variables, and in the folder of the test.
    fn with_qemu(script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().display();
        let text = format!(
            "#!/bin/sh\nfor word in \"$@\"; do case $word in\n\
             socket,id=control,path=*) control=${{word#*path=}};;\nfile:*) log=${{word#file:}};;\nesac; done\n\
             cd {at}\n{script}\n"
        );
        // Written by a process of its own: no child of another test has it open for writing (ETXTBSY).
        let [draft, program] = ["draft", "qemu"].map(|name| folder.path().join(name));
        fs::write(&draft, text).unwrap();
        let mut install = std::process::Command::new("install");
        let status = install
            .args(["-m", "755"])
            .arg(&draft)
            .arg(&program)
            .status();
        assert!(status.unwrap().success());
        let mode = program.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        let kit = Kit {
            qemu: Qemu {
                program,
                root: None,
                version: String::new(),
            },
            kernel: Kernel {
                image: draft.clone(),
                modules: Vec::new(),
                release: "1".to_owned(),
                extra_modules: Vec::new(),
                extra_built_in: None,
            },
            busybox: draft,
            tools: None,
            programs: Vec::new(),
            packages: Vec::new(),
            cache: folder.path().to_owned(),
        };
        let plan = MachinePlan {
            accel: Accel::Tcg,
            silence_limit: Duration::from_millis(500),
            ..plan::bare_machine().unwrap()
        };
        Self { folder, kit, plan }
    }

    fn run(&self) -> Result<RunReport, Failure> {
        let job = plan::job(&self.plan, vec!["true".to_owned()]);
        run(&self.kit, &self.plan, &job, &mut Nothing)
    }

    /// Waits until QEMU was started `count` times, and returns the control socket of the last.
    fn control(&self, count: usize) -> PathBuf {
        let start = Instant::now();
        loop {
            let started = fs::read_to_string(self.folder.path().join("started"));
            let started = started.unwrap_or_default();
            let whole = started
                .ends_with('\n')
                .then(|| started.lines().nth(count - 1));
            if let Some(path) = whole.flatten() {
                return path.into();
            }
            assert!(start.elapsed() < PATIENCE, "QEMU is not started: {started}");
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Lets every QEMU end.
    fn power_off(&self) {
        fs::write(self.folder.path().join("off"), "").unwrap();
    }
}

/// Tells where its control socket is, and runs until the power is off.
const WAITS: &str = "echo $control >>started; while ! [ -e off ]; do sleep 0.02; done";

#[test]
fn a_boot_without_a_sign_of_life_is_started_again_once_and_counted() {
    let machine = FakeMachine::with_qemu(WAITS);
    let report = thread::scope(|scope| {
        let ran = scope.spawn(|| machine.run());
        let _silent = UnixStream::connect(machine.control(1)).unwrap();
        let mut guest = UnixStream::connect(machine.control(2)).unwrap();
        frame::write(&mut guest, FrameKind::Ready, b"1 2 3 4").unwrap();
        frame::write(&mut guest, FrameKind::Exit, b"7").unwrap();
        frame::write(&mut guest, FrameKind::Bye, b"").unwrap();
        machine.power_off();
        ran.join().unwrap()
    });
    let report = report.unwrap();
    assert_eq!((report.exit_code, report.boot_retries), (7, 1));
}

#[test]
fn a_second_boot_is_the_last() {
    let machine = FakeMachine::with_qemu(WAITS);
    let failure = thread::scope(|scope| {
        let ran = scope.spawn(|| machine.run());
        let _silent = UnixStream::connect(machine.control(1)).unwrap();
        let mut guest = UnixStream::connect(machine.control(2)).unwrap();
        frame::write(&mut guest, FrameKind::Trouble, b"\x1b[2Jno disk").unwrap();
        ran.join().unwrap().unwrap_err()
    });
    let said = failure.to_string();
    assert_eq!(said, "the guest failed: \\u{1b}[2Jno disk");
    let started = fs::read_to_string(machine.folder.path().join("started")).unwrap();
    assert_eq!(started.lines().count(), 2);
}

#[test]
fn a_qemu_that_dies_early_is_an_error_with_its_words_and_is_not_tried_again() {
    let dies = |how: &str| {
        let script =
            format!("echo $control >>started; echo 'cannot set up guest memory' >&2; {how}");
        let machine = FakeMachine::with_qemu(&script);
        let said = machine.run().unwrap_err().to_string();
        let started = fs::read_to_string(machine.folder.path().join("started")).unwrap();
        assert_eq!(started.lines().count(), 1);
        said
    };
    let said = dies("exit 1");
    assert_eq!(
        said,
        "QEMU ended (exit status: 1): cannot set up guest memory"
    );
    let said = dies("kill -9 $$");
    assert!(
        said.starts_with("QEMU ended (signal: 9 (SIGKILL)): cannot"),
        "{said}"
    );
    assert!(said.contains("--memory"), "{said}");
}

#[test]
fn a_kvm_that_qemu_cannot_use_is_no_error_of_an_automatic_choice() {
    let script = "case \"$*\" in *'-accel kvm'*) echo 'failed to initialize kvm: No such device' >&2; exit 1;; esac; exit 2";
    let machine = FakeMachine::with_qemu(script);
    let job = plan::job(&machine.plan, vec!["true".to_owned()]);
    let tried = attempt(
        Accel::Kvm,
        &machine.kit,
        &machine.plan,
        &job,
        None,
        &mut Nothing,
    );
    assert!(matches!(tried.unwrap(), Attempt::KvmFailed));
}
