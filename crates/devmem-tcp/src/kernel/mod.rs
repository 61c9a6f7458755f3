//! The real kernel behind the same types: its sockets, its bindings, its NICs.
//!
//! A [`Nic`] is an interface by name; everything of it that has to know of something else meets here: the memory
//! behind a binding (to gather frags), the set-up of its queues (to be restored after the binding is gone, and to
//! say why bytes went astray), and the sockets with sends under way.

mod bind;
mod completions;
mod exporters;
mod misplaced;
mod nic;
mod open;
mod pieces;
mod recv;
mod send;
mod setup;
mod socket;
mod wait;

pub(crate) use bind::{NetIovs, Rx, Tx};
pub use exporters::{dma_heap, import, udmabuf};
pub(crate) use nic::Nic;
pub(crate) use open::Listening;
pub(crate) use setup::{Prepared, commands, prepare};
pub(crate) use socket::Socket;
