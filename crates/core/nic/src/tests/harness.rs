//! A scripted link, frames as a stock sender makes them, and a NIC with opaque device memory.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use netmem::{Dmabuf, DmabufId, FragList, MemoryProvider, NiovSize, PagePool};
use steer::{FlowType, NtupleRule, PortMatch, RuleAction, RxQueueId};
use wire::{
    ChecksumState, EtherType, EthernetHeader, Instant, IpRepr, MacAddr, TcpFlags, TcpHeader,
    TcpOptions, Timestamps, TxChecksum, emit_tcp_frame_headers, fill_checksum, tcp_tx_checksum,
};

use crate::*;

pub(super) const NOW: Instant = Instant::from_millis(1);
pub(super) const OUR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
pub(super) const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
pub(super) const DEVICE_PORT: u16 = 5201;
pub(super) const Q0: RxQueueId = RxQueueId(0);
pub(super) const Q1: RxQueueId = RxQueueId(1);
pub(super) const Q2: RxQueueId = RxQueueId(2);

/// How the scripted link hands frames over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    Scatter,
    Whole,
}

#[derive(Debug)]
pub(super) struct SentFrame {
    pub(super) bytes: Vec<u8>,
    pub(super) checksum: Option<TxChecksum>,
    pub(super) gso_size: u16,
}

#[derive(Debug)]
pub(super) struct Script {
    pub(super) incoming: VecDeque<(Vec<u8>, VnetMeta, Delivery)>,
    pub(super) sent: Vec<SentFrame>,
    /// Number of frames that the link still sends before it is busy.
    pub(super) takes: usize,
    /// Bytes of the longest frame that it has memory for.
    pub(super) takes_bytes: usize,
    pub(super) refuses: bool,
    pub(super) up: bool,
    /// It will never be up again.
    pub(super) gone: bool,
    pub(super) rx_fails: usize,
    pub(super) posted_spans: Vec<usize>,
}

#[derive(Clone, Debug)]
pub(super) struct Handle(Arc<Mutex<Script>>);

impl Handle {
    pub(super) fn lock(&self) -> MutexGuard<'_, Script> {
        self.0.lock().unwrap()
    }

    pub(super) fn scatter(&self, frame: Vec<u8>, meta: VnetMeta) {
        self.lock()
            .incoming
            .push_back((frame, meta, Delivery::Scatter));
    }

    pub(super) fn deliver(&self, frame: Vec<u8>, meta: VnetMeta, how: Delivery) {
        self.lock().incoming.push_back((frame, meta, how));
    }
}

pub(super) struct ScriptedLink {
    script: Arc<Mutex<Script>>,
    caps: LinkCaps,
}

pub(super) const PLAIN: LinkCaps = LinkCaps {
    name: "script",
    mtu: 9000,
    tso: false,
    max_super_packet: MAX_PACKET_LEN,
    max_rx_packet: MAX_PACKET_LEN,
    tx_checksum: false,
    borrows: false,
};
pub(super) const OFFLOADED: LinkCaps = LinkCaps {
    tso: true,
    tx_checksum: true,
    ..PLAIN
};

impl ScriptedLink {
    pub(super) fn new(caps: LinkCaps) -> (Self, Handle) {
        let script = Arc::new(Mutex::new(Script {
            incoming: VecDeque::new(),
            sent: Vec::new(),
            takes: usize::MAX,
            takes_bytes: usize::MAX,
            refuses: false,
            up: true,
            gone: false,
            rx_fails: 0,
            posted_spans: Vec::new(),
        }));
        (
            Self {
                script: Arc::clone(&script),
                caps,
            },
            Handle(script),
        )
    }
}

impl Link for ScriptedLink {
    fn caps(&self) -> LinkCaps {
        self.caps
    }

    fn receive(&mut self, posted: &mut Posted<'_>, _: Instant) -> io::Result<LinkReceived> {
        let mut script = self.script.lock().unwrap();
        script.posted_spans = posted.spans.iter().map(|span| span.len as usize).collect();
        if script.rx_fails > 0 {
            script.rx_fails -= 1;
            return Err(io::ErrorKind::NetworkDown.into());
        }
        let Some((frame, meta, how)) = script.incoming.pop_front() else {
            return Ok(LinkReceived::None);
        };
        if how == Delivery::Whole {
            *posted.frame = frame;
            return Ok(LinkReceived::Frame { meta });
        }
        let predicted = posted.predicted_header;
        let head = posted.head.with_vnet(0, predicted);
        assert_eq!(
            head.len(),
            predicted,
            "the header buffer holds what is predicted"
        );
        let n = head.len().min(frame.len());
        head[..n].copy_from_slice(&frame[..n]);
        let mut rest = &frame[n..];
        for span in posted.spans {
            let n = rest.len().min(span.len as usize);
            posted.port.copy_in(span.netmem, span.offset, &rest[..n]);
            rest = &rest[n..];
        }
        let n = rest.len().min(posted.spill.len());
        posted.spill[..n].copy_from_slice(&rest[..n]);
        Ok(LinkReceived::Scattered {
            frame_len: frame.len() - (rest.len() - n),
            meta,
        })
    }

