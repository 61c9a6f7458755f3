//! Frames of a guest of the lab on its virtio serial port, and in the other direction frames for its process 1.
//!
//! Input: one byte, the number of requested files; then the bytes of the port.

use std::io::{self, Read};

use super::conversation::{Conversation, GuestMessage};
use super::frame::{self, FrameKind, MAX_FRAME_BYTES};

/// Checks that accepted frames are limited in length, are in a valid order, and can be written and read again.
pub fn run(data: &[u8]) {
    let Some((&files, stream)) = data.split_first() else {
        return;
    };
    let files = usize::from(files % 4);
    let mut guest = Conversation::new(files);
    let (mut from, mut told, mut is_over) = (InBits(stream), 0, false);
    while !is_over && let Ok(Some((kind, payload))) = frame::read(&mut from) {
        assert!(payload.len() <= MAX_FRAME_BYTES);
        assert_again(kind, &payload);
        let Ok(word) = guest.take(kind, &payload) else {
            break;
        };
        match word {
            GuestMessage::File(place) => {
                assert_eq!(place, told, "files come in the order of the list");
                told += 1;
            }
            GuestMessage::FileMissing(_) => told += 1,
            GuestMessage::FileBytes(_) => assert!(told > 0, "file data without a file"),
            GuestMessage::Bye(_) => is_over = true,
            GuestMessage::Ready(_)
            | GuestMessage::Stdout(_)
            | GuestMessage::Stderr(_)
            | GuestMessage::Exit => {}
        }
        assert!(told <= files, "more files than requested");
    }
    hear(stream);
}

/// Checks that a frame is the same after it was written and read again.
fn assert_again(kind: FrameKind, payload: &[u8]) {
    let mut written = Vec::new();
    frame::write(&mut written, kind, payload).expect("writing to memory succeeds");
    let again = frame::read(&mut written.as_slice()).expect("it was a frame");
    assert_eq!(again, Some((kind, payload.to_vec())));
}

/// Checks that process 1 of the guest writes only bytes of the received standard input.
fn hear(stream: &[u8]) {
    let mut heard = Vec::new();
    frame::take_in(stream, &mut heard);
    assert!(heard.len() <= stream.len());
}

/// A port from which reads return one, two or three bytes.
struct InBits<'a>(&'a [u8]);

impl Read for InBits<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let most = self.0.len() % 3 + 1;
        let (now, later) = self.0.split_at(most.min(out.len()).min(self.0.len()));
        out[..now.len()].copy_from_slice(now);
        self.0 = later;
        Ok(now.len())
    }
}
