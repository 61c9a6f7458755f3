//! NIC settings of `ethtool`: rings and header split, features, channels, RSS, flow rules.
//!
//! An [`Ethtool`] is one interface. It uses generic netlink, which reports error messages, for all that the kernel offers
//! there; and ioctls for the rest: flow rules, the driver's name, the reset of an RSS table.

mod channels;
mod driver;
mod features;
mod layout;
mod ntuple;
mod requests;
mod rings;
mod rss;

#[cfg(any(test, fuzzing, feature = "test-util"))]
use crate::netlink::attr::Attributes;

pub use channels::{Channels, ChannelsChange};
pub use driver::DriverInfo;
pub use features::{Feature, NTUPLE, RX_GRO_HW};
pub use ntuple::{InstalledRule, RuleAction, RuleTable, TcpFlow};
pub use requests::{Ethtool, EthtoolError};
pub use rings::{DataSplit, Rings, RingsChange};
pub use rss::{MAIN_CONTEXT, RssContext};

/// Parses attributes as each known kind of reply, for fuzzing. Returns the RSS context, if they are one.
#[cfg(any(test, fuzzing, feature = "test-util"))]
pub(crate) fn fuzz_replies(reply: Attributes<'_>) -> Option<RssContext> {
    let _ = Rings::parse(reply);
    let _ = Channels::parse(reply).rx_queues();
    let _ = features::parse(reply);
    RssContext::parse(reply)
}

/// Parses `bytes` as the ioctl's result, for fuzzing.
#[cfg(any(test, fuzzing, feature = "test-util"))]
pub(crate) fn fuzz_ioctl(bytes: &[u8]) {
    ntuple::fuzz_rule(bytes);
}
