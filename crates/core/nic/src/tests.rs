//! The whole NIC over scripted links.

mod big_packets;
mod collapse;
mod crossing;
mod ddp;
pub(crate) mod harness;
mod links;
mod loopback;
mod packet_link;
mod placement;
mod queues;
mod random;
mod refusals;
mod space;
mod staging;
mod transmit;
