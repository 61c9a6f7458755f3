//! A DHCP server in a thread of a test, for tests of several packages.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a test waits for a message, on a slow and shared machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Kinds of messages (RFC 2132 9.6).
pub const DISCOVER: u8 = 1;
pub const OFFER: u8 = 2;
pub const REQUEST: u8 = 3;
pub const DECLINE: u8 = 4;
pub const ACK: u8 = 5;
pub const NAK: u8 = 6;
pub const RELEASE: u8 = 7;

/// The first address that the server lends; then the next ones.
pub const FIRST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 50);

/// A DHCP server, and the kinds of the messages that it got.
pub struct Server {
    heard: Arc<Mutex<Vec<u8>>>,
    /// Refuse the next renewal, and lend the next address.
    pub refuses: Arc<AtomicBool>,
}

impl Server {
    /// Starts a server that lends an address for 20 s, to be renewed after one.
    pub fn start() -> Self {
        Self::lending(FIRST, "10.77.0.255", &ROUTER)
    }

    /// As [`start`](Self::start), with these options beside those of every offer, sent to this address.
    pub fn lending(
        mut address: Ipv4Addr,
        broadcast: &'static str,
        options: &'static [(u8, &'static [u8])],
    ) -> Self {
        let socket = UdpSocket::bind(("0.0.0.0", 67)).expect("root of this namespace");
        socket.set_broadcast(true).expect("it is open");
        let heard = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&heard);
        let refuses = Arc::new(AtomicBool::new(false));
        let refused = Arc::clone(&refuses);
        std::thread::spawn(move || {
            let mut buffer = [0; 1500];
            loop {
                let (len, _) = socket.recv_from(&mut buffer).expect("it is open");
                let request = &buffer[..len];
                let kind = option(request, 53).expect("every message has a kind")[0];
                log.lock().expect("nobody panics with it").push(kind);
                let is_renewal = request[12..16] != [0; 4];
                let answer = match kind {
                    DISCOVER => OFFER,
                    REQUEST if is_renewal && refused.swap(false, Ordering::Relaxed) => {
                        address = Ipv4Addr::from_bits(address.to_bits() + 1);
                        NAK
                    }
                    REQUEST => ACK,
                    _ => continue,
                };
                let reply = reply(request, answer, address, options);
                socket.send_to(&reply, (broadcast, 68)).expect("sent");
            }
        });
        Self { heard, refuses }
    }

    pub fn heard(&self) -> Vec<u8> {
        self.heard.lock().expect("nobody panics with it").clone()
    }

    /// Returns what the server got, without repetitions: a busy machine loses packets, and the client asks again.
    pub fn heard_in_turn(&self) -> Vec<u8> {
        let mut kinds = self.heard();
        kinds.dedup();
        kinds
    }

    /// Waits until the server got so many messages of a kind.
    pub fn await_messages(&self, kind: u8, count: usize) {
        let start = Instant::now();
        while self.heard().iter().filter(|heard| **heard == kind).count() < count {
            assert!(start.elapsed() < PATIENCE, "{:?}", self.heard());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Returns the value of an option.
pub fn option(message: &[u8], code: u8) -> Option<&[u8]> {
    let mut rest = message.get(240..)?;
    while let [found, len, tail @ ..] = rest {
        let value = tail.get(..usize::from(*len))?;
        if *found == code {
            return Some(value);
        }
        rest = &tail[value.len()..];
    }
    None
}

/// The network and the router of an address.
pub const ROUTER: [(u8, &[u8]); 2] = [(1, &[255, 255, 255, 0]), (3, &[10, 77, 0, 1])];

pub fn reply(request: &[u8], kind: u8, address: Ipv4Addr, options: &[(u8, &[u8])]) -> Vec<u8> {
    let mut reply = request[..240].to_vec();
    reply[0] = 2;
    reply[16..20].copy_from_slice(&address.octets());
    let kind = [kind];
    let common: [(u8, &[u8]); 5] = [
        (53, &kind),
        (54, &[10, 77, 0, 1]),
        (51, &[0, 0, 0, 20]),
        (58, &[0, 0, 0, 1]),
        (59, &[0, 0, 0, 15]),
    ];
    for (code, value) in common.iter().chain(options) {
        reply.extend_from_slice(&[*code, value.len() as u8]);
        reply.extend_from_slice(value);
    }
    reply.push(255);
    reply
}
