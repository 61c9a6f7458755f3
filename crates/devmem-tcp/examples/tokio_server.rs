//! A server with one task for each connection, receiving into device memory.
//!
//! `cargo run -p devmem-tcp --features tokio --example tokio_server -- tap:dm0,10.77.0.1/24` needs root and serves until it is
//! interrupted: `head -c 1M /dev/zero | nc -N 10.77.0.2 5201`.

use std::error::Error;
use std::sync::Arc;

use devmem_tcp::tokio::{Listener, Stream};
use devmem_tcp::{BoundRx, Dmabuf, Netdev, RxBatch};
use tokio::task::JoinSet;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let link = std::env::args().nth(1);
    let link = link.ok_or("give a link, such as tap:dm0,10.77.0.1/24")?;
    let server = Server::open(&link)?;
    server.serve(usize::MAX).await.map(drop)
}

/// The fields are dropped in this order: unbind, then close the NIC.
struct Server {
    listener: Listener,
    rx: Arc<BoundRx>,
    _nic: Netdev,
}

impl Server {
    fn open(link: &str) -> Outcome<Self> {
        let nic = Netdev::user(link, "10.77.0.2/24")?;
        let memory = Dmabuf::anonymous(64 << 20)?;
        let setup = nic
            .plan_receive("10.77.0.2:5201".parse()?)
            .queues(2)
            .apply()?;
        // The binding keeps the settings of its queues.
        let rx = Arc::new(nic.bind_rx(&memory, setup.queues())?);
        let listener = Listener::new(nic.listen("10.77.0.2:5201")?)?;
        Ok(Self {
            listener,
            rx,
            _nic: nic,
        })
    }

    /// Serves this many connections; returns the bytes that they sent.
    async fn serve(&self, connections: usize) -> Outcome<usize> {
        let mut tasks = JoinSet::new();
        for _ in 0..connections {
            let (stream, _peer) = self.listener.accept().await?;
            tasks.spawn(receive(stream, Arc::clone(&self.rx)));
        }
        let mut bytes = 0;
        while let Some(received) = tasks.join_next().await {
            bytes += received??;
        }
        Ok(bytes)
    }
}

/// Receives to the end of the stream.
async fn receive(mut stream: Stream, rx: Arc<BoundRx>) -> Outcome<usize> {
    let mut batch = RxBatch::with_capacity(256);
    let mut bytes = 0;
    loop {
        match stream.recv(&mut batch).await? {
            0 => break,
            received => bytes += received,
        }
    }
    let peer = stream
        .peer_addr()
        .map_or_else(|_| "a peer".to_owned(), |peer| peer.to_string());
    println!(
        "{bytes} bytes from {peer} into {} bytes of memory",
        rx.memory().size()
    );
    Ok(bytes)
}

#[tokio::test]
async fn each_connection_is_received_from() {
    use tokio::io::AsyncWriteExt;

    let server = Server::open("mem:tokio-server").unwrap();
    let sender = Netdev::user("mem:tokio-server", "10.77.0.1/24").unwrap();
    let sending = tokio::spawn(async move {
        for _ in 0..4 {
            let mut stream = Stream::connect(&sender, "10.77.0.2:5201").await.unwrap();
            stream.write_all(&[7; 100_000]).await.unwrap();
        }
        sender
    });
    assert_eq!(server.serve(4).await.unwrap(), 400_000);
    sending.await.unwrap();
}
