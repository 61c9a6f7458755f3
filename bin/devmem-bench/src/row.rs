//! What the rows of `bench rx` and `bench tx` have in common: their names, and what they differ in.

use tool::output::say;

/// Default congestion control of both stacks. BBR as the default would limit every row by its pacing timers.
pub const CONGESTION: &str = "cubic";

/// Default bytes per send call.
pub const WRITE_BYTES: usize = 1 << 20;

/// Names of a row.
#[derive(Clone, Debug)]
pub struct RowName {
    /// The name in tables, in JSON and for `--only`.
    pub name: &'static str,
    /// A description for people.
    pub what: &'static str,
    /// Differences from the plain form of the row; may be empty.
    pub variant: String,
}

/// A row of a benchmark.
pub trait Case: Copy {
    /// Returns the row's names.
    fn row_name(&self) -> RowName;

    /// Returns whether the row needs a TAP; the others need only a network namespace.
    fn uses_tap(&self) -> bool;

    /// Returns whether the row accesses the device memory by the CPU.
    fn maps_memory(&self) -> bool;
}

/// Lists rows on stderr.
pub fn list<C: Case>(cases: &[C]) {
    for case in cases {
        let RowName {
            name,
            what,
            variant,
        } = case.row_name();
        let separator = if variant.is_empty() { "" } else { ", " };
        say!("{name:<26} {what}{separator}{variant}");
    }
}

/// Number of processors of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cores {
    /// One each.
    Two,
    /// One for both.
    One,
}

/// Size of super-packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packets {
    /// The sender's default: [`Packets::Legacy`] for the kernel, [`Packets::Big`] for the others.
    Usual,
    /// At most what the length field of IP can hold: less than 64 KiB.
    Legacy,
    /// [`BIG_PACKET_LEN`](nic::BIG_PACKET_LEN) with IP header (BIG TCP; Linux 6.3 and later).
    Big,
}
