//! A plugin and what it makes, as types that keep NCCL's rules: everything ends before the plugin does.

use std::ffi::c_int;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::Path;

use crate::PluginError;
use crate::ffi::{Closing, Handle, Library, Opaque};

/// The only device that is used.
const DEVICE: c_int = 0;
/// Tag of every message: the order decides which receive a message meets.
const TAG: c_int = 0;
/// Address under which every memory is registered. It only makes offsets of the addresses in later calls.
const BASE: usize = 1 << 32;

/// A loaded plugin. Dropping it unloads the library.
#[derive(Debug)]
pub struct Plugin(Library);

impl Plugin {
    /// Loads and initializes the library at `path`, whose code then runs in this process. The plugin reads its settings from
    /// the environment.
    ///
    /// # Errors
    ///
    /// The file is no plugin of version 12, or refuses its settings.
    pub fn load(path: &Path) -> Result<Self, PluginError> {
        Library::load(path).map(Self)
    }

    /// Returns the number of devices.
    ///
    /// # Errors
    ///
    /// The plugin failed.
    pub fn devices(&self) -> Result<usize, PluginError> {
        let devices = self.0.devices()?;
        usize::try_from(devices).map_err(|_| nonsense("devices", devices))
    }

    /// Listens on the first device. The handle is for [`Plugin::connect`] of another process.
    ///
    /// # Errors
    ///
    /// The plugin cannot use the device.
    pub fn listen(&self) -> Result<(Handle, PluginListener<'_>), PluginError> {
        let (handle, listener) = self.0.listen(DEVICE)?;
        Ok((
            handle,
            PluginListener(Open::new(&self.0, Closing::Listen, listener)),
        ))
    }

    /// Connects to a listener; `None`: not yet, call it again with the same handle.
    ///
    /// # Errors
    ///
    /// The connection failed.
    pub fn connect(&self, handle: &mut Handle) -> Result<Option<SendComm<'_>>, PluginError> {
        let comm = self.0.connect(DEVICE, handle)?;
        Ok(comm.map(|comm| SendComm(Open::new(&self.0, Closing::Send, comm))))
    }

    /// Ends the plugin and unloads it. All that it has made is gone by then: it borrows the plugin.
    ///
    /// # Errors
    ///
    /// The plugin failed; it is unloaded all the same.
    pub fn unload(mut self) -> Result<(), PluginError> {
        self.0.finalize()
    }
}

fn nonsense(function: &'static str, value: c_int) -> PluginError {
    let value = value.into();
    PluginError::Nonsense { function, value }
}

/// What the plugin has opened; dropping it closes it, and ignores the result.
#[derive(Debug)]
struct Open<'p> {
    library: &'p Library,
    kind: Closing,
    value: Opaque,
    is_closed: bool,
}

impl<'p> Open<'p> {
    fn new(library: &'p Library, kind: Closing, value: Opaque) -> Self {
        Self {
            library,
            kind,
            value,
            is_closed: false,
        }
    }

    fn close(&mut self) -> Result<(), PluginError> {
        match std::mem::replace(&mut self.is_closed, true) {
            false => self.library.close(self.kind, self.value),
            true => Ok(()),
        }
    }

    fn register(&self, fd: BorrowedFd<'_>, size: usize) -> Result<Registered<'_>, PluginError> {
        Ok(Registered {
            library: self.library,
            comm: self.value,
            memory: self.library.register(self.value, fd, (BASE, size))?,
        })
    }

    /// Returns the memory, if it is registered for this communicator.
    fn memory(&self, memory: &Registered<'_>) -> Result<Opaque, PluginError> {
        match memory.comm == self.value {
            true => Ok(memory.memory),
            false => Err(PluginError::OtherComm),
        }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        // Who wants to know calls `close`.
        let _closed = self.close();
    }
}

/// Accepts connections.
#[derive(Debug)]
pub struct PluginListener<'p>(Open<'p>);

impl<'p> PluginListener<'p> {
    /// Accepts a connection; `None`: not yet.
    ///
    /// # Errors
    ///
    /// The connection failed.
    pub fn accept(&self) -> Result<Option<RecvComm<'p>>, PluginError> {
        let library = self.0.library;
        let comm = library.accept(self.0.value)?;
        Ok(comm.map(|comm| RecvComm(Open::new(library, Closing::Receive, comm))))
    }
}

