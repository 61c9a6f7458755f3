//! In the guest: runs the programs one after another, and prints one JSON object for each program to stdout.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, ensure};
use devmem_linux::ethtool::{DataSplit, Ethtool, NTUPLE, RingsChange};
use devmem_linux::netif::Interface;
use lab::guest::command;
use lab::job::{GuestNic, PEER_NETNS, TOOL_PATH};
use lab::klog;
use tool::output::{Failure, note};

use super::edits;
use super::ktap;
use super::report::ProgramEnd;
use super::tree::{TESTS, TREE};
use crate::args::GuestPrograms;
use crate::places::ROOT;
use crate::root::enter_root;
use crate::suite::nic::{NIC, restore_addresses};
use crate::suite::row::program;

/// Bytes of a program's output to send to the host, without the results that are further ahead.
const OUTPUT_BYTES_MAX: usize = 256 << 10;

/// Network of the pods that programs make behind our NIC: none of the NICs'.
const POD_PREFIX: &str = "fd77:0:0:2::/64";

/// Puts the tool in the place of `ncdevmem`, unless the tree has a built one.
fn put_ncdevmem() -> anyhow::Result<()> {
    let folder = Path::new(ROOT).join(TREE.trim_start_matches('/'));
    let folder = folder.join(TESTS).join("drivers/net/hw");
    let place = folder.join("ncdevmem");
    if !folder.is_dir() || place.is_file() {
        return Ok(());
    }
    // A link to the tool leads nowhere in the guest.
    let _ = fs::remove_file(&place);
    fs::copy(TOOL_PATH, &place).context("put the tool in the place of ncdevmem")?;
    Ok(())
}

/// Gives both ends link-local addresses, which the lab's NICs do not have: without one, a machine does not ask for the neighbours of packets
/// that it forwards to or from a pod (linux net/ipv6/ndisc.c `ndisc_send_ns`).
fn add_link_local() -> anyhow::Result<()> {
    program(&[
        "ip",
        "address",
        "replace",
        "fe80::2/64",
        "dev",
        NIC,
        "nodad",
    ])?;
    let words = [
        "ip", "netns", "exec", PEER_NETNS, "ip", "address", "replace",
    ];
    program(&[&words[..], &["fe80::1/64", "dev", "eth0", "nodad"]].concat())?;
    Ok(())
}

/// Gives the peer a route to the pods.
fn route_pods() -> anyhow::Result<()> {
    let ours = GuestNic::standard(1, 2, 0).addresses[1].0.to_string();
    let words = ["ip", "netns", "exec", PEER_NETNS, "ip", "route", "replace"];
    program(&[&words[..], &[POD_PREFIX, "via", &ours]].concat())?;
    Ok(())
}

/// Runs the programs.
///
/// # Errors
///
/// The root file system cannot be set up. A program that fails is no error.
pub fn run(args: &GuestPrograms) -> Result<(), Failure> {
    put_ncdevmem()?;
    enter_root()?;
    for left in edits::apply(Path::new(TREE))? {
        note(left);
    }
    route_pods()?;
    let mut known = complaints()?.len();
    for program in &args.programs {
        prepare_nic()?;
        if let Some(command) = &args.before {
            run_before(command)?;
        }
        let mut ended = run_one(program, args.limit)?;
        let complaints = complaints()?;
        ended.complaint = complaints.get(known).cloned();
        known = complaints.len();
        let is_over = complaints.iter().any(|line| is_error(line));
        let mut stdout = std::io::stdout().lock();
        serde_json::to_writer(&mut stdout, &ended)?;
        writeln!(stdout)?;
        if is_over {
            break;
        }
    }
    Ok(())
}

