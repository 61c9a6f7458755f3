//! An interpreter of the PTX that this project gives to GPUs ("Parallel Thread Execution ISA"): one function, parameters of 8 bytes, and
//! the instructions below. A text with any other one is refused, so that nothing else gets into the code unseen.

mod parse;

/// An address that the function must not access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault;

/// How many threads run: in one dimension.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) blocks: u32,
    /// Of each block.
    pub(crate) threads: u32,
}

/// Number of a register.
type Reg = usize;

/// An operand that may be a constant.
#[derive(Clone, Copy, Debug)]
enum Operand {
    Register(Reg),
    Constant(u64),
}

/// A register, and what is added to it.
#[derive(Clone, Copy, Debug)]
struct Address {
    base: Reg,
    offset: u64,
}

/// Bytes of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    Byte,
    Word,
}

/// An instruction: where the result goes, then the operands.
#[derive(Clone, Debug)]
enum Op {
    /// ld.param.u64: the parameter of a number.
    Param(Reg, usize),
    /// mov.u32 of a special register.
    Special(Reg, Special),
    /// A calculation with one operand.
    Unary(Unary, Reg, Operand),
    /// A calculation with two operands.
    Binary(Binary, Reg, Reg, Operand),
    /// bra to an instruction, if the register is set or there is none.
    Branch(Option<Reg>, usize),
    /// ld.global of words, adjacent ones with .v4: registers, address.
    Load(Vec<Reg>, Address),
    /// ld.global.u64.
    LoadLong(Reg, Address),
    /// ld.global.u8.
    LoadByte(Reg, Address),
    /// st.global of words, adjacent ones with .v4: address, values.
    Store(Address, Vec<Reg>),
    /// st.global.u8.
    StoreByte(Address, Reg),
    /// ret.
    Return,
}

#[derive(Clone, Copy, Debug)]
enum Special {
    Block,
    Blocks,
    Thread,
    Threads,
}

#[derive(Clone, Copy, Debug)]
enum Unary {
    /// cvta.to.global.u64, cvt.u64.u32, mov.u32, and mov.u64: global addresses are as they are, registers keep u32 as u64.
    Same,
    /// brev.b32.
    Reverse,
    /// not.b32.
    Not,
}

#[derive(Clone, Copy, Debug)]
enum Binary {
    /// mul.wide.u32.
    MulWide,
    /// mul.lo.u64.
    MulLow,
    /// add.u64.
    Add,
    /// sub.u32.
    Sub,
    /// sub.u64.
    SubLong,
    /// shl.b64.
    Shl,
    /// shl.b32.
    ShlWord,
    /// shr.s32.
    ShrSigned,
    /// shr.u64.
    Shr,
    /// and.b32.
    And,
    /// and.b64.
    AndLong,
    /// or.b64.
    OrLong,
    /// xor.b32.
    Xor,
    /// setp.ge.u64.
    GreaterOrEqual,
    /// setp.ne.u64, and setp.ne.u32.
    NotEqual,
    /// add.rn.f32.
    AddFloats,
}

/// A function.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    entry: String,
    parameters: Vec<String>,
    /// How many registers it has.
    registers: usize,
    code: Vec<Op>,
}

impl Program {
    /// The name of the function.
    pub(crate) fn entry(&self) -> &str {
        &self.entry
    }

    /// How many parameters it has.
    pub(crate) fn parameters(&self) -> usize {
        self.parameters.len()
    }

    /// Runs all threads, one after another. `access` reads a byte or a word of 4 bytes, or writes one.
    pub(crate) fn run(
        &self,
        grid: Grid,
        arguments: &[u64],
        access: impl Fn(u64, Width, Option<u32>) -> Result<u32, Fault>,
    ) -> Result<(), Fault> {
        for block in 0..grid.blocks {
            for thread in 0..grid.threads {
                self.thread((block, thread), grid, arguments, &access)?;
            }
        }
        Ok(())
    }

