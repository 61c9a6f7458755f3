//! The kernel backend: sockets, bindings and NICs of the kernel, behind the same types.
//!
//! A [`Nic`] is an interface by name. It holds everything that its parts share: the memory of each binding (to gather frags),
//! the set-up of its queues (to restore it after the binding, and to find why bytes were misplaced), and the sockets with
//! incomplete sends.

mod bind;
mod completions;
mod exporters;
mod held;
mod info;
mod ledger;
mod misplaced;
mod net_iovs;
mod nic;
mod niov_size;
mod open;
mod pieces;
mod poller;
mod prepared;
mod recv;
mod rights;
mod send;
mod sends;
mod setup;
mod socket;
mod wait;

pub(crate) use bind::{Rx, Tx};
pub use exporters::{dma_heap, import, udmabuf};
pub(crate) use net_iovs::NetIovs;
pub(crate) use nic::Nic;
pub(crate) use open::Listening;
pub(crate) use poller::{Poller, Watch};
pub(crate) use prepared::{Prepared, Steered};
pub(crate) use rights::Rights;
pub(crate) use socket::Socket;
