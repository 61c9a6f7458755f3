//! Device memory to device memory over two user-space stacks, one task for each end of each connection.
//!
//! `cargo run --release -p devmem-tcp --features tokio --example tokio_transfer [CONNECTIONS [MEGABYTES]]`
//!
//! The wire is in memory, the time is real. Over a TAP it is the same program with `tap:NAME` instead of `mem:NAME`, and
//! a kernel socket in place of one of its halves.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use devmem_tcp::tokio::{Listener, Stream};
use devmem_tcp::{BoundTx, Dmabuf, Frag, Netdev, RxBatch};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Bytes of one send.
const CHUNK: usize = 256 << 10;

/// Sends `bytes` bytes from device memory, chunk by chunk, and waits until the peer has them.
async fn send(nic: Netdev, to: SocketAddr, tx: Arc<BoundTx>, bytes: usize) -> Outcome<()> {
    let mut stream = Stream::connect(&nic, to).await?;
    let mut sent = 0;
    while sent < bytes {
        let len = CHUNK.min(bytes - sent);
        sent += stream
            .send_all(&tx, std::slice::from_ref(&(0..len)))
            .await?
            .bytes();
    }
    stream.shutdown_write()?;
    // Only now may the memory be written to.
    stream.completions()?.wait_all().await?;
    Ok(())
}

/// Receives to the end; returns how many bytes landed in device memory, after looking at every one of them.
async fn receive(mut stream: Stream, memory: Dmabuf) -> Outcome<usize> {
    let mut batch = RxBatch::with_capacity(256);
    let mut device_bytes = 0;
    while stream.recv(&mut batch).await? > 0 {
        for frag in &batch {
            if let Frag::Device { range, .. } = frag {
                let right = memory
                    .slice(range)
                    .to_vec()
                    .iter()
                    .all(|byte| *byte == 0x5a);
                assert!(right, "a wrong byte");
            }
        }
        device_bytes += batch.device_bytes();
    }
    Ok(device_bytes)
}

/// Returns the bytes that landed in device memory.
pub async fn transfer(connections: usize, bytes: usize) -> Outcome<usize> {
    let to: SocketAddr = "10.77.0.2:5201".parse()?;
    let sender = Netdev::user("mem:example", "10.77.0.1/24")?;
    let receiver = Netdev::user("mem:example", "10.77.0.2/24")?;

    let memory = Dmabuf::anonymous(64 << 20)?;
    let setup = receiver.plan_receive(to).queues(1).apply()?;
    let rx = receiver.bind_rx(&memory, setup.queues())?;
    let listener = Listener::new(receiver.listen(to)?)?;

    let source = Dmabuf::anonymous(CHUNK)?;
    source.fill(0..CHUNK, 0x5a)?;
    let tx = Arc::new(sender.bind_tx(&source)?);

    let mut sending = Vec::new();
    let mut receiving = Vec::new();
    for _ in 0..connections {
        sending.push(tokio::spawn(send(
            sender.clone(),
            to,
            Arc::clone(&tx),
            bytes,
        )));
    }
    for _ in 0..connections {
        let (stream, _peer) = listener.accept().await?;
        receiving.push(tokio::spawn(receive(stream, memory.clone())));
    }
    for task in sending {
        task.await??;
    }
    let mut device_bytes = 0;
    for task in receiving {
        device_bytes += task.await??;
    }
    drop(listener);
    let net_iovs = rx.unbind().net_iovs();
    assert_eq!(net_iovs.home, net_iovs.total, "all device memory is home");
    Ok(device_bytes)
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<usize>());
    let connections = arguments.next().transpose()?.unwrap_or(4);
    let bytes = arguments.next().transpose()?.unwrap_or(64) << 20;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let start = Instant::now();
    let received = runtime.block_on(transfer(connections, bytes))?;
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(
        received,
        connections * bytes,
        "every byte landed in device memory"
    );
    println!(
        "{received} bytes over {connections} connections, device memory to device memory, every one looked at: {:.2} Gbit/s",
        received as f64 * 8.0 / seconds / 1e9
    );
    Ok(())
}
