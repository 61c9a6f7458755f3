//! Process 1 of the guest. Mounts the usual file systems, loads the driver, sets up the NICs, runs the command, sends its
//! output and files to the host, and powers off.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use devmem_linux::netif::{Interface, interfaces};
use devmem_linux::netns::{self, NetNs};
use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, finit_module, reboot};
use rustix::time::{ClockId, clock_gettime};

use super::conversation::BootTimes;
use super::frame::{self, FrameKind, MAX_FRAME_BYTES};
use super::job::{CONTROL_PORT, GuestNic, Job, PEER_NETNS};
use tool::output::{Failure, note};

/// `MODULE_INIT_COMPRESSED_FILE` (linux include/uapi/linux/module.h): the kernel unpacks it.
const COMPRESSED: i32 = 4;
/// Search path for programs.
const PATH: &str = "/usr/local/bin:/bin:/sbin:/usr/bin:/usr/sbin:/lab/busybox";
/// Maximum time until a NIC has a carrier.
const CARRIER_LIMIT: Duration = Duration::from_secs(5);
/// Maximum time until a NIC or a port appears.
const NIC_LIMIT: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(5);
/// The folder of virtio console ports.
const PORTS: &str = "/sys/class/virtio-ports";
/// Exit code of a command that could not be started, as in a shell.
const NOT_STARTED: i32 = 127;
/// Exit code of a command that a signal ended, minus the number of the signal, as in a shell.
const SIGNALLED: i32 = 128;

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
    let trouble = match open_control() {
        Ok(control) => {
            times.port = uptime();
            let control = Mutex::new(control);
            let work = work(&control, times);
            match work {
                Ok(()) => None,
                Err(error) => {
                    let text = format!("{error:#}");
                    let _ = say(&control, FrameKind::Trouble, text.as_bytes());
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

fn lock(control: &Mutex<File>) -> MutexGuard<'_, File> {
    control.lock().unwrap_or_else(PoisonError::into_inner)
}

fn say(control: &Mutex<File>, kind: FrameKind, payload: &[u8]) -> io::Result<()> {
    frame::write(&mut *lock(control), kind, payload)
}

/// Mounts the file systems and finds the control port.
fn open_control() -> anyhow::Result<File> {
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
    let ports = wait_for("the control port", || {
        let ports = fs::read_dir(PORTS).ok()?;
        let named = ports.flatten().find(|port| {
            fs::read_to_string(port.path().join("name"))
                .is_ok_and(|name| name.trim() == CONTROL_PORT)
        });
        let device = Path::new("/dev").join(named?.file_name());
        device.exists().then_some(device)
    })
    .with_context(|| match Path::new(PORTS).exists() {
        true => "QEMU has no port of that name",
        false => "this kernel has no virtio console: it lacks CONFIG_VIRTIO_CONSOLE=y or CONFIG_VIRTIO_PCI=y",
    })?;
    File::options()
        .read(true)
        .write(true)
        .open(&ports)
        .with_context(|| format!("open {}", ports.display()))
}

/// Loads the driver of the NICs and sets up all NICs; the namespaces must exist.
///
/// # Errors
///
/// A module cannot be loaded, or a NIC cannot be set up.
pub fn load_driver_and_set_up(job: &Job) -> anyhow::Result<()> {
    load_modules(job)?;
    set_up_nics(job)
}

/// Loads all modules: the first one, and at the same time the others, in order. Unpacking takes most of the time.
fn load_modules(job: &Job) -> anyhow::Result<()> {
    let load_all = |modules: &[String]| -> anyhow::Result<()> {
        modules.iter().try_for_each(|module| {
            load(Path::new(module)).with_context(|| format!("load {module}"))
        })
    };
    let (first, others) = job.modules.split_at(job.modules.len().min(1));
    thread::scope(|scope| {
        let others = scope.spawn(|| load_all(others));
        load_all(first)?;
        others.join().map_err(|_| anyhow!("the thread panicked"))?
    })
}

fn set_up_nics(job: &Job) -> anyhow::Result<()> {
    let peer = match job.nics.iter().any(|nic| nic.peer) {
        true => Some(NetNs::open(PEER_NETNS)?),
        false => None,
    };
    for nic in &job.nics {
        set_up(nic, peer.as_ref()).with_context(|| format!("set up {}", nic.name))?;
    }
    for nic in job.nics.iter().filter(|nic| !nic.peer) {
        wait_for_carrier(&nic.name);
    }
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

/// Waits until the link of a NIC is up, for a bounded time, because the wire may have no other end.
fn wait_for_carrier(name: &str) {
    let path = format!("/sys/class/net/{name}/carrier");
    let start = Instant::now();
    let up = || fs::read_to_string(&path).is_ok_and(|text| text.trim() == "1");
    while !up() && start.elapsed() < CARRIER_LIMIT {
        thread::sleep(LOOK);
    }
}

fn work(control: &Mutex<File>, mut times: BootTimes) -> anyhow::Result<()> {
    let job = Job::read()?;
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
    say(control, FrameKind::Ready, times.to_text().as_bytes())?;
    let code = run_command(control, &job)?;
    for (index, path) in job.get.iter().enumerate() {
        send_file(control, index, path)?;
    }
    say(control, FrameKind::Exit, code.to_string().as_bytes())?;
    say(control, FrameKind::Bye, b"")?;
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

fn load(module: &Path) -> anyhow::Result<()> {
    let plain = module
        .extension()
        .is_some_and(|extension| extension == "ko");
    let flags = if plain { 0 } else { COMPRESSED };
    match finit_module(File::open(module)?, c"", flags) {
        // EEXIST: built in, or already loaded.
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Creates a named network namespace, as `ip netns add` does.
fn make_netns(name: &str) -> anyhow::Result<()> {
    let place = PathBuf::from("/run/netns").join(name);
    fs::create_dir_all("/run/netns")?;
    File::create(&place)?;
    let made = thread::spawn(move || -> anyhow::Result<()> {
        netns::enter_new()?;
        rustix::mount::mount_bind("/proc/thread-self/ns/net", &place)?;
        Ok(())
    });
    made.join().map_err(|_| anyhow!("the thread panicked"))?
}

/// Sets name, namespace, addresses and MTU of a NIC, and waits for its carrier.
fn set_up(nic: &GuestNic, peer: Option<&NetNs>) -> anyhow::Result<()> {
    let name = wait_for("the NIC", || find_by_mac(nic.mac))?;
    if name != nic.name {
        return Err(anyhow!("the kernel has renamed it to {name}"));
    }
    match peer.filter(|_| nic.peer) {
        Some(netns) => {
            Interface::by_name(&name)?.move_to(netns.as_fd())?;
            netns.run(|| configure(nic))?
        }
        None => configure(nic),
    }
}

fn configure(nic: &GuestNic) -> anyhow::Result<()> {
    let mut interface = Interface::by_name(&nic.name)?;
    interface.set_mtu(u32::from(nic.mtu))?;
    interface.quiet_ipv6();
    interface.set_up()?;
    for (address, prefix) in &nic.addresses {
        interface.add_address(*address, *prefix)?;
    }
    Ok(())
}

fn find_by_mac(mac: [u8; 6]) -> Option<String> {
    let all = interfaces().ok()?;
    all.into_iter().map(|(_, name, _)| name).find(|name| {
        let facts = Interface::by_name(name).and_then(|mut interface| interface.facts());
        facts.is_ok_and(|facts| facts.mac == Some(mac))
    })
}

/// Runs the command, forwards its output, and returns its exit code.
fn run_command(control: &Mutex<File>, job: &Job) -> anyhow::Result<i32> {
    let (program, arguments) = job.command.split_first().context("there is no command")?;
    let mut command = Command::new(program);
    command.args(arguments).current_dir("/root").env_clear();
    command
        .env("PATH", PATH)
        .env("HOME", "/root")
        .env("TERM", "linux")
        .env("DEVMEM_LAB", "1")
        .env("ENV", "/etc/shrc");
    command.envs(job.env.iter().map(|(name, value)| (name, value)));
    if job.interactive {
        return shell(command);
    }
    let stdin = || match job.stdin {
        true => Stdio::piped(),
        false => Stdio::null(),
    };
    command
        .stdin(stdin())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = match spawn(&mut command, stdin()) {
        Ok(child) => child,
        Err(error) => {
            say(
                control,
                FrameKind::Stderr,
                format!("devmem-tcp: {program}: {error}\n").as_bytes(),
            )?;
            return Ok(NOT_STARTED);
        }
    };
    if let Some(stdin) = child.stdin.take() {
        let from = lock(control)
            .try_clone()
            .context("clone the control port")?;
        // The thread may wait for the host for ever; it ends with the guest.
        thread::spawn(move || frame::take_in(from, stdin));
    }
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        scope.spawn(|| pass_on(control, FrameKind::Stdout, stdout));
        scope.spawn(|| pass_on(control, FrameKind::Stderr, stderr));
        child.wait()
    })
    .map(code)
    .context("wait for the command")
}

/// Starts a command from the search path; std would use the PATH of this process, which process 1 does not have.
fn spawn(command: &mut Command, stdin: Stdio) -> io::Result<Child> {
    let name = command.get_program().to_owned();
    if Path::new(&name).components().count() > 1 {
        return command.spawn();
    }
    let places = PATH.split(':').map(|folder| Path::new(folder).join(&name));
    let found = places.into_iter().find(|path| path.exists());
    let found = found
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such command in the guest"))?;
    let mut at_place = Command::new(found);
    at_place
        .args(command.get_args())
        .current_dir("/root")
        .env_clear();
    let set = command
        .get_envs()
        .filter_map(|(name, value)| Some((name, value?)));
    at_place.envs(set);
    at_place
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    at_place.spawn()
}

/// Runs an interactive shell on the virtio console, in a new session, so that Ctrl-C works.
fn shell(command: Command) -> anyhow::Result<i32> {
    let device = "/dev/hvc0";
    let open = || -> anyhow::Result<OwnedFd> {
        Ok(File::options().read(true).write(true).open(device)?.into())
    };
    let mut session = Command::new("/lab/busybox/setsid");
    session
        .arg("-c")
        .arg(command.get_program())
        .args(command.get_args());
    session.current_dir("/root").env_clear().envs(
        command
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    session.stdin(open()?).stdout(open()?).stderr(open()?);
    Ok(code(session.status().context("start the shell")?))
}

/// Returns the exit code of a command as a shell reports it.
pub fn code(status: ExitStatus) -> i32 {
    status
        .code()
        .or(status.signal().map(|signal| SIGNALLED + signal))
        .unwrap_or(NOT_STARTED)
}

fn pass_on(control: &Mutex<File>, kind: FrameKind, from: Option<impl Read>) {
    let Some(mut from) = from else { return };
    let mut buffer = vec![0; MAX_FRAME_BYTES];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if say(control, kind, &buffer[..count]).is_err() {
            return;
        }
    }
}

fn send_file(control: &Mutex<File>, index: usize, path: &str) -> io::Result<()> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) => {
            return say(
                control,
                FrameKind::FileError,
                format!("{path}: {error}").as_bytes(),
            );
        }
    };
    say(control, FrameKind::File, index.to_string().as_bytes())?;
    let mut buffer = vec![0; MAX_FRAME_BYTES];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => say(control, FrameKind::FileBytes, &buffer[..count])?,
            Err(error) => {
                return say(
                    control,
                    FrameKind::FileError,
                    format!("{path}: {error}").as_bytes(),
                );
            }
        }
    }
}

/// Calls `look` repeatedly until it returns a value, for a bounded time.
fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> anyhow::Result<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if start.elapsed() > NIC_LIMIT {
            return Err(anyhow!("{what} did not appear in time"));
        }
        thread::sleep(LOOK);
    }
}
