//! The whole NIC over links of the tests' making.

mod collapse;
mod harness;
mod links;
mod loopback;
mod placement;
mod queues;
mod random;
mod refusals;
mod space;
mod transmit;
