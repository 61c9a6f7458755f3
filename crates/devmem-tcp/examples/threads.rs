//! Sends and receives on one connection at the same time, with a thread for each direction.
//!
//! `cargo run -p devmem-tcp --example threads`: an echo over a wire in memory.

use std::error::Error;
use std::io::{self, Write};

use devmem_tcp::{Netdev, RxBatch};

fn main() -> Result<(), Box<dyn Error>> {
    println!("{} bytes came back", echo("mem:threads", 10_000_000)?);
    Ok(())
}

/// Returns the number of bytes that came back.
fn echo(link: &str, bytes: usize) -> Result<usize, Box<dyn Error>> {
    let (near, far) = (
        Netdev::user(link, "10.77.0.1/24")?,
        Netdev::user(link, "10.77.0.2/24")?,
    );
    let listener = far.listen("10.77.0.2:7")?;
    let echoing = std::thread::spawn(move || {
        let (mut from, mut to) = listener.accept()?.0.into_split();
        io::copy(&mut from, &mut to)
    });

    let (mut from, mut to) = near.connect("10.77.0.2:7")?.into_split();
    // Dropping `to` at the end of the thread is the end of the stream.
    let sending = std::thread::spawn(move || to.write_all(&vec![7; bytes]));
    let (mut batch, mut back) = (RxBatch::with_capacity(64), 0);
    loop {
        match from.recv(&mut batch)? {
            0 => break,
            received => back += received,
        }
    }
    sending.join().expect("the thread ends")?;
    echoing.join().expect("the thread ends")?;
    Ok(back)
}

#[test]
fn everything_comes_back() {
    assert_eq!(echo("mem:threads-test", 2_000_000).unwrap(), 2_000_000);
}
