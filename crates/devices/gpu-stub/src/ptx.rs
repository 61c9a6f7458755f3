//! An interpreter of the PTX that this project gives to GPUs ("Parallel Thread Execution ISA"): one function, parameters of 8 bytes, and
//! the instructions below. A text with any other one is refused, so that nothing else gets into the code unseen.

mod parse;

/// An address that the function must not access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// How many threads run: in one dimension.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// At least one.
    pub blocks: u32,
    /// Of each block.
    pub threads: u32,
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
pub enum Width {
    /// One.
    Byte,
    /// Four.
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
pub struct Program {
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
    ///
    /// # Errors
    ///
    /// The first fault of `access`, or of an address that is not aligned.
    pub fn run(
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
