//! Rings: lengths, header split and its threshold.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::requests::{Ethtool, EthtoolError, HEADER_NAMES};
use crate::netlink::Names;
use crate::netlink::attr::Attributes;

/// `ETHTOOL_MSG_RINGS_GET`, `_SET`.
const GET: u8 = 15;
const SET: u8 = 16;
/// `ETHTOOL_A_RINGS_*`.
const A_RX_MAX: u16 = 2;
const A_TX_MAX: u16 = 5;
const A_RX: u16 = 6;
const A_TX: u16 = 9;
const A_RX_BUF_LEN: u16 = 10;
const A_TCP_DATA_SPLIT: u16 = 11;
const A_HDS_THRESH: u16 = 17;
const A_HDS_THRESH_MAX: u16 = 18;
const NAMES: Names = Names(&[
    (1, "header", HEADER_NAMES),
    (A_RX, "rx", Names::NONE),
    (A_TX, "tx", Names::NONE),
    (A_RX_BUF_LEN, "rx-buf-len", Names::NONE),
    (A_TCP_DATA_SPLIT, "tcp-data-split", Names::NONE),
    (A_HDS_THRESH, "hds-thresh", Names::NONE),
]);

/// Setting of header split: headers and payload of TCP packets in different buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[doc(alias = "tcp-data-split")]
pub enum DataSplit {
    /// The driver chooses; `ethtool` calls this "auto".
    Unknown,
    /// Off.
    Disabled,
    /// Explicitly on, which a binding requires.
    Enabled,
}

impl DataSplit {
    /// Parses `ETHTOOL_TCP_DATA_SPLIT_*`.
    fn from_raw(raw: u8) -> Self {
        match raw {
            1 => Self::Disabled,
            2 => Self::Enabled,
            _ => Self::Unknown,
        }
    }

    fn raw(self) -> u8 {
        match self {
            Self::Unknown => 0,
            Self::Disabled => 1,
            Self::Enabled => 2,
        }
    }
}

/// Prints the argument of `ethtool -G`.
impl fmt::Display for DataSplit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "auto",
            Self::Disabled => "off",
            Self::Enabled => "on",
        })
    }
}

/// The rings of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rings {
    /// Entries of each RX ring.
    pub rx: Option<u32>,
    /// Maximum of the field before.
    pub rx_max: Option<u32>,
    /// Entries of each TX ring.
    pub tx: Option<u32>,
    /// Maximum of the field before.
    pub tx_max: Option<u32>,
    /// Size of an RX buffer in bytes.
    pub rx_buf_len: Option<u32>,
    /// Header split; `None` if the driver does not support it.
    pub data_split: Option<DataSplit>,
    /// Packets of at most this many bytes are not split; `None` if the driver has no threshold.
    pub hds_thresh: Option<u32>,
    /// Maximum of the threshold.
    pub hds_thresh_max: Option<u32>,
}

impl Rings {
    /// Parses a reply.
    pub(crate) fn parse(reply: Attributes<'_>) -> Self {
        Self {
            rx: reply.u32(A_RX),
            rx_max: reply.u32(A_RX_MAX),
            tx: reply.u32(A_TX),
            tx_max: reply.u32(A_TX_MAX),
            rx_buf_len: reply.u32(A_RX_BUF_LEN),
            data_split: reply.u8(A_TCP_DATA_SPLIT).map(DataSplit::from_raw),
            hds_thresh: reply.u32(A_HDS_THRESH),
            hds_thresh_max: reply.u32(A_HDS_THRESH_MAX),
        }
    }
}

/// A change of the rings; `None` keeps the current value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingsChange {
    /// Entries of each RX ring.
    pub rx: Option<u32>,
    /// Header split.
    pub data_split: Option<DataSplit>,
    /// Packets of at most this many bytes are not split.
    pub hds_thresh: Option<u32>,
}

impl Ethtool {
    /// Reads the rings.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the driver does not report any.
    pub fn rings(&mut self) -> Result<Rings, EthtoolError> {
        self.read("the rings", GET, NAMES, Rings::parse)
    }

    /// Changes the rings in one request, because header split and its threshold depend on each other.
    ///
    /// # Errors
    ///
    /// The driver's refusal, usually with a message.
    pub fn set_rings(&mut self, change: RingsChange) -> Result<(), EthtoolError> {
        let RingsChange {
            rx,
            data_split,
            hds_thresh,
        } = change;
        self.change("change the rings", SET, NAMES, |request| {
            request
                .with(rx, |r, entries| r.u32(A_RX, entries))
                .with(data_split, |r, split| r.u8(A_TCP_DATA_SPLIT, split.raw()))
                .with(hds_thresh, |r, bytes| r.u32(A_HDS_THRESH, bytes))
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Request;

    #[test]
    fn header_split_and_its_threshold_are_read() {
        let reply = Request::new(0, 0, &[])
            .u32(A_RX, 1024)
            .u32(A_RX_MAX, 4096)
            .attribute(A_TCP_DATA_SPLIT, &[2])
            .u32(A_HDS_THRESH, 0)
            .u32(A_HDS_THRESH_MAX, 1023);
        let rings = Rings::parse(reply.reply());
        let expected = Rings {
            rx: Some(1024),
            rx_max: Some(4096),
            data_split: Some(DataSplit::Enabled),
            hds_thresh: Some(0),
            hds_thresh_max: Some(1023),
            ..Rings::default()
        };
        assert_eq!(rings, expected);
    }

    #[test]
    fn a_reply_without_header_split_has_none() {
        let rings = Rings::parse(Attributes::new(&[]));
        assert_eq!(rings, Rings::default());
        for raw in [0, 3, 255] {
            let reply = Request::new(0, 0, &[]).attribute(A_TCP_DATA_SPLIT, &[raw]);
            let rings = Rings::parse(reply.reply());
            assert_eq!(rings.data_split, Some(DataSplit::Unknown));
        }
    }
}
