//! The states of RFC 9293 3.3.2, with one type for each group of states that allow the same operations: `syn` has SYN-SENT and
//! SYN-RECEIVED, `established` ESTABLISHED and the states in which FINs are sent and received, `closing` TIME-WAIT. LISTEN stands
//! above them: [`crate::listen`].

pub(crate) mod closing;
pub(crate) mod established;
pub(crate) mod opening;
pub(crate) mod syn;
