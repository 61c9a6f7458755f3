//! The report as a table for people.

use std::fmt::Write;

use devmem_linux::doctor::{Check, CheckState, NicFacts, NicVerdict};
use devmem_linux::drivers::Support;
use devmem_linux::ethtool::{NTUPLE, RX_GRO_HW};

use super::{Diagnosis, receives};

/// Widths of the first and second column of a check.
const STATE_WIDTH: usize = 9;
const NAME_WIDTH: usize = 18;

/// Indentation of continued lines in a narrow terminal: that of the second column.
pub(super) const INDENT: usize = 2 + STATE_WIDTH;

/// Checks that a set-up fixes by itself.
const SET_UP: [&str; 4] = ["tcp_data_split", "hds_thresh", NTUPLE, RX_GRO_HW];

/// How the table lists interfaces that do not support device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unsupported {
    InFull,
    InOneLine,
}

impl Diagnosis {
    /// Returns the table.
    pub(super) fn table(&self, unsupported: Unsupported) -> String {
        let mut table = Table::default();
        self.kernel(&mut table);
        table.section("this machine");
        table.checks(&self.doctor.machine);
        table.section("dma-buf exporters (one is enough)");
        table.checks(&self.doctor.exporters);
        table.section("GPUs");
        table.checks(&self.devices);
        let in_full = |nic: &&NicFacts| {
            unsupported == Unsupported::InFull || nic.verdict != NicVerdict::Unsupported
        };
        for nic in self.doctor.nics.iter().filter(in_full) {
            table.nic(nic);
        }
        let others: Vec<_> = self.doctor.nics.iter().filter(|n| !in_full(n)).collect();
        if !others.is_empty() {
            table.section("unsupported interfaces (`devmem-tcp doctor IFNAME` shows all checks)");
            for nic in others {
                table.line(format_args!(
                    "  {:9}{:18}{}",
                    nic.name,
                    driver_name(nic),
                    summary(nic)
                ));
            }
        }
        table.section("user-space backend");
        table.checks(&self.user_space.checks);
        self.conclusion(&mut table);
        table.0
    }

    fn kernel(&self, table: &mut Table) {
        let kernel = &self.doctor.kernel;
        table.line(format_args!("kernel {}", kernel.release));
        match &kernel.config_source {
            None => table.line("  configuration not found"),
            Some(source) => {
                table.line(format_args!("  configuration ({source})"));
                for (option, value) in &kernel.config {
                    table.line(format_args!("  {value:STATE_WIDTH$}{option}"));
                }
            }
        }
    }

    fn conclusion(&self, table: &mut Table) {
        if !self.ready {
            return;
        }
        table.section("the kernel can receive into device memory:");
        for nic in self.doctor.nics.iter().filter(|n| receives(n.verdict)) {
            let by_hand = |check: &&Check| {
                check.state == CheckState::Mendable && !SET_UP.contains(&check.name)
            };
            let first: Vec<_> = nic.checks.iter().filter(by_hand).map(|c| c.name).collect();
            let name = &nic.name;
            match first[..] {
                [] => table.line(format_args!(
                    "  devmem-tcp recv --backend kernel --if {name} ...   sets {name} up, and restores it afterwards"
                )),
                _ => table.line(format_args!("  {name}: fix {} first", first.join(", "))),
            }
        }
    }
}

/// Text of the table.
#[derive(Default)]
struct Table(String);

impl Table {
    fn line(&mut self, line: impl std::fmt::Display) {
        writeln!(self.0, "{line}").expect("writing to a string does not fail");
    }

    fn section(&mut self, title: impl std::fmt::Display) {
        self.0.push('\n');
        self.line(title);
    }

    fn checks(&mut self, checks: &[Check]) {
        for check in checks {
            self.check(check);
        }
    }

    fn check(&mut self, check: &Check) {
        let Check {
            name,
            state,
            found,
            remedy,
        } = check;
        self.line(format_args!(
            "  {state:STATE_WIDTH$}{name:NAME_WIDTH$}{found}"
        ));
        let indent = 2 + STATE_WIDTH + NAME_WIDTH;
        for line in remedy.iter().flat_map(|remedy| remedy.lines()) {
            self.line(format_args!("{:indent$}-> {line}", ""));
        }
    }

    fn nic(&mut self, nic: &NicFacts) {
        let mut title = format!("{}: {}", nic.name, driver_name(nic));
        if let Some(driver) = &nic.driver {
            let place = (!driver.bus.is_empty()).then(|| format!(" at {}", driver.bus));
            title.push_str(&place.unwrap_or_default());
        }
        if let Some(known) = nic.known {
            title = format!("{title}, {}", known.hardware);
        }
        self.section(format_args!("{title}: {}", summary(nic)));
        self.checks(&nic.checks);
        for (queue, user) in &nic.taken {
            self.line(format_args!(
                "  {:STATE_WIDTH$}RX queue {queue} is used by {user}",
                "in use"
            ));
        }
        for leased in &nic.leased {
            self.line(format_args!("  {:STATE_WIDTH$}{leased}", "leased"));
        }
        let Some(known) = nic.known else { return };
        if let Support::Since(kernel) | Support::LeasedSince(kernel) = known.rx {
            self.line(format_args!(
                "  {:STATE_WIDTH$}{} supports device memory since Linux {kernel}",
                "note", known.name
            ));
        }
        for quirk in known.quirks {
            self.line(format_args!("  {:STATE_WIDTH$}{quirk}", "note"));
        }
    }
}

fn driver_name(nic: &NicFacts) -> &str {
    nic.driver
        .as_ref()
        .map_or("no driver", |driver| &driver.driver)
}

/// Returns the overall result of an interface, with its reason.
fn summary(nic: &NicFacts) -> String {
    let because = |state: CheckState| {
        let checks = nic.checks.iter().filter(|check| check.state == state);
        // Sending is optional.
        let names = checks
            .map(|check| check.name)
            .filter(|name| *name != "bind_tx");
        names.collect::<Vec<_>>().join(", ")
    };
    match nic.verdict {
        NicVerdict::Ready => "ready".to_owned(),
        NicVerdict::NeedsSetup => format!("ready once set up ({})", because(CheckState::Mendable)),
        NicVerdict::Unsupported => format!("unsupported ({})", because(CheckState::Missing)),
        NicVerdict::Unknown => format!("unknown ({})", because(CheckState::Unknown)),
    }
}