    fn send(&mut self, frame: &TxFrame<'_>, _: Instant) -> io::Result<LinkSent> {
        let mut script = self.script.lock().unwrap();
        if !script.up {
            return Err(io::ErrorKind::NetworkDown.into());
        }
        if script.refuses {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if script.takes == 0 {
            return Ok(LinkSent::Busy);
        }
        if frame.frame_len() > script.takes_bytes {
            return Ok(LinkSent::TooLong);
        }
        script.takes -= 1;
        let mut bytes = Vec::new();
        frame.copy_to(&mut bytes);
        script.sent.push(SentFrame {
            bytes,
            checksum: frame.checksum,
            gso_size: frame.gso_size,
        });
        Ok(LinkSent::Done)
    }

    fn state(&self) -> LinkState {
        let script = self.script.lock().unwrap();
        match (script.gone, script.up) {
            (true, _) => LinkState::Gone,
            (false, true) => LinkState::Up,
            (false, false) => LinkState::Down,
        }
    }
}

/// A TCP segment as a peer would send it.
#[derive(Clone, Debug)]
pub(super) struct Tcp {
    pub(super) v6: bool,
    pub(super) vlan: Option<u16>,
    pub(super) options: TcpOptions,
    pub(super) src_port: u16,
    pub(super) dst_port: u16,
    pub(super) seq: u32,
    pub(super) flags: TcpFlags,
    pub(super) payload: Vec<u8>,
}

pub(super) fn timestamps() -> TcpOptions {
    TcpOptions {
        timestamps: Some(Timestamps { value: 1, echo: 2 }),
        ..TcpOptions::default()
    }
}

/// A segment with a header of the first predicted length.
pub(super) fn tcp(payload: &[u8]) -> Tcp {
    Tcp {
        v6: false,
        vlan: None,
        options: timestamps(),
        src_port: 40_000,
        dst_port: DEVICE_PORT,
        seq: 1,
        flags: TcpFlags::ACK,
        payload: payload.to_vec(),
    }
}

impl Tcp {
    pub(super) fn ethernet(&self) -> EthernetHeader {
        let ethertype = if self.v6 {
            EtherType::IPV6
        } else {
            EtherType::IPV4
        };
        EthernetHeader {
            dst: OUR_MAC,
            src: PEER_MAC,
            ethertype,
            vlan: self.vlan,
        }
    }

    pub(super) fn ip(&self) -> IpRepr {
        let (src, dst) = match self.v6 {
            false => (
                IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
                IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
            ),
            true => (
                IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1)),
                IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2)),
            ),
        };
        IpRepr::new(src, dst).unwrap()
    }

    pub(super) fn header(&self) -> TcpHeader {
        TcpHeader {
            src_port: self.src_port,
            dst_port: self.dst_port,
            seq: self.seq,
            ack: 7,
            flags: self.flags,
            window: 1000,
            urgent: 0,
            options: self.options,
            header_len: 0,
        }
    }

    pub(super) fn head(&self) -> Vec<u8> {
        let mut head = vec![0; 128];
        let len = emit_tcp_frame_headers(
            &self.ethernet(),
            &self.ip(),
            &self.header(),
            self.payload.len(),
            &mut head,
        );
        head.truncate(len);
        head
    }

    /// The frame, its checksum filled in.
    pub(super) fn frame(&self) -> Vec<u8> {
        let mut frame = self.head();
        frame.extend_from_slice(&self.payload);
        fill_checksum(&mut frame, 0, self.tx_checksum());
        frame
    }

    /// Position of the checksum for the NIC.
    pub(super) fn tx_checksum(&self) -> TxChecksum {
        tcp_tx_checksum(self.head().len(), &self.header())
    }
}

pub(super) const PARTIAL: VnetMeta = VnetMeta {
    gso_size: 0,
    checksum: ChecksumState::Partial(TxChecksum {
        start: 34,
        offset: 16,
    }),
};
pub(super) const UNVERIFIED: VnetMeta = VnetMeta {
    checksum: ChecksumState::Unknown,
    ..PARTIAL
};

/// Bytes that differ from their neighbours, from place to place and by seed: a part of one stream, which is made once.
pub(crate) fn pattern(seed: usize, len: usize) -> Vec<u8> {
    const PERIOD: usize = 1 << 16;
    static STREAM: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let byte = |i: usize| (i.wrapping_mul(31) ^ (i >> 8)) as u8;
        (0..PERIOD).map(byte).collect::<Vec<_>>().repeat(32)
    });
    let start = seed.wrapping_mul(97) % PERIOD;
    STREAM[start..start + len].to_vec()
}

/// A NIC whose queues 1.. have opaque device memory, flows steered by destination port.
pub(super) struct Bench {
    pub(super) nic: Nic,
    pub(super) link: Handle,
    pub(super) devices: Vec<Arc<MemoryProvider>>,
}

