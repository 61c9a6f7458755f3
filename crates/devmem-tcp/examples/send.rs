//! Sends a file from device memory, with a ring of chunks that are reused when their sends are complete.
//!
//! `cargo run -p devmem-tcp --example send -- FILE` sends it over a wire in memory to a thread of the program.

use std::error::Error;
use std::fs::File;
use std::io::Read;

use devmem_tcp::{Dmabuf, Netdev, SendRing};

/// Bytes of one chunk.
const CHUNK: usize = 256 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args().nth(1).ok_or("give the name of a file")?;
    let (sent, received) = transfer("mem:send", File::open(file)?)?;
    println!("sent {sent} bytes from device memory, received {received}");
    Ok(())
}

/// Returns the number of bytes sent, and received.
fn transfer(link: &str, mut file: impl Read) -> Result<(usize, usize), Box<dyn Error>> {
    let (nic, far) = (
        Netdev::user(link, "10.77.0.1/24")?,
        Netdev::user(link, "10.77.0.2/24")?,
    );
    let listener = far.listen("10.77.0.2:5201")?;
    let receiving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept()?;
        let mut bytes = Vec::new();
        // Nothing is bound here: all bytes are in host memory, which `Read` reads.
        stream.read_to_end(&mut bytes)
    });

    let memory = Dmabuf::anonymous(8 * CHUNK)?;
    let tx = nic.bind_tx(&memory)?;
    let mut stream = nic.connect("10.77.0.2:5201")?;
    let (_, sending) = stream.split();
    let mut ring = SendRing::new(sending, &tx, 0..memory.size(), CHUNK)?;
    let mut sent = 0;
    loop {
        let slot = ring.next_slot()?;
        let read = memory.read_from(slot.range(), &mut file)?;
        if read == 0 {
            break;
        }
        slot.send(read)?;
        sent += read;
    }
    ring.finish()?;
    drop(stream);
    let received = receiving.join().expect("the thread ends")?;
    Ok((sent, received))
}

#[test]
fn every_byte_is_sent() {
    let file = vec![7; 3_000_000];
    let (sent, received) = transfer("mem:send-test", &file[..]).unwrap();
    assert_eq!((sent, received), (3_000_000, 3_000_000));
}
