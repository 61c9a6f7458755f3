//! Checks of this machine for device memory TCP: what it supports, what is missing, and the command that fixes it.
//!
//! [`Doctor::examine`] gathers facts and changes nothing. Where possible it probes the kernel with a request that cannot
//! succeed, rather than guess from versions.

mod check;
mod lease;
mod machine;
mod nic;

use serde::Serialize;

pub use check::{Check, CheckState};
pub use lease::{Leased, Lessor};
pub use machine::KernelFacts;
pub use nic::{NicFacts, NicVerdict};

use crate::netif;
use crate::netlink::NetlinkError;

/// The results of all checks.
#[derive(Clone, Debug, Serialize)]
pub struct Doctor {
    /// The kernel.
    pub kernel: KernelFacts,
    /// Checks of the kernel and of the privileges of this process.
    pub machine: Vec<Check>,
    /// Checks of the dma-buf exporters; one working exporter is enough.
    pub exporters: Vec<Check>,
    /// Each interface.
    pub nics: Vec<NicFacts>,
}

impl Doctor {
    /// Examines the machine, and the interface `name` or all interfaces.
    ///
    /// # Errors
    ///
    /// `ENODEV` if there is no such interface.
    pub fn examine(name: Option<&str>) -> Result<Self, NetlinkError> {
        let mut interfaces = netif::interfaces()?;
        if let Some(name) = name {
            interfaces.retain(|(_, found, _)| found == name);
            if interfaces.is_empty() {
                let what = format!("examine {name}");
                return Err(NetlinkError::new(&what, rustix::io::Errno::NODEV));
            }
        }
        let nics = interfaces.into_iter();
        Ok(Self {
            kernel: KernelFacts::read(),
            machine: machine::checks(),
            exporters: machine::exporters(),
            nics: nics
                .map(|(index, name, up)| NicFacts::examine(&name, index, up))
                .collect(),
        })
    }

    /// Returns whether this process can receive into device memory: the kernel supports it, the process may bind, an
    /// exporter works, and a NIC is ready or can be made ready.
    pub fn can_receive(&self) -> bool {
        self.obstacles_to_receiving().is_empty()
    }

    /// Returns the obstacles to receiving, the most general first. An unknown result is no obstacle, except for the NICs.
    pub fn obstacles_to_receiving(&self) -> Vec<String> {
        // Sending is optional here.
        let mut obstacles = self.obstacles_without("bind_tx");
        let able =
            |nic: &NicFacts| matches!(nic.verdict, NicVerdict::Ready | NicVerdict::NeedsSetup);
        let unknown = |nic: &NicFacts| nic.verdict == NicVerdict::Unknown;
        obstacles.extend(self.no_nic(able, unknown));
        obstacles
    }

    /// Returns the obstacles to sending.
    pub fn obstacles_to_sending(&self) -> Vec<String> {
        let mut obstacles = self.obstacles_without("bind_rx");
        let bind_tx = |nic: &NicFacts, state| {
            let mut checks = nic.checks.iter();
            checks.any(|check| check.name == "bind_tx" && check.state == state)
        };
        obstacles.extend(self.no_nic(
            |nic| bind_tx(nic, CheckState::Good),
            |nic| bind_tx(nic, CheckState::Unknown),
        ));
        obstacles
    }

    /// Returns what the machine lacks, ignoring one check.
    fn obstacles_without(&self, name: &str) -> Vec<String> {
        let machine = self.machine.iter().filter(|check| check.name != name);
        let missing = machine.filter(|check| check.state == CheckState::Missing);
        let mut obstacles: Vec<_> = missing.map(|check| check.found.clone()).collect();
        let works = |check: &Check| check.state == CheckState::Good;
        if !self.exporters.iter().any(works) {
            obstacles.push("no exporter of dma-bufs works".to_owned());
        }
        obstacles
    }

    /// Returns the obstacle that no NIC supports it, if none does.
    fn no_nic(
        &self,
        able: impl Fn(&NicFacts) -> bool,
        unknown: impl Fn(&NicFacts) -> bool,
    ) -> Option<String> {
        if self.nics.iter().any(able) {
            return None;
        }
        Some(match (&self.nics[..], self.nics.iter().any(unknown)) {
            ([nic], false) => format!("{} does not support it", nic.name),
            ([nic], true) => format!("the capabilities of {} could not be determined", nic.name),
            (_, false) => "no interface supports it".to_owned(),
            (_, true) => "the capabilities of the interfaces could not be determined".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_can_be_examined_and_the_result_is_json() {
        let doctor = Doctor::examine(None).unwrap();
        let lo = doctor.nics.iter().find(|nic| nic.name == "lo").unwrap();
        assert_eq!(lo.verdict, NicVerdict::Unsupported, "{lo:?}");
        let json = serde_json::to_value(&doctor).unwrap();
        assert_eq!(json["nics"][0]["name"], "lo");
        assert!(json["kernel"]["release"].is_string());
        for check in doctor.machine.iter().chain(&doctor.exporters) {
            assert!(!check.found.is_empty(), "{check:?}");
        }
    }

    #[test]
    fn mendable_and_missing_checks_have_a_remedy() {
        let doctor = Doctor::examine(None).unwrap();
        let all = doctor.machine.iter().chain(&doctor.exporters);
        for check in all.chain(doctor.nics.iter().flat_map(|nic| &nic.checks)) {
            if check.state == CheckState::Mendable {
                assert!(check.remedy.is_some(), "{check:?}");
            }
        }
    }

    #[test]
    fn an_unknown_interface_is_enodev() {
        let error = Doctor::examine(Some("nosuch0")).unwrap_err();
        assert_eq!(error.errno, rustix::io::Errno::NODEV);
    }
}
