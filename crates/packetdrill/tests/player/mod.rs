//! A player of packetdrill's script language, as far as the scenarios need it, over the shared object.

mod calls;
mod loaded;
mod packet;
mod run;
mod script;

pub use loaded::Loaded;
pub use run::{Ip, play};
