//! Receives a stream into device memory, and looks at every byte there.
//!
//! `cargo run -p devmem-tcp --example receive -- tap:dm0,10.77.0.1/24` needs root; in another terminal type
//! `echo hello | nc -N 10.77.0.2 5201`. Without an argument, a thread of the program sends over a wire in memory.

use std::error::Error;
use std::io::Write;

use devmem_tcp::{Dmabuf, Frag, Netdev, RxBatch};

fn main() -> Result<(), Box<dyn Error>> {
    match std::env::args().nth(1) {
        Some(link) => receive(&link).map(drop),
        None => in_memory("mem:receive").map(drop),
    }
}

/// Returns the number of bytes.
fn receive(link: &str) -> Result<usize, Box<dyn Error>> {
    let memory = Dmabuf::anonymous(64 << 20)?;
    let nic = Netdev::user(link, "10.77.0.2/24")?;
    let setup = nic.plan_receive("10.77.0.2:5201".parse()?).apply()?;
    let _rx = nic.bind_rx(&memory, setup.queues())?;
    let (mut stream, peer) = nic.listen("10.77.0.2:5201")?.accept()?;

    let mut batch = RxBatch::with_capacity(1024);
    let (mut bytes, mut sum) = (0, 0u64);
    while stream.recv(&mut batch)? > 0 {
        for frag in &batch {
            let (len, part) = match frag {
                Frag::Device { range, .. } => (range.len(), sum_of(&memory.slice(range).to_vec())),
                // Packets that the NIC could not split, or that arrived on another queue.
                Frag::Linear(linear) => (linear.len(), sum_of(linear)),
            };
            bytes += len;
            sum += part;
        }
        batch.release()?;
    }
    println!(
        "{bytes} bytes from {peer}, their sum is {sum}; {}",
        stream.stats()
    );
    Ok(bytes)
}

fn sum_of(bytes: &[u8]) -> u64 {
    bytes.iter().map(|byte| u64::from(*byte)).sum()
}

fn in_memory(link: &'static str) -> Result<usize, Box<dyn Error>> {
    let sender = Netdev::user(link, "10.77.0.1/24")?;
    let sending = std::thread::spawn(move || {
        let mut stream = loop {
            // The receiver may not listen yet.
            match sender.connect("10.77.0.2:5201") {
                Ok(stream) => break stream,
                Err(_) => std::thread::yield_now(),
            }
        };
        stream.write_all(&[1; 1_000_000])?;
        // Dropping it would wait for the receiver for half a second only.
        std::io::Result::Ok(sender)
    });
    let bytes = receive(link)?;
    sending.join().expect("the thread ends")?;
    Ok(bytes)
}

#[test]
fn every_byte_arrives() {
    assert_eq!(in_memory("mem:receive-test").unwrap(), 1_000_000);
}
