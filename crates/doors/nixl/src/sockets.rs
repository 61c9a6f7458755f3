//! The ways `sockets` and `unix`: TCP of the kernel, and UNIX sockets to agents of the same machine.

mod listening;
mod readiness;
mod socket;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::time::Timespec;

use crate::address::Address;
use crate::raw::addresses::of_this_machine;
use crate::settings::Settings;
use crate::wire::{LISTENERS, Network, Ready, Wire};
use listening::Listening;
pub(crate) use readiness::Readiness;
pub(crate) use socket::Socket;

/// The kernel's sockets.
#[derive(Debug)]
pub(crate) struct Sockets {
    readiness: Arc<Readiness>,
    listening: Listening,
    /// The only addresses that peers are told; empty: all of the machine.
    chosen: Vec<IpAddr>,
    timeout: Duration,
    wake: OwnedFd,
}

impl Sockets {
    /// Listens for agents; with a cookie, for those of this machine by a UNIX socket, too.
    pub(crate) fn listen(settings: &Settings, unix: Option<u64>) -> io::Result<Self> {
        let mut listening = Listening::new(&settings.addresses, settings.port)?;
        if let Some(cookie) = unix {
            listening.add_unix(cookie)?;
        }
        let readiness = Arc::new(Readiness::new()?);
        listening.watch(&readiness, LISTENERS)?;
        Ok(Self {
            readiness,
            listening,
            chosen: settings.addresses.clone(),
            timeout: settings.timeout,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }
}

impl Network for Sockets {
    fn port(&self) -> u16 {
        self.listening.port()
    }

    fn addresses(&self) -> io::Result<Vec<IpAddr>> {
        match self.chosen.is_empty() {
            true => of_this_machine(),
            false => Ok(self.chosen.clone()),
        }
    }

    fn describe(&self) -> String {
        "sockets: this side copies each byte once, short transfers twice".to_owned()
    }

    fn copies(&self) -> u32 {
        1
    }

    fn connect(&self, to: Address, number: u64) -> io::Result<Box<dyn Wire>> {
        let socket = Socket::connect(to, self.timeout, &self.readiness)?;
        self.readiness.add(socket.as_fd(), number)?;
        Ok(Box::new(socket))
    }

    fn accept(&self, number: u64) -> Option<Box<dyn Wire>> {
        let socket = self.listening.accept(self.timeout, &self.readiness)?;
        self.readiness.add(socket.as_fd(), number).ok()?;
        Some(Box::new(socket))
    }

    fn collect(&self, ready: &mut Vec<Ready>) -> io::Result<()> {
        self.readiness.collect(ready)
    }

    fn wait(&self, at_most: Duration) {
        let mut watched = [
            PollFd::from_borrowed_fd(self.readiness.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN),
        ];
        // An error (a signal) is a wake-up.
        let _ = poll(&mut watched, timespec(at_most).as_ref());
        if watched[1].revents().contains(PollFlags::IN) {
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
    }

    fn pause(&self, at_most: Duration) {
        let readiness = PollFd::from_borrowed_fd(self.readiness.as_fd(), PollFlags::IN);
        let _ = poll(&mut [readiness], timespec(at_most).as_ref());
    }

    fn wake(&self) {
        // It fails only if the counter is at its end: then the thread is awake.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

fn timespec(at_most: Duration) -> Option<Timespec> {
    Timespec::try_from(at_most).ok()
}
