//! Checks of one interface: driver, queues, and each needed setting.

use devmem_uapi::IfIndex;
use serde::Serialize;

use super::lease::{self, Leased};
use super::{Check, CheckState};
use crate::drivers::{KnownDriver, known_driver};
use crate::ethtool::{Channels, DataSplit, DriverInfo, Ethtool, EthtoolError, NTUPLE, Rings};
use crate::netdev::{DriverSupport, KernelRxQueueId, Netdev, QueueUser};
use crate::netif;

/// Overall result for an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NicVerdict {
    /// Device memory can be bound now.
    Ready,
    /// Set-up or the remedies make it ready.
    NeedsSetup,
    /// Device memory cannot be bound.
    Unsupported,
    /// It could not be determined, usually for lack of privilege.
    Unknown,
}

/// The checks of one interface.
#[derive(Clone, Debug, Serialize)]
pub struct NicFacts {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// Its driver, if it has one.
    pub driver: Option<DriverInfo>,
    /// Known facts about that driver.
    pub known: Option<&'static KnownDriver>,
    /// Number of its RX queues; 0 while it is down.
    pub rx_queues: usize,
    /// The RX queues in use, and their users.
    pub taken: Vec<(KernelRxQueueId, QueueUser)>,
    /// The queues of a netkit that are leased from a NIC.
    pub leased: Vec<Leased>,
    /// All checks.
    pub checks: Vec<Check>,
    /// The overall result.
    pub verdict: NicVerdict,
}

/// Names of checks: for receiving into device memory, for sending from it, and whether the interface is up.
const BIND_RX: &str = "bind_rx";
const BIND_TX: &str = "bind_tx";
const UP: &str = "up";

impl NicFacts {
    pub(super) fn examine(name: &str, index: u32, up: bool) -> Self {
        let netdev = Netdev::with_index(name, IfIndex(index));
        let ethtool = Ethtool::with_index(name, IfIndex(index));
        let mut checks = vec![link(name, up)];
        let mut queues = Vec::new();
        match netdev {
            Ok(mut netdev) => {
                checks.push(support(BIND_RX, netdev.probe_bind_rx()));
                checks.push(support(BIND_TX, netdev.probe_bind_tx()));
                queues = netdev.rx_queues().unwrap_or_default();
            }
            Err(error) => checks.push(Check::new(BIND_RX, CheckState::Missing, error.to_string())),
        }
        let mut driver = None;
        let mut known = None;
        if let Ok(mut ethtool) = ethtool {
            driver = ethtool.driver().ok();
            known = driver.as_ref().and_then(|info| known_driver(&info.driver));
            match lease::is_lessee(known) {
                true => checks.push(lease::check(&queues)),
                false => {
                    checks.push(spare_queues(name, &queues, ethtool.channels().ok()));
                    checks.extend(settings(name, &mut ethtool, known));
                }
            }
        }
        let leased = match lease::is_lessee(known) {
            true => lease::of_netkit(index, &queues),
            false => Vec::new(),
        };
        checks.push(xdp(name, index));
        drop_vain_remedies(&mut checks);
        let taken = queues.iter().filter_map(|(id, user)| Some((*id, (*user)?)));
        Self {
            name: name.to_owned(),
            index,
            rx_queues: queues.len(),
            taken: taken.collect(),
            leased,
            verdict: verdict(&checks),
            driver,
            known,
            checks,
        }
    }
}

/// Drops the remedies for the queues and settings of a NIC whose driver cannot receive into device memory: they would change nothing.
fn drop_vain_remedies(checks: &mut [Check]) {
    let is_missing = |check: &Check| check.name == BIND_RX && check.state == CheckState::Missing;
    if !checks.iter().any(is_missing) {
        return;
    }
    let is_setting = |check: &&mut Check| ![UP, BIND_RX].contains(&check.name);
    for check in checks.iter_mut().filter(is_setting) {
        check.remedy = None;
        if check.state == CheckState::Mendable {
            check.state = CheckState::Missing;
        }
    }
}

/// Computes the overall result. Sending is optional: an interface without bind-tx can still receive.
fn verdict(checks: &[Check]) -> NicVerdict {
    let needed = || checks.iter().filter(|check| check.name != BIND_TX);
    let some = |state| needed().any(|check| check.state == state);
    if some(CheckState::Missing) {
        NicVerdict::Unsupported
    } else if some(CheckState::Unknown) {
        NicVerdict::Unknown
    } else if some(CheckState::Mendable) {
        NicVerdict::NeedsSetup
    } else {
        NicVerdict::Ready
    }
}

fn link(name: &str, up: bool) -> Check {
    match up {
        true => Check::new(UP, CheckState::Good, "up"),
        false => {
            Check::new(UP, CheckState::Mendable, "down").remedy(format!("ip link set {name} up"))
        }
    }
}

