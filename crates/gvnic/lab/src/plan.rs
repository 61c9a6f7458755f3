//! Validated command lines of `devmem-tcp lab`.

use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;

use crate::accel::Accel;
use crate::args::{DeviceArgs, KitArgs, MachineArgs, PluginArgs, Run, Shell};
use crate::boot::SILENCE_LIMIT;
use crate::disks::Disk;
use crate::initramfs::default_place;
use crate::job::{GuestNic, Job};
use crate::kit::KitOptions;
use crate::machine_plan::{Debugger, DebuggerStart, MachinePlan};
use crate::nics::NicsPlan;
use crate::shares::{Share, Shares};
use tool::beside::this_program;
use tool::output::Failure;
use tool::parse::{check_mtu, parse_impairment};
use tool::signals::StopFlag;
use tool::size::Size;

/// Minimum memory of a guest.
const MIN_MEMORY: u64 = 256 << 20;
/// Maximum number of NICs; addresses have one byte for their number.
const MAX_NICS: u8 = 8;
/// Maximum number of virtual processors in QEMU's default machine.
const MAX_CPUS: u16 = 255;
/// Maximum number of queue pairs of a gVNIC.
const MAX_QUEUES: u16 = 16;
/// Maximum number of shared folders, and of disks.
const MAX_DEVICES: usize = 8;
/// Maximum bytes of the kernel's command line (linux arch/x86/include/asm/setup.h COMMAND_LINE_SIZE), less those that the lab
/// needs.
const MAX_APPEND_BYTES: usize = 1536;

/// Plan of a run in a guest.
#[derive(Clone, Debug)]
pub struct LabRunPlan {
    /// Origin of the parts.
    pub kit: KitOptions,
    /// The machine.
    pub machine: MachinePlan,
    /// Job of the guest.
    pub job: Job,
    /// One JSON object on stdout.
    pub json: bool,
    /// Ignore warnings of the kernel.
    pub allow_warnings: bool,
    /// Run the job in two guests like the machine.
    pub is_pair: bool,
}

impl LabRunPlan {
    /// Validates the arguments of `lab run`.
    ///
    /// # Errors
    ///
    /// An invalid value, with the name of its option.
    pub fn run(args: Run) -> Result<Self, Failure> {
        let mut machine = machine(args.guest.machine, this_program()?)?;
        if args.pair {
            machine.nics.count = 1;
        }
        add_devices(&mut machine, args.devices)?;
        machine.limit = args.limit.map(Duration::from_secs);
        machine.put = args
            .put
            .iter()
            .map(|text| parse_put(text))
            .collect::<Result<_, _>>()?;
        machine.get = args
            .get
            .iter()
            .map(|text| parse_get(text))
            .collect::<Result<_, _>>()?;
        let mut job = job(&machine, args.command);
        job.stdin = args.stdin;
        job.get = machine.get.iter().map(|(place, _)| place.clone()).collect();
        for text in &args.env {
            let (name, value) = text
                .split_once('=')
                .ok_or_else(|| Failure::usage(format!("--env {text:?} is not NAME=VALUE")))?;
            job.env.push((name.to_owned(), value.to_owned()));
        }
        Ok(Self {
            kit: kit(args.guest.kit),
            machine,
            job,
            json: args.json,
            allow_warnings: args.allow_warnings,
            is_pair: args.pair,
        })
    }

    /// Validates the arguments of `lab shell`.
    ///
    /// # Errors
    ///
    /// As [`LabRunPlan::run`].
    pub fn shell(args: Shell) -> Result<Self, Failure> {
        let mut machine = machine(args.guest.machine, this_program()?)?;
        add_devices(&mut machine, args.devices)?;
        machine.put = args
            .put
            .iter()
            .map(|text| parse_put(text))
            .collect::<Result<_, _>>()?;
        let mut job = job(&machine, vec!["/lab/busybox/ash".to_owned()]);
        job.interactive = true;
        Ok(Self {
            kit: kit(args.guest.kit),
            machine,
            job,
            json: false,
            allow_warnings: true,
            is_pair: false,
        })
    }
}

