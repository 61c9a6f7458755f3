//! The interpreter of device code, alone.

use devmem_gpu_stub::ptx::{Fault, Grid, Program, Width};

const CRC32C: &str = include_str!("../../../cuda/src/crc32c.ptx");
const COPY: &str = include_str!("../../../cuda/src/copy.ptx");

#[test]
fn the_texts_for_gpus_are_understood_and_no_other_instruction() {
    assert!(Program::parse(include_str!("../../../cuda/src/add.ptx")).is_some());
    assert!(Program::parse(CRC32C).is_some());
    assert!(Program::parse(COPY).is_some());
    for (known, other) in [
        ("xor.b32", "or.b32"),
        ("shr.s32", "shr.u32"),
        ("ld.global.v4", "ld.global.v2"),
        ("sm_50", "sm_90"),
        ("bra CHUNK", "bra NOWHERE"),
        ("32;", "-1;"),
        ("%rd9", "%rd10"),
    ] {
        assert!(CRC32C.contains(known), "{known}");
        let text = CRC32C.replace(known, other);
        assert!(Program::parse(&text).is_none(), "{other}");
    }
}

/// Runs the program on 32 bytes of zeros; returns their checksum.
fn sum_of_zeros(text: &str, chunks: u64) -> Result<u32, Fault> {
    let program = Program::parse(text).expect("it is understood");
    let grid = Grid {
        blocks: 1,
        threads: 1,
    };
    let sum = std::cell::Cell::new(0);
    program.run(grid, &[0x100, chunks, 32, 1], |address, _width, written| {
        match (address, written) {
            (0x100, Some(value)) => sum.set(value),
            (0x200..0x220, None) => {}
            _ => return Err(Fault),
        }
        Ok(0)
    })?;
    Ok(sum.get())
}

#[test]
fn a_wrong_bit_of_the_polynomial_is_another_checksum() {
    // RFC 3720 B.4.
    let right = sum_of_zeros(CRC32C, 0x200).expect("inside");
    assert_eq!(right, 0x8a91_36aa);
    for bit in 0..32 {
        let wrong = format!("{:#x}", 0x1edc_6f41 ^ 1 << bit);
        let text = CRC32C.replace("0x1edc6f41;", &format!("{wrong};"));
        assert_ne!(sum_of_zeros(&text, 0x200), Ok(right), "{wrong}");
    }
}

#[test]
fn words_that_are_not_aligned_as_a_whole_are_a_fault() {
    assert_eq!(sum_of_zeros(CRC32C, 0x204), Err(Fault));
}

/// Runs the code that copies, with a list at 0x1000, a source of `bytes` at 0x2000 and a destination of 8 bytes at 0x3000, which is returned.
fn copied(list: &[[u64; 2]], bytes: &[u8]) -> Result<Vec<u8>, Fault> {
    let program = Program::parse(COPY).expect("it is understood");
    let words: Vec<u8> = list
        .as_flattened()
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    let to = std::cell::RefCell::new(vec![0; 8]);
    let grid = Grid {
        blocks: 1,
        threads: 64,
    };
    let arguments = [
        0x1000,
        list.len() as u64,
        0x2000,
        bytes.len() as u64,
        0x3000,
        8,
    ];
    program.run(grid, &arguments, |address, width, written| {
        let len = if width == Width::Byte { 1 } else { 4 };
        let number = |bytes: &[u8]| {
            bytes
                .iter()
                .rev()
                .fold(0, |number, byte| number << 8 | u32::from(*byte))
        };
        let read =
            |memory: &[u8], start: usize| memory.get(start..start + len).map(number).ok_or(Fault);
        match (address as usize, written) {
            (at @ 0x1000..0x2000, None) => read(&words, at - 0x1000),
            (at @ 0x2000..0x3000, None) => read(bytes, at - 0x2000),
            (at @ 0x3000..0x4000, Some(value)) => {
                let mut to = to.borrow_mut();
                let place = to.get_mut(at - 0x3000..at - 0x3000 + len).ok_or(Fault)?;
                place.copy_from_slice(&value.to_le_bytes()[..len]);
                Ok(0)
            }
            _ => Err(Fault),
        }
    })?;
    Ok(to.into_inner())
}

#[test]
fn a_piece_that_is_not_inside_of_both_memories_is_left_out() {
    let piece = |from: u64, to: u64, len: u64| [from | (len - 1) << 48, to];
    let bytes = b"0123456789";
    let right = [piece(9, 0, 1), piece(0, 1, 3), piece(4, 4, 4)];
    assert_eq!(copied(&right, bytes).expect("inside"), b"90124567");
    let last = (1 << 48) - 1;
    for outside in [
        piece(9, 0, 2),
        piece(10, 0, 1),
        piece(0, 7, 2),
        piece(0, 8, 1),
        piece(0, 0, 65_536),
        piece(last, 0, 1),
        piece(0, last, 1),
        piece(0, u64::MAX, 2),
    ] {
        let list = [outside, piece(1, 6, 2), outside];
        assert_eq!(
            copied(&list, bytes),
            Ok(b"\0\0\0\0\0\x0012".to_vec()),
            "{outside:x?}"
        );
    }
}
