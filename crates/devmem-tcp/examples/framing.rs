//! Receives messages of a length and a body: the length is read by the CPU, the body stays in device memory.
//!
//! `cargo run -p devmem-tcp --example framing`: three messages over a wire in memory.

use std::error::Error;
use std::io::Write;

use devmem_tcp::{Dmabuf, Netdev, RxBatch, RxFrag, Stream};

/// Bytes of the length in front of each body.
const LENGTH_BYTES: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    println!(
        "bodies of {:?} bytes",
        exchange("mem:framing", &[5, 100_000, 1])?
    );
    Ok(())
}

/// A body: its pieces in device memory, which go home when it is dropped.
struct Body {
    pieces: Vec<RxFrag>,
    bytes: usize,
}

/// Receives the next message; `None` at the end of the stream.
fn next_message(stream: &mut Stream, batch: &mut RxBatch) -> Result<Option<Body>, Box<dyn Error>> {
    let mut length = [0; LENGTH_BYTES];
    if stream.peek(&mut length)? == 0 {
        return Ok(None);
    }
    stream.recv_exact(&mut length)?;
    let wanted = u32::from_be_bytes(length) as usize;
    let mut body = Body {
        pieces: Vec::new(),
        bytes: 0,
    };
    while body.bytes < wanted {
        let received = stream.recv_at_most(batch, wanted - body.bytes)?;
        if received == 0 {
            return Err("the stream ends inside a message".into());
        }
        body.bytes += received;
        body.pieces.extend(batch.take());
    }
    Ok(Some(body))
}

/// Sends messages with bodies of these lengths; returns those that were received.
fn exchange(link: &str, lengths: &[usize]) -> Result<Vec<usize>, Box<dyn Error>> {
    let (sender, nic) = (
        Netdev::user(link, "10.77.0.1/24")?,
        Netdev::user(link, "10.77.0.2/24")?,
    );
    let memory = Dmabuf::anonymous(16 << 20)?;
    let setup = nic.plan_receive("10.77.0.2:5201".parse()?).apply()?;
    let _rx = nic.bind_rx(&memory, setup.queues())?;
    let listener = nic.listen("10.77.0.2:5201")?;
    let lengths = lengths.to_vec();
    let sending = std::thread::spawn(move || -> std::io::Result<Netdev> {
        let mut stream = sender.connect("10.77.0.2:5201")?;
        for length in lengths {
            stream.write_all(&u32::try_from(length).expect("short").to_be_bytes())?;
            stream.write_all(&vec![7; length])?;
        }
        // Dropping it would wait for the receiver for half a second only.
        Ok(sender)
    });
    let (mut stream, _) = listener.accept()?;
    let mut batch = RxBatch::with_capacity(64);
    let mut received = Vec::new();
    while let Some(body) = next_message(&mut stream, &mut batch)? {
        println!("{} bytes in {} pieces", body.bytes, body.pieces.len());
        received.push(body.bytes);
    }
    sending.join().expect("the thread ends")?;
    Ok(received)
}

#[test]
fn every_message_arrives_with_its_length() {
    let lengths = [1, 0, 300_000, 5];
    assert_eq!(exchange("mem:framing-test", &lengths).unwrap(), lengths);
}
