//! Sources of bytes to send.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use pattern::{PositionPattern, RepeatingPattern};

/// A finite stream of bytes.
#[derive(Debug)]
pub enum Source {
    /// A file, a pipe, a terminal.
    File(File),
    /// A generated pattern.
    Made {
        /// The pattern.
        pattern: GeneratedPattern,
        /// Position of the next byte.
        position: u64,
        /// Position of the end.
        end: u64,
    },
}

/// A pattern that this program generates.
#[derive(Clone, Debug)]
pub enum GeneratedPattern {
    /// Every byte depends on its position.
    Position(PositionPattern),
    /// The pattern of the ncdevmem test.
    Repeating(RepeatingPattern),
}

/// Result of [`Source::next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Number of bytes, at least one.
    Bytes(usize),
    /// No bytes within the time limit.
    Later,
    /// The end of the stream.
    End,
}

impl Source {
    /// Returns a source of `bytes` bytes of `pattern`.
    pub fn made(pattern: GeneratedPattern, bytes: u64) -> Self {
        Self::Made {
            pattern,
            position: 0,
            end: bytes,
        }
    }

    /// Writes the next bytes to `out`, which must not be empty; waits at most `limit`.
    ///
    /// # Errors
    ///
    /// Reading the file failed.
    pub fn next(&mut self, out: &mut [u8], limit: Duration) -> io::Result<Next> {
        let len = match self {
            Self::File(file) => {
                if !is_readable(file, limit)? {
                    return Ok(Next::Later);
                }
                match file.read(out) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                        return Ok(Next::Later);
                    }
                    result => result?,
                }
            }
            Self::Made {
                pattern,
                position,
                end,
            } => {
                let left = usize::try_from(*end - *position).unwrap_or(usize::MAX);
                let len = left.min(out.len());
                let out = &mut out[..len];
                match pattern {
                    GeneratedPattern::Position(pattern) => pattern.fill(*position, out),
                    GeneratedPattern::Repeating(pattern) => pattern.fill(*position, out),
                }
                *position += len as u64;
                len
            }
        };
        Ok(if len > 0 { Next::Bytes(len) } else { Next::End })
    }
}

/// Returns whether a read would not block. That includes a pipe without a writer, where a read returns the end.
pub fn is_readable(file: &impl AsFd, limit: Duration) -> io::Result<bool> {
    let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
    let mut fds = [PollFd::new(file, PollFlags::IN)];
    match poll(&mut fds, Some(&limit)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const LIMIT: Duration = Duration::from_millis(1);

    #[test]
    fn a_generated_stream_has_its_length_in_pieces_of_any_size() {
        let mut source = Source::made(GeneratedPattern::Repeating(RepeatingPattern::new(7)), 10);
        let (mut out, mut all) = ([0; 4], Vec::new());
        while let Next::Bytes(len) = source.next(&mut out, LIMIT).unwrap() {
            all.extend_from_slice(&out[..len]);
        }
        assert_eq!(all, [1, 2, 3, 4, 5, 6, 0, 1, 2, 3]);
    }

    #[test]
    fn a_pipe_without_data_is_not_at_its_end() {
        let (reader, mut writer) = io::pipe().unwrap();
        let mut source = Source::File(File::from(std::os::fd::OwnedFd::from(reader)));
        let mut out = [0; 8];
        assert_eq!(source.next(&mut out, LIMIT).unwrap(), Next::Later);
        writer.write_all(b"abc").unwrap();
        assert_eq!(source.next(&mut out, LIMIT).unwrap(), Next::Bytes(3));
        drop(writer);
        assert_eq!(source.next(&mut out, LIMIT).unwrap(), Next::End);
    }
}
