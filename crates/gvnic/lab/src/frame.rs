//! The protocol between guest and host on a virtio serial port: frames with a kind, a length and bytes.
//!
//! The guest is not trusted: the payload of a frame is at most [`MAX_FRAME_BYTES`] long, and an unknown kind ends the run.

use std::io::{self, Read, Write};

/// Largest payload of a frame, in bytes.
pub const MAX_FRAME_BYTES: usize = 64 << 10;
/// Kind (1 byte) and length (4 bytes, little-endian).
const HEADER_BYTES: usize = 5;

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// The guest has booted and starts the command: the times of its boot, as decimal milliseconds separated by spaces.
    Ready = 1,
    /// Bytes the command wrote to its standard output.
    Stdout = 2,
    /// Bytes the command wrote to its standard error.
    Stderr = 3,
    /// The command has ended: its exit code as decimal text.
    Exit = 4,
    /// A file of `--get` follows: its index in the list, as decimal text.
    File = 5,
    /// Bytes of that file.
    FileBytes = 6,
    /// The file could not be read: the reason.
    FileError = 7,
    /// The guest failed: the reason.
    Trouble = 8,
    /// The last frame.
    Bye = 9,
    /// From the host only: bytes for the command's standard input; an empty frame is its end.
    Stdin = 10,
}

impl FrameKind {
    const ALL: [Self; 10] = [
        Self::Ready,
        Self::Stdout,
        Self::Stderr,
        Self::Exit,
        Self::File,
        Self::FileBytes,
        Self::FileError,
        Self::Trouble,
        Self::Bye,
        Self::Stdin,
    ];

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.byte() == byte)
    }

    fn byte(self) -> u8 {
        self as u8
    }
}

/// Writes `payload` as one frame, or as several if it is longer than [`MAX_FRAME_BYTES`].
///
/// # Errors
///
/// Writing failed.
pub fn write(to: &mut impl Write, kind: FrameKind, payload: &[u8]) -> io::Result<()> {
    let mut rest = payload;
    loop {
        let (now, later) = rest.split_at(rest.len().min(MAX_FRAME_BYTES));
        let len = u32::try_from(now.len()).map_err(io::Error::other)?;
        let mut frame = Vec::with_capacity(HEADER_BYTES + now.len());
        frame.push(kind.byte());
        frame.extend_from_slice(&len.to_le_bytes());
        frame.extend_from_slice(now);
        to.write_all(&frame)?;
        rest = later;
        if rest.is_empty() {
            return Ok(());
        }
    }
}

/// Reads one frame; `None` at the end of the stream.
///
/// # Errors
///
/// Reading failed; `InvalidData` for an unknown kind or a length above [`MAX_FRAME_BYTES`].
pub fn read(from: &mut impl Read) -> io::Result<Option<(FrameKind, Vec<u8>)>> {
    let mut header = [0; HEADER_BYTES];
    if from.read(&mut header[..1])? == 0 {
        return Ok(None);
    }
    from.read_exact(&mut header[1..])?;
    let [kind, l0, l1, l2, l3] = header;
    let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let kind = FrameKind::from_byte(kind)
        .ok_or_else(|| wrong(format!("a frame of the unknown kind {kind}")))?;
    let len = u32::from_le_bytes([l0, l1, l2, l3]);
    let len = usize::try_from(len)
        .ok()
        .filter(|&len| len <= MAX_FRAME_BYTES);
    let len = len.ok_or_else(|| wrong("a frame that is too long".to_owned()))?;
    let mut payload = vec![0; len];
    from.read_exact(&mut payload)?;
    Ok(Some((kind, payload)))
}

/// Sends `from` to the guest as the command's standard input, until its end or a write error.
pub fn pass_in(mut from: impl Read, mut to: impl Write) {
    let mut buffer = vec![0; MAX_FRAME_BYTES];
    loop {
        // A read error counts as the end of the input.
        let count = from.read(&mut buffer).unwrap_or_default();
        if write(&mut to, FrameKind::Stdin, &buffer[..count]).is_err() || count == 0 {
            return;
        }
    }
}

/// Writes the bytes from [`pass_in`] to `to`. After a write error it still reads them, so that the host does not block.
pub fn take_in(mut from: impl Read, to: impl Write) {
    let mut to = Some(to);
    while let Ok(Some((FrameKind::Stdin, bytes))) = read(&mut from) {
        if bytes.is_empty() {
            return;
        }
        to = to.and_then(|mut to| to.write_all(&bytes).is_ok().then_some(to));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_input_is_passed_on_with_its_end() {
        let input: Vec<u8> = (0..=255).cycle().take(3 * MAX_FRAME_BYTES + 5).collect();
        let mut sent = Vec::new();
        pass_in(input.as_slice(), &mut sent);
        let mut rest = sent.as_slice();
        let mut taken = Vec::new();
        take_in(&mut rest, &mut taken);
        assert!(taken == input, "{} bytes", taken.len());
        assert!(rest.is_empty());
        let mut nothing = Vec::new();
        pass_in(&b""[..], &mut nothing);
        assert_eq!(
            read(&mut nothing.as_slice()).unwrap(),
            Some((FrameKind::Stdin, Vec::new()))
        );
    }

    #[test]
    fn a_command_that_does_not_read_does_not_block_the_host() {
        let mut sent = Vec::new();
        pass_in(vec![7; 2 * MAX_FRAME_BYTES].as_slice(), &mut sent);
        let mut rest = sent.as_slice();
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        take_in(&mut rest, writer);
        assert!(rest.is_empty(), "all input was read");
    }

    #[test]
    fn frames_are_received_unchanged_and_long_ones_in_pieces() {
        let long: Vec<u8> = (0..=255).cycle().take(MAX_FRAME_BYTES + 3).collect();
        let mut stream = Vec::new();
        write(&mut stream, FrameKind::Ready, b"").unwrap();
        write(&mut stream, FrameKind::Stdout, &long).unwrap();
        write(&mut stream, FrameKind::Bye, b"").unwrap();
        let mut from = stream.as_slice();
        assert_eq!(
            read(&mut from).unwrap(),
            Some((FrameKind::Ready, Vec::new()))
        );
        let (kind, first) = read(&mut from).unwrap().unwrap();
        let (_, second) = read(&mut from).unwrap().unwrap();
        assert_eq!((kind, first.len()), (FrameKind::Stdout, MAX_FRAME_BYTES));
        assert_eq!([first, second].concat(), long);
        assert_eq!(read(&mut from).unwrap(), Some((FrameKind::Bye, Vec::new())));
        assert_eq!(read(&mut from).unwrap(), None);
    }

    #[test]
    fn an_unknown_kind_a_long_frame_and_an_incomplete_one_are_errors() {
        for bytes in [
            &[0, 0, 0, 0, 0][..],
            &[200, 0, 0, 0, 0],
            &[2, 1, 0, 1, 0],
            &[2, 255, 255, 255, 255],
            &[2, 3, 0, 0, 0, 1],
            &[2, 3],
        ] {
            assert!(read(&mut &bytes[..]).is_err(), "{bytes:?}");
        }
    }
}
