//! Links: what a NIC receives frames from and sends frames to.

mod captured;
mod conditioner;
mod cut;
mod definition;
#[cfg(test)]
mod descriptor_tests;
mod frames;
mod hello;
mod impaired;
mod impairment;
mod macvtap;
mod packet_socket;
mod shared;
mod socket_events;
mod tap;
mod unix;
mod unix_listen;
mod unix_port;
mod vnet_fd;
mod wire;

pub use captured::{Captured, Direction, FramePayload, FrameSink};
pub use conditioner::{Conditioner, ConditionerStats, ImpairedStats};
pub use cut::{CutError, FrameCutter};
pub use definition::{
    LEGACY_SUPER_PAYLOAD, Link, LinkCaps, LinkState, MAX_FRAME_LEN, MAX_PACKET_LEN,
};
pub use frames::{BorrowedUntil, HeaderBuf, LinkReceived, LinkSent, Posted, TxFrame, VnetMeta};
pub use hello::{HELLO_LIMIT, HelloError, NeedsOffloads, WireHello};
pub use impaired::{Impaired, complete_checksum};
pub use impairment::{
    DEFAULT_LIMIT, DEFAULT_REORDER_GAP, Impairment, ImpairmentError, Probability, REORDER_HOLD,
};
pub use macvtap::{InterfaceReports, MacvtapLink, StatusQuery};
pub use packet_socket::{InterfaceStatus, PacketLink, PacketLinkOptions};
pub use tap::{BIG_PACKET_LEN, TapLink, TapOptions};
pub use unix::UnixLink;
pub use unix_listen::UnixListenLink;
pub use unix_port::{UnixPort, UnixPortEvent, Written};
pub use vnet_fd::VnetFd;
pub use wire::{CablePlug, WireLink, WireOptions};
