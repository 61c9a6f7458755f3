//! One file per subcommand.

pub mod bench;
pub mod broker;
pub mod demo;
pub mod exchange;
pub mod lease;
pub mod load;
pub mod nvme_target;
pub mod packetdrill_path;
pub mod receiver;
pub mod recv;
pub mod restore;
pub mod send;
pub mod sender;
pub mod store;