    fn thread(
        &self,
        (block, thread): (u32, u32),
        grid: Grid,
        arguments: &[u64],
        access: impl Fn(u64, Width, Option<u32>) -> Result<u32, Fault>,
    ) -> Result<(), Fault> {
        let mut regs = vec![0_u64; self.registers];
        let mut at = 0;
        while let Some(op) = self.code.get(at) {
            at += 1;
            match *op {
                Op::Param(to, number) => regs[to] = arguments[number],
                Op::Special(to, of) => {
                    regs[to] = u64::from(match of {
                        Special::Block => block,
                        Special::Blocks => grid.blocks,
                        Special::Thread => thread,
                        Special::Threads => grid.threads,
                    });
                }
                Op::Unary(kind, to, of) => regs[to] = kind.of(of.value(&regs)),
                Op::Binary(kind, to, a, b) => regs[to] = kind.of(regs[a], b.value(&regs)),
                Op::Branch(guard, to) => {
                    if guard.is_none_or(|guard| regs[guard] != 0) {
                        at = to;
                    }
                }
                Op::Load(ref to, from) => {
                    for (address, to) in from.words(&regs, to.len())?.zip(to) {
                        regs[*to] = access(address, Width::Word, None)?.into();
                    }
                }
                Op::LoadLong(to, from) => {
                    let mut words = from.words(&regs, 2)?;
                    let mut word = || access(words.next().ok_or(Fault)?, Width::Word, None);
                    regs[to] = u64::from(word()?) | u64::from(word()?) << 32;
                }
                Op::LoadByte(to, from) => {
                    regs[to] = access(from.value(&regs), Width::Byte, None)?.into();
                }
                Op::Store(to, ref from) => {
                    for (address, from) in to.words(&regs, from.len())?.zip(from) {
                        access(address, Width::Word, Some(regs[*from] as u32))?;
                    }
                }
                Op::StoreByte(to, from) => {
                    access(to.value(&regs), Width::Byte, Some(regs[from] as u8 as u32))?;
                }
                Op::Return => break,
            }
        }
        Ok(())
    }
}

impl Address {
    fn value(self, regs: &[u64]) -> u64 {
        regs[self.base].wrapping_add(self.offset)
    }

    /// Returns the addresses of adjacent words: an access is aligned to its whole size.
    fn words(self, regs: &[u64], count: usize) -> Result<impl Iterator<Item = u64> + use<>, Fault> {
        let first = self.value(regs);
        match first.is_multiple_of(4 * count as u64) {
            true => Ok((first..).step_by(4).take(count)),
            false => Err(Fault),
        }
    }
}

impl Operand {
    fn value(self, regs: &[u64]) -> u64 {
        match self {
            Self::Register(reg) => regs[reg],
            Self::Constant(value) => value,
        }
    }
}

impl Unary {
    fn of(self, value: u64) -> u64 {
        match self {
            Self::Same => value,
            Self::Reverse => (value as u32).reverse_bits().into(),
            Self::Not => (!(value as u32)).into(),
        }
    }
}

impl Binary {
    fn of(self, a: u64, b: u64) -> u64 {
        // What instructions for words see of their operands.
        let (word, other) = (a as u32, b as u32);
        match self {
            // Both fit into 32 bits.
            Self::MulWide => a * b,
            Self::MulLow => a.wrapping_mul(b),
            Self::Add => a.wrapping_add(b),
            Self::SubLong => a.wrapping_sub(b),
            Self::Shr => a.checked_shr(other).unwrap_or(0),
            Self::AndLong => a & b,
            Self::OrLong => a | b,
            Self::Sub => word.wrapping_sub(other).into(),
            Self::Shl => a.checked_shl(other).unwrap_or(0),
            Self::ShlWord => word.checked_shl(other).unwrap_or(0).into(),
            // A longer shift leaves 32 copies of the sign.
            Self::ShrSigned => (word.cast_signed() >> other.min(31)).cast_unsigned().into(),
            Self::And => (word & other).into(),
            Self::Xor => (word ^ other).into(),
            Self::GreaterOrEqual => (a >= b).into(),
            Self::NotEqual => (a != b).into(),
            Self::AddFloats => {
                let sum = f32::from_bits(word) + f32::from_bits(other);
                sum.to_bits().into()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CRC32C: &str = include_str!("../../cuda/src/crc32c.ptx");
    const COPY: &str = include_str!("../../cuda/src/copy.ptx");

    #[test]
    fn the_texts_for_gpus_are_understood_and_no_other_instruction() {
        assert!(Program::parse(include_str!("../../cuda/src/add.ptx")).is_some());
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
            let read = |memory: &[u8], start: usize| {
                memory.get(start..start + len).map(number).ok_or(Fault)
            };
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
}
