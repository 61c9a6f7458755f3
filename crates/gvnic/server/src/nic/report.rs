//! Statistics of a device, printed on SIGUSR1, on command and at the end.

use std::fmt;
use std::time::Duration;

use devmem_linux::cpu;
use gve::{DeviceStats, RxQueueStats, TxQueueStats};
use serde::Serialize;
use vfio_user::{Server, ServerStats};

use super::gvnic::Gvnic;
use super::wire::WireStats;
use crate::plan::GvnicPlan;
use tool::counters::{Lane, counters};

/// Counters of the device, the virtual machine's connection and the wire. The JSON has these field names; they are stable.
#[derive(Clone, Debug, Serialize)]
pub struct NicReport {
    socket: String,
    wire: String,
    mac: String,
    queues: u16,
    mtu: u16,
    max_mtu: u16,
    impair: String,
    seconds: f64,
    cpu_seconds: f64,
    /// The cable is plugged in, and the other end is connected.
    link_up: bool,
    machine: Machine,
    frames: WireStats,
    /// Counters of the impairment, in both directions.
    impaired: Option<ImpairmentReport>,
    device: Device,
    rx: Vec<Rx>,
    tx: Vec<Tx>,
}

/// Counters of the virtual machine's connection.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Machine {
    connected: bool,
    clients: u64,
    refused_clients: u64,
    disconnected_clients: u64,
    messages: u64,
    posted_writes: u64,
    refused_requests: u64,
    windows: usize,
    windows_without_fd: u64,
    /// Bytes of all windows.
    memory_bytes: u64,
    /// Bytes of windows with a descriptor.
    reachable_bytes: u64,
    interrupts: u64,
    interrupts_unheard: u64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct ImpairmentReport {
    to_device: Lane,
    from_device: Lane,
}

counters!(Device of DeviceStats {
    adminq_commands,
    adminq_refused,
    adminq_broken,
    bad_doorbells,
    driver_resets,
    reset_requests,
    headers_refused,
    vlan,
    ipv6_extensions,
    drops,
});

counters!(Rx of RxQueueStats {
    packets,
    bytes,
    split,
    unsplit,
    rsc,
    rule_hits,
    bad_checksum,
    no_buffers,
    over_mru,
    drops,
    backlog,
});

counters!(Tx of TxQueueStats {
    packets,
    bytes,
    gso,
    segmented,
    busy,
    malformed,
    bad_offload,
    bad_address,
    lost,
});

impl NicReport {
    /// Reads all counters.
    pub fn new(plan: &GvnicPlan, server: &mut Server, gvnic: &Gvnic, elapsed: Duration) -> Self {
        let stats = gvnic.gve().stats();
        let lanes = gvnic.wire().impairment();
        Self {
            socket: plan.socket.display().to_string(),
            wire: plan.wire.to_string(),
            mac: plan.mac.to_string(),
            queues: plan.queues,
            mtu: plan.mtu,
            max_mtu: plan.max_mtu,
            impair: plan.impairment.to_string(),
            seconds: elapsed.as_secs_f64(),
            cpu_seconds: cpu::process_cpu_time().as_secs_f64(),
            link_up: gvnic.gve().link() == gve::LinkState::Up,
            machine: Machine::new(server),
            frames: gvnic.wire().stats(),
            impaired: lanes.map(|[to, from]| ImpairmentReport {
                to_device: to.stats().into(),
                from_device: from.stats().into(),
            }),
            device: stats.device.into(),
            rx: stats.rx.into_iter().map(Rx::from).collect(),
            tx: stats.tx.into_iter().map(Tx::from).collect(),
        }
    }
}

impl Machine {
    fn new(server: &mut Server) -> Self {
        let ServerStats {
            clients,
            refused_clients,
            disconnected_clients,
            session,
        } = server.stats();
        let connected = server.is_connected();
        let bus = server.bus();
        Self {
            connected,
            clients,
            refused_clients,
            disconnected_clients,
            messages: session.messages,
            posted_writes: session.posted_writes,
            refused_requests: session.refused,
            windows: bus.dma.len(),
            windows_without_fd: session.windows_without_fd,
            memory_bytes: bus.dma.total_bytes(),
            reachable_bytes: bus.dma.reachable_bytes(),
            interrupts: bus.irqs.raised(),
            interrupts_unheard: bus.irqs.unheard(),
        }
    }

