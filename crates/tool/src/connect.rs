//! Connecting, until a signal.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use devmem_tcp::{ConnectOptions, Error, Netdev, Stream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::signals::StopFlag;

/// Maximum length of one wait; signals are checked between waits.
const WAIT_SLICE: Duration = Duration::from_millis(100);

/// Connects to `to` as [`Netdev::connect`] does. `None` after a signal.
///
/// # Errors
///
/// As [`Netdev::connect`].
pub fn connect_until_signal(
    nic: &Netdev,
    to: SocketAddr,
    stop: &StopFlag,
) -> Result<Option<Stream>, Error> {
    let mut connecting = nic.begin_connect(to, &ConnectOptions::new())?;
    let signal = connecting.signal()?;
    let limit = Timespec::try_from(WAIT_SLICE).expect("a tenth of a second fits");
    while !stop.is_set() {
        // Before the look, so that an outcome between look and wait ends the wait.
        signal.arm();
        if let Some(stream) = connecting.try_finish()? {
            return Ok(Some(stream));
        }
        match poll(&mut [PollFd::new(&signal, PollFlags::IN)], Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(io::Error::from(errno).into()),
        }
    }
    Ok(None)
}
