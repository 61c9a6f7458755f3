//! Base64 (RFC 4648 4), for the credentials of a request and the checksums of a response.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes bytes, with padding.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for index in 0..4 {
            match index <= group.len() {
                true => text.push(char::from(
                    ALPHABET[(bits >> (18 - 6 * index) & 63) as usize],
                )),
                false => text.push('='),
            }
        }
    }
    text
}

/// Decodes exactly `len` bytes, as of a checksum, with padding.
pub(crate) fn decode(text: &str, len: usize) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    let has_length = digits.len() == (len * 4).div_ceil(3) && text.len() == len.div_ceil(3) * 4;
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for digit in digits.bytes().filter(|_| has_length) {
        let value = ALPHABET.iter().position(|letter| *letter == digit)?;
        bits = bits << 6 & 0xffff | value as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    // What is left of the bits is no part of the bytes.
    has_length.then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_bytes_as_are_expected_are_decoded_and_no_others() {
        let bytes: Vec<u8> = (0..40_u8).map(|at| at.wrapping_mul(37)).collect();
        for len in 0..bytes.len() {
            let text = encode(&bytes[..len]);
            assert_eq!(decode(&text, len).as_deref(), Some(&bytes[..len]), "{text}");
            assert_eq!(decode(&text, len + 1), None, "{text}");
        }
        for text in [
            "",
            "AAAA",
            "AAAAAA=",
            "AAAA?A==",
            "AAAAAAA==",
            "AAAAAA==-3",
            "\u{e9}AAAA==",
        ] {
            assert_eq!(decode(text, 4), None, "{text}");
        }
    }

    /// RFC 4648 10.
    #[test]
    fn the_examples_of_the_rfc_are_encoded() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(bytes.as_bytes()), text);
        }
    }
}
