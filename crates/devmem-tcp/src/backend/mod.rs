//! The one place that knows both backends: for each struct that `user` and `kernel` have, an enum of the two.
//!
//! A method of an enum checks that the caller is in the process that opened the NIC, before any lock is taken, and calls the method
//! of the same name of either struct. Nothing above chooses a backend, and nothing below checks the process of a call again, except
//! in `drop`.

/// Evaluates an expression with the struct of the backend that a value has.
macro_rules! each {
    ($value:expr, $it:ident => $call:expr) => {
        match $value {
            Self::User($it) => $call,
            Self::Kernel($it) => $call,
        }
    };
}

mod binding;
mod listening;
mod nic;
mod poller;
mod prepared;
mod socket;

pub(crate) use binding::{NetIovs, Rx, Target, Tx};
pub(crate) use listening::Listening;
pub(crate) use nic::Nic;
pub(crate) use poller::{Poller, Watch};
pub(crate) use prepared::{Prepared, Steered};
pub(crate) use socket::Socket;
