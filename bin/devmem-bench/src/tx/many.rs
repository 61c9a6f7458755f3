//! Rows "ours/N" of `--connections`: one thread sends on many connections.

use std::net::SocketAddr;

use anyhow::{Result, bail};
use devmem_linux::cpu;
use devmem_tcp::{ErrorKind, Interest, Poller, RxBatch, Stream};

use super::cases::TxCase;
use super::ours::{next, open_nic};
use crate::connections::Connections;
use crate::meter::SILENCE;
use crate::runner::Bench;
use crate::send_time::SendTime;
use crate::sender::{PORT, SENDER, SenderReport};

/// Sends all of the device memory repeatedly, each piece on the next connection that accepts bytes, until the time has passed.
pub fn send(bench: &Bench, case: &TxCase, connections: Connections) -> Result<SenderReport> {
    let nic = open_nic(bench, case)?;
    let tx = nic.bind_tx(&bench.memory)?;
    let before = cpu::process_cpu_time();
    let poller = Poller::new(&nic)?;
    let connect = |key| -> Result<Stream> {
        let stream = nic.connect(SocketAddr::from((SENDER, PORT)))?;
        stream.set_nonblocking(true);
        poller.add(key, &stream.watch(Interest::Send))?;
        Ok(stream)
    };
    let streams: Result<Vec<_>> = (0..connections.busy as u64).map(connect).collect();
    let mut streams = streams?;
    let time = SendTime::of(bench.time);
    let (mut bytes, mut range, mut ready) = (0, 0..case.write_bytes, Vec::new());
    while time.continues(bytes) {
        poller.wait_ready(&mut ready, SILENCE)?;
        if ready.is_empty() {
            bail!("no connection accepts bytes for {} s", SILENCE.as_secs());
        }
        for key in ready.drain(..) {
            let stream = &mut streams[usize::try_from(key)?];
            match stream.send(&tx, std::slice::from_ref(&range)) {
                Ok(sent) => bytes += sent.bytes() as u64,
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error.into()),
            }
            // The memory does not change, so there is no need to wait for completions; a real program would.
            stream.completions().counts()?;
            range = next(&range, bench.memory.size());
        }
    }
    for stream in &mut streams {
        stream.shutdown_write()?;
    }
    for stream in &mut streams {
        stream.set_nonblocking(false);
        stream.set_timeout(Some(SILENCE));
        stream.completions().wait_all()?;
        // The receiver closes the connection when it has received everything.
        if stream.recv(&mut RxBatch::with_capacity(1))? != 0 {
            bail!("the receiver sent data");
        }
    }
    let cpu_ns = u64::try_from((cpu::process_cpu_time() - before).as_nanos())?;
    Ok(SenderReport { bytes, cpu_ns })
}
