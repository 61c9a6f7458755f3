//! Row "ours": the library of this workspace, used as its documentation recommends.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use devmem_tcp::{BindOptions, Dmabuf, Netdev, RxBatch};
use netmem::NiovSize;

use super::cases::VethLink;
use crate::meter::{Meter, MeterReading, SILENCE};
use crate::network::{TAP, VETH};
use crate::sender::{PORT, PREFIX, RECEIVER, SENDER, Starter};

/// Frags of one receive call.
const BATCH_FRAGS: usize = 1024;

/// Opens the receiver's NIC on a TAP.
pub fn on_tap(mtu: u16) -> Result<Netdev> {
    let nic = Netdev::builder(format!("tap:{TAP}"))?
        .address(&with_prefix(RECEIVER))?
        .peer_address(&with_prefix(SENDER))?
        .mtu(mtu);
    Ok(nic.open()?)
}

/// Opens the receiver's NIC on the near end of a veth pair.
pub fn on_veth(link: VethLink, mtu: u16) -> Result<Netdev> {
    let kind = match link {
        VethLink::Packet => "packet",
        VethLink::Macvtap => "macvtap",
    };
    let nic = Netdev::builder(format!("{kind}:{VETH}"))?
        .address(&with_prefix(RECEIVER))?
        .mtu(mtu);
    Ok(nic.open()?)
}

fn with_prefix(address: Ipv4Addr) -> String {
    format!("{address}/{PREFIX}")
}

/// Receives one stream.
pub fn receive(
    nic: Netdev,
    memory: &Dmabuf,
    niov: NiovSize,
    starter: Starter,
) -> Result<MeterReading> {
    let local = SocketAddr::from((RECEIVER, PORT));
    let setup = nic.plan_receive(local).queues(1).apply()?;
    let bound = nic.bind_rx_with(memory, setup.queues(), BindOptions::new().niov_size(niov))?;
    let listener = nic.listen(local)?;
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
    drop((stream, listener, bound, setup, nic));
    Ok(received)
}
