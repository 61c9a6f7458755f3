//! Congestion control: how much may be in flight, and how fast it leaves.

mod bbr;
mod control;
mod cubic;
mod dctcp;
mod delivery;
mod hystart;
mod input;
mod loss_based;
mod newreno;

pub(crate) use control::{Control, Delivery, Prior};
pub(crate) use input::{Acked, FlightLimit};