/// Converts the options for the parts.
pub fn kit(args: KitArgs) -> KitOptions {
    let KitArgs {
        cache,
        suite,
        kernel_suite,
        mirror,
        packaged,
        offline,
        qemu,
        kernel,
        modules,
        busybox,
    } = args;
    KitOptions {
        cache,
        suites: suite,
        kernel_suites: kernel_suite,
        mirror,
        qemu,
        kernel,
        modules,
        busybox,
        offline,
        refresh: false,
        packaged,
    }
}

/// Validates the options for the machine, in which `tool` works.
///
/// # Errors
///
/// A number is out of range.
pub fn machine(args: MachineArgs, tool: PathBuf) -> Result<MachinePlan, Failure> {
    let MachineArgs {
        accel,
        cpus,
        memory,
        nics,
        queues,
        mtu,
        wire,
        impair,
        capture,
        log,
        append,
        nic_program,
    } = args;
    let memory_mib = u32::try_from(memory.0 >> 20)
        .ok()
        .filter(|_| memory.0 >= MIN_MEMORY);
    let memory_mib =
        memory_mib.ok_or_else(|| Failure::usage(format!("--memory {memory}: 256M or more")))?;
    check("--cpus", cpus, MAX_CPUS)?;
    check("--queues", queues, MAX_QUEUES)?;
    check_nics(nics, wire.as_deref())?;
    if let Some(impair) = &impair {
        parse_impairment(impair)?;
    }
    check_append(&append)?;
    // The NICs have addresses of both IP versions.
    check_mtu(mtu, Ipv6Addr::UNSPECIFIED.into())?;
    Ok(MachinePlan {
        tool: tool.clone(),
        accel,
        cpus,
        memory_mib,
        limit: None,
        put: Vec::new(),
        trees: Vec::new(),
        get: Vec::new(),
        log,
        nics: NicsPlan {
            count: usize::from(nics),
            first: 0,
            queues,
            mtu,
            impair,
            capture,
            wire,
            options: Vec::new(),
            program: nic_program.unwrap_or_else(|| tool.clone()),
        },
        shares: Shares::default(),
        disks: Vec::new(),
        debugger: None,
        append,
        silence_limit: SILENCE_LIMIT,
        stop: StopFlag::install().context("install signal handlers")?,
    })
}

fn check_nics(nics: u8, wire: Option<&str>) -> Result<(), Failure> {
    if nics > MAX_NICS {
        return Err(Failure::usage(format!("--nics {nics}: 0 to {MAX_NICS}")));
    }
    if wire.is_some() && nics != 1 {
        return Err(Failure::usage(
            "--wire is for --nics 1: two NICs are connected to each other",
        ));
    }
    Ok(())
}

/// Returns the smallest machine, without NICs: for a guest that only shows that it starts.
///
/// # Errors
///
/// Signals cannot be handled.
pub fn bare_machine() -> Result<MachinePlan, Failure> {
    let smallest = MachineArgs {
        accel: Accel::Auto,
        cpus: 1,
        memory: Size(2 * MIN_MEMORY),
        nics: 0,
        queues: 1,
        mtu: 1500,
        wire: None,
        impair: None,
        capture: None,
        log: None,
        nic_program: None,
        append: String::new(),
    };
    machine(smallest, this_program()?)
}

fn check(option: &str, value: u16, most: u16) -> Result<(), Failure> {
    match (1..=most).contains(&value) {
        true => Ok(()),
        false => Err(Failure::usage(format!("{option} {value}: 1 to {most}"))),
    }
}

