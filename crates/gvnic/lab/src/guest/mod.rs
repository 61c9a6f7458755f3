//! Process 1 of the guest. Mounts the usual file systems, loads the driver, sets up the NICs, runs the command, sends its
//! output and files to the host, and powers off.

pub mod command;
mod control;
pub mod network;
mod processors;
mod wait;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use devmem_linux::netif::Interface;
use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, reboot};
use rustix::time::{ClockId, clock_gettime};
use tool::output::{Failure, note};

use self::control::Control;
use self::network::{load_modules, make_netns, set_up_nics};
use crate::conversation::BootTimes;
use crate::frame::FrameKind;
use crate::job::{Job, PEER_NETNS};

/// Runs process 1 of a guest, and powers the guest off at the end.
///
/// # Errors
///
/// This process is not process 1.
pub fn run() -> Result<(), Failure> {
    match std::process::id() {
        1 => init(),
        _ => Err(Failure::usage("only a guest of the lab is started so")),
    }
}

fn init() -> ! {
    let mut times = BootTimes {
        init: uptime(),
        ..BootTimes::default()
    };
    let trouble = match mount_file_systems().and_then(|()| Control::open()) {
        Ok(control) => {
            times.port = uptime();
            let work = work(&control, times);
            match work {
                Ok(()) => None,
                Err(error) => {
                    let text = format!("{error:#}");
                    let _ = control.say(FrameKind::Trouble, text.as_bytes());
                    Some(text)
                }
            }
        }
        Err(error) => Some(format!("{error:#}")),
    };
    if let Some(text) = trouble {
        note(text);
    }
    let _ = reboot(RebootCommand::PowerOff);
    // The kernel panics when process 1 exits, which ends the guest, too.
    std::process::exit(1)
}

/// Returns the time since the kernel started.
fn uptime() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::try_from(now).unwrap_or_default()
}

/// Mounts the file systems that every program expects.
fn mount_file_systems() -> anyhow::Result<()> {
    for (kind, place) in [
        ("devtmpfs", "/dev"),
        ("proc", "/proc"),
        ("sysfs", "/sys"),
        ("tmpfs", "/tmp"),
        ("tmpfs", "/run"),
    ] {
        mount(kind, place, kind, MountFlags::empty(), None)
            .with_context(|| format!("mount {place}"))?;
    }
    Ok(())
}

fn work(control: &Control, mut times: BootTimes) -> anyhow::Result<()> {
    let job = Job::read()?;
    if job.starts_processors {
        processors::start_all(Path::new(processors::FOLDER))?;
    }
    fs::create_dir_all("/dev/pts")?;
    // For programs that need a pseudo-terminal, and for perf, bpftrace and the kernel's own files. A kernel without one of
    // them has no folder to mount it on, and such programs say what they miss.
    for (kind, place) in [
        ("devpts", "/dev/pts"),
        ("tracefs", "/sys/kernel/tracing"),
        ("debugfs", "/sys/kernel/debug"),
        ("bpf", "/sys/fs/bpf"),
    ] {
        let _ = mount(kind, place, kind, MountFlags::empty(), None);
    }
    let _ = rustix::system::sethostname(b"lab");
    Interface::by_name("lo")?.set_up()?;
    if job.nics.iter().any(|nic| nic.peer) {
        make_netns(PEER_NETNS).context("create the peer's network namespace")?;
    }
    thread::scope(|scope| {
        let commands = scope.spawn(install_busybox);
        load_modules(&job)?;
        commands
            .join()
            .map_err(|_| anyhow!("the thread panicked"))?
    })?;
    mount_shares(&job)?;
    times.files = uptime();
    set_up_nics(&job)?;
    times.nics = uptime();
    control.say(FrameKind::Ready, times.to_text().as_bytes())?;
    let code = command::run(control, &job)?;
    for (index, path) in job.get.iter().enumerate() {
        control.send_file(index, path)?;
    }
    control.say(FrameKind::Exit, code.to_string().as_bytes())?;
    control.say(FrameKind::Bye, b"")?;
    Ok(())
}

/// Mounts the folders that the host shares.
fn mount_shares(job: &Job) -> anyhow::Result<()> {
    for share in &job.shares {
        let place = &share.place;
        fs::create_dir_all(place)?;
        let mounted = mount(
            share.tag.as_str(),
            place.as_str(),
            "virtiofs",
            MountFlags::empty(),
            None,
        );
        mounted.with_context(|| match mounted {
            Err(rustix::io::Errno::NODEV) => {
                format!("--share {place}: this kernel lacks CONFIG_VIRTIO_FS=y")
            }
            _ => format!("--share {place}: mount it"),
        })?;
    }
    Ok(())
}

/// Creates links for busybox's commands, in the last folder of the search path.
fn install_busybox() -> anyhow::Result<()> {
    fs::create_dir_all("/lab/busybox")?;
    let list = Command::new("/bin/busybox")
        .arg("--list")
        .output()
        .context("run busybox")?;
    for name in String::from_utf8_lossy(&list.stdout).lines() {
        let link = Path::new("/lab/busybox").join(name);
        std::os::unix::fs::symlink("/bin/busybox", &link)
            .with_context(|| format!("link {}", link.display()))?;
    }
    Ok(())
}
