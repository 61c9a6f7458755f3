//! Load: from stock servers straight into device memory.
//!
//! Key types: [`Source`] (a file of an HTTP server, an export of an NBD server or a namespace of an NVMe subsystem), [`Part`] (a range of it, and the place for
//! its bytes) and [`Loader`], which receives the parts over several connections. It is the program in the walk of a received segment:
//! a user-space NIC receives payload at its place ([`RecvHalf::place_next`]), and what it does not is moved there
//! from the bound memory by [`RxBatch::gather_into`]; or the caller gets it where it lies ([`Loader::deliver`]). Only the protocol's
//! headers reach host memory.
//!
//! One thread serves all connections: the user-space stack has one lock, and the thread that waits for data polls the NIC,
//! so more threads would only wait for each other. Several connections hide round trips and server latency; a load uses no more
//! than make it faster.
//!
//! The bytes of https servers are decrypted by the CPU in host memory, and copied to their place record by record: only a NIC that decrypts TLS
//! could place plain bytes in device memory. A [`Transport`](client::Transport) is a connection with or without TLS, and a `Wire` receives from it.
//!
//! # One piece
//!
//! 1. `Pieces::next` cuts the next piece off the requested ranges, and `Session::request` writes the request for it.
//! 2. `Session::next` says what the next bytes of the connection are: a header, which is peeked at or received alone and
//!    copied to host memory, or payload.
//! 3. `Landing::target` tells the NIC where payload belongs, `Landing::place` moves what is not there; its tokens are returned at
//!    once.
//! 4. `Session::completed` returns the pieces that are whole. If the connection breaks, what has come of a piece stays, `Pieces::give_back` takes
//!    the rest, and another connection requests it.
//!
//! [`RecvHalf::place_next`]: devmem_tcp::RecvHalf::place_next
//! [`RxBatch::gather_into`]: devmem_tcp::RxBatch::gather_into

#![allow(
    clippy::single_range_in_vec_init,
    reason = "a load takes a list of ranges"
)]

mod active;
mod arrival_counter;
mod connection;
#[cfg(feature = "test-util")]
pub(crate) mod fuzz;
mod http;
mod landing;
mod loaded;
mod loader;
pub(crate) mod nbd;
pub(crate) mod nvme;
mod origin;
mod part;
mod partial;
mod safetensors;
mod session;
mod source;
mod stale_location;
mod tensor_stream;
mod to_host;

pub use crate::checksum::{
    Compared, Crc32c, NoSum, RunningSum, StoredSum, SumKind, SumValue, Xxh3,
};
pub use crate::parallel::Progress;
pub use arrival_counter::ArrivalCounter;
pub use client::dial::CancelCheck;
pub use client::http::{HttpFile, HttpRequest, S3Credentials};
pub use client::nbd::{NbdExport, NbdUrl};
pub use client::nvme::{NvmeListed, NvmeNamespace, NvmeSubsystem, NvmeUrl};
pub use client::tls::{TlsClient, TlsError, TlsOptions};
pub use client::{
    Cause, LoadError, PartError, Remedy, SecretError, Setting, Url, UrlError, password_of,
    read_secret, shown,
};
pub use http::Volume;
pub use landing::Landed;
pub use loaded::Loaded;
pub use loader::Loader;
pub use origin::Origin;
pub use part::Part;
pub use partial::{FileVersion, PartialError, PartialFile};
pub use safetensors::selected::Destination;
pub use safetensors::selection::{Selected, SelectionError};
pub use safetensors::sums::ComparedFile;
pub use safetensors::{
    Checkpoint, CheckpointError, CheckpointLimit, HeaderError, Metadata, Tensor,
};
pub use source::Source;
pub use tensor_stream::{
    Arrived, Next as NextTensor, Share, Sharing, StreamFailure, StreamSettings, TensorStream,
};
