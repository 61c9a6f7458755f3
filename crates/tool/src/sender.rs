//! Sends the position pattern, over kernel sockets (second process of the demo) or over the user-space stack.

use std::io::{self, Write};

use pattern::PositionPattern;

/// Bytes that one connection sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Bytes.
    pub bytes: u64,
    /// Bytes of each write.
    pub write_size: usize,
}

/// Divides `bytes` over `connections`; the first ones take the remainder.
pub fn shares(bytes: u64, connections: u16, write_size: usize) -> impl Iterator<Item = Share> {
    let count = u64::from(connections);
    (0..count).map(move |i| Share {
        bytes: bytes / count + u64::from(i < bytes % count),
        write_size,
    })
}

/// Returns the pattern of the connection with source port `port`; both ends know that port.
pub fn pattern_of(port: u16) -> PositionPattern {
    PositionPattern::new(u64::from(port))
}

/// Sends `share` of `pattern`.
///
/// # Errors
///
/// Any error of writing to `stream`.
pub fn send(mut stream: impl Write, pattern: PositionPattern, share: Share) -> io::Result<()> {
    let mut buffer = vec![0; share.write_size];
    let mut position = 0;
    while position < share.bytes {
        let left = usize::try_from(share.bytes - position).unwrap_or(usize::MAX);
        let piece = &mut buffer[..share.write_size.min(left)];
        pattern.fill(position, piece);
        stream.write_all(piece)?;
        position += piece.len() as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pattern::{Expected, Verifier};

    #[test]
    fn shares_add_up_and_differ_by_one_byte_at_most() {
        for (bytes, connections) in [(10, 3), (3, 10), (1 << 33, 64), (0, 1)] {
            let all: Vec<_> = shares(bytes, connections, 1)
                .map(|share| share.bytes)
                .collect();
            assert_eq!(all.iter().sum::<u64>(), bytes);
            assert_eq!(all.len(), usize::from(connections));
            assert!(all.iter().max().unwrap() - all.iter().min().unwrap() <= 1);
        }
    }

    #[test]
    fn the_pattern_is_sent_with_writes_of_any_size() {
        for write_size in [1, 7, 1000, 100_000] {
            let mut sent = Vec::new();
            let share = Share {
                bytes: 70_001,
                write_size,
            };
            send(&mut sent, pattern_of(5000), share).unwrap();
            assert_eq!(sent.len(), 70_001);
            let mut verifier = Verifier::new(Expected::Position(pattern_of(5000)));
            verifier.check(&sent);
            assert_eq!(verifier.bad_bytes(), 0);
        }
    }
}
