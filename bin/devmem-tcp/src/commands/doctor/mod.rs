//! `devmem-tcp doctor`: what this machine has, what is missing, what mends it.

mod table;
#[cfg(test)]
mod tests;

use std::io::Write;

use anyhow::Context;
use devmem_linux::doctor::{Check, CheckState, Doctor, NicVerdict};
use devmem_linux::probe::{Probe, Verdict};
use serde::Serialize;

use crate::args;
use tool::output::{Failure, print_json};

/// Everything that is said. The field names are the JSON's and stay as they are.
#[derive(Debug, Serialize)]
pub struct Diagnosis {
    /// Whether device memory can be received through the kernel's stack, at once or after set-up.
    pub ready: bool,
    /// The kernel's half.
    #[serde(flatten)]
    pub doctor: Doctor,
    /// What the user-space backend needs.
    pub user_space: UserSpace,
}

/// Whether the user-space backend works.
#[derive(Debug, Serialize)]
pub struct UserSpace {
    /// TAP interfaces can be made, in a network of our own at least.
    pub ready: bool,
    /// Each thing it needs or is better with.
    pub checks: Vec<Check>,
}

/// Examines the machine and says what was found.
///
/// # Errors
///
/// No such interface; `Unsupported` if device memory cannot be received through this kernel.
pub fn run(args: &args::Doctor) -> Result<(), Failure> {
    let doctor = Doctor::examine(args.interface.as_deref())?;
    let diagnosis = Diagnosis {
        ready: doctor.can_receive(),
        doctor,
        user_space: UserSpace::of(&Probe::run()),
    };
    if args.output.json {
        print_json(&diagnosis)?;
    } else {
        let text = diagnosis.table(args.interface.is_some());
        let mut stdout = std::io::stdout().lock();
        stdout
            .write_all(text.as_bytes())
            .context("write to stdout")?;
    }
    match diagnosis.ready {
        true => Ok(()),
        false => Err(Failure::unsupported(format!(
            "device memory cannot be received through the kernel here: {}",
            diagnosis.doctor.obstacles_to_receiving().join("; ")
        ))
        .with_remedy(diagnosis.instead())),
    }
}

impl Diagnosis {
    /// Says what to do on a machine that cannot.
    fn instead(&self) -> &'static str {
        let admin =
            |check: &Check| check.name == "cap_net_admin" && check.state == CheckState::Good;
        match (self.doctor.machine.iter().any(admin), self.user_space.ready) {
            (false, _) => "run it as root: some of this cannot be found out without CAP_NET_ADMIN",
            (true, true) => "the user-space backend works here: `devmem-tcp demo` shows it",
            (true, false) => "the table says what is missing",
        }
    }
}

/// Tells whether an interface can receive, at once or after set-up.
fn receives(verdict: NicVerdict) -> bool {
    matches!(verdict, NicVerdict::Ready | NicVerdict::NeedsSetup)
}

impl UserSpace {
    fn of(probe: &Probe) -> Self {
        let Probe {
            tun,
            network_namespace,
            tap_in_namespace,
            // Only of interest where the network namespace cannot be had.
            user_namespace: _,
            huge_memfd,
        } = probe;
        let checks = [
            ("tun", tun),
            ("network_namespace", network_namespace),
            ("tap", tap_in_namespace),
            ("huge_pages", huge_memfd),
        ];
        Self {
            ready: tap_in_namespace.works(),
            checks: checks.map(|(name, verdict)| check(name, verdict)).into(),
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
