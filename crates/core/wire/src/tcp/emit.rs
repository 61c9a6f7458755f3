//! Writes TCP headers and their options.

use zerocopy::IntoBytes;

use super::{
    MSS, NOP, Raw, SACK, SACK_PERMITTED, TIMESTAMPS, TcpFlags, TcpHeader, TcpOptions, Timestamps,
    WINDOW_SCALE,
};
use crate::fast_open::FastOpen;

/// Bytes of options that fit a header.
const MAX_LEN: usize = 40;

impl TcpHeader {
    /// Returns the bytes that [`emit`](Self::emit) writes: the fixed header and `options`.
    pub fn emit_len(&self) -> usize {
        Self::LEN + self.options.emit_len()
    }

    /// Writes header and options to the start of `out` with a checksum field of 0; returns the bytes
    /// written (and ignores `header_len`).
    ///
    /// # Panics
    /// If `out` is shorter than [`emit_len`](Self::emit_len).
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let Self {
            src_port,
            dst_port,
            seq,
            ack,
            flags,
            window,
            urgent,
            ref options,
            header_len: _,
        } = *self;
        let len = Self::LEN + options.emit(&mut out[Self::LEN..]);
        let raw = Raw {
            src_port: src_port.into(),
            dst_port: dst_port.into(),
            seq: seq.into(),
            ack: ack.into(),
            // At most 60 / 4 = 15, which fits the four bits.
            data_offset: (len as u8 / 4) << 4 | u8::from(flags.contains(TcpFlags::AE)),
            flags: flags.low_byte(),
            window: window.into(),
            checksum: 0.into(),
            urgent: urgent.into(),
        };
        out[..Self::LEN].copy_from_slice(raw.as_bytes());
        len
    }
}

impl TcpOptions {
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
