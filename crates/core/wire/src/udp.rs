//! UDP headers, for steering and checksum verification.

use crate::parse_error::ParseError;

/// A UDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpHeader {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Bytes of header and payload; at least [`UdpHeader::LEN`] once parsed.
    pub length: u16,
    /// Checksum as received; 0 means the IPv4 sender did not compute one (RFC 768).
    pub checksum: u16,
}

impl UdpHeader {
    /// Bytes of the header.
    pub const LEN: usize = 8;
    /// Offset of the checksum field in the header.
    pub const CHECKSUM_OFFSET: usize = 6;

    /// Parses the header at the start of `datagram`. The caller checks that the datagram is as long as
    /// `length` says.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if there are fewer than [`UdpHeader::LEN`] bytes,
    /// [`ParseError::BadUdpLength`] if the length field is smaller than the header.
    pub fn parse(datagram: &[u8]) -> Result<Self, ParseError> {
        let Some(&[a, b, c, d, e, f, g, h]) = datagram.first_chunk::<{ Self::LEN }>() else {
            return Err(ParseError::Truncated);
        };
        let length = u16::from_be_bytes([e, f]);
        if usize::from(length) < Self::LEN {
            return Err(ParseError::BadUdpLength);
        }
        Ok(Self {
            src_port: u16::from_be_bytes([a, b]),
            dst_port: u16::from_be_bytes([c, d]),
            length,
            checksum: u16::from_be_bytes([g, h]),
        })
    }

    /// Writes the header to the start of `out`, returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than [`UdpHeader::LEN`].
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let Self {
            src_port,
            dst_port,
            length,
            checksum,
        } = *self;
        for (field, value) in [src_port, dst_port, length, checksum]
            .into_iter()
            .enumerate()
        {
            out[2 * field..2 * field + 2].copy_from_slice(&value.to_be_bytes());
        }
        Self::LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_the_round_trip() {
        let header = UdpHeader {
            src_port: 1,
            dst_port: 0xfffe,
            length: 8,
            checksum: 0xbeef,
        };
        let mut out = [0; 8];
        assert_eq!(header.emit(&mut out), 8);
        assert_eq!(UdpHeader::parse(&out), Ok(header));
    }

    #[test]
    fn a_length_below_the_header_is_refused() {
        assert_eq!(
            UdpHeader::parse(&[0, 1, 0, 2, 0, 7, 0, 0]),
            Err(ParseError::BadUdpLength)
        );
        assert_eq!(UdpHeader::parse(&[0; 7]), Err(ParseError::Truncated));
    }
}
