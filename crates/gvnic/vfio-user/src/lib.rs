//! A vfio-user server: a PCI device of this process, plugged into a virtual machine by a UNIX socket.
//!
//! Key types: [`Server`] (the socket's path: one client at a time, the next one after it), [`Device`] (what is
//! served: registers, configuration space, reset) and [`Bus`] (what a device is handed to reach its guest:
//! [`DmaWindows`], the guest's memory, and [`Irqs`], its interrupts).
//!
//! In the walk of a gVNIC doorbell this is the first step: `Session::region_write` takes the write out of the
//! client's message and hands it to the device. It never waits: [`Server::poll_fds`] and [`Server::on_ready`] fit
//! into anybody's poll loop, and between two calls the device may use the bus as it likes.
//!
//! The client is not trusted. A message is judged before anything is done about it; what is wrong inside a
//! message is answered with an errno, and a client that breaks the message format itself is put out. Nothing that is
//! done with its descriptors waits for it: see `eventfd` and `closing`. Memory that the client could take away (a file
//! that may shrink) is refused. Whatever a client does, it holds a bounded number of descriptors, windows and bytes of
//! ours.
//!
//! It sends no requests of its own: guest memory must come as file descriptors. No migration, no dirty page
//! tracking, no region that the client maps, no INTx.

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
mod socket_file;
mod windows;

pub use bus::Bus;
pub use connection::Gone;
pub use device::{Device, DeviceError};
pub use irqs::{Irqs, IrqsError};
pub use message::{Command, MAX_MESSAGE_FDS, MAX_TRANSFER_BYTES};
pub use pci::{Msix, PciConfig, PciIdentity};
pub use regions::{CONFIG_REGION, REGION_COUNT, Region};
pub use server::{Event, Interest, Server, ServerStats};
pub use session::{Breach, Session, SessionStats};
pub use socket_file::{ListenError, SocketFile};
pub use windows::{DmaError, DmaWindows, MapError, MapRequest, Protection};
