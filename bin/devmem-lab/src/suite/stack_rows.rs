//! Device memory TCP between our user-space stack, on the host, and the guest's kernel: two independent implementations
//! test each other.
//!
//! The guest requests the start of the other end: see [`ask_for`].

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::devmem::bound::{Bound, DmabufKind, Steering};
use super::devmem::receiving::{Behaviour, Stream, receive};
use super::devmem::sending::{require_tx, send_to};
use super::nvme_rows;
use super::report::{FAR_ADDRESS, FAR_PORT, FarEndRequest, PERIOD, ask_for};
use super::row::{Context, PassedRow, Row};
use super::traffic::{self, Family, Rate, STUCK};
use pattern::RepeatingPattern;

const QUEUE: u32 = 2;
/// Bytes of one read of an ordinary socket.
const READ_BYTES: usize = 1 << 20;

/// Rows with rates that are compared.
pub const SPEED_PLAIN: &str = "speed: our stack to a kernel socket";
pub const SPEED_DEVMEM: &str = "speed: our stack to kernel devmem rx";

pub const ROWS: &[Row] = &[
    ("our stack to kernel devmem rx", |context| {
        devmem_rx(context, Payload::Verified)
    }),
    (SPEED_PLAIN, plain_rx),
    (SPEED_DEVMEM, |context| devmem_rx(context, Payload::Ignored)),
    ("kernel devmem tx to our stack", devmem_tx),
    ("our stack and nvmet", nvme_rows::our_stack),
];

pub const LOSS_ROWS: &[Row] = &[
    ("bad wire: our stack to kernel devmem rx", |context| {
        devmem_rx(context, Payload::Verified)
    }),
    ("bad wire: kernel devmem tx to our stack", devmem_tx),
    ("bad wire: our stack and nvmet", nvme_rows::our_stack),
];

/// What a row does with the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Payload {
    Verified,
    /// Only counted, for the rate.
    Ignored,
}

fn devmem_rx(context: &Context, payload: Payload) -> anyhow::Result<PassedRow> {
    let mut steering = Steering::new(1)?;
    let bound = Bound::new(DmabufKind::Udmabuf, &[QUEUE])?;
    let listener = TcpListener::bind((traffic::address(0, Family::V4), 0))?;
    steering.lead(listener.local_addr()?, QUEUE)?;
    let stream = traffic::ask_for_sender(&listener)?;
    let wanted = Stream {
        bytes: context.bytes,
        behaviour: Behaviour::Good,
        seed: match payload {
            // The sender's pattern depends on its port.
            Payload::Verified => Some(u64::from(stream.peer_addr()?.port())),
            Payload::Ignored => None,
        },
        ordinary_max: 0,
    };
    let report = receive(&stream, &bound, wanted)?;
    ensure!(report.frags > 0, "no data was received into device memory");
    Ok(report.rate().into())
}

/// Receives the same stream on an ordinary socket, without checking bytes.
fn plain_rx(context: &Context) -> anyhow::Result<PassedRow> {
    let listener = TcpListener::bind((traffic::address(0, Family::V4), 0))?;
    let mut stream = traffic::ask_for_sender(&listener)?;
    let start = Instant::now();
    let mut buffer = vec![0; READ_BYTES];
    let mut bytes = 0;
    loop {
        match traffic::read(&mut stream, &mut buffer).context("receive")? {
            0 => break,
            count => bytes += count as u64,
        }
    }
    ensure!(
        bytes == context.bytes,
        "{bytes} of {} bytes received",
        context.bytes
    );
    Ok(Rate {
        bytes,
        elapsed: start.elapsed(),
    }
    .into())
}

fn devmem_tx(context: &Context) -> anyhow::Result<PassedRow> {
    // Before the host starts a receiver, which would wait for this row.
    require_tx()?;
    ask_for(FarEndRequest::Receive)?;
    let stream = connect((IpAddr::from(FAR_ADDRESS), FAR_PORT).into())?;
    traffic::limit(&stream)?;
    let pattern = RepeatingPattern::new(PERIOD);
    let start = Instant::now();
    let copied = send_to(&stream, context.bytes, &|position, out| {
        pattern.fill(position, out)
    })?;
    ensure!(copied == 0, "the kernel copied {copied} sends");
    Ok(Rate {
        bytes: context.bytes,
        elapsed: start.elapsed(),
    }
    .into())
}

/// Connects to another end that may still be starting, or may not listen yet.
///
/// Only a refused connection is tried again. After a timeout, the abandoned attempt could still succeed (the kernel
/// retransmits its SYN after one second), and would use up the only connection that the other end accepts.
fn connect(to: SocketAddr) -> anyhow::Result<TcpStream> {
    let start = Instant::now();
    loop {
        match TcpStream::connect_timeout(&to, STUCK) {
            Ok(stream) => return Ok(stream),
            Err(error) if start.elapsed() > STUCK => {
                return Err(error).context("connect to our stack");
            }
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}
