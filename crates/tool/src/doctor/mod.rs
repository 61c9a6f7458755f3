//! `devmem-tcp doctor`: checks what this machine supports, what is missing, and how to fix that.

mod devices;
mod pcie;
mod table;
#[cfg(test)]
mod tests;

use clap::Args;
use devmem_linux::doctor::{Check, CheckState, Doctor, NicVerdict};
use devmem_linux::netif::InterfaceFacts;
use devmem_linux::probe::{Probe, Verdict};
use devmem_linux::{macvtap, packet};
use serde::Serialize;

use crate::output::{Failure, print_json, print_text};
use crate::parse::OutputArgs;
use crate::terminal;
use table::Unsupported;

/// Check this machine for device memory TCP: what it supports, what is missing, and the commands that fix it
///
/// Examines the kernel, the privileges of this user, the dma-buf exporters, and every interface or only IFNAME. Nothing is
/// changed: what cannot be read is probed with requests that cannot succeed. Prints a table to stdout; with --json, one
/// object.
#[derive(Debug, Args)]
#[command(after_long_help = DOCTOR_EXAMPLES)]
pub struct DoctorArgs {
    /// Only this interface
    #[arg(value_name = "IFNAME")]
    pub interface: Option<String>,
    /// Whether a table or JSON is printed.
    #[command(flatten)]
    pub output: OutputArgs,
}

const DOCTOR_EXAMPLES: &str = "\
Exit status: 0 if the kernel can receive into device memory, at once or after set-up; 3 if not.

Examples:
  devmem-tcp doctor
      every interface; one line for each that cannot use device memory
  devmem-tcp doctor eth1
      all details of one interface
  devmem-tcp doctor --json | jq '.nics[] | select(.verdict == \"ready\") | .name'";

/// The whole report. The field names are those of the JSON and must not change.
#[derive(Debug, Serialize)]
pub struct Diagnosis {
    /// Whether the kernel's stack can receive into device memory, at once or after set-up.
    pub ready: bool,
    /// Checks of the kernel's support.
    #[serde(flatten)]
    pub doctor: Doctor,
    /// Checks of GPUs.
    pub devices: Vec<Check>,
    /// Checks for the user-space backend.
    pub user_space: UserSpace,
}

/// Whether the user-space backend works.
#[derive(Debug, Serialize)]
pub struct UserSpace {
    /// Whether TAP interfaces can be created, at least in a new network namespace.
    pub ready: bool,
    /// Each requirement, and each option that improves it.
    pub checks: Vec<Check>,
}

/// Examines the machine and prints the results.
///
/// # Errors
///
/// The interface does not exist; `Unsupported` if this kernel cannot receive into device memory.
pub fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let doctor = Doctor::examine(args.interface.as_deref())?;
    let diagnosis = Diagnosis {
        ready: doctor.can_receive(),
        doctor,
        devices: devices::examine(),
        user_space: UserSpace::of(&Probe::run()),
    };
    if args.output.json {
        print_json(&diagnosis)?;
    } else {
        let unsupported = match args.interface {
            Some(_) => Unsupported::InFull,
            None => Unsupported::InOneLine,
        };
        let mut text = diagnosis.table(unsupported);
        if let Some(width) = terminal::width(std::io::stdout()) {
            text = terminal::fold(&text, width, table::INDENT);
        }
        print_text(text)?;
    }
    match diagnosis.ready {
        true => Ok(()),
        false => Err(Failure::unsupported(format!(
            "the kernel cannot receive into device memory here: {}",
            diagnosis.doctor.obstacles_to_receiving().join("; ")
        ))
        .with_remedy(diagnosis.instead())),
    }
}

impl Diagnosis {
    /// Returns the remedy for a machine without the kernel's support.
    fn instead(&self) -> &'static str {
        let admin =
            |check: &Check| check.name == "cap_net_admin" && check.state == CheckState::Good;
        match (self.doctor.machine.iter().any(admin), self.user_space.ready) {
            (false, _) => "run it as root: some checks need CAP_NET_ADMIN",
            (true, true) => "the user-space backend works here: `devmem-tcp demo` shows it",
            (true, false) => "the table lists what is missing",
        }
    }
}

/// Returns whether an interface can receive into device memory, at once or after set-up.
fn receives(verdict: NicVerdict) -> bool {
    matches!(verdict, NicVerdict::Ready | NicVerdict::NeedsSetup)
}

impl UserSpace {
    fn of(probe: &Probe) -> Self {
        let Probe {
            tun,
            network_namespace,
            tap_in_namespace,
            // Only needed if no network namespace can be created.
            user_namespace: _,
            huge_memfd,
        } = probe;
        let checks = [
            ("tun", tun),
            ("network_namespace", network_namespace),
            ("tap", tap_in_namespace),
            ("huge_pages", huge_memfd),
        ];
        let mut checks: Vec<_> = checks.map(|(name, verdict)| check(name, verdict)).into();
        let tried = packet::try_open().map_err(|error| (error.to_string(), error.remedy()));
        checks.push(over_interfaces("packet", tried));
        let tried = macvtap::try_open().map_err(|error| (error.to_string(), error.remedy()));
        checks.push(over_interfaces("macvtap", tried));
        checks.push(shards());
        Self {
            ready: tap_in_namespace.works(),
            checks,
        }
    }
}

/// Returns the check of links of NICs with several shards.
fn shards() -> Check {
    let check = |state, found: String| Check {
        name: "shards",
        state,
        found,
        remedy: None,
    };
    match packet::try_group() {
        Ok(()) => check(
            CheckState::Good,
            "works (--shards N): tap, packet and macvtap links; a unix link has one shard"
                .to_owned(),
        ),
        Err(error) => check(
            CheckState::Missing,
            format!("several only on tap and macvtap links: {error}"),
        ),
    }
}

/// Returns the check of a kind of link to the Ethernet interfaces of this machine, from the result of a trial: the error and
/// its remedy.
fn over_interfaces(kind: &'static str, tried: Result<(), (String, Option<String>)>) -> Check {
    let check = |state, found: String, remedy: Option<String>| Check {
        name: kind,
        state,
        found,
        remedy,
    };
    if let Err((error, remedy)) = tried {
        let state = match remedy {
            Some(_) => CheckState::Mendable,
            None => CheckState::Missing,
        };
        return check(state, error, remedy);
    }
    match packet::interfaces() {
        Err(error) => check(CheckState::Unknown, error.to_string(), None),
        Ok(found) if found.is_empty() => check(
            CheckState::Mendable,
            "no Ethernet interface is up".to_owned(),
            Some("ip link set NAME up; `ip link` lists the names".to_owned()),
        ),
        Ok(found) => {
            let link = |(name, facts): &(String, InterfaceFacts)| {
                let merged = facts.max_merged_packet() >> 10;
                format!("{kind}:{name} (merges packets up to {merged} KiB)")
            };
            let links: Vec<_> = found.iter().map(link).collect();
            check(
                CheckState::Good,
                format!("works: {}", links.join(", ")),
                None,
            )
        }
    }
}

fn check(name: &'static str, verdict: &Verdict) -> Check {
    let (state, found, remedy) = match verdict {
        Verdict::Works => (CheckState::Good, "works", None),
        Verdict::Missing {
            reason,
            remedy: None,
        } => (CheckState::Missing, reason.as_str(), None),
        Verdict::Missing {
            reason,
            remedy: Some(remedy),
        } => (CheckState::Mendable, reason.as_str(), Some(*remedy)),
    };
    Check {
        name,
        state,
        found: found.to_owned(),
        remedy: remedy.map(str::to_owned),
    }
}
