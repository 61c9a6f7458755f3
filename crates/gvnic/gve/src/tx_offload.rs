//! Offloads of a TX packet: done by the wire if it supports them, else by the device.

use std::num::NonZeroU16;

use gve_defs::desc_dqo::TX_MIN_MSS;
use wire::{ChecksumState, Gso, GsoKind, MAX_HEADER_LEN, Offload, RxHeaders, TxChecksum};

use crate::env::{
    Env, GuestMemory, GuestRange, TxFrame, TxOutcome, TxPayload, WireFeatures, append_ranges,
};
use crate::segment::{Segmenter, finish_checksum, kind_of};
use crate::tx_desc::TsoContext;
use crate::tx_packet::{MAX_PACKET, TxPacket};

/// Working memory for one packet, reused for the next.
#[derive(Debug)]
pub(crate) struct TxScratch {
    /// Buffers of the packet; later only the part after the head.
    pub(crate) ranges: Vec<GuestRange>,
    /// Descriptors of the packet that need a descriptor completion.
    pub(crate) reports: Vec<u16>,
    head: [u8; MAX_HEADER_LEN],
    body: Vec<u8>,
}

impl TxScratch {
    pub(crate) fn new() -> Self {
        Self {
            ranges: Vec::new(),
            reports: Vec::new(),
            head: [0; MAX_HEADER_LEN],
            body: Vec::with_capacity(MAX_PACKET as usize),
        }
    }
}

/// Reason to drop a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Its headers do not match the requested offload.
    Offload,
    /// A buffer is not guest memory.
    BadAddress,
}

/// Sends one packet with the buffers in `scratch`. `segments_sent` counts the segments that the wire has accepted, so
/// that another attempt continues after them.
pub(crate) fn send(
    packet: &TxPacket,
    env: &mut Env<'_>,
    scratch: &mut TxScratch,
    segments_sent: &mut usize,
) -> Result<TxOutcome, Refused> {
    let head_len = copy_head(packet.len, env.memory, scratch)?;
    let TxScratch {
        ranges, head, body, ..
    } = scratch;
    let head = &mut head[..head_len];
    let features = env.backend.features();
    if let Some(tso) = &packet.tso {
        let headers = RxHeaders::parse(head, packet.len as usize).map_err(|_| Refused::Offload)?;
        let gso = judge_tso(&headers, packet.len, tso)?;
        fill_pseudo_header(head, &headers, packet.len).ok_or(Refused::Offload)?;
        let checksum = headers.tx_checksum().ok_or(Refused::Offload)?;
        if takes(features, gso.kind) {
            let offload = Offload {
                checksum: ChecksumState::Partial(checksum),
                gso: Some(gso),
            };
            return Ok(send_ranges(head, ranges, offload, env));
        }
        let mut super_packet = SuperPacket {
            head,
            ranges,
            headers,
            gso,
        };
        return super_packet.cut(body, env, segments_sent);
    }
    if !packet.checksum {
        return Ok(send_ranges(head, ranges, Offload::default(), env));
    }
    let headers = RxHeaders::parse(head, packet.len as usize).map_err(|_| Refused::Offload)?;
    let what = headers.tx_checksum().ok_or(Refused::Offload)?;
    if features.contains(WireFeatures::CHECKSUM) {
        let offload = Offload {
            checksum: ChecksumState::Partial(what),
            gso: None,
        };
        return Ok(send_ranges(head, ranges, offload, env));
    }
    gather(ranges, env.memory, body)?;
    // The packet may be padded; the checksum covers the length in its headers.
    let covered = (headers.header_len + headers.payload_len).saturating_sub(head.len());
    let covered = &body[..covered.min(body.len())];
    let covered_head = head.len().min(headers.header_len + headers.payload_len);
    if !finish_checksum(&mut head[..covered_head], covered, what) {
        return Err(Refused::Offload);
    }
    let frame = TxFrame {
        head,
        payload: TxPayload::Host(body),
        offload: Offload::default(),
    };
    Ok(env.backend.send(&frame, env.memory))
}

/// Copies the first bytes of the packet to the head, and removes them from the ranges.
fn copy_head(
    len: u32,
    memory: &dyn GuestMemory,
    scratch: &mut TxScratch,
) -> Result<usize, Refused> {
    let head_len = (len as usize).min(MAX_HEADER_LEN);
    let mut at = 0;
    let mut used = 0;
    for range in &mut scratch.ranges {
        let take = (range.len as usize).min(head_len - at);
        if take > 0 {
            let part = &mut scratch.head[at..at + take];
            let read = memory.read(range.addr, part);
            read.map_err(|_| Refused::BadAddress)?;
        }
        at += take;
        // At most MAX_HEADER_LEN.
        range.len -= take as u32;
        if range.len > 0 {
            // The rest must be in the address space as well.
            let rest = range.addr.checked_add(take as u64);
            range.addr = rest.ok_or(Refused::BadAddress)?;
            break;
        }
        used += 1;
    }
    scratch.ranges.drain(..used);
    Ok(head_len)
}

