//! The chunked coding of a body (RFC 9112 7.1). The sizes lie between the payload: each costs one look at the stream.

/// Most bytes of the line with a chunk's size, and of each trailer field.
const MAX_LINE_BYTES: usize = 4 << 10;
/// Bytes to look at for the next size: 16 digits, the line ends, and a short extension.
pub const PEEK_BYTES: usize = 64;

/// Where in the coding the next byte is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// At the line with the first size.
    #[default]
    FirstSize,
    /// At the line end after a chunk, and the line with the next size.
    NextSize,
    /// In a chunk with this many bytes left.
    Data(u64),
    /// In the trailer, up to its empty line.
    Trailer,
    End,
}

/// A chunked body, from its beginning on.
#[derive(Clone, Debug, Default)]
pub struct Chunks {
    state: State,
    /// Bytes of an incomplete line.
    line: Vec<u8>,
}

impl Chunks {
    /// Returns the payload bytes left in the chunk; 0 if the next bytes belong to the coding.
    #[inline]
    pub fn data_left(&self) -> u64 {
        match self.state {
            State::Data(left) => left,
            _ => 0,
        }
    }

    /// Returns whether the body has come whole.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.state == State::End
    }

    /// Counts payload bytes, at most [`data_left`](Self::data_left).
    #[inline]
    pub fn on_data(&mut self, len: u64) {
        if let State::Data(left) = self.state {
            self.state = match left.saturating_sub(len) {
                0 => State::NextSize,
                left => State::Data(left),
            };
        }
    }

    /// Reads bytes of the coding, and returns how many of `bytes` belong to it. The rest is payload or the next response.
    ///
    /// # Errors
    /// The bytes are not chunked.
    #[inline]
    pub fn on_text(&mut self, bytes: &[u8]) -> Result<usize, &'static str> {
        let before = self.line.len();
        self.line.extend_from_slice(bytes);
        let used = match self.state {
            State::FirstSize => self.size(0)?,
            State::NextSize => match self.line.as_slice() {
                [b'\r', b'\n', ..] => self.size(2)?,
                [b'\n', ..] => self.size(1)?,
                [] | [b'\r'] => None,
                _ => return Err("a chunk is longer than its size"),
            },
            State::Trailer => self.trailer()?,
            State::Data(_) | State::End => Some(before),
        };
        match used {
            Some(used) => {
                self.line.clear();
                Ok(used.saturating_sub(before))
            }
            None if self.line.len() > MAX_LINE_BYTES => Err("the size of a chunk does not end"),
            None => Ok(bytes.len()),
        }
    }

    /// Parses the line with a size, after `skipped` bytes; returns the length of both, or `None` if it is not complete. As the other lines of
    /// the coding, it may end with a line feed alone.
    fn size(&mut self, skipped: usize) -> Result<Option<usize>, &'static str> {
        let text = self.line.get(skipped..).unwrap_or_default();
        let is_digit = |byte: &u8| byte.is_ascii_hexdigit();
        let no_number = "the size of a chunk is not a number";
        // A line without a number is not the end of the body.
        if !text.first().is_none_or(is_digit) {
            return Err(no_number);
        }
        let Some(end) = text.iter().position(|byte| *byte == b'\n') else {
            return Ok(None);
        };
        let line = text[..end].strip_suffix(b"\r").unwrap_or(&text[..end]);
        let digits = line.iter().take_while(|byte| is_digit(byte)).count();
        let (digits, rest) = line.split_at(digits);
        if !matches!(rest.trim_ascii().first(), None | Some(b';')) {
            return Err(no_number);
        }
        let size = std::str::from_utf8(digits)
            .ok()
            .and_then(|digits| u64::from_str_radix(digits, 16).ok());
        self.state = match size.ok_or(no_number)? {
            0 => State::Trailer,
            size => State::Data(size),
        };
        Ok(Some(skipped + end + 1))
    }

    /// Reads one line of the trailer. Its fields are not used.
    fn trailer(&mut self) -> Result<Option<usize>, &'static str> {
        let Some(end) = self.line.iter().position(|byte| *byte == b'\n') else {
            return Ok(None);
        };
        if matches!(&self.line[..end], b"" | b"\r") {
            self.state = State::End;
        }
        Ok(Some(end + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes a body that arrives in pieces of `step` bytes; returns the payload, and what follows the body.
    fn decode(body: &[u8], step: usize) -> Result<(Vec<u8>, usize), &'static str> {
        let (mut chunks, mut payload, mut at) = (Chunks::default(), Vec::new(), 0);
        while at < body.len() && !chunks.is_over() {
            let seen = &body[at..body.len().min(at + step)];
            at += match chunks.data_left() {
                0 => chunks.on_text(seen)?,
                left => {
                    let len = seen.len().min(left as usize);
                    payload.extend_from_slice(&seen[..len]);
                    chunks.on_data(len as u64);
                    len
                }
            };
        }
        if !chunks.is_over() {
            return Err("incomplete");
        }
        Ok((payload, body.len() - at))
    }

    #[test]
    fn a_body_is_decoded_however_it_is_cut() {
        let body = b"5\r\nhello\r\nA;name=value\r\n, chunks!!\r\n0\r\nTrailer: x\r\n\r\nHTTP/1.1";
        for step in 1..body.len() {
            let (payload, rest) = decode(body, step).unwrap();
            assert_eq!(payload, b"hello, chunks!!", "{step}");
            assert_eq!(rest, 8, "{step}: the next response stays");
        }
    }

    #[test]
    fn lines_are_read_as_sloppy_servers_write_them() {
        for body in [
            &b"5\nhello\n0\n\n"[..],
            b"5   \r\nhello\r\n0 \r\nX: y\n\r\n",
            b"00000000000000000005 ; a=b\r\nhello\n000\r\n\n",
        ] {
            for step in 1..=body.len() {
                let decoded = decode(body, step);
                assert_eq!(decoded, Ok((b"hello".to_vec(), 0)), "{body:?} {step}");
            }
        }
    }

    #[test]
    fn a_line_without_a_number_is_not_the_end_of_a_body() {
        for body in [
            &b"5\r\nhello\r\n\r\n\r\n"[..],
            b"5\r\nhello\r\n \r\n\r\n",
            b"5\r\nhello\r\n;x\r\n\r\n",
            b"\r\n\r\n",
        ] {
            let refused = decode(body, 64).unwrap_err();
            assert_eq!(refused, "the size of a chunk is not a number", "{body:?}");
        }
    }

    #[test]
    fn bodies_that_are_not_chunked_are_refused() {
        for body in [
            &b"hello"[..],
            b"5 5\r\nhello\r\n0\r\n\r\n",
            b"5\r\nhello\rx0\r\n\r\n",
            b"5\r\nhello!\r\n0\r\n\r\n",
            b"-5\r\nhello",
            b"11111111111111111\r\n",
            b"5\r\nhel",
            b"0\r\n",
        ] {
            assert!(decode(body, 64).is_err(), "{body:?}");
        }
        let endless = [&b"5;"[..], &[b'x'; MAX_LINE_BYTES]].concat();
        assert!(decode(&endless, 64).is_err());
    }
}
