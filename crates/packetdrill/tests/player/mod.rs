//! A player of packetdrill's script language, as far as the scenarios need it, over the shared object.

mod calls;
mod loaded;
mod packet;
mod run;
mod script;

#[allow(unused_imports, reason = "not every test program looks at it")]
pub use loaded::Loaded;
pub use run::{Ip, play};
