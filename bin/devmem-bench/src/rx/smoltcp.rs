//! The row with another user-space stack: smoltcp, on a TAP device of this benchmark that supports the virtio-net header and
//! super-packets. smoltcp owns its receive buffer, so the bytes are copied twice: by smoltcp, and from its buffer to the
//! device buffer.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use netmem::Dmabuf;
use nic::VnetFd;
use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr};
use wire::VnetHeader;

use crate::meter::{Meter, MeterReading, SILENCE};
use crate::network::open_tap;
use crate::row::Packets;
use crate::sender::{PORT, PREFIX, RECEIVER, Starter, wait_readable};

/// Room for one super-packet with its headers.
const FRAME_MAX: usize = 14 + 65_535;
/// smoltcp's receive buffer, which is also its window.
const BUFFER: usize = 4 << 20;
/// Largest piece copied to the device buffer at once.
const CHUNK: usize = 256 << 10;

/// Receives one stream.
pub fn receive(memory: &Dmabuf, mtu: u16, starter: Starter) -> Result<MeterReading> {
    let mut device = VnetTap {
        tap: open_tap(mtu, Packets::Usual)?,
        frame: vec![0; FRAME_MAX],
        mtu,
    };
    let address = EthernetAddress([0x02, 0, 0, 0, 0x77, 0x03]);
    let mut interface = Interface::new(
        Config::new(HardwareAddress::Ethernet(address)),
        &mut device,
        Instant::now(),
    );
    interface.update_ip_addrs(|addresses| {
        // The list has room for more than one.
        let _ = addresses.push(IpCidr::new(RECEIVER.into(), PREFIX));
    });
    let buffers = (vec![0; BUFFER], vec![0; 4096]);
    let mut socket = tcp::Socket::new(
        tcp::SocketBuffer::new(buffers.0),
        tcp::SocketBuffer::new(buffers.1),
    );
    socket
        .listen(PORT)
        .map_err(|error| anyhow!("listen: {error}"))?;
    let mut sockets = SocketSet::new(Vec::new());
    let handle = sockets.add(socket);
    let mut meter = Meter::default();
    let mut offset = 0;
    starter.go().context("start the sender")?;
    loop {
        interface.poll(Instant::now(), &mut device, &mut sockets);
        let socket = sockets.get_mut::<tcp::Socket<'_>>(handle);
        while socket.can_recv() {
            let copied = socket.recv(|bytes| {
                let len = bytes.len().min(CHUNK);
                (len, memory.copy_in(offset, &bytes[..len]).map(|()| len))
            });
            let len = copied.map_err(|error| anyhow!("receive: {error}"))??;
            meter.add(len);
            offset = if offset + len + CHUNK <= memory.size() {
                offset + len
            } else {
                0
            };
        }
        if meter.finish().bytes > 0 && !socket.may_recv() {
            socket.close();
            interface.poll(Instant::now(), &mut device, &mut sockets);
            return Ok(meter.finish());
        }
        let idle = interface
            .poll_delay(Instant::now(), &sockets)
            .map_or(SILENCE, Duration::from);
        if !wait_readable(&device.tap, idle.min(SILENCE))? && idle >= SILENCE {
            bail!("no data from the sender for {} s", SILENCE.as_secs());
        }
    }
}

/// A TAP with virtio-net headers and offloads. The headers of received packets are ignored; those of sent packets are zero,
/// because these packets need no offload.
struct VnetTap {
    tap: VnetFd,
    frame: Vec<u8>,
    mtu: u16,
}

impl Device for VnetTap {
    type RxToken<'a> = FrameIn<'a>;
    type TxToken<'a> = FrameOut<'a>;

    fn receive(&mut self, _: Instant) -> Option<(FrameIn<'_>, FrameOut<'_>)> {
        // An error counts as no frame; the caller notices the silence.
        let (len, _) = self.tap.read(&mut self.frame).ok()??;
        Some((FrameIn(self.frame.get(..len)?), FrameOut(&self.tap)))
    }

    fn transmit(&mut self, _: Instant) -> Option<FrameOut<'_>> {
        Some(FrameOut(&self.tap))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 14 + usize::from(self.mtu);
        // Received packets have partial checksums.
        capabilities.checksum.ipv4 = Checksum::Tx;
        capabilities.checksum.tcp = Checksum::Tx;
        capabilities
    }
}

/// One received frame.
struct FrameIn<'a>(&'a [u8]);

impl RxToken for FrameIn<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(self.0)
    }
}

/// The right to send one frame.
struct FrameOut<'a>(&'a VnetFd);

impl TxToken for FrameOut<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        let mut frame = vec![0; len];
        let filled = fill(&mut frame);
        // A frame that the TAP does not accept is lost, as on a cable.
        let _ = self.0.write(VnetHeader::default(), &frame);
        filled
    }
}
