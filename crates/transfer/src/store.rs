//! Store: from device memory to NBD servers and NVMe subsystems.
//!
//! Key types: [`Sink`] (an export of an NBD server or a namespace of an NVMe subsystem), [`Part`] (a range of it, and the place
//! of its bytes in memory) and [`Storer`], which writes over several connections. It is the program in the walk of a sendmsg from device memory: the header of a request comes
//! from host memory, its payload from bound memory without a copy. The bytes of a program that has them in a file or makes
//! them go through chunks of device memory ([`Storer::store_from`]).
//!
//! # One piece
//!
//! 1. `Supply::next` takes the next piece and the memory that has its bytes: a range of the caller's, or a free chunk, which
//!    the caller fills.
//! 2. `Session::request` makes the request, and `Session::outgoing` says what to send: headers from host memory, and payload by
//!    `Stream::send` from where it lies, at once or when the server asks for it. Several requests are in flight, and replies come in any order.
//! 3. A reply acknowledges the piece: `Pieces::finish`. Its chunk is free when the send is complete, too.
//! 4. `Ledger` knows the acknowledged pieces that no flush has covered. `Ledger::begin_flush` before success is reported, and every
//!    GiB.
//! 5. If a connection breaks, it is reset, and pieces without a reply are written again. So are acknowledged ones that no flush
//!    can cover any more (`Ledger::take_lost`): a server that was restarted may have lost them.

#![allow(
    clippy::single_range_in_vec_init,
    reason = "a store takes a list of ranges"
)]

mod connection;
mod error;
#[cfg(feature = "test-util")]
mod fuzz;
mod input;
mod ledger;
mod nbd;
mod nvme;
mod part;
mod received;
mod session;
mod sink;
mod stored;
mod storer;
mod supply;

pub use crate::load::{NbdExport, NbdUrl, NvmeNamespace, NvmeUrl};
pub use crate::parallel::Progress;
pub use error::{Operation, StoreError};
pub use input::{Input, InputError};
pub use part::Part;
pub use sink::Sink;
pub use stored::Stored;
pub use storer::{Durability, Storer};
pub use supply::Filled;

#[cfg(feature = "test-util")]
pub(crate) use self::{nbd::fuzz as fuzz_nbd, nvme::fuzz as fuzz_nvme};
