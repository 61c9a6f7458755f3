//! The control connection of an agent of NIXL: records of a peer that lies.
//!
//! Input: records in short form (8 bytes: kind, then seven numbers for its fields; the ranges and bytes that follow the record are made up), or
//! any bytes (a byte 0x80 or more, then 32 bytes as they are on the connection).

use plugin_DEVMEM::scene::{BYTES, KEY, Scene};

/// Maximum number of records.
const MAX_RECORDS: usize = 64;
/// Turns of the agent after the last record.
const TURNS: usize = 20;

/// Numbers that fields have: small ones, those around the borders, and absurd ones.
const NUMBERS: [u64; 16] = [
    0,
    1,
    2,
    KEY,
    20,
    100,
    BYTES as u64 / 4 - 1,
    BYTES as u64 / 4,
    BYTES as u64 / 4 + 1,
    8192,
    8193,
    1 << 20,
    1 << 32,
    i64::MAX as u64,
    u64::MAX - 1,
    u64::MAX,
];

/// Checks that no record makes an agent write outside of what it registered, or panic.
pub fn run(mut data: &[u8]) {
    let mut scene = Scene::default();
    for _ in 0..MAX_RECORDS {
        if let [0x80..=0xff, rest @ ..] = data {
            let Some((raw, rest)) = rest.split_first_chunk::<32>() else {
                break;
            };
            scene.say(raw, &[1; 3000]);
            data = rest;
        } else {
            let Some((short, rest)) = data.split_first_chunk() else {
                break;
            };
            scene.say(&record(*short), &[1; 3000]);
            data = rest;
        }
        scene.turn();
    }
    for _ in 0..TURNS {
        scene.say(&[], &[1; 3000]);
        scene.turn();
    }
    scene.check();
}

/// Returns a record with what follows it.
fn record([kind, fields @ ..]: [u8; 8]) -> Vec<u8> {
    let number = |at: usize| NUMBERS[usize::from(fields[at]) % NUMBERS.len()];
    let kind = u16::from(kind % 12);
    let stream = match fields[0] {
        // The peer's memory.
        0x80.. => u16::MAX,
        number => u16::from(number % 4),
    };
    let entries = u32::from(fields[1] % 5);
    let bytes = number(2);
    let tail = match kind {
        4 | 7 => u32::from(fields[3]),
        _ => 0,
    };
    let mut out = Vec::new();
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&stream.to_le_bytes());
    out.extend_from_slice(&entries.to_le_bytes());
    out.extend_from_slice(&u64::from(fields[4] % 3).to_le_bytes());
    out.extend_from_slice(&bytes.to_le_bytes());
    out.extend_from_slice(&tail.to_le_bytes());
    out.extend_from_slice(b"dvmX");
    if [5, 6].contains(&kind) {
        for _ in 0..entries {
            // Mostly the key that there is; ranges that add up if there is one.
            let key = if fields[5] < 200 { KEY } else { number(5) };
            let len = if fields[6] < 128 {
                bytes / u64::from(entries)
            } else {
                number(6)
            };
            for field in [key, number(3), len] {
                out.extend_from_slice(&field.to_le_bytes());
            }
        }
        if kind == 5 && stream == u16::MAX {
            out.resize(out.len() + 8 * entries as usize, fields[2]);
        }
        if kind == 5 && stream == 0 {
            out.resize(out.len() + bytes.min(8192) as usize, 1);
        }
    }
    out.resize(out.len() + tail as usize, 1);
    out
}