/// Converts the result of a probe. Sending is optional, so that a missing bind-tx needs no remedy.
fn support(name: &'static str, tried: DriverSupport) -> Check {
    match tried {
        DriverSupport::Yes => Check::new(name, CheckState::Good, "the driver supports it"),
        DriverSupport::No { reason } if name != BIND_TX => {
            let drivers = crate::drivers::supported_list();
            Check::new(name, CheckState::Missing, reason)
                .remedy(format!("drivers that support it: {drivers}"))
        }
        DriverSupport::No { reason } => Check::new(name, CheckState::Missing, reason),
        DriverSupport::Unknown { reason } => Check::new(name, CheckState::Unknown, reason),
    }
}

/// Checks the number of RX queues. Queue 0 is never bound, so there must be another one.
fn spare_queues(
    name: &str,
    queues: &[(KernelRxQueueId, Option<QueueUser>)],
    channels: Option<Channels>,
) -> Check {
    const NAME: &str = "rx_queues";
    let spare = queues
        .iter()
        .filter(|(id, user)| id.0 != 0 && user.is_none());
    let found = format!("{} of {} can be bound", spare.clone().count(), queues.len());
    if spare.count() > 0 {
        return Check::new(NAME, CheckState::Good, found);
    }
    match channels {
        Some(channels) if channels.combined_max > channels.combined => {
            let count = (channels.combined + 1).max(2);
            Check::new(NAME, CheckState::Mendable, found)
                .remedy(format!("ethtool -L {name} combined {count}"))
        }
        Some(channels) if channels.rx_max > channels.rx => {
            let count = (channels.rx + 1).max(2);
            Check::new(NAME, CheckState::Mendable, found)
                .remedy(format!("ethtool -L {name} rx {count}"))
        }
        _ if queues.is_empty() => Check::new(
            NAME,
            CheckState::Mendable,
            "none are listed while the interface is down",
        )
        .remedy(format!("ip link set {name} up")),
        _ => Check::new(NAME, CheckState::Missing, found),
    }
}

fn settings(name: &str, ethtool: &mut Ethtool, known: Option<&KnownDriver>) -> Vec<Check> {
    let mut checks = vec![
        split(name, &ethtool.rings()),
        threshold(name, &ethtool.rings()),
    ];
    if let Some(needed) = known.and_then(|known| known.split_needs) {
        checks.push(feature(name, ethtool, needed));
    }
    checks.push(feature(name, ethtool, NTUPLE));
    checks.push(rules(ethtool));
    checks.push(rss(ethtool));
    checks
}

fn split(name: &str, rings: &Result<Rings, EthtoolError>) -> Check {
    const NAME: &str = "tcp_data_split";
    match rings.as_ref().map(|rings| rings.data_split) {
        Ok(Some(DataSplit::Enabled)) => Check::new(NAME, CheckState::Good, "on"),
        Ok(Some(other)) => Check::new(NAME, CheckState::Mendable, other.to_string())
            .remedy(format!("ethtool -G {name} tcp-data-split on")),
        Ok(None) => Check::new(NAME, CheckState::Missing, "the driver does not support it"),
        Err(error) => unreadable(NAME, error),
    }
}

fn threshold(name: &str, rings: &Result<Rings, EthtoolError>) -> Check {
    const NAME: &str = "hds_thresh";
    match rings.as_ref().map(|rings| rings.hds_thresh) {
        Ok(Some(0)) => Check::new(NAME, CheckState::Good, "0"),
        Ok(Some(thresh)) => Check::new(NAME, CheckState::Mendable, thresh.to_string())
            .remedy(format!("ethtool -G {name} hds-thresh 0")),
        // The kernel treats a driver without a threshold as if it were 0.
        Ok(None) => Check::new(NAME, CheckState::Good, "none"),
        Err(error) => unreadable(NAME, error),
    }
}

fn feature(name: &str, ethtool: &mut Ethtool, feature: &'static str) -> Check {
    let command = format!("ethtool -K {name} {feature} on");
    match ethtool.feature(feature) {
        Ok(Some(found)) if found.active => Check::new(feature, CheckState::Good, "on"),
        Ok(Some(found)) if found.changeable && !found.fixed => {
            Check::new(feature, CheckState::Mendable, "off").remedy(command)
        }
        Ok(Some(_)) => Check::new(
            feature,
            CheckState::Missing,
            "off, and cannot be switched on",
        ),
        Ok(None) => Check::new(
            feature,
            CheckState::Missing,
            "this kernel does not support it",
        ),
        Err(error) => unreadable(feature, &error),
    }
}

fn rules(ethtool: &mut Ethtool) -> Check {
    const NAME: &str = "flow_rules";
    match ethtool.rule_table() {
        Ok(table) => {
            let size = table
                .size
                .map_or_else(String::new, |size| format!(" of {size}"));
            Check::new(
                NAME,
                CheckState::Good,
                format!("{}{size} in use", table.rules),
            )
        }
        Err(error) => unreadable(NAME, &error),
    }
}