/// Makes the NIC as a program expects it. The program before may have failed and left the NIC changed.
fn prepare_nic() -> anyhow::Result<()> {
    Interface::by_name(NIC)?.set_up()?;
    restore_addresses()?;
    add_link_local()?;
    let mut nic = Ethtool::by_name(NIC)?;
    nic.reset_rss_table()?;
    // The programs restore the mode "auto", which gve takes for no change.
    if nic.rings()?.data_split == Some(DataSplit::Enabled) {
        nic.set_rings(RingsChange {
            data_split: Some(DataSplit::Disabled),
            ..RingsChange::default()
        })?;
    }
    // The programs add flow rules and do not enable them; gve has the feature off by default, or lacks it (6.12).
    if nic
        .feature(NTUPLE)?
        .is_some_and(|feature| feature.changeable)
    {
        nic.set_feature(NTUPLE, true)?;
    }
    Ok(())
}

/// Runs the user's command for the NIC in the root file system of the programs.
fn run_before(command: &str) -> anyhow::Result<()> {
    let output = Command::new("/usr/bin/bash")
        .args(["-c", command])
        .env_clear()
        .envs(environment())
        .output()
        .context("start bash")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "--before: {command}: {}",
        stderr.trim()
    );
    Ok(())
}

/// Returns the warnings and errors in the kernel's log.
fn complaints() -> anyhow::Result<Vec<String>> {
    let output = Command::new("/usr/bin/dmesg")
        .output()
        .context("read the kernel's log")?;
    Ok(klog::complaints(&String::from_utf8_lossy(&output.stdout)))
}

/// Returns whether a line of the log is an error after which the kernel may never release a lock.
fn is_error(line: &str) -> bool {
    ["BUG:", "Oops", "general protection fault"]
        .iter()
        .any(|word| line.contains(word))
}

fn run_one(program: &str, limit: u64) -> anyhow::Result<ProgramEnd> {
    let start = Instant::now();
    let interpreter = match program.ends_with(".py") {
        true => "/usr/bin/python3",
        false => "/usr/bin/bash",
    };
    let place = format!("{TREE}/{TESTS}/{program}");
    let (folder, name) = place.rsplit_once('/').context("a program is in a folder")?;
    let mut command = Command::new("/usr/bin/timeout");
    command.current_dir(folder);
    command.args(["-k", "10", &limit.to_string()]);
    command.args([interpreter, &format!("./{name}")]);
    // One pipe for both outputs keeps the order of their lines.
    let (mut reader, writer) = std::io::pipe()?;
    command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer);
    command.env_clear().envs(environment());
    let mut child = command.spawn().context("start timeout")?;
    // The command holds the write end of the pipe; the read below ends when all copies are closed.
    drop(command);
    let mut output = Vec::new();
    std::io::Read::read_to_end(&mut reader, &mut output)?;
    let status = child.wait()?;
    Ok(ProgramEnd {
        program: program.to_owned(),
        code: command::code(status),
        seconds: start.elapsed().as_secs_f64(),
        output: ktap::shortened(&String::from_utf8_lossy(&output), OUTPUT_BYTES_MAX),
        complaint: None,
    })
}

/// Returns the environment, which names the NIC and its remote end (linux tools/testing/selftests/drivers/net/README.rst).
fn environment() -> Vec<(String, String)> {
    let address = |nic: u8, at: usize| GuestNic::standard(nic, 2, 0).addresses[at].0.to_string();
    let pairs = [
        (
            "PATH",
            "/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin:/lab/busybox".to_owned(),
        ),
        ("HOME", "/root".to_owned()),
        ("LC_ALL", "C.UTF-8".to_owned()),
        ("PYTHONUNBUFFERED", "1".to_owned()),
        ("NETIF", NIC.to_owned()),
        ("LOCAL_V4", address(1, 0)),
        ("LOCAL_V6", address(1, 1)),
        ("REMOTE_V4", address(0, 0)),
        ("REMOTE_V6", address(0, 1)),
        ("LOCAL_PREFIX_V6", POD_PREFIX.to_owned()),
        ("REMOTE_TYPE", "netns".to_owned()),
        ("REMOTE_ARGS", PEER_NETNS.to_owned()),
        // Longer time limits in the programs: the guest may be emulated.
        ("KSFT_MACHINE_SLOW", "1".to_owned()),
    ];
    pairs.map(|(name, value)| (name.to_owned(), value)).to_vec()
}
