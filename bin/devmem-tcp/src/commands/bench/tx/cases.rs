//! What `bench tx` measures: one row each.

use super::super::cases::{CONGESTION, Cores, WRITE_BYTES};
use super::super::report::{self, RowName};

/// One row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// The name in tables, in JSON and for `--only`.
    pub name: &'static str,
    /// What it is, for people.
    pub what: &'static str,
    /// Who sends.
    pub sender: Sender,
    /// How many processors the two ends have.
    pub cores: Cores,
    /// Bytes of each send call.
    pub write_bytes: usize,
}

/// Who sends, and over what, to a kernel receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The kernel's TCP over veth.
    Kernel,
    /// The same with `MSG_ZEROCOPY`.
    KernelZerocopy,
    /// The library of this workspace, from device memory over a TAP.
    Ours,
}

impl Sender {
    /// Tells whether the kernel's TCP sends; else it is somebody on a TAP.
    pub fn is_kernel(self) -> bool {
        self != Self::Ours
    }
}

const fn case(name: &'static str, what: &'static str, sender: Sender) -> Case {
    Case {
        name,
        what,
        sender,
        cores: Cores::Two,
        write_bytes: WRITE_BYTES,
    }
}

const fn one_core(case: Case, name: &'static str) -> Case {
    Case {
        name,
        cores: Cores::One,
        ..case
    }
}

const fn small_sends(case: Case, name: &'static str) -> Case {
    Case {
        name,
        write_bytes: 64 << 10,
        ..case
    }
}

const SEND: Case = case("send", "kernel send over veth", Sender::Kernel);
const ZEROCOPY: Case = case(
    "zerocopy",
    "kernel send with MSG_ZEROCOPY over veth",
    Sender::KernelZerocopy,
);
const OURS: Case = case("ours", "this sender, from device memory", Sender::Ours);

/// Every row, in the order of the table.
pub const CASES: &[Case] = &[
    SEND,
    ZEROCOPY,
    OURS,
    one_core(SEND, "send/1core"),
    one_core(ZEROCOPY, "zerocopy/1core"),
    one_core(OURS, "ours/1core"),
    small_sends(SEND, "send/64k"),
    small_sends(ZEROCOPY, "zerocopy/64k"),
    small_sends(OURS, "ours/64k"),
];

impl report::Case for Case {
    fn row_name(&self) -> RowName {
        let mut parts = Vec::new();
        if self.cores == Cores::One {
            parts.push("one core for both ends".to_owned());
        }
        if self.write_bytes != WRITE_BYTES {
            parts.push(format!("{} KiB sends", self.write_bytes >> 10));
        }
        RowName {
            name: self.name,
            what: self.what,
            variant: parts.join(", "),
        }
    }
}

impl Case {
    /// Congestion control of the kernel's sender; ours is the same.
    pub const CONGESTION: &'static str = CONGESTION;
}

#[cfg(test)]
mod tests {
    use super::*;
    use report::Case as _;

    #[test]
    fn every_row_has_a_name_of_its_own_and_says_what_is_different() {
        for (at, case) in CASES.iter().enumerate() {
            let is_new = CASES[..at].iter().all(|earlier| earlier.name != case.name);
            assert!(is_new, "{}", case.name);
            assert_eq!(
                case.row_name().variant.is_empty(),
                !case.name.contains('/'),
                "{}",
                case.name
            );
        }
    }
}