/// The sending end of a communicator.
#[derive(Debug)]
pub struct SendComm<'p>(Open<'p>);

/// The receiving end of a communicator.
#[derive(Debug)]
pub struct RecvComm<'p>(Open<'p>);

impl SendComm<'_> {
    /// Registers the first `size` bytes of a dma-buf to send from; the descriptor may be closed afterwards.
    ///
    /// # Errors
    ///
    /// The plugin refuses the memory.
    pub fn register(&self, fd: BorrowedFd<'_>, size: usize) -> Result<Registered<'_>, PluginError> {
        self.0.register(fd, size)
    }

    /// Sends a range of registered memory; `None`: not now, call it again. The bytes must not change before the request is
    /// done, or the peer gets others.
    ///
    /// # Errors
    ///
    /// The range is not registered for this communicator.
    pub fn send<'c>(
        &'c self,
        memory: &Registered<'c>,
        range: Range<usize>,
    ) -> Result<Option<Request<'c>>, PluginError> {
        let (library, memory) = (self.0.library, self.0.memory(memory)?);
        let request = library.send(self.0.value, memory, address(&range), TAG)?;
        Ok(request.map(|request| Request { library, request }))
    }

    /// Closes it; the requests in flight fail.
    ///
    /// # Errors
    ///
    /// The plugin failed.
    pub fn close(mut self) -> Result<(), PluginError> {
        self.0.close()
    }
}

impl RecvComm<'_> {
    /// Registers the first `size` bytes of a dma-buf to receive into; the descriptor may be closed afterwards.
    ///
    /// # Errors
    ///
    /// The plugin refuses the memory.
    pub fn register(&self, fd: BorrowedFd<'_>, size: usize) -> Result<Registered<'_>, PluginError> {
        self.0.register(fd, size)
    }

    /// Receives a message into a range of registered memory, which may be longer than the message; `None`: not now, call it
    /// again.
    ///
    /// # Errors
    ///
    /// The range is not registered for this communicator.
    pub fn receive<'c>(
        &'c self,
        memory: &Registered<'c>,
        range: Range<usize>,
    ) -> Result<Option<Request<'c>>, PluginError> {
        let (library, memory) = (self.0.library, self.0.memory(memory)?);
        let request = library.receive(self.0.value, memory, address(&range), TAG)?;
        Ok(request.map(|request| Request { library, request }))
    }

    /// Closes it; the requests in flight fail.
    ///
    /// # Errors
    ///
    /// The plugin failed.
    pub fn close(mut self) -> Result<(), PluginError> {
        self.0.close()
    }
}

/// Returns the address and the length of a range of registered memory.
fn address(range: &Range<usize>) -> (usize, usize) {
    // A range that wraps is outside of any memory, and the plugin refuses it.
    (BASE.wrapping_add(range.start), range.len())
}

/// Registered memory. Dropping it deregisters the memory; requests that still need it fail.
#[derive(Debug)]
pub struct Registered<'c> {
    library: &'c Library,
    comm: Opaque,
    memory: Opaque,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        // A plugin has no other way to let go of it.
        let _deregistered = self.library.deregister(self.comm, self.memory);
    }
}

/// A message in flight.
#[derive(Debug)]
#[must_use = "a request is over when test has said so"]
pub struct Request<'c> {
    library: &'c Library,
    request: Opaque,
}

/// What became of a request.
#[derive(Debug)]
#[must_use = "a request that is not done must be tested again"]
pub enum Tested<'c> {
    /// It is done; the bytes of the message.
    Done(usize),
    /// It is not done.
    Pending(Request<'c>),
}

impl<'c> Request<'c> {
    /// Lets the plugin make progress, and asks whether the message has been sent or received.
    ///
    /// # Errors
    ///
    /// The message was longer than its receive, or the connection failed. The request is over.
    pub fn test(self) -> Result<Tested<'c>, PluginError> {
        match self.library.test(self.request)? {
            None => Ok(Tested::Pending(self)),
            Some(size) => match usize::try_from(size) {
                Ok(size) => Ok(Tested::Done(size)),
                Err(_) => Err(nonsense("test", size)),
            },
        }
    }
}
