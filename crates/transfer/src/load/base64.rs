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

/// Decodes exactly 4 bytes, as of a 32-bit checksum, with padding.
pub(crate) fn decode_four(text: &str) -> Option<[u8; 4]> {
    let digits = text.strip_suffix("==").filter(|digits| digits.len() == 6)?;
    let mut bits: u64 = 0;
    for digit in digits.bytes() {
        let value = ALPHABET.iter().position(|letter| *letter == digit)?;
        bits = bits << 6 | value as u64;
    }
    // 36 bits, of which the last 4 are no part of the bytes.
    let [_, _, _, _, bytes @ ..] = (bits >> 4).to_be_bytes();
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_bytes_are_decoded_and_nothing_else_is() {
        for bytes in [[0; 4], [255; 4], [0x12, 0x34, 0xab, 0xcd]] {
            assert_eq!(decode_four(&encode(&bytes)), Some(bytes));
        }
        for text in [
            "",
            "AAAA",
            "AAAAAA=",
            "AAAA?A==",
            "AAAAAAA==",
            "\u{e9}AAAA==",
        ] {
            assert_eq!(decode_four(text), None, "{text}");
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
