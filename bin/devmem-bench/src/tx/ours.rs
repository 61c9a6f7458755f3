//! Row "ours": the library of this workspace, used as its documentation recommends.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;

use anyhow::{Result, bail};
use devmem_linux::cpu;
use devmem_tcp::{Netdev, RxBatch, tcp::TcpOptions};

use super::cases::TxCase;
use crate::meter::SILENCE;
use crate::network::TAP;
use crate::row::Packets;
use crate::runner::Bench;
use crate::send_time::SendTime;
use crate::sender::{PORT, PREFIX, RECEIVER, SENDER, SenderReport};

/// Sends all of the device memory repeatedly until the time has passed. The kernel's end of the TAP has the address that the
/// sender has in the other rows.
pub fn send(bench: &Bench, case: &TxCase) -> Result<SenderReport> {
    let write_bytes = case.write_bytes;
    let nic = open_nic(bench, case)?;
    let tx = nic.bind_tx(&bench.memory)?;
    let before = cpu::process_cpu_time();
    let mut stream = nic.connect(SocketAddr::from((SENDER, PORT)))?;
    stream.set_timeout(Some(SILENCE));
    let completions = stream.completions();
    let time = SendTime::of(bench.time);
    let mut bytes = 0;
    let mut range = 0..write_bytes;
    while time.continues(bytes) {
        bytes += stream.send(&tx, std::slice::from_ref(&range))?.bytes() as u64;
        // The memory does not change, so there is no need to wait for completions; a real program would.
        completions.counts()?;
        range = next(&range, bench.memory.size());
    }
    stream.shutdown_write()?;
    completions.wait_all()?;
    // The receiver closes the connection when it has received everything.
    if stream.recv(&mut RxBatch::with_capacity(1))? != 0 {
        bail!("the receiver sent data");
    }
    let cpu_ns = u64::try_from((cpu::process_cpu_time() - before).as_nanos())?;
    Ok(SenderReport { bytes, cpu_ns })
}

/// Opens the NIC, on a TAP.
pub(super) fn open_nic(bench: &Bench, case: &TxCase) -> Result<Netdev> {
    let with_prefix = |address: Ipv4Addr| format!("{address}/{PREFIX}");
    let mut tcp = TcpOptions::default();
    if case.packets == Packets::Legacy {
        tcp.max_super_packet = Some(TcpOptions::LEGACY_SUPER_PACKET);
    }
    let builder = Netdev::builder(format!("tap:{TAP}"))?
        .address(&with_prefix(RECEIVER))?
        .peer_address(&with_prefix(SENDER))?;
    Ok(builder.mtu(bench.mtu).tcp(tcp).open()?)
}

/// Returns the piece after `range`, or the first one if no whole piece fits there.
pub(super) fn next(range: &Range<usize>, size: usize) -> Range<usize> {
    let len = range.len();
    if range.end + len <= size {
        range.end..range.end + len
    } else {
        0..len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_stay_inside_the_memory_and_start_over() {
        let mut range = 0..3;
        for expected in [3..6, 6..9, 0..3] {
            range = next(&range, 10);
            assert_eq!(range, expected);
        }
    }
}
