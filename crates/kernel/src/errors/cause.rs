//! What failed, and why.

use std::fmt;

use serde::Serialize;

use crate::ethtool::DataSplit;
use crate::queue_id::{KernelRxQueueId, QueueUser};

/// The operation that the kernel refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Binding device memory to RX queues.
    BindRx,
    /// Binding device memory for sending.
    BindTx,
    /// Leasing an RX queue to a netkit.
    Lease,
    /// Receiving.
    Recv,
    /// Sending from device memory.
    Send,
    /// Returning frags.
    Dontneed,
    /// Making a dma-buf from a memfd.
    Udmabuf,
    /// Allocating from a dma-heap.
    DmaHeap,
    /// An ordinary socket call: listen, accept, connect, shut down.
    Socket,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BindRx => "bind-rx",
            Self::BindTx => "bind-tx",
            Self::Lease => "lease",
            Self::Recv => "recv",
            Self::Send => "send",
            Self::Dontneed => "dontneed",
            Self::Udmabuf => "udmabuf",
            Self::DmaHeap => "dma-heap",
            Self::Socket => "socket",
        })
    }
}

/// Facts about a refusal. All are optional: more facts give a more exact cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The kernel's extended-ack message.
    pub kernel: Option<String>,
    /// The attribute of the request that the extended ack names: `queues.id`.
    pub attribute: Option<String>,
    /// The interface.
    pub interface: Option<String>,
    /// Its driver.
    pub driver: Option<String>,
    /// The requested queues.
    pub queues: Vec<KernelRxQueueId>,
    /// How many RX queues the interface has.
    pub rx_queues: Option<u32>,
    /// Requested queues that are in use, and their users.
    pub taken: Vec<(KernelRxQueueId, QueueUser)>,
    /// The current state of header split.
    pub data_split: Option<DataSplit>,
    /// The current header split threshold.
    pub hds_thresh: Option<u32>,
    /// An XDP program is attached.
    pub xdp: Option<bool>,
    /// The other interface involved: the one of the route.
    pub other_interface: Option<String>,
    /// Requested bytes.
    pub bytes: Option<u64>,
    /// Largest possible number of bytes.
    pub bytes_max: Option<u64>,
}

/// Kind of cause, for programs. The set is closed and the names are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CauseKind {
    /// A capability is missing.
    NotPermitted,
    /// This kernel does not have the feature.
    KernelTooOld,
    /// The interface does not exist, or was removed.
    NoDevice,
    /// The driver does not support the operation.
    DriverCannot,
    /// The queues belong to different DMA devices.
    QueuesOfDifferentDevices,
    /// The queue does not exist, or none was given.
    BadQueue,
    /// Header split is not explicitly on.
    SplitOff,
    /// Small packets are not split.
    HdsThreshold,
    /// The dma-buf's pieces do not begin and end at multiples of a page, or of the size of a net_iov.
    DmabufGeometry,
    /// The descriptor is not an open dma-buf.
    NotADmabuf,
    /// An XDP program is attached.
    XdpAttached,
    /// The queue is in use.
    QueueTaken,
    /// The driver cannot restart that queue.
    QueueFixed,
    /// The binding does not exist, or is of the other direction, or zero-copy is not switched on.
    SendNotPrepared,
    /// The route uses another interface than the binding.
    RouteElsewhere,
    /// There is no route.
    NoRoute,
    /// A range beyond the end of the dma-buf.
    BeyondDmabuf,
    /// Too many pieces in one send.
    TooManyPieces,
    /// Too many zero-copy sends with unread completions.
    TooManyCompletions,
    /// Device memory was read as if it were host memory.
    ReadWithoutFlag,
    /// The data is in memory of another kind of provider, or in several kinds of memory.
    OtherProvider,
    /// No room for a single control message.
    ControlTooSmall,
    /// The socket is not TCP.
    NotTcp,
    /// Too many tokens in one call.
    TooManyTokens,
    /// A limit of the exporter.
    ExporterLimit,
    /// The exporter does not exist.
    NoExporter,
    /// Out of memory, or out of descriptors.
    NoResources,
    /// The call would have to wait; this is not a fault.
    WouldBlock,
    /// The connection ended.
    ConnectionLost,
    /// Only the errno is known.
    Unknown,
}

/// The cause of a refusal, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cause {
    /// The kind, for programs.
    pub kind: CauseKind,
    /// The cause in one line, for people.
    pub message: String,
    /// The remedy, one or more lines.
    pub hint: Option<String>,
}

impl Cause {
    pub(super) fn new(kind: CauseKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            hint: None,
        }
    }

    pub(super) fn hint(self, hint: impl Into<String>) -> Self {
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
