//! Cuts messages: a short one goes into the control stream, behind its record; a longer one is cut into chunks for the data
//! streams.

use devmem_tcp::Netdev;

use crate::budget::TURN_BYTES;
use crate::control::Control;
use crate::error::Cause;
use crate::operations::{Destination, Outgoing};
use crate::record::{Carrier, INLINE_BYTES, Record};
use crate::wires::Wires;

/// Chunks that wait for TCP on a stream, in lengths of a chunk: enough that the stream never idles between turns.
const QUEUED_CHUNKS: usize = 2;

/// Bytes that are enough, however long a chunk is: two turns.
const QUEUED_BYTES: usize = 2 * TURN_BYTES;

/// What became of a message.
pub(crate) enum Cut {
    /// It is in the control stream, and its bytes may be changed.
    Copied(usize),
    /// Its last chunk is announced.
    Whole,
    /// A chunk is announced, and more follow.
    Part,
    /// Every data stream has enough to do.
    NoRoom,
}

/// Announces a whole message, or the next chunk of it.
pub(crate) fn cut_message(
    op: u64,
    message: &mut Outgoing,
    wires: &mut Wires,
    chunk: usize,
    nic: &Netdev,
) -> Result<Cut, Cause> {
    let Some(destination) = message.destination else {
        return Ok(Cut::Whole);
    };
    let total = message.span.len();
    // Memory that the NIC reads by itself is never copied: it may be slow for the CPU to read.
    if total == 0 || total <= INLINE_BYTES && message.span.is_copied(nic) {
        let record = announce(destination, Carrier::Control, 0..total, total);
        let copied = wires
            .control
            .queue_with(record, |out| message.span.copy_out(out));
        return copied.map(|()| Cut::Copied(total));
    }
    let streams = (0..).zip(&mut wires.data);
    let Some((index, stream)) = streams.min_by_key(|(_, stream)| stream.queued()) else {
        return Ok(Cut::NoRoom);
    };
    if stream.queued() >= QUEUED_BYTES.min(QUEUED_CHUNKS * chunk) {
        return Ok(Cut::NoRoom);
    }
    let start = message.cut;
    let end = total.min(start + chunk);
    let record = announce(destination, Carrier::Data(index), start..end, total);
    wires.control.queue(record);
    message.cut = end;
    if let Some(span) = message.span.part(start, end - start) {
        stream.send(op, span);
    }
    Ok(match end == total {
        true => Cut::Whole,
        false => Cut::Part,
    })
}

/// Returns the record for some bytes of a message.
fn announce(
    destination: Destination,
    carrier: Carrier,
    bytes: std::ops::Range<usize>,
    total: usize,
) -> Record {
    let (offset, len) = (bytes.start as u64, bytes.len() as u64);
    match destination {
        Destination::Part { op, part } => Record::Chunk {
            op,
            part,
            carrier,
            offset,
            len,
            total: total as u64,
        },
        Destination::Region { key, offset: base } => Record::Put {
            key,
            carrier,
            // A wrong sum is refused by the peer, as any offset outside of the region.
            offset: base.saturating_add(offset),
            len,
        },
    }
}

/// Queues a notification.
pub(crate) fn cut_notification(control: &mut Control, bytes: &[u8]) -> Result<(), Cause> {
    let record = Record::Notify {
        len: bytes.len() as u64,
    };
    control.queue_with(record, |out| {
        out.copy_from_slice(bytes);
        Ok(())
    })
}
