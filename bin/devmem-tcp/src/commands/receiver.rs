//! The demo's second process when we send: an ordinary kernel TCP receiver that checks the pattern.

use std::io::{self, Read};
use std::net::{TcpListener, TcpStream};
use std::thread;

use anyhow::Context;
use devmem_linux::cpu;
use serde::{Deserialize, Serialize};

use crate::args::DemoReceiver;
use pattern::{Expected, Verifier};
use tool::output::{Failure, print_json, print_line};
use tool::sender::pattern_of;

/// Bytes of one receive.
const BUFFER_BYTES: usize = 256 << 10;

/// Report of the receiver process, one line of JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifiedBytes {
    /// Number of correct payload bytes.
    pub good: u64,
    /// Number of wrong payload bytes.
    pub bad: u64,
    /// Stream position of the first wrong byte of any connection.
    pub first_bad: Option<u64>,
}

/// Receives over kernel sockets.
///
/// # Errors
///
/// Listening or receiving failed.
pub fn run(args: &DemoReceiver) -> Result<(), Failure> {
    if let Some(cpu) = args.cpu {
        cpu::pin_current_thread(cpu).with_context(|| format!("pin to processor {cpu}"))?;
    }
    let listen = args.listen;
    let listener = TcpListener::bind(listen).with_context(|| format!("listen on {listen}"))?;
    print_line("ready")?;
    let all = thread::scope(|scope| -> Result<VerifiedBytes, Failure> {
        let mut receivers = Vec::new();
        for _ in 0..args.connections {
            let (stream, peer) = listener.accept().context("accept")?;
            let verifier = Verifier::new(Expected::Position(pattern_of(peer.port())));
            receivers.push(scope.spawn(move || receive(stream, verifier)));
        }
        let mut all = VerifiedBytes::default();
        for receiver in receivers {
            let verifier = receiver.join().expect("a receiver does not panic")?;
            all.good += verifier.good_bytes();
            all.bad += verifier.bad_bytes();
            all.first_bad = all.first_bad.or(verifier.first_bad());
        }
        Ok(all)
    })?;
    print_json(&all)
}

/// Receives one stream to its end.
fn receive(mut stream: TcpStream, mut verifier: Verifier) -> io::Result<Verifier> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let len = stream.read(&mut buffer)?;
        if len == 0 {
            return Ok(verifier);
        }
        verifier.check(&buffer[..len]);
    }
}
