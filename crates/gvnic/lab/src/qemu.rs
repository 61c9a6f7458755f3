//! QEMU: command line and process.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context;
use devmem_linux::helper::Helper;

use super::accel::{Accel, KVM_GAVE_UP};
use super::job::{CONTROL_PORT, INIT_PATH, Job};
use super::kit::Kit;
use super::machine::MachinePlan;
use super::scratch::Scratch;
use tool::output::Failure;

/// A running QEMU.
#[derive(Debug)]
pub struct Running {
    child: Helper,
    said: PathBuf,
}

impl Running {
    /// Starts QEMU.
    ///
    /// # Errors
    ///
    /// QEMU cannot be started.
    pub fn start(
        kit: &Kit,
        plan: &MachinePlan,
        job: &Job,
        accel: Accel,
        folder: &Scratch,
    ) -> Result<Self, Failure> {
        let mut command = kit.qemu.command().context("find QEMU's libraries")?;
        arguments(&mut command, kit, plan, accel, folder);
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

    /// Returns whether KVM has failed and the guest is stopped.
    pub fn stands_still(&self) -> bool {
        fs::read(&self.said).is_ok_and(|said| String::from_utf8_lossy(&said).contains(KVM_GAVE_UP))
    }

    /// Returns the output on stderr, for error messages.
    pub fn said(&self) -> String {
        let said = fs::read(&self.said).unwrap_or_default();
        match said.is_empty() {
            true => String::new(),
            false => format!("output of QEMU: {}", String::from_utf8_lossy(&said).trim()),
        }
    }
}

/// Adds QEMU's arguments. Guest memory is a shared memfd, so that the NIC servers can access it.
fn arguments(command: &mut Command, kit: &Kit, plan: &MachinePlan, accel: Accel, folder: &Scratch) {
    let memory = plan.memory_mib;
    let path = |name: &str| folder.path(name).to_string_lossy().into_owned();
    let accel = match accel {
        Accel::Kvm => "kvm",
        Accel::Auto | Accel::Tcg => "tcg,thread=multi,tb-size=512",
    };
    // no_timer_check: on a busy machine the emulated timer may be late, and the kernel would panic.
    let append = format!(
        "console=ttyS0,115200 panic=-1 quiet loglevel=7 mitigations=off no_timer_check rdinit={INIT_PATH} {}",
        plan.append
    );
    command.args([
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-no-reboot",
    ]);
    command.args([
        "-accel",
        accel,
        "-cpu",
        "max",
        "-smp",
        &plan.cpus.to_string(),
    ]);
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
    command.arg("-kernel").arg(&kit.kernel.image).args([
        "-initrd",
        &path("initrd"),
        "-append",
        &append,
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
}
