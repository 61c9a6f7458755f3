//! TCP options that we support: MSS, window scale, SACK, timestamps, AccECN, Fast Open (RFC 9293 3.2, 7323, 2018, 9768, 7413).

use crate::accecn::{ACCECN0, ACCECN1, AccEcn};
use crate::fast_open::{self, FastOpen};

/// Largest window scale; a larger received value is replaced with this one (RFC 7323 2.3).
pub const MAX_WINDOW_SCALE: u8 = 14;

/// Bytes of options that fit a header.
const MAX_LEN: usize = 40;

const END: u8 = 0;
const NOP: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;

/// The timestamps option (RFC 7323 3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// TSval: timestamp of the sender.
    pub value: u32,
    /// TSecr: echo of the latest TSval received; meaningful with [`TcpFlags::ACK`](crate::TcpFlags::ACK).
    pub echo: u32,
}

/// Up to four ranges of sequence numbers that arrived out of order (RFC 2018), left edge included,
/// right edge not; the first may be a D-SACK (RFC 2883).
#[derive(Clone, Copy, Default)]
pub struct SackBlocks {
    blocks: [(u32, u32); Self::CAPACITY],
    len: u8,
}

impl SackBlocks {
    /// Maximum number of blocks in a header.
    pub const CAPACITY: usize = 4;

    /// Returns no blocks.
    pub const fn new() -> Self {
        Self {
            blocks: [(0, 0); Self::CAPACITY],
            len: 0,
        }
    }

    /// Appends a block; false if there was no room for it.
    pub fn push(&mut self, left: u32, right: u32) -> bool {
        match self.blocks.get_mut(usize::from(self.len)) {
            Some(slot) => {
                *slot = (left, right);
                self.len += 1;
                true
            }
            None => false,
        }
    }

    /// Returns the blocks in wire order.
    pub fn as_slice(&self) -> &[(u32, u32)] {
        &self.blocks[..usize::from(self.len)]
    }

    /// Iterates over `(left, right)` in wire order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u32, u32)> + '_ {
        self.as_slice().iter().copied()
    }

    /// Returns the number of blocks.
    pub fn len(&self) -> usize {
        self.len.into()
    }

    /// True if there is no block.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl PartialEq for SackBlocks {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for SackBlocks {}

impl std::fmt::Debug for SackBlocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

/// The options of one TCP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// Maximum segment size, only in a SYN.
    pub mss: Option<u16>,
    /// Window scale, only in a SYN; at most [`MAX_WINDOW_SCALE`] once parsed.
    pub window_scale: Option<u8>,
    /// The sender accepts SACK; only in a SYN.
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// Counters of ECN codepoints.
    pub accecn: Option<AccEcn>,
    /// SACK blocks.
    pub sack: SackBlocks,
    /// Fast Open's cookie, or the request for one; only in a SYN.
    pub fast_open: Option<FastOpen>,
}

/// Reason to reject a list of options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TcpOptionsError {
    /// The list ends after the kind of an option, before its length.
    #[error("TCP option {kind} has no length byte")]
    NoLength {
        /// The option's kind.
        kind: u8,
    },
    /// The length is 0 or 1, or reaches past the end of the header.
    #[error("TCP option {kind} has length {len}")]
    BadLength {
        /// The option's kind.
        kind: u8,
        /// Its length byte.
        len: u8,
    },
}

impl TcpOptions {
    /// Parses the bytes between the fixed header and the payload.
    ///
    /// Unknown options, and known ones with an unexpected length, are skipped; if a kind occurs twice,
    /// the later one counts (as in Linux, net/ipv4/tcp_input.c `tcp_parse_options`).
    ///
    /// # Errors
    /// A missing or invalid length (RFC 9293 MUST-7): the next option cannot be found.
    #[inline(always)]
    pub fn parse(bytes: &[u8]) -> Result<Self, TcpOptionsError> {
        // Fast path: most segments have only timestamps, laid out as in RFC 7323 appendix A.
        if let &[NOP, NOP, TIMESTAMPS, 10, v0, v1, v2, v3, e0, e1, e2, e3] = bytes {
            let value = u32::from_be_bytes([v0, v1, v2, v3]);
            let echo = u32::from_be_bytes([e0, e1, e2, e3]);
            return Ok(Self {
                timestamps: Some(Timestamps { value, echo }),
                ..Self::default()
            });
        }
        Self::parse_slow(bytes)
    }

    fn parse_slow(mut bytes: &[u8]) -> Result<Self, TcpOptionsError> {
        let mut options = Self::default();
        while let [kind, rest @ ..] = bytes {
            let kind = *kind;
            match kind {
                END => break,
                NOP => {
                    bytes = rest;
                    continue;
                }
                _ => {}
            }
            let &[len, ..] = rest else {
                return Err(TcpOptionsError::NoLength { kind });
            };
            let (option, rest) = (usize::from(len) >= 2)
                .then(|| bytes.split_at_checked(len.into()))
                .flatten()
                .ok_or(TcpOptionsError::BadLength { kind, len })?;
            options.set(kind, &option[2..]);
            bytes = rest;
        }
        Ok(options)
    }