    /// Returns whether the device cannot access the guest's memory. QEMU always maps firmware ROMs without a descriptor, and
    /// the much larger guest memory only if it is not shared.
    fn hides_its_memory(&self) -> bool {
        self.connected && self.reachable_bytes <= self.memory_bytes / 2
    }
}

impl fmt::Display for NicReport {
    /// Writes the traffic, then all error counters that are not 0.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine {
            connected,
            clients,
            messages,
            interrupts,
            ..
        } = self.machine;
        let state = if connected {
            "connected"
        } else {
            "not connected"
        };
        writeln!(
            f,
            "      machine  {state}, {clients} so far: {messages} messages, {interrupts} interrupts, {:.2} s of processor time in {:.1} s",
            self.cpu_seconds, self.seconds
        )?;
        let frames = self.frames;
        let link = if self.link_up { "up" } else { "down" };
        writeln!(
            f,
            "         wire  {link}: {} frames ({} super-packets, {} bytes) in, {} ({}, {}) out",
            frames.rx_frames,
            frames.rx_super,
            frames.rx_bytes,
            frames.tx_frames,
            frames.tx_super,
            frames.tx_bytes
        )?;
        if let Some(ImpairmentReport {
            to_device,
            from_device,
        }) = self.impaired
        {
            for (name, lane) in [("to device", to_device), ("from device", from_device)] {
                writeln!(f, "{name:>13}  {lane}")?;
            }
        }
        self.queues(f)?;
        self.complaints(f)
    }
}

impl NicReport {
    /// Writes a line for each queue with traffic.
    fn queues(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (queue, rx) in self
            .rx
            .iter()
            .enumerate()
            .filter(|(_, rx)| rx.packets + rx.drops > 0)
        {
            writeln!(
                f,
                "         rx {queue}  {} packets, {} bytes: {} split, {} coalesced; {} dropped, {} held",
                rx.packets, rx.bytes, rx.split, rx.rsc, rx.drops, rx.backlog
            )?;
        }
        for (queue, tx) in self.tx.iter().enumerate().filter(|(_, tx)| tx.packets > 0) {
            writeln!(
                f,
                "         tx {queue}  {} packets, {} bytes: {} super-packets, {} cut here; {} lost, {} bad",
                tx.packets,
                tx.bytes,
                tx.gso,
                tx.segmented,
                tx.lost,
                tx.malformed + tx.bad_offload + tx.bad_address
            )?;
        }
        Ok(())
    }

    /// Writes the error counters that are not 0.
    fn complaints(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            (
                "requests of the machine refused",
                self.machine.refused_requests,
            ),
            (
                "machines disconnected for a protocol error",
                self.machine.disconnected_clients,
            ),
            ("admin commands refused", self.device.adminq_refused),
            ("bad doorbells", self.device.bad_doorbells),
            (
                "frames dropped before a queue was chosen",
                self.device.drops,
            ),
            ("frames that the wire lost", self.frames.tx_lost),
        ];
        for (what, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
            writeln!(f, "         note  {count} {what}")?;
        }
        if self.machine.hides_its_memory() {
            writeln!(
                f,
                "         note  the device cannot access the machine's memory: start QEMU with memory-backend-memfd and share=on"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_shared_memory_is_detected_although_its_roms_are_shared() {
        let machine = |memory_bytes, reachable_bytes| Machine {
            connected: true,
            memory_bytes,
            reachable_bytes,
            ..Machine::default()
        };
        let (memory, roms) = (2 << 30, 256 << 10);
        assert!(machine(0, 0).hides_its_memory());
        assert!(machine(memory + roms, 0).hides_its_memory());
        assert!(!machine(memory + roms, memory).hides_its_memory());
        assert!(!Machine::default().hides_its_memory(), "not connected");
    }
}
