//! Comments of captured packets: what the NIC and the stack did with the payload.

use std::collections::VecDeque;
use std::fmt::Write;
use std::ops::Range;

use devmem_tcp::capture::FramePayload;

use crate::pcapng::Packet;

/// Most net_iovs, and most tokens, that one comment lists.
const MOST_LISTED: usize = 8;

/// A packet that is not in the file yet.
#[derive(Clone, Debug)]
pub(super) struct Annotated {
    pub(super) packet: Packet,
    /// `None` if the NIC dropped the packet, or has none of our memory.
    pub(super) payload: Option<FramePayload>,
    /// Tokens of the payload, in the order of their issue.
    tokens: Vec<u32>,
}

impl From<Packet> for Annotated {
    fn from(packet: Packet) -> Self {
        Self {
            packet,
            payload: None,
            tokens: Vec::new(),
        }
    }
}

impl Annotated {
    /// Returns the comment, empty if nothing is known.
    pub(super) fn comment(&self, niov_bytes: Option<usize>) -> String {
        let Some(FramePayload {
            queue,
            header_len,
            device,
            host_bytes,
            ..
        }) = &self.payload
        else {
            return String::new();
        };
        let mut comment = match queue {
            Some(queue) => format!("rx queue {}", queue.0),
            None => "tx".to_owned(),
        };
        match (device.is_empty(), *host_bytes) {
            (true, 0) => comment += ", no payload",
            (true, bytes) => write_to(&mut comment, format_args!(", {bytes} bytes in host memory")),
            (false, 0) => write_to(&mut comment, format_args!(", split at {header_len}")),
            (false, bytes) => write_to(
                &mut comment,
                format_args!(", split at {header_len}, {bytes} bytes in host memory"),
            ),
        }
        for range in device.iter().take(MOST_LISTED) {
            comment += &place(range, niov_bytes.filter(|_| queue.is_some()));
        }
        more(&mut comment, device.len());
        for token in self.tokens.iter().take(MOST_LISTED) {
            write_to(&mut comment, format_args!(", token {token}"));
        }
        more(&mut comment, self.tokens.len());
        comment
    }

    /// Returns how many bytes of `range` this packet brought.
    fn overlap(&self, range: &Range<usize>) -> usize {
        let received = self
            .payload
            .iter()
            .filter(|payload| payload.queue.is_some());
        let ranges = received.flat_map(|payload| &payload.device);
        ranges
            .map(|own| {
                own.end
                    .min(range.end)
                    .saturating_sub(own.start.max(range.start))
            })
            .sum()
    }
}

/// Adds a token to the packets with the bytes of `range`. Memory is used again, so the newest packets count, until all bytes are
/// found.
pub(super) fn add_token(kept: &mut VecDeque<Annotated>, range: &Range<usize>, token: u32) {
    let mut missing = range.len();
    for packet in kept.iter_mut().rev() {
        if missing == 0 {
            break;
        }
        let overlap = packet.overlap(range);
        if overlap > 0 {
            packet.tokens.push(token);
            missing = missing.saturating_sub(overlap);
        }
    }
}

/// Describes a range of the bound memory.
fn place(range: &Range<usize>, niov_bytes: Option<usize>) -> String {
    let len = range.len();
    match niov_bytes {
        Some(niov) => format!(
            ", net_iov {} at {}: {len} bytes",
            range.start / niov,
            range.start % niov
        ),
        None => format!(", device memory at {:#x}: {len} bytes", range.start),
    }
}

fn more(comment: &mut String, count: usize) {
    if let Some(rest) = count.checked_sub(MOST_LISTED).filter(|rest| *rest > 0) {
        write_to(comment, format_args!(" and {rest} more"));
    }
}

fn write_to(comment: &mut String, words: std::fmt::Arguments<'_>) {
    comment
        .write_fmt(words)
        .expect("a string has no write errors");
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use devmem_tcp::RxQueueId;
    use nic::Direction;

    use super::*;

    fn packet(device: &[Range<usize>], host_bytes: usize) -> Annotated {
        let mut payload = FramePayload::default();
        payload.queue = Some(RxQueueId(1));
        payload.header_len = 66;
        payload.device = device.to_vec();
        payload.host_bytes = host_bytes;
        Annotated {
            payload: Some(payload),
            ..Annotated::from(Packet {
                time: Duration::ZERO,
                direction: Direction::Rx,
                original_len: 0,
                data: Vec::new(),
            })
        }
    }

    #[test]
    fn a_comment_names_queue_split_net_iovs_and_tokens() {
        let first = 0x10800..0x10da8;
        let split = packet(std::slice::from_ref(&first), 0);
        let text = "rx queue 1, split at 66, net_iov 1 at 2048: 1448 bytes";
        assert_eq!(split.comment(Some(0x10000)), text);
        let mut kept = VecDeque::from([split]);
        add_token(&mut kept, &first, 17);
        assert_eq!(kept[0].comment(Some(0x10000)), format!("{text}, token 17"));
        let whole = packet(&[], 9);
        assert_eq!(whole.comment(None), "rx queue 1, 9 bytes in host memory");
        assert_eq!(packet(&[], 0).comment(None), "rx queue 1, no payload");
        let twenty: Vec<_> = (0..20).map(|n| n * 10..n * 10 + 1).collect();
        let many = packet(&twenty, 0);
        assert!(many.comment(None).ends_with(" and 12 more"));
    }

    #[test]
    fn a_token_belongs_to_the_last_packets_that_used_the_memory() {
        let mut kept: VecDeque<_> = [(0..100), (0..60), (60..100)]
            .map(|range| packet(std::slice::from_ref(&range), 0))
            .into();
        add_token(&mut kept, &(0..100), 5);
        let tokens: Vec<_> = kept.iter().map(|packet| packet.tokens.len()).collect();
        assert_eq!(tokens, [0, 1, 1]);
    }
}
