//! The row that this is about: the library, used as its documentation says.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use devmem_linux::cpu;
use devmem_tcp::{Netdev, RxBatch, TcpOptions};

use super::super::meter::SILENCE;
use super::super::network::TAP;
use super::super::runner::Bench;
use super::super::sender::{PORT, PREFIX, RECEIVER, SENDER, Sent};
use super::cases::{Case, Packets};

/// Sends all of the device memory again and again until the time is over. The kernel's end of the TAP has the address that
/// is the sender's in the other rows.
pub fn send<C>(bench: &Bench<'_, C>, case: &Case, cpu: usize) -> Result<Sent> {
    cpu::pin_current_thread(cpu).with_context(|| format!("pin to processor {cpu}"))?;
    let with_prefix = |address: Ipv4Addr| format!("{address}/{PREFIX}");
    let write_bytes = case.write_bytes;
    let mut tcp = TcpOptions::default();
    if case.packets == Packets::Legacy {
        tcp.max_super_packet = TcpOptions::LEGACY_SUPER_PACKET;
    }
    let nic = Netdev::builder(&format!("tap:{TAP}"))?
        .address(&with_prefix(RECEIVER))?
        .peer_address(&with_prefix(SENDER))?
        .mtu(bench.plan.mtu)
        .tcp(tcp)
        .open()?;
    let tx = nic.bind_tx(&bench.memory)?;
    let before = cpu::process_cpu_time();
    let mut stream = nic.connect(SocketAddr::from((SENDER, PORT)))?;
    stream.set_timeout(Some(SILENCE));
    let completions = stream.completions();
    let end = Instant::now() + bench.plan.time;
    let mut bytes = 0;
    let mut range = 0..write_bytes;
    while Instant::now() < end {
        bytes += stream.send(&tx, std::slice::from_ref(&range))?.bytes() as u64;
        // Nothing is written to the memory, so nothing waits for this; a program would look at it.
        completions.counts()?;
        range = next(&range, bench.memory.size());
    }
    stream.shutdown_write()?;
    completions.wait_all()?;
    // The other end closes when it has everything.
    if stream.recv(&mut RxBatch::with_capacity(1))? != 0 {
        bail!("the receiver answered");
    }
    let cpu_ns = u64::try_from((cpu::process_cpu_time() - before).as_nanos())?;
    Ok(Sent { bytes, cpu_ns })
}

/// Returns the piece after `range`, as long as a whole one fits.
fn next(range: &Range<usize>, size: usize) -> Range<usize> {
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
    fn pieces_stay_inside_the_memory_and_begin_again() {
        let mut range = 0..3;
        for expected in [3..6, 6..9, 0..3] {
            range = next(&range, 10);
            assert_eq!(range, expected);
        }
    }
}
