//! What a load and a store share: ranges in pieces, and connections that are made again when they break.

#![allow(
    clippy::single_range_in_vec_init,
    reason = "a load and a store take a list of ranges"
)]

mod done;
mod idle;
mod in_flight;
mod pace;
mod piece;
pub(crate) mod ranges;
mod settings;
mod slots;
mod window;

pub(crate) use done::Done;
pub(crate) use idle::{Connected, Idle, turn_all};
pub(crate) use in_flight::InFlight;
pub(crate) use pace::{LEAST_BYTES, Pace};
pub(crate) use piece::Pieces;
pub(crate) use settings::{Settings, settable};
pub(crate) use slots::{AfterFailure, Slots};
pub(crate) use window::Window;

/// How far a load or a store is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes in their place, or acknowledged by the server.
    pub bytes: u64,
    /// Bytes of the whole transfer.
    pub total: u64,
    /// Open connections.
    pub connections: usize,
}