fn rss(ethtool: &mut Ethtool) -> Check {
    const NAME: &str = "rss_table";
    match ethtool.rss() {
        Ok(rss) => {
            let contexts = ethtool.rss_contexts().unwrap_or_default().len();
            let found = format!("{} entries, {contexts} further contexts", rss.table.len());
            Check::new(NAME, CheckState::Good, found)
        }
        Err(error) => unreadable(NAME, &error),
    }
}

fn xdp(name: &str, index: u32) -> Check {
    const NAME: &str = "xdp";
    match netif::has_xdp_program(index) {
        Ok(false) => Check::new(NAME, CheckState::Good, "no program attached"),
        Ok(true) => Check::new(NAME, CheckState::Mendable, "a program is attached")
            .remedy(format!("ip link set {name} xdp off")),
        Err(error) => Check::new(NAME, CheckState::Unknown, error.to_string()),
    }
}

/// Result for a setting that cannot be read, usually because the driver does not support it.
fn unreadable(name: &'static str, error: &EthtoolError) -> Check {
    match error.is_unsupported() {
        true => Check::new(name, CheckState::Missing, "the driver does not support it"),
        false => Check::new(name, CheckState::Unknown, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use devmem_uapi::DmabufId;

    use super::*;

    fn check(name: &'static str, state: CheckState) -> Check {
        Check::new(name, state, "")
    }

    #[test]
    fn remedies_that_change_nothing_are_not_offered() {
        let check = |name, state| Check::new(name, state, "found").remedy("command");
        let of = |bind_rx| {
            let mut checks = vec![
                check(UP, CheckState::Mendable),
                check(BIND_RX, bind_rx),
                check("rx_queues", CheckState::Mendable),
            ];
            drop_vain_remedies(&mut checks);
            let [up, _, queues] = &checks[..] else {
                panic!("three checks")
            };
            assert!(up.remedy.is_some(), "it helps the user backend, too");
            (queues.state, queues.remedy.is_some())
        };
        assert_eq!(of(CheckState::Missing), (CheckState::Missing, false));
        assert_eq!(of(CheckState::Good), (CheckState::Mendable, true));
    }

    #[test]
    fn the_worst_check_decides_and_sending_is_optional() {
        use CheckState::{Good, Mendable, Missing, Unknown};
        let cases = [
            ([Good, Good, Good], NicVerdict::Ready),
            ([Good, Good, Missing], NicVerdict::Ready),
            ([Good, Mendable, Good], NicVerdict::NeedsSetup),
            ([Mendable, Unknown, Good], NicVerdict::Unknown),
            ([Mendable, Missing, Good], NicVerdict::Unsupported),
        ];
        for ([up, split, tx], expected) in cases {
            let checks = [check("up", up), check("split", split), check("bind_tx", tx)];
            assert_eq!(verdict(&checks), expected);
        }
    }

    #[test]
    fn a_nic_with_queue_0_alone_needs_another_queue() {
        let queue = |id, user| (KernelRxQueueId(id), user);
        let channels = |combined, combined_max| {
            Some(Channels {
                combined,
                combined_max,
                ..Channels::default()
            })
        };
        let used = Some(QueueUser::Dmabuf(DmabufId(1)));
        let good = spare_queues("eth1", &[queue(0, None), queue(1, None)], None);
        assert_eq!(
            (good.state, good.found.as_str()),
            (CheckState::Good, "1 of 2 can be bound")
        );
        let more = spare_queues("eth1", &[queue(0, None)], channels(1, 8));
        assert_eq!(more.remedy.as_deref(), Some("ethtool -L eth1 combined 2"));
        let all_used = spare_queues("eth1", &[queue(0, None), queue(1, used)], channels(2, 2));
        assert_eq!(all_used.state, CheckState::Missing);
        let down = spare_queues("eth1", &[], None);
        assert_eq!(down.remedy.as_deref(), Some("ip link set eth1 up"));
    }

    #[test]
    fn checks_of_rings_name_the_command_that_fixes_them() {
        let rings = |data_split, hds_thresh| {
            Ok(Rings {
                data_split,
                hds_thresh,
                ..Rings::default()
            })
        };
        let off = split("eth1", &rings(Some(DataSplit::Disabled), None));
        assert_eq!(
            (off.state, off.found.as_str()),
            (CheckState::Mendable, "off")
        );
        let auto = split("eth1", &rings(Some(DataSplit::Unknown), None));
        assert_eq!(
            auto.remedy.as_deref(),
            Some("ethtool -G eth1 tcp-data-split on")
        );
        assert_eq!(split("eth1", &rings(None, None)).state, CheckState::Missing);
        let high = threshold("eth1", &rings(None, Some(256)));
        assert_eq!(high.remedy.as_deref(), Some("ethtool -G eth1 hds-thresh 0"));
        assert_eq!(
            threshold("eth1", &rings(None, None)).state,
            CheckState::Good
        );
    }
}
