//! The rows of `bench exchange`.

use clap::ValueEnum;

use super::link::Link;
use crate::processes::Named;

/// Length of the messages whose rate is measured.
const LONG: usize = 4 << 20;

/// A row.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub name: &'static str,
    pub kind: Kind,
    pub link: Link,
    pub work: Work,
    pub bytes: usize,
}

impl Named for Row {
    fn name(&self) -> &'static str {
        self.name
    }
}

/// What moves the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// devmem-exchange, with host memory
    Ours,
    /// The same with device memory
    Device,
    /// One TCP connection of our stack
    Stream,
    /// Four TCP connections of the kernel
    Sockets,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Work {
    /// Messages in one direction
    Rate,
    /// Each message is returned before the next one
    RoundTrip,
}

const fn rate(name: &'static str, kind: Kind, link: Link) -> Row {
    Row {
        name,
        kind,
        link,
        work: Work::Rate,
        bytes: LONG,
    }
}

const fn round_trip(name: &'static str, kind: Kind, link: Link, bytes: usize) -> Row {
    Row {
        name,
        kind,
        link,
        work: Work::RoundTrip,
        bytes,
    }
}

pub const ROWS: &[Row] = &[
    rate("ours/tap", Kind::Ours, Link::Tap),
    rate("device/tap", Kind::Device, Link::Tap),
    rate("stream/tap", Kind::Stream, Link::Tap),
    rate("ours/veth", Kind::Ours, Link::Veth),
    rate("device/veth", Kind::Device, Link::Veth),
    rate("sockets/veth", Kind::Sockets, Link::Veth),
    rate("ours/shared", Kind::Ours, Link::Shared),
    rate("device/shared", Kind::Device, Link::Shared),
    rate("stream/shared", Kind::Stream, Link::Shared),
    rate("ours/copied", Kind::Ours, Link::Copied),
    rate("device/copied", Kind::Device, Link::Copied),
    rate("stream/copied", Kind::Stream, Link::Copied),
    rate("ours/unix", Kind::Ours, Link::Unix),
    rate("stream/unix", Kind::Stream, Link::Unix),
    round_trip("ours/8", Kind::Ours, Link::Tap, 8),
    round_trip("stream/8", Kind::Stream, Link::Tap, 8),
    round_trip("shared/ours/8", Kind::Ours, Link::Shared, 8),
    round_trip("shared/stream/8", Kind::Stream, Link::Shared, 8),
    round_trip("ours/512", Kind::Ours, Link::Tap, 512),
    round_trip("stream/512", Kind::Stream, Link::Tap, 512),
    round_trip("ours/4096", Kind::Ours, Link::Tap, 4096),
    round_trip("stream/4096", Kind::Stream, Link::Tap, 4096),
];

/// The rows that are compared.
pub const PAIRS: &[(&str, &str)] = &[
    ("ours/tap", "stream/tap"),
    ("ours/unix", "stream/unix"),
    ("ours/tap", "sockets/veth"),
    ("device/tap", "sockets/veth"),
    ("ours/veth", "sockets/veth"),
    ("device/veth", "sockets/veth"),
    ("ours/shared", "stream/shared"),
    ("ours/shared", "sockets/veth"),
    ("ours/shared", "ours/copied"),
    ("device/shared", "device/copied"),
    ("device/shared", "sockets/veth"),
    ("ours/8", "stream/8"),
    ("shared/ours/8", "shared/stream/8"),
    ("ours/512", "stream/512"),
    ("ours/4096", "stream/4096"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compared_rows_exist() {
        for (ours, other) in PAIRS {
            for name in [ours, other] {
                assert!(ROWS.iter().any(|row| row.name == *name), "{name}");
            }
        }
    }
}