/// Adds the shared folders, the disks and the debugger.
fn add_devices(machine: &mut MachinePlan, args: DeviceArgs) -> Result<(), Failure> {
    let DeviceArgs {
        share,
        disk,
        gdb,
        gdb_wait,
    } = args;
    for (option, count) in [("--share", share.len()), ("--disk", disk.len())] {
        if count > MAX_DEVICES {
            return Err(Failure::usage(format!(
                "{count} times {option}: at most {MAX_DEVICES}"
            )));
        }
    }
    machine.shares.folders = Share::parse_all(&share)?;
    let disks = disk.iter().map(|text| Disk::parse(text));
    machine.disks = disks.collect::<Result<_, _>>()?;
    let start = match gdb_wait {
        true => DebuggerStart::Waits,
        false => DebuggerStart::Runs,
    };
    machine.debugger = gdb.map(|port| Debugger { port, start });
    match gdb {
        Some(port) => check_port(port),
        None => Ok(()),
    }
}

/// Checks that the debugger's port is free, because QEMU would end with an error after the parts were fetched.
fn check_port(port: u16) -> Result<(), Failure> {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
        Ok(_) => Ok(()),
        Err(error) => {
            let other = port.checked_add(1).unwrap_or(1234);
            Err(Failure::usage(format!("--gdb={port}: {error}"))
                .with_remedy(format!("name another port: --gdb={other}")))
        }
    }
}

/// Checks the parameters for the kernel's command line.
fn check_append(append: &str) -> Result<(), Failure> {
    let said = if append.len() > MAX_APPEND_BYTES {
        format!("{} bytes, at most {MAX_APPEND_BYTES}", append.len())
    } else if append.chars().any(char::is_control) {
        "it has a control character".to_owned()
    } else if append.split_whitespace().any(|word| word == "--") {
        "`--` ends the kernel's parameters; what follows is for process 1, which is the lab's"
            .to_owned()
    } else {
        return Ok(());
    };
    Err(Failure::usage(format!("--append: {said}")))
}

/// Returns the plugin for NCCL: the named file, or the one that was built with this program or installed.
///
/// # Errors
///
/// The named file does not exist.
pub fn plugin(args: PluginArgs) -> Result<Option<PathBuf>, Failure> {
    const BUILT: &str = "libnccl_net_devmem.so";
    const INSTALLED: [&str; 2] = [
        "/usr/local/lib/libnccl-net-devmem.so",
        "/usr/lib/libnccl-net-devmem.so",
    ];
    if let Some(named) = args.plugin {
        return match named.is_file() {
            true => Ok(Some(named)),
            false => Err(Failure::usage(format!(
                "--plugin {}: there is no such file",
                named.display()
            ))),
        };
    }
    let me = this_program()?;
    let places = INSTALLED.map(PathBuf::from);
    let mut places = [me.with_file_name(BUILT)].into_iter().chain(places);
    Ok(places.find(|place| place.is_file()))
}

/// Returns the NICs of a machine, for its guest.
pub fn nics(machine: &MachinePlan) -> Vec<GuestNic> {
    let count = machine.nics.count;
    // The command line has at most MAX_NICS.
    let numbers = (machine.nics.first..=u8::MAX).take(count);
    let nics = numbers.map(|number| match count {
        1 => GuestNic::alone(number, machine.nics.mtu),
        _ => GuestNic::standard(number, count, machine.nics.mtu),
    });
    nics.collect()
}

/// Returns the job that runs a command on a machine.
pub fn job(machine: &MachinePlan, command: Vec<String>) -> Job {
    let nics = nics(machine);
    let ours = nics.iter().find(|nic| !nic.peer);
    let env = ours.map(|nic| ("DEVMEM_TEST_NIC".to_owned(), nic.name.clone()));
    Job {
        command,
        env: env.into_iter().collect(),
        nics,
        shares: machine.shares.mounts(),
        ..Job::default()
    }
}