/// Host memory that holds `bytes`.
pub(super) fn host_payload(bytes: &[u8]) -> FragList {
    let provider = MemoryProvider::host(1 << 20, NiovSize::MIN).unwrap();
    FragList::from_host_bytes(&mut PagePool::new(Arc::new(provider)), bytes).unwrap()
}

pub(super) fn packet(segment: &Tcp, gso_size: u16) -> TxPacket {
    TxPacket {
        head: HeadBuf::from_slice(&segment.head()).unwrap(),
        payload: host_payload(&segment.payload),
        checksum: Some(segment.tx_checksum()),
        gso_size,
    }
}

pub(super) fn opaque(bytes: usize, id: u32, niov_size: usize) -> Arc<MemoryProvider> {
    let niov_size = NiovSize::new(niov_size).unwrap();
    let memory = Dmabuf::opaque(bytes).unwrap();
    Arc::new(MemoryProvider::of_dmabuf(&memory, DmabufId(id), niov_size).unwrap())
}

pub(super) fn rule(port: u16, queue: RxQueueId) -> [NtupleRule; 2] {
    [FlowType::Tcp4, FlowType::Tcp6].map(|flow| NtupleRule {
        dst_port: PortMatch::exact(port),
        ..NtupleRule::any(flow, RuleAction::Queue(queue))
    })
}

impl Bench {
    /// Queue 0 has host memory; queue n has `devices[n - 1]` and gets port 5200 + n.
    pub(super) fn new(
        caps: LinkCaps,
        config: NicConfig,
        devices: Vec<Arc<MemoryProvider>>,
    ) -> Self {
        let (link, handle) = ScriptedLink::new(caps);
        let rx_queues = 1 + devices.len() as u16;
        let config = NicConfig {
            mac: OUR_MAC,
            rx_queues,
            ..config
        };
        let mut nic = Nic::new(Box::new(link), config).unwrap();
        let rings = Rings {
            tcp_data_split: TcpDataSplit::Enabled,
            ..nic.rings()
        };
        nic.set_rings(rings).unwrap();
        nic.set_rss(steer::Rss::new(
            steer::ToeplitzKey::MICROSOFT,
            steer::IndirectionTable::new(&[Q0], rx_queues).unwrap(),
        ))
        .unwrap();
        for (queue, device) in (1..).zip(&devices) {
            let choice = ProviderChoice::Provider(Arc::clone(device));
            nic.restart_queue(RxQueueId(queue), choice).unwrap();
            for rule in rule(5200 + queue, RxQueueId(queue)) {
                nic.insert_rule(None, rule).unwrap();
            }
        }
        Self {
            nic,
            link: handle,
            devices,
        }
    }

    /// One device queue of 16 MiB.
    pub(super) fn with_device(config: NicConfig) -> Self {
        Self::new(OFFLOADED, config, vec![opaque(16 << 20, 1, 65_536)])
    }

    /// Receives the next packet with placed payload.
    pub(super) fn receive(&mut self) -> Option<RxPacket> {
        loop {
            let packet = self.nic.poll_rx(NOW)?;
            if packet.payload.frags().is_some() {
                return Some(packet);
            }
        }
    }

    /// Sends a segment in by scatter and receives it.
    pub(super) fn pass(&mut self, segment: &Tcp) -> RxPacket {
        self.link.scatter(segment.frame(), PARTIAL);
        let packet = self.receive().expect("the segment arrives");
        assert_eq!(packet.headers.payload_len, segment.payload.len());
        assert_eq!(self.read(packet.payload.frags().unwrap()), segment.payload);
        packet
    }

    /// Reads a payload: host memory by the CPU, device memory like the device.
    pub(super) fn read(&self, payload: &FragList) -> Vec<u8> {
        let mut out = Vec::new();
        for frag in payload {
            let mut bytes = vec![0; frag.len()];
            match frag.dmabuf_id() {
                None => frag.copy_to(0, &mut bytes).unwrap(),
                Some(DmabufId(id)) => {
                    let device = self.devices[id as usize - 1].observer().upgrade().unwrap();
                    device.device_read(frag.dmabuf_offset() as usize, &mut bytes);
                }
            }
            out.append(&mut bytes);
        }
        out
    }

    pub(super) fn dropped(&self, reason: DropReason) -> u64 {
        self.nic.drops().get(reason)
    }

    /// Drops the NIC and checks that every net_iov is home.
    pub(super) fn finish(self) {
        let Self { nic, devices, .. } = self;
        drop(nic);
        for device in devices {
            assert_eq!(
                device.free_niovs(),
                device.area().count(),
                "all net_iovs are home"
            );
        }
    }
}

/// True if every frag lies in this dma-buf.
pub(super) fn all_in(payload: &FragList, id: u32) -> bool {
    payload
        .iter()
        .all(|frag| frag.dmabuf_id() == Some(DmabufId(id)) && !frag.is_linear())
}
