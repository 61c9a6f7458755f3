//! Super-packets as single frames, for what works on frames as they are on a cable.

use std::num::NonZeroU16;

use ::wire::{RxHeaders, SegmentHeaders, fill_checksum, shorten_big_headers};
use smallvec::SmallVec;

/// Cuts super-packets. Keeps the buffer of a segment to reuse its allocation.
#[derive(Debug, Default)]
pub struct FrameCutter {
    segment: Vec<u8>,
}

/// A super-packet that cannot be cut: its headers are invalid, it is not TCP, or it has no payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uncut;

impl FrameCutter {
    /// Passes the segments of `frame`, with up to `size` bytes of payload and a complete checksum each, to `each`.
    ///
    /// # Errors
    /// [`Uncut`]; nothing was passed then.
    pub fn cut(
        &mut self,
        frame: &[u8],
        size: NonZeroU16,
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), Uncut> {
        let headers = RxHeaders::parse(frame, frame.len()).map_err(|_| Uncut)?;
        let (head, rest) = frame.split_at_checked(headers.header_len).ok_or(Uncut)?;
        let payload = rest.get(..headers.payload_len).ok_or(Uncut)?;
        if payload.is_empty() {
            return Err(Uncut);
        }
        // The segments have their length in the header, so a jumbo payload option is removed.
        let mut head = SmallVec::<[u8; 128]>::from_slice(head);
        let len = shorten_big_headers(&mut head);
        head.truncate(len);
        let headers = RxHeaders::parse(&head, len + payload.len()).map_err(|_| Uncut)?;
        let mut cut = SegmentHeaders::new(&headers).ok_or(Uncut)?;
        let mut left = payload.len();
        for part in payload.chunks(size.get().into()) {
            left -= part.len();
            self.segment.clear();
            self.segment.extend_from_slice(&head);
            cut.write_next(&mut self.segment, part.len(), left);
            self.segment.extend_from_slice(part);
            fill_checksum(&mut self.segment, 0, cut.checksum());
            each(&self.segment);
        }
        Ok(())
    }
}
