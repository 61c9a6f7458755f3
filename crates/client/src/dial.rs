//! Connecting to the host of a source. Each wait can be cancelled by its caller.

pub(crate) mod race;

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::ops::ControlFlow;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use devmem_tcp::{Netdev, Stream};

use self::race::Race;
use crate::error::LoadError;

/// Longest wait between two calls of a [`CancelCheck`].
pub const SLICE: Duration = Duration::from_millis(100);

/// Called at least every 100 ms of a wait; `Break` cancels it.
pub type CancelCheck<'a> = dyn FnMut() -> ControlFlow<()> + 'a;

/// The [`CancelCheck`] of a wait that is never cancelled.
pub fn never_cancelled() -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Calls `cancel_check`.
///
/// # Errors
/// [`LoadError::Cancelled`].
pub fn check_cancelled(cancel_check: &mut CancelCheck<'_>) -> Result<(), LoadError> {
    match cancel_check() {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(LoadError::Cancelled),
    }
}

/// Sleeps.
///
/// # Errors
/// [`LoadError::Cancelled`].
pub(crate) fn pause(time: Duration, cancel_check: &mut CancelCheck<'_>) -> Result<(), LoadError> {
    let start = Instant::now();
    loop {
        check_cancelled(cancel_check)?;
        let left = time.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(SLICE));
    }
}

/// Returns the addresses of a host, of the IP versions that the NIC has, in the order of the system's resolver.
///
/// # Errors
/// [`LoadError::Resolve`] if there is none, [`LoadError::NoFamily`] if the NIC has none of their IP versions,
/// [`LoadError::Cancelled`].
pub(crate) fn resolve(
    nic: &Netdev,
    host: &str,
    port: u16,
    cancel_check: &mut CancelCheck<'_>,
) -> Result<Vec<SocketAddr>, LoadError> {
    let found = addresses(host, port, cancel_check)?;
    let ours = nic.addresses();
    let is_ours = |address: &&SocketAddr| ours.iter().any(|ip| ip.is_ipv4() == address.is_ipv4());
    let usable: Vec<_> = found.iter().filter(is_ours).copied().collect();
    match (usable.is_empty(), found.first()) {
        (true, Some(first)) => Err(LoadError::NoFamily {
            host: host.to_owned(),
            address: first.ip(),
        }),
        _ => Ok(usable),
    }
}

/// Returns the addresses of a host, in the order of the system's resolver.
///
/// # Errors
/// [`LoadError::Resolve`] if there is none, [`LoadError::Cancelled`].
pub fn addresses(
    host: &str,
    port: u16,
    cancel_check: &mut CancelCheck<'_>,
) -> Result<Vec<SocketAddr>, LoadError> {
    match host.parse::<IpAddr>() {
        Ok(ip) => Ok(vec![SocketAddr::new(ip, port)]),
        Err(_) => look_up(host, port, cancel_check),
    }
}

/// Asks the system's resolver for a name, which can take long. If the caller ends the wait, a thread is left waiting for it.
fn look_up(
    host: &str,
    port: u16,
    cancel_check: &mut CancelCheck<'_>,
) -> Result<Vec<SocketAddr>, LoadError> {
    let failed = |error| LoadError::Resolve {
        host: host.to_owned(),
        error,
    };
    let (sender, receiver) = channel();
    let name = host.to_owned();
    let ask_resolver = move || {
        let found = (name.as_str(), port).to_socket_addrs();
        // Nobody may wait any more.
        let _ = sender.send(found.map(Iterator::collect::<Vec<_>>));
    };
    let thread = thread::Builder::new().name("devmem-resolve".to_owned());
    thread.spawn(ask_resolver).map_err(failed)?;
    loop {
        check_cancelled(cancel_check)?;
        match receiver.recv_timeout(SLICE) {
            Ok(Ok(found)) if !found.is_empty() => return Ok(found),
            Ok(Ok(_)) => return Err(LoadError::no_address(host)),
            Ok(Err(error)) => return Err(failed(error)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(failed(io::Error::other("the resolver has panicked")));
            }
        }
    }
}

/// Connects to the first of `addresses` that answers, of the first 16: IPv6 and IPv4 in turn, each next one 250 ms after the one
/// before, or at once when that has failed.
///
/// # Errors
/// The error of the attempt that failed last; [`LoadError::Cancelled`].
pub(crate) fn connect(
    nic: &Netdev,
    addresses: &[SocketAddr],
    cancel_check: &mut CancelCheck<'_>,
) -> Result<Stream, LoadError> {
    let mut race = Race::new(nic, addresses);
    loop {
        if let Some(outcome) = race.poll() {
            return outcome;
        }
        check_cancelled(cancel_check)?;
        if let Err(errno) = race.wait(SLICE) {
            return Err(race.failed(errno));
        }
    }
}