/// Parses `PATH[:PLACE]`.
fn parse_put(text: &str) -> Result<(PathBuf, String), Failure> {
    let (from, to) = match text.rsplit_once(':') {
        Some((from, to)) => (PathBuf::from(from), to.to_owned()),
        None => (
            PathBuf::from(text),
            default_place(Path::new(text))
                .to_string_lossy()
                .into_owned(),
        ),
    };
    if !to.starts_with('/') || to.split('/').any(|part| part == "..") {
        return Err(Failure::usage(format!(
            "--put {text:?}: the place in the guest must be an absolute path"
        )));
    }
    if from.file_name().is_none() && !text.contains(':') {
        return Err(Failure::usage(format!(
            "--put {text:?}: give the place in the guest, as {text}:/PLACE"
        )));
    }
    if !from.is_file() && !from.is_dir() {
        return Err(Failure::usage(format!(
            "--put: {} is neither a file nor a folder",
            from.display()
        )));
    }
    Ok((from, to))
}

/// Parses `PLACE[:FILE]`.
fn parse_get(text: &str) -> Result<(String, PathBuf), Failure> {
    let (from, to) = match text.split_once(':') {
        Some((from, to)) => (from, PathBuf::from(to)),
        None => (
            text,
            Path::new(text)
                .file_name()
                .map(PathBuf::from)
                .unwrap_or_default(),
        ),
    };
    if !from.starts_with('/') || to.as_os_str().is_empty() {
        return Err(Failure::usage(format!(
            "--get {text:?}: the place in the guest must be an absolute path of a file"
        )));
    }
    Ok((from.to_owned(), to))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        run: Run,
    }

    #[test]
    fn the_guests_of_a_pair_have_one_nic_each_and_nothing_that_only_one_can_have() {
        let line = Line::parse_from(["lab", "--pair", "--", "true"]);
        let plan = LabRunPlan::run(line.run).unwrap();
        assert!(plan.is_pair);
        assert_eq!(plan.machine.nics.count, 1);
        let nic = ("DEVMEM_TEST_NIC".to_owned(), "eth0".to_owned());
        assert_eq!(plan.job.env, [nic]);
        for one in [
            "--json", "--stdin", "--gdb", "--nics=1", "--get=/x", "--disk=x",
        ] {
            let refused = Line::try_parse_from(["lab", "--pair", one, "--", "true"]);
            assert!(refused.is_err(), "{one}");
        }
    }

    #[test]
    fn a_named_plugin_must_exist_and_is_taken_as_it_is() {
        let named = |path: &Path| {
            plugin(PluginArgs {
                plugin: Some(path.to_owned()),
            })
        };
        let me = std::env::current_exe().unwrap();
        assert_eq!(named(&me).unwrap(), Some(me));
        let missing = named(Path::new("/nonexistent/x.so")).unwrap_err();
        assert!(missing.to_string().contains("no such file"), "{missing}");
    }

    #[test]
    fn files_get_the_given_place_or_keep_their_name() {
        let me = std::env::current_exe().unwrap();
        let name = me.file_name().unwrap().to_string_lossy();
        let (from, to) = parse_put(&me.to_string_lossy()).unwrap();
        assert_eq!((from, to), (me.clone(), format!("/{name}")));
        let (_, to) = parse_put(&format!("{}:/bin/x", me.display())).unwrap();
        assert_eq!(to, "/bin/x");
        let folder = std::env::temp_dir();
        let (from, to) = parse_put(&format!("{}:/opt", folder.display())).unwrap();
        assert_eq!((from, to), (folder, "/opt".to_owned()));
        for wrong in [".", "/nonexistent", "Cargo.toml:x", "Cargo.toml:/a/../b"] {
            assert!(parse_put(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            parse_get("/tmp/a.json").unwrap(),
            ("/tmp/a.json".into(), "a.json".into())
        );
        assert_eq!(
            parse_get("/tmp/a:/b/c").unwrap(),
            ("/tmp/a".into(), "/b/c".into())
        );
        assert!(parse_get("a").is_err() && parse_get("/").is_err());
    }
}
