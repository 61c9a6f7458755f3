//! Attempts to connect to the addresses of a host, staggered (RFC 8305).

use std::net::SocketAddr;
use std::time::{Duration, Instant};
use std::vec;

use devmem_tcp::{ConnectOptions, Connecting, Error, Netdev, SendSignal, Stream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::LoadError;

/// Time limit of one attempt to connect: a SYN and its repetitions after 1 and 3 seconds.
const CONNECT_LIMIT: Duration = Duration::from_secs(7);
/// Time after which the next address is tried beside those before (RFC 8305 8, "Connection Attempt Delay").
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// Most addresses of one host that are tried: a resolver may return thousands.
const MAX_ADDRESSES: usize = 16;

/// Attempts that run at the same time. The first connection ends the others.
#[derive(Debug)]
pub(crate) struct Race<'a> {
    nic: &'a Netdev,
    /// Not tried yet.
    left: vec::IntoIter<SocketAddr>,
    attempts: Vec<Attempt>,
    /// When the next address is tried.
    next: Instant,
    failed: Option<LoadError>,
}

#[derive(Debug)]
struct Attempt {
    address: SocketAddr,
    connecting: Connecting,
    signal: SendSignal,
    began: Instant,
}

impl<'a> Race<'a> {
    /// Prepares attempts to connect to one of `addresses`.
    pub(crate) fn new(nic: &'a Netdev, addresses: &[SocketAddr]) -> Self {
        Self {
            nic,
            left: in_turns(addresses).into_iter(),
            attempts: Vec::new(),
            next: Instant::now(),
            failed: None,
        }
    }

    /// Returns the outcome, `None` while there is none. Begins the next attempt when it is due, or when one has failed.
    pub(crate) fn poll(&mut self) -> Option<Result<Stream, LoadError>> {
        loop {
            if let Some(stream) = self.poll_attempts() {
                // Requests are small and follow each other.
                let _ = stream.set_nodelay(true);
                return Some(Ok(stream));
            }
            if Instant::now() < self.next {
                return None;
            }
            let Some(address) = self.left.next() else {
                let is_over = self.attempts.is_empty();
                return is_over.then(|| Err(self.failed.take().unwrap_or_else(no_server)));
            };
            match Attempt::begin(self.nic, address) {
                Ok(attempt) => {
                    self.attempts.push(attempt);
                    self.next = Instant::now() + ATTEMPT_DELAY;
                }
                Err(error) => self.failed = Some(LoadError::Connect { address, error }),
            }
        }
    }

    fn poll_attempts(&mut self) -> Option<Stream> {
        let mut index = 0;
        while let Some(attempt) = self.attempts.get_mut(index) {
            match attempt.outcome() {
                None => index += 1,
                Some(Ok(stream)) => return Some(stream),
                Some(Err(error)) => {
                    let address = self.attempts.remove(index).address;
                    self.failed = Some(LoadError::Connect { address, error });
                    self.next = Instant::now();
                }
            }
        }
        None
    }

    /// Waits until [`poll`](Self::poll) may have something to do, for `longest` at most.
    ///
    /// # Errors
    /// poll(2) has failed.
    pub(crate) fn wait(&self, longest: Duration) -> rustix::io::Result<()> {
        let limit = match self.left.len() {
            0 => longest,
            _ => longest.min(self.next.saturating_duration_since(Instant::now())),
        };
        let limit = Timespec::try_from(limit).expect("a part of a second fits");
        let signals = self.attempts.iter().map(|attempt| &attempt.signal);
        let mut fds: Vec<_> = signals
            .map(|signal| PollFd::new(signal, PollFlags::IN))
            .collect();
        match poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Ends the attempts with an error of waiting for them.
    pub(super) fn failed(mut self, errno: rustix::io::Errno) -> LoadError {
        let attempt = self.attempts.pop();
        attempt.map_or_else(no_server, |Attempt { address, .. }| LoadError::Connect {
            address,
            error: std::io::Error::from(errno).into(),
        })
    }
}

impl Attempt {
    fn begin(nic: &Netdev, address: SocketAddr) -> Result<Self, Error> {
        let connecting = nic.begin_connect(address, &ConnectOptions::new())?;
        let signal = connecting.signal()?;
        Ok(Self {
            address,
            connecting,
            signal,
            began: Instant::now(),
        })
    }

    fn outcome(&mut self) -> Option<Result<Stream, Error>> {
        self.signal.arm();
        match self.connecting.try_finish() {
            Ok(None) if self.began.elapsed() >= CONNECT_LIMIT => Some(Err(std::io::Error::from(
                std::io::ErrorKind::TimedOut,
            )
            .into())),
            Ok(None) => None,
            Ok(Some(stream)) => Some(Ok(stream)),
            Err(error) => Some(Err(error)),
        }
    }
}

fn no_server() -> LoadError {
    LoadError::no_address("the server")
}

/// Returns the addresses with the two families in turn, that of the first one first (RFC 8305 4).
fn in_turns(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let mut found: Vec<_> = addresses.iter().take(MAX_ADDRESSES).copied().collect();
    let is_v6 = found.first().is_some_and(SocketAddr::is_ipv6);
    let mut of_family = [0; 2];
    found.sort_by_cached_key(|address| {
        let is_second = address.is_ipv6() != is_v6;
        let turn = &mut of_family[usize::from(is_second)];
        *turn += 1;
        (*turn, is_second)
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(mut race: Race<'_>) -> Result<Stream, LoadError> {
        loop {
            if let Some(outcome) = race.poll() {
                return outcome;
            }
            race.wait(Duration::from_millis(100))
                .expect("open descriptors");
        }
    }

    #[test]
    fn the_next_address_is_tried_beside_a_silent_one_and_at_once_after_a_refusal() {
        let wire = "mem:load-race";
        let open = |address| Netdev::user(wire, address).expect("an end of the wire");
        let (ours, theirs) = (open("10.77.0.1/24"), open("10.77.0.2/24"));
        let listener = theirs.listen("10.77.0.2:0").expect("a free port");
        let listening = listener.local_addr().expect("it listens");
        // No station has the first address; nothing listens at the second one.
        let [silent, refusing] = [([10, 77, 0, 9], 9).into(), ([10, 77, 0, 2], 9).into()];
        let mut race = Race::new(&ours, &[silent, refusing, listening]);
        assert!(race.poll().is_none());
        assert_eq!(race.left.len(), 2, "one at a time");
        let stream = outcome(race).expect("one listens");
        assert_eq!(stream.peer_addr().expect("open"), listening);

        let refused = outcome(Race::new(&ours, &[refusing, refusing]));
        let is_refused =
            matches!(refused, Err(LoadError::Connect { address, .. }) if address == refusing);
        assert!(is_refused, "{refused:?}");
        let none = outcome(Race::new(&ours, &[]));
        assert!(matches!(none, Err(LoadError::Resolve { .. })), "{none:?}");
    }
}
