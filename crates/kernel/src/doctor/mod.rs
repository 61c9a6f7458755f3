//! What this machine has for device memory, what is missing, and the exact command that mends it.
//!
//! [`Doctor::examine`] gathers facts and changes nothing. Where it can, it asks the kernel by a request that
//! cannot succeed, rather than to guess from versions.

mod machine;
mod nic;

use std::fmt;

use serde::Serialize;

pub use machine::KernelFacts;
pub use nic::{NicFacts, NicVerdict};

use crate::netif;
use crate::netlink::NetlinkError;

/// How something stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// As it must be.
    Good,
    /// Not as it must be, and set-up or the remedy mends it.
    Mendable,
    /// Not there, and nothing here can change that.
    Missing,
    /// It could not be found out.
    Unknown,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Good => "good",
            Self::Mendable => "mendable",
            Self::Missing => "missing",
            Self::Unknown => "unknown",
        })
    }
}

/// One thing looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What: a stable name for programs.
    pub name: &'static str,
    /// How it stands.
    pub state: State,
    /// What was found, in a few words.
    pub found: String,
    /// The command that mends it, or what else to do.
    pub remedy: Option<String>,
}

impl Check {
    fn new(name: &'static str, state: State, found: impl Into<String>) -> Self {
        Self {
            name,
            state,
            found: found.into(),
            remedy: None,
        }
    }

    fn remedy(self, remedy: impl Into<String>) -> Self {
        Self {
            remedy: Some(remedy.into()),
            ..self
        }
    }
}

/// Everything that was found.
#[derive(Clone, Debug, Serialize)]
pub struct Doctor {
    /// The kernel.
    pub kernel: KernelFacts,
    /// What the kernel has, and what this process may do.
    pub machine: Vec<Check>,
    /// Where dma-bufs can come from: one of them is enough.
    pub exporters: Vec<Check>,
    /// Each interface.
    pub nics: Vec<NicFacts>,
}

impl Doctor {
    /// Looks at the machine, and at the interface `name` or at all of them.
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

    /// Tells whether device memory can be received here: the kernel has it, this process may bind, some exporter
    /// works, and some NIC is ready or can be made so.
    pub fn can_receive(&self) -> bool {
        self.obstacles_to_receiving().is_empty()
    }

    /// Says what is in the way of receiving, the most general first. What cannot be found out is no obstacle, but for
    /// the NICs.
    pub fn obstacles_to_receiving(&self) -> Vec<String> {
        // Sending is a bonus.
        let mut obstacles = self.obstacles_without("bind_tx");
        let able =
            |nic: &NicFacts| matches!(nic.verdict, NicVerdict::Ready | NicVerdict::NeedsSetup);
        let unknown = |nic: &NicFacts| nic.verdict == NicVerdict::Unknown;
        obstacles.extend(self.no_nic(able, unknown));
        obstacles
    }

    /// Says what is in the way of sending.
    pub fn obstacles_to_sending(&self) -> Vec<String> {
        let mut obstacles = self.obstacles_without("bind_rx");
        let bind_tx = |nic: &NicFacts, state| {
            let mut checks = nic.checks.iter();
            checks.any(|check| check.name == "bind_tx" && check.state == state)
        };
        obstacles.extend(self.no_nic(
            |nic| bind_tx(nic, State::Good),
            |nic| bind_tx(nic, State::Unknown),
        ));
        obstacles
    }

    /// What the machine lacks, without one check that does not matter.
    fn obstacles_without(&self, name: &str) -> Vec<String> {
        let machine = self.machine.iter().filter(|check| check.name != name);
        let missing = machine.filter(|check| check.state == State::Missing);
        let mut obstacles: Vec<_> = missing.map(|check| check.found.clone()).collect();
        let works = |check: &Check| check.state == State::Good;
        if !self.exporters.iter().any(works) {
            obstacles.push("no exporter of dma-bufs works".to_owned());
        }
        obstacles
    }

    /// Says that no NIC is able, if none is.
    fn no_nic(
        &self,
        able: impl Fn(&NicFacts) -> bool,
        unknown: impl Fn(&NicFacts) -> bool,
    ) -> Option<String> {
        if self.nics.iter().any(able) {
            return None;
        }
        Some(match (&self.nics[..], self.nics.iter().any(unknown)) {
            ([nic], false) => format!("{} cannot", nic.name),
            ([nic], true) => format!("what {} can do cannot be found out", nic.name),
            (_, false) => "no interface can".to_owned(),
            (_, true) => "what the interfaces can do cannot be found out".to_owned(),
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
    fn what_is_mendable_or_missing_comes_with_what_to_do() {
        let doctor = Doctor::examine(None).unwrap();
        let all = doctor.machine.iter().chain(&doctor.exporters);
        for check in all.chain(doctor.nics.iter().flat_map(|nic| &nic.checks)) {
            if check.state == State::Mendable {
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