/// Compares a TSO context with the packet that follows it.
fn judge_tso(headers: &RxHeaders, len: u32, tso: &TsoContext) -> Result<Gso, Refused> {
    let kind = kind_of(headers).ok_or(Refused::Offload)?;
    let whole = headers.header_len + headers.payload_len == len as usize;
    let header_len = usize::from(tso.header_len) == headers.header_len;
    let payload_len = tso.total_len as usize == headers.payload_len;
    // The minimum also limits the work of one doorbell to less than a second.
    let size = NonZeroU16::new(tso.mss).filter(|size| size.get() >= TX_MIN_MSS);
    let size = size.ok_or(Refused::Offload)?;
    match whole && header_len && payload_len && headers.payload_len > 0 {
        true => Ok(Gso { kind, size }),
        false => Err(Refused::Offload),
    }
}

/// Sets the checksum field to the sum of the pseudo-header. The driver leaves out the length, as segmentation hardware
/// requires; virtio-net requires the sum with the length (VIRTIO 1.2 5.1.6.2).
fn fill_pseudo_header(head: &mut [u8], headers: &RxHeaders, len: u32) -> Option<()> {
    let l4_len = (len as usize).checked_sub(headers.l4_offset()?)?;
    let sum = headers.pseudo_header(l4_len)?.partial();
    let at = headers.l4_checksum_offset()?;
    head.get_mut(at..at + 2)?
        .copy_from_slice(&sum.to_be_bytes());
    Some(())
}

fn takes(features: WireFeatures, kind: GsoKind) -> bool {
    let needed = match kind {
        GsoKind::Tcp4 => WireFeatures::TSO4,
        GsoKind::Tcp6 => WireFeatures::TSO6,
        GsoKind::Udp => WireFeatures::USO,
    };
    features.contains(needed | WireFeatures::CHECKSUM)
}

fn gather(
    ranges: &[GuestRange],
    memory: &dyn GuestMemory,
    body: &mut Vec<u8>,
) -> Result<(), Refused> {
    body.clear();
    append_ranges(ranges, memory, body).map_err(|_| Refused::BadAddress)
}

fn send_ranges(
    head: &[u8],
    ranges: &[GuestRange],
    offload: Offload,
    env: &mut Env<'_>,
) -> TxOutcome {
    let frame = TxFrame {
        head,
        payload: TxPayload::Guest(ranges),
        offload,
    };
    env.backend.send(&frame, env.memory)
}

/// A super-packet for a wire without segmentation offload.
struct SuperPacket<'a> {
    head: &'a [u8],
    ranges: &'a [GuestRange],
    headers: RxHeaders,
    gso: Gso,
}

impl SuperPacket<'_> {
    fn cut(
        &mut self,
        body: &mut Vec<u8>,
        env: &mut Env<'_>,
        segments_sent: &mut usize,
    ) -> Result<TxOutcome, Refused> {
        let (head, payload_in_head) = self.head.split_at(self.headers.header_len);
        body.clear();
        body.extend_from_slice(payload_in_head);
        append_ranges(self.ranges, env.memory, body).map_err(|_| Refused::BadAddress)?;
        let (kind, size) = (self.gso.kind, self.gso.size);
        let mut segmenter =
            Segmenter::new(head, &self.headers, body, kind, size).ok_or(Refused::Offload)?;
        let what = segmenter.checksum();
        let mut lost = false;
        let mut index = 0;
        while let Some((mut head, payload)) = segmenter.next() {
            index += 1;
            if index <= *segments_sent {
                continue;
            }
            match send_segment(head.as_mut_slice(), payload, what, env) {
                TxOutcome::Busy => return Ok(TxOutcome::Busy),
                TxOutcome::Done => {}
                TxOutcome::Lost | TxOutcome::BadAddress => lost = true,
            }
            *segments_sent = index;
        }
        Ok(if lost {
            TxOutcome::Lost
        } else {
            TxOutcome::Done
        })
    }
}

fn send_segment(head: &mut [u8], payload: &[u8], what: TxChecksum, env: &mut Env<'_>) -> TxOutcome {
    let mut offload = Offload::default();
    if env.backend.features().contains(WireFeatures::CHECKSUM) {
        offload.checksum = ChecksumState::Partial(what);
    } else {
        finish_checksum(head, payload, what);
    }
    let frame = TxFrame {
        head,
        payload: TxPayload::Host(payload),
        offload,
    };
    env.backend.send(&frame, env.memory)
}
