//! From errno to cause: what a refusal of the kernel means, and what to do about it.
//!
//! [`cause`] is the one table. Each operation has its own error type beside it; all of them get their
//! words from here.

use std::fmt;

use serde::Serialize;

mod table;

pub use table::cause;

use crate::ethtool::DataSplit;
use crate::netdev::{QueueUser, RxQueueId};

/// What was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Binding device memory to RX queues.
    BindRx,
    /// Binding device memory for sending.
    BindTx,
    /// Receiving.
    Recv,
    /// Sending from device memory.
    Send,
    /// Giving frags back.
    Dontneed,
    /// Making a dma-buf of a memfd.
    Udmabuf,
    /// Allocating from a dma-heap.
    DmaHeap,
    /// Making or using a socket in the ways of every program: listen, accept, connect, shut down.
    Socket,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BindRx => "bind-rx",
            Self::BindTx => "bind-tx",
            Self::Recv => "recv",
            Self::Send => "send",
            Self::Dontneed => "dontneed",
            Self::Udmabuf => "udmabuf",
            Self::DmaHeap => "dma-heap",
            Self::Socket => "socket",
        })
    }
}

/// What is known about the circumstances of a refusal. All of it is optional: the more there is, the more
/// exact the cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The kernel's own words.
    pub kernel: Option<String>,
    /// The attribute of the request that the kernel pointed at: `queues.id`.
    pub attribute: Option<String>,
    /// The interface.
    pub interface: Option<String>,
    /// Its driver.
    pub driver: Option<String>,
    /// The queues asked for.
    pub queues: Vec<RxQueueId>,
    /// How many RX queues the interface has.
    pub rx_queues: Option<u32>,
    /// Queues asked for that somebody uses already.
    pub taken: Vec<(RxQueueId, QueueUser)>,
    /// Header split as it is.
    pub data_split: Option<DataSplit>,
    /// Its threshold as it is.
    pub hds_thresh: Option<u32>,
    /// An XDP program is attached.
    pub xdp: Option<bool>,
    /// Another interface that has to do with it: where a route leaves.
    pub other_interface: Option<String>,
    /// Bytes asked for.
    pub bytes: Option<u64>,
    /// The most bytes there can be.
    pub bytes_max: Option<u64>,
}

/// Why the kernel refused. Closed, for programs; names are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CauseKind {
    /// A capability is missing.
    NotPermitted,
    /// This kernel does not have the feature.
    KernelTooOld,
    /// The interface does not exist or has gone.
    NoDevice,
    /// The driver cannot do it.
    DriverCannot,
    /// The queues belong to different DMA devices.
    QueuesOfDifferentDevices,
    /// A queue that does not exist, or none.
    BadQueue,
    /// Header split is not explicitly on.
    SplitOff,
    /// Small packets are not split.
    HdsThreshold,
    /// The dma-buf's pieces are not page-aligned.
    DmabufGeometry,
    /// The descriptor is not an open dma-buf.
    NotADmabuf,
    /// An XDP program is attached.
    XdpAttached,
    /// Somebody uses the queue already.
    QueueTaken,
    /// The driver cannot restart that queue.
    QueueFixed,
    /// The binding does not exist, or is of the other direction, or zero-copy is not switched on.
    SendNotPrepared,
    /// The route leaves by another interface than the binding's.
    RouteElsewhere,
    /// There is no route.
    NoRoute,
    /// Beyond the end of the dma-buf.
    BeyondDmabuf,
    /// Too many pieces in one send.
    TooManyPieces,
    /// Too many zero-copy sends whose completions nobody read.
    TooManyCompletions,
    /// Device memory was read as if it were host memory.
    ReadWithoutFlag,
    /// The data lies in memory of another kind of provider.
    OtherProvider,
    /// No room for even one control message.
    ControlTooSmall,
    /// The socket is not TCP.
    NotTcp,
    /// Too many tokens in one call.
    TooManyTokens,
    /// An exporter's limit.
    ExporterLimit,
    /// An exporter that is not there.
    NoExporter,
    /// Out of memory, or out of descriptors.
    NoResources,
    /// Would have to wait; not a fault.
    WouldBlock,
    /// The connection ended.
    ConnectionLost,
    /// Nothing more is known than the errno.
    Unknown,
}

/// Why, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cause {
    /// For programs.
    pub kind: CauseKind,
    /// One line, for people.
    pub message: String,
    /// What mends it, a line or several.
    pub hint: Option<String>,
}

impl Cause {
    fn new(kind: CauseKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            hint: None,
        }
    }

    fn hint(self, hint: impl Into<String>) -> Self {
        Self {
            hint: Some(hint.into()),
            ..self
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

#[cfg(test)]
mod tests;
