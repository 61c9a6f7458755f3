//! Sockets: connections and listeners with the state of the socket interface, and the table of all.

pub(crate) mod agenda;
pub(crate) mod connection;
pub(crate) mod demux;
pub(crate) mod error;
pub(crate) mod errqueue;
mod free_map;
pub(crate) mod id;
pub(crate) mod kind;
pub(crate) mod limits;
pub(crate) mod listener;
pub(crate) mod place;
pub(crate) mod readiness;
pub(crate) mod recv_msg;
pub(crate) mod sockets;
pub(crate) mod sockopt;
mod table;
pub(crate) mod timestamps;
pub(crate) mod token_table;
