//! Row "ours": the library of this workspace, used as its documentation recommends.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use devmem_tcp::{Dmabuf, Netdev, RxBatch};
use netmem::NiovSize;

use super::meter::{Meter, MeterReading, SILENCE};
use super::network::TAP;
use super::sender::{PORT, PREFIX, RECEIVER, SENDER, Starter};

/// Frags of one receive call.
const BATCH_FRAGS: usize = 1024;

/// Receives one stream.
pub fn receive(
    memory: &Dmabuf,
    niov: NiovSize,
    mtu: u16,
    starter: Starter,
) -> Result<MeterReading> {
    let local = SocketAddr::from((RECEIVER, PORT));
    let with_prefix = |address: Ipv4Addr| format!("{address}/{PREFIX}");
    let nic = Netdev::builder(&format!("tap:{TAP}"))?
        .address(&with_prefix(RECEIVER))?
        .peer_address(&with_prefix(SENDER))?
        .mtu(mtu)
        .open()?;
    let setup = nic.plan_receive(local).queues(1).apply()?;
    let bound = nic.bind_rx_sized(memory, setup.queues(), niov)?;
    let mut listener = nic.listen(local)?;
    listener.set_timeout(Some(SILENCE));
    starter.go().context("start the sender")?;
    let (mut stream, _) = listener.accept()?;
    stream.set_timeout(Some(SILENCE));
    let mut batch = RxBatch::with_capacity(BATCH_FRAGS);
    let mut meter = Meter::default();
    loop {
        let len = stream.recv(&mut batch)?;
        if len == 0 {
            break;
        }
        meter.add(len);
        batch.release()?;
    }
    let received = meter.finish();
    drop((stream, listener, bound, setup));
    Ok(received)
}
