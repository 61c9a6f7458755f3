//! A vfio-user server: exposes a PCI device of this process to a virtual machine through a UNIX socket.
//!
//! Key types: [`Server`] (the listening socket; serves one client at a time), [`Device`] (the device: registers,
//! configuration space, reset) and [`Bus`] (the access of a device to its guest: [`DmaWindows`], the guest memory, and
//! [`Irqs`], the interrupts).
//!
//! In the walk of a gVNIC doorbell this is the first step: `Session::region_write` takes the write from the client's
//! message and passes it to the device. Nothing here blocks: [`Server::poll_fds`] and [`Server::on_ready`] fit into any
//! poll loop, and the device may use the bus between two calls.
//!
//! The client is not trusted. Each message is validated first. An invalid request is answered with an errno; a client
//! that violates the message format is disconnected. No operation on a descriptor of the client can block: see
//! `eventfd` and `closing`. A file that the client could shrink is refused.
//! The descriptors, windows and bytes that a client can make the server hold are bounded.
//!
//! The server sends no requests, so guest memory must come as file descriptors. There is no migration, no dirty page
//! tracking, no region that the client can map, and no INTx.

mod bus;
mod closing;
mod connection;
mod device;
mod eventfd;
mod irqs;
mod message;
mod pci;
mod regions;
mod server;
mod session;
mod windows;

pub use bus::Bus;
pub use connection::Disconnect;
pub use device::{Device, DeviceError};
pub use irqs::{Irqs, IrqsError};
pub use message::{Command, MAX_MESSAGE_FDS, MAX_TRANSFER_BYTES};
pub use pci::{Msix, PciConfig, PciIdentity};
pub use regions::{CONFIG_REGION, REGION_COUNT, Region};
pub use server::{Event, Interest, Server, ServerError, ServerStats};
pub use session::{ProtocolViolation, Session, SessionStats};
pub use windows::{DmaError, DmaWindows, MapError, MapRequest, Protection};