    fn set(&mut self, kind: u8, body: &[u8]) {
        match (kind, body) {
            (MSS, &[a, b]) => self.mss = Some(u16::from_be_bytes([a, b])),
            (WINDOW_SCALE, &[shift]) => self.window_scale = Some(shift.min(MAX_WINDOW_SCALE)),
            (SACK_PERMITTED, []) => self.sack_permitted = true,
            (SACK, body) => {
                if let (blocks, []) = body.as_chunks::<8>() {
                    self.sack = SackBlocks::new();
                    for &[a, b, c, d, e, f, g, h] in blocks {
                        self.sack.push(
                            u32::from_be_bytes([a, b, c, d]),
                            u32::from_be_bytes([e, f, g, h]),
                        );
                    }
                }
            }
            (TIMESTAMPS, &[a, b, c, d, e, f, g, h]) => {
                let value = u32::from_be_bytes([a, b, c, d]);
                let echo = u32::from_be_bytes([e, f, g, h]);
                self.timestamps = Some(Timestamps { value, echo });
            }
            (ACCECN0 | ACCECN1, body) => self.accecn = AccEcn::parse(kind, body).or(self.accecn),
            (fast_open::KIND | fast_open::EXPERIMENT, body) => {
                self.fast_open = FastOpen::parse(kind, body).or(self.fast_open);
            }
            _ => {}
        }
    }

    /// Returns how many SACK blocks fit beside the other options.
    fn sack_blocks_that_fit(&self) -> usize {
        let room = MAX_LEN - self.len_without_sack();
        self.sack.len().min(room.saturating_sub(4) / 8)
    }

    fn len_without_sack(&self) -> usize {
        let Self {
            mss,
            window_scale,
            sack_permitted,
            timestamps,
            accecn,
            sack: _,
            fast_open: _,
        } = self;
        let accecn_len = accecn.map_or(0, |option| option.emit_len());
        let timestamps_len = if timestamps.is_some() { 12 } else { 0 };
        let permitted_len = if *sack_permitted && timestamps.is_none() {
            4
        } else {
            0
        };
        let mss_len = if mss.is_some() { 4 } else { 0 };
        let scale_len = if window_scale.is_some() { 4 } else { 0 };
        mss_len + scale_len + permitted_len + timestamps_len + accecn_len
    }

    fn len_without_fast_open(&self) -> usize {
        match self.sack_blocks_that_fit() {
            0 => self.len_without_sack(),
            blocks => self.len_without_sack() + 4 + 8 * blocks,
        }
    }

    /// Returns Fast Open's option if it fits beside the other options.
    fn fast_open_that_fits(&self) -> Option<FastOpen> {
        let room = MAX_LEN - self.len_without_fast_open();
        self.fast_open.filter(|option| option.emit_len() <= room)
    }

    /// Returns the bytes that [`emit`](Self::emit) writes: a multiple of 4, at most 40.
    pub fn emit_len(&self) -> usize {
        let fast_open = self.fast_open_that_fits();
        self.len_without_fast_open() + fast_open.map_or(0, |option| option.emit_len())
    }

    /// Writes the options to the start of `out`, aligned as in RFC 7323 appendix A; returns their
    /// length, a multiple of 4. SACK blocks that do not fit 40 bytes beside the others are left
    /// out, the last ones first; then Fast Open's option, if it does not fit.
    ///
    /// # Panics
    /// If `out` is shorter than [`emit_len`](Self::emit_len).
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let mut writer = Writer { out, at: 0 };
        if let Some(mss) = self.mss {
            let [a, b] = mss.to_be_bytes();
            writer.put([MSS, 4, a, b]);
        }
        if let Some(Timestamps { value, echo }) = self.timestamps {
            // SACK-permitted takes the place of the padding, as Linux sends it.
            let lead = if self.sack_permitted {
                [SACK_PERMITTED, 2]
            } else {
                [NOP, NOP]
            };
            writer.put([lead[0], lead[1], TIMESTAMPS, 10]);
            writer.put(value.to_be_bytes());
            writer.put(echo.to_be_bytes());
        }
        if let Some(option) = &self.accecn {
            for word in option
                .emit()
                .as_chunks()
                .0
                .iter()
                .take(option.emit_len() / 4)
            {
                writer.put(*word);
            }
        }
        if self.sack_permitted && self.timestamps.is_none() {
            writer.put([NOP, NOP, SACK_PERMITTED, 2]);
        }
        if let Some(shift) = self.window_scale {
            writer.put([NOP, WINDOW_SCALE, 3, shift]);
        }
        let blocks = self.sack_blocks_that_fit();
        if blocks > 0 {
            // At most 4 blocks: 34.
            writer.put([NOP, NOP, SACK, 2 + 8 * blocks as u8]);
            for (left, right) in self.sack.iter().take(blocks) {
                writer.put(left.to_be_bytes());
                writer.put(right.to_be_bytes());
            }
        }
        if let Some(option) = self.fast_open_that_fits() {
            let bytes = option.emit();
            let words = bytes.as_chunks().0.iter().take(option.emit_len() / 4);
            words.for_each(|word| writer.put(*word));
        }
        writer.at
    }
}

struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, word: [u8; 4]) {
        self.out[self.at..self.at + 4].copy_from_slice(&word);
        self.at += 4;
    }
}

#[cfg(test)]
mod tests;
