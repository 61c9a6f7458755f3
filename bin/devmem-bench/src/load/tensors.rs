//! The head of the served file, which makes it a checkpoint in the safetensors format: 500 tensors of mixed sizes.

use std::fmt::Write as _;

/// Bytes of the head: the length of the header, the header, and spaces.
pub const HEAD_BYTES: u64 = 64 << 10;
/// Bytes of the length before the header.
const LENGTH_BYTES: u64 = 8;
/// Number of tensors.
const COUNT: u64 = 500;
/// Relative sizes of tensors that follow each other. As in a language model, most are small (biases, norms), and most bytes
/// are in a few large ones (projections, embeddings).
const WEIGHTS: [u64; 10] = [1, 1, 256, 1, 1024, 16, 1, 4096, 16, 2048];

/// Returns the head of a file of `file_bytes` bytes.
pub fn head(file_bytes: u64) -> Vec<u8> {
    let header_bytes = HEAD_BYTES - LENGTH_BYTES;
    let mut bytes = header_bytes.to_le_bytes().to_vec();
    bytes.extend(header(file_bytes.saturating_sub(HEAD_BYTES)).into_bytes());
    // The format allows spaces at the end of the header.
    let len = usize::try_from(HEAD_BYTES).expect("64 KiB");
    assert!(bytes.len() <= len, "the header of 500 tensors fits");
    bytes.resize(len, b' ');
    bytes
}

/// Returns the header for tensors that fill `data_bytes` bytes.
fn header(data_bytes: u64) -> String {
    let weight = |index: u64| WEIGHTS[(index % WEIGHTS.len() as u64) as usize];
    let unit = data_bytes / (0..COUNT).map(weight).sum::<u64>();
    let (mut text, mut start) = ("{".to_owned(), 0);
    for index in 0..COUNT {
        let end = match index + 1 {
            COUNT => data_bytes,
            // Elements have 2 bytes, so few tensors start at a multiple of a cache line.
            _ => start + (unit * weight(index)) / 2 * 2,
        };
        let (separator, len) = (if index == 0 { "" } else { "," }, end - start);
        write!(
            text,
            r#"{separator}"{index}":{{"dtype":"U8","shape":[{len}],"data_offsets":[{start},{end}]}}"#
        )
        .expect("writing to a string does not fail");
        start = end;
    }
    text + "}"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_hundred_tensors_fill_the_file() {
        for file_bytes in [64 << 20, (1 << 30) + 4096, 16 << 30] {
            let head = head(file_bytes);
            assert_eq!(head.len() as u64, HEAD_BYTES);
            let header: serde_json::Value = serde_json::from_slice(&head[8..]).unwrap();
            let tensors = header.as_object().unwrap();
            assert_eq!(tensors.len(), 500);
            let last = &tensors["499"]["data_offsets"][1];
            assert_eq!(last.as_u64(), Some(file_bytes - HEAD_BYTES));
            let first = tensors["0"]["shape"][0].as_u64().unwrap();
            assert!(first > 0 && first < 100_000, "{first}");
        }
    }
}
