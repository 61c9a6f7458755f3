//! The blocks of a pcapng file with one Ethernet interface (draft-ietf-opsawg-pcapng), little-endian.

use std::time::Duration;

use nic::Direction;

/// Block types.
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;

/// Byte-order magic, and major version; the minor version is 0.
const MAGIC: u32 = 0x1a2b_3c4d;
const MAJOR_VERSION: u16 = 1;
/// `LINKTYPE_ETHERNET`.
const ETHERNET: u16 = 1;

/// Option codes: `opt_comment`, `if_name`, `if_tsresol`, `epb_flags`.
const COMMENT: u16 = 1;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;
/// `if_tsresol`: timestamps count 10^-9 seconds.
const NANOSECONDS: u8 = 9;
/// `epb_flags`, direction bits (section 4.3.1).
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// Appends the header of the file and the description of the interface `name`, with at most `snap_len` bytes of each frame.
pub(crate) fn start(out: &mut Vec<u8>, name: &str, snap_len: u32) {
    block(out, SECTION_HEADER, |body| {
        body.extend(MAGIC.to_le_bytes());
        body.extend(MAJOR_VERSION.to_le_bytes());
        body.extend(0u16.to_le_bytes());
        // The section's length is not known.
        body.extend((-1i64).to_le_bytes());
    });
    block(out, INTERFACE_DESCRIPTION, |body| {
        body.extend(ETHERNET.to_le_bytes());
        body.extend(0u16.to_le_bytes());
        body.extend(snap_len.to_le_bytes());
        option(body, IF_NAME, name.as_bytes());
        option(body, IF_TSRESOL, &[NANOSECONDS]);
        option(body, 0, &[]);
    });
}

/// A captured frame.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    /// Time since 1970.
    pub(crate) time: Duration,
    pub(crate) direction: Direction,
    /// Bytes of the frame, of which `data` is captured.
    pub(crate) original_len: usize,
    pub(crate) data: Vec<u8>,
}

/// Appends a packet with a comment for people, unless that is empty.
pub(crate) fn packet(out: &mut Vec<u8>, packet: &Packet, comment: &str) {
    let Packet {
        time,
        direction,
        original_len,
        data,
    } = packet;
    let flags = match direction {
        Direction::Rx => INBOUND,
        Direction::Tx => OUTBOUND,
    };
    // 64 bits of nanoseconds last until the year 2554.
    let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let [low, high] = [time as u32, (time >> 32) as u32];
    block(out, ENHANCED_PACKET, |body| {
        let interface = 0;
        let lens = [data.len(), *original_len].map(|len| u32::try_from(len).unwrap_or(u32::MAX));
        for field in [interface, high, low, lens[0], lens[1]] {
            body.extend(field.to_le_bytes());
        }
        body.extend(data);
        pad(body);
        option(body, EPB_FLAGS, &flags.to_le_bytes());
        if !comment.is_empty() {
            option(body, COMMENT, comment.as_bytes());
        }
        option(body, 0, &[]);
    });
}

/// Appends a block with the body that `write` appends. Blocks start and end at multiples of 4 bytes.
fn block(out: &mut Vec<u8>, kind: u32, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend(kind.to_le_bytes());
    out.extend([0; 4]);
    write(out);
    // The length is before and after the body; it includes both.
    let len = u32::try_from(out.len() + 4 - start).unwrap_or(u32::MAX);
    out[start + 4..start + 8].copy_from_slice(&len.to_le_bytes());
    out.extend(len.to_le_bytes());
}

/// Appends an option; the last one of a block has code 0 and no value. A value that is too long is truncated.
fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    let len = u16::try_from(value.len()).unwrap_or(u16::MAX);
    body.extend(code.to_le_bytes());
    body.extend(len.to_le_bytes());
    body.extend(&value[..usize::from(len)]);
    pad(body);
}

/// Pads to a multiple of 4 bytes. The output starts at one.
fn pad(body: &mut Vec<u8>) {
    body.resize(body.len().next_multiple_of(4), 0);
}
