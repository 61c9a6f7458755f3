//! One file per subcommand.

pub mod bench;
pub mod demo;
pub mod packetdrill_path;
pub mod receiver;
pub mod recv;
pub mod send;
pub mod sender;
pub mod wire;
