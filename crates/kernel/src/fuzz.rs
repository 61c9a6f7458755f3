//! Bodies of the fuzz targets, as plain functions: they must not panic, for any bytes.

use devmem_uapi::MsgFlags;

use crate::broker::fuzz_messages;
use crate::ethtool;
use crate::netdev::{PagePool, PagePoolStats, QueueInfo, QueueStats};
use crate::netif;
use crate::netlink::{Family, fuzz_exchange};
use crate::nic_setup::{fuzz_state_file, fuzz_table};
use crate::socket::{Content, ErrorQueue, ReceivedMessage, RxFrag};

/// Parses `bytes` as the result of recvmsg (return value, flags, length of the control buffer, then the buffer,
/// then data) and as an entry of the error queue.
///
/// # Panics
///
/// If a receive is accepted although the lengths of its frags do not add up to its bytes.
pub fn cmsg(bytes: &[u8]) {
    ErrorQueue::default().parse(bytes);
    let Some(([r0, r1, f0, control_len], rest)) = bytes.split_first_chunk::<4>() else {
        return;
    };
    let (control, data) = rest.split_at(rest.len().min(usize::from(*control_len)));
    let returned = usize::from(u16::from_ne_bytes([*r0, *r1]));
    let flags = MsgFlags::from_bits_retain(u32::from(*f0));
    let Ok(received) = ReceivedMessage::parse(returned, flags, control, data) else {
        return;
    };
    let total: usize = match received.content {
        Content::End => 0,
        Content::Readable(bytes) => bytes.len(),
        Content::Devmem(frags) => frags
            .map(|frag| match frag {
                RxFrag::Device(cmsg) => usize::try_from(cmsg.frag_size).unwrap_or(usize::MAX),
                RxFrag::Linear(bytes) => bytes.len(),
            })
            .sum(),
    };
    assert_eq!(total, received.bytes, "frags and bytes differ");
}

/// Parses `bytes` as the datagrams that answer a netlink request, and every message as each known kind of reply; then as
/// the ethtool ioctl's reply about a flow rule.
///
/// Each datagram begins with its length in words and a byte of flags: 1 corrects the length and the sequence number of
/// its first message, 2 makes it longer than the buffer.
///
/// # Panics
///
/// If a flow rule changes when it is encoded and parsed again.
pub fn netlink(bytes: &[u8]) {
    fuzz_exchange(bytes, &mut |message| {
        netif::fuzz_replies(&message);
        // The fixed header of generic families has four bytes.
        let Some(([_, _, _, _], reply)) = message.split::<[u8; 4]>() else {
            return;
        };
        let _ = Family::parse(reply);
        let _ = QueueInfo::parse(reply);
        let _ = PagePool::parse(reply);
        let _ = PagePoolStats::parse(reply);
        let _ = QueueStats::parse(reply, 1);
        if let Some(rss) = ethtool::fuzz_replies(reply) {
            fuzz_table(&rss.table);
        }
    });
    ethtool::fuzz_ioctl(bytes);
}

/// Parses `bytes` as the state file of a NIC's set-up, and restores a model of a NIC from it.
///
/// # Panics
///
/// If a record changes when it is written and read again, or the report misses a change.
pub fn nic_state(bytes: &[u8]) {
    fuzz_state_file(bytes);
}

/// Parses `bytes` as a message of a broker's client, and of a broker.
///
/// # Panics
///
/// If a message changes when it is written and read again.
pub fn broker(bytes: &[u8]) {
    fuzz_messages(bytes);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A datagram of messages with attributes, all lengths right, the rest random.
    fn datagram() -> impl Strategy<Value = Vec<u8>> {
        let attribute = (any::<u16>(), prop::collection::vec(any::<u8>(), 0..24));
        let message = (
            0u16..40,
            0u16..0x400,
            prop::collection::vec(attribute, 0..6),
        );
        prop::collection::vec(message, 0..3).prop_map(|messages| {
            let mut out = Vec::new();
            for (kind, flags, attributes) in messages {
                let mut body = vec![0; 4];
                for (kind, value) in attributes {
                    let len = u16::try_from(4 + value.len()).unwrap();
                    body.extend_from_slice(&len.to_ne_bytes());
                    body.extend_from_slice(&kind.to_ne_bytes());
                    body.extend_from_slice(&value);
                    body.resize(body.len().next_multiple_of(4), 0);
                }
                let len = u32::try_from(16 + body.len()).unwrap();
                out.extend_from_slice(&len.to_ne_bytes());
                out.extend_from_slice(&kind.to_ne_bytes());
                out.extend_from_slice(&flags.to_ne_bytes());
                out.extend_from_slice(&1u32.to_ne_bytes());
                out.extend_from_slice(&[0; 4]);
                out.extend_from_slice(&body);
            }
            let words = u8::try_from(out.len() / 4).unwrap_or(u8::MAX);
            [vec![words, 0], out].concat()
        })
    }

    proptest! {
        #[test]
        fn no_bytes_panic_the_netlink_parsers(
            bytes in prop::collection::vec(any::<u8>(), 0..400),
        ) {
            netlink(&bytes);
        }

        #[test]
        fn no_well_formed_messages_panic_the_netlink_parsers(bytes in datagram()) {
            netlink(&bytes);
        }

        #[test]
        fn no_bytes_panic_the_control_message_parsers(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            cmsg(&bytes);
        }
    }
}
