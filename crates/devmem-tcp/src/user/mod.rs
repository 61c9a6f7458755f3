//! The user-space backend: sockets, bindings and NICs of the stacks in this process, with the names of those in `kernel`.
//!
//! A [`Nic`] has one [`Shard`] or several: a stack with the driver that runs it. Whatever is made from a NIC has a part on each
//! shard, or is on one of them, as a [`Socket`].

mod bind;
mod group;
mod nic;
mod open;
mod poller;
mod recv;
mod send;
mod sends;
mod settings;
mod setup;
mod shard;
mod socket;
mod target;

pub(crate) use bind::{NetIovs, Rx, Tx};
pub(crate) use group::Shared;
pub(crate) use nic::Nic;
pub(crate) use open::Listening;
pub(crate) use poller::{Poller, Watch};
pub(crate) use setup::{Prepared, Steered};
pub(crate) use shard::Shard;
pub(crate) use socket::Socket;
pub(crate) use target::Target;
