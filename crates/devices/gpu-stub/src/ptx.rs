//! An interpreter of the PTX that this project gives to GPUs ("Parallel Thread Execution ISA"): one function, parameters of 8 bytes, and
//! the instructions below. A text with any other one is refused, so that nothing else gets into the code unseen.

use std::collections::HashMap;

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

/// An instruction.
#[derive(Clone, Debug)]
enum Op {
    /// ld.param.u64: the parameter of a number.
    Param(Reg, usize),
    /// mov.u32 of a special register.
    Special(Reg, Special),
    /// cvta.to.global.u64, and cvt.u64.u32: global addresses are as they are, registers keep u32 as u64.
    Same(Reg, Reg),
    /// mul.wide.u32.
    MulWide(Reg, Reg, Reg),
    /// add.u64.
    Add(Reg, Reg, Reg),
    /// shl.b64 by a constant.
    Shl(Reg, Reg, u32),
    /// setp.ge.u64.
    Ge(Reg, Reg, Reg),
    /// bra, if the register is set or there is none.
    Branch(Option<Reg>, String),
    /// ld.global.f32.
    Load(Reg, Reg),
    /// st.global.f32: address, value.
    Store(Reg, Reg),
    /// add.rn.f32.
    AddFloats(Reg, Reg, Reg),
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

/// A function.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    entry: String,
    parameters: Vec<String>,
    registers: HashMap<String, Reg>,
    code: Vec<Op>,
    labels: HashMap<String, usize>,
}

impl Program {
    /// Reads a text; `None` if something is not understood.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let lines = text
            .lines()
            .map(|line| line.split("//").next().unwrap_or_default());
        let text = lines.collect::<Vec<_>>().join(" ");
        let (head, body) = text.split_once('{')?;
        let body = body.trim().strip_suffix('}')?;
        let words: Vec<_> = head.split_whitespace().take(6).collect();
        let [".version", "6.0", ".target", "sm_50", ".address_size", "64"] = words[..] else {
            return None;
        };
        let (_, head) = head.split_once(".visible .entry ")?;
        let (entry, parameters) = head.trim().strip_suffix(')')?.split_once('(')?;
        let parameters = parameters.split(',');
        let parameters =
            parameters.map(|it| Some(it.trim().strip_prefix(".param .u64 ")?.to_owned()));
        let mut program = Self {
            entry: entry.to_owned(),
            parameters: parameters.collect::<Option<_>>()?,
            registers: HashMap::new(),
            code: Vec::new(),
            labels: HashMap::new(),
        };
        let (statements, rest) = body.rsplit_once(';')?;
        for statement in statements.split(';') {
            program.statement(statement.trim())?;
        }
        let is_target = |op: &Op| match op {
            Op::Branch(_, label) => program.labels.contains_key(label),
            _ => true,
        };
        let ends = matches!(program.code.last(), Some(Op::Return | Op::Branch(None, _)));
        (rest.trim().is_empty() && ends && program.code.iter().all(is_target)).then_some(program)
    }

    /// The name of the function.
    pub(crate) fn entry(&self) -> &str {
        &self.entry
    }

    /// How many parameters it has.
    pub(crate) fn parameters(&self) -> usize {
        self.parameters.len()
    }

    fn statement(&mut self, text: &str) -> Option<()> {
        if let Some((label, text)) = text.split_once(':') {
            self.labels.insert(label.trim().to_owned(), self.code.len());
            return self.statement(text.trim());
        }
        let (name, operands) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let operands: Vec<&str> = operands.split(',').map(str::trim).collect();
        let op = match (name, &operands[..]) {
            (".reg", [declared]) => return self.declare(declared),
            ("ld.param.u64", [to, from]) => {
                let name = bracketed(from)?;
                let number = self.parameters.iter().position(|it| it == name)?;
                Op::Param(self.reg(to)?, number)
            }
            ("mov.u32", [to, from]) => Op::Special(self.reg(to)?, special(from)?),
            ("cvta.to.global.u64" | "cvt.u64.u32", [to, from]) => {
                Op::Same(self.reg(to)?, self.reg(from)?)
            }
            ("mul.wide.u32", [to, a, b]) => Op::MulWide(self.reg(to)?, self.reg(a)?, self.reg(b)?),
            ("add.u64", [to, a, b]) => Op::Add(self.reg(to)?, self.reg(a)?, self.reg(b)?),
            ("shl.b64", [to, a, by]) => Op::Shl(self.reg(to)?, self.reg(a)?, by.parse().ok()?),
            ("setp.ge.u64", [to, a, b]) => Op::Ge(self.reg(to)?, self.reg(a)?, self.reg(b)?),
            ("bra", [to]) => Op::Branch(None, (*to).to_owned()),
            (guard, [branch]) if guard.starts_with('@') => {
                let to = branch.strip_prefix("bra ")?.trim();
                Op::Branch(Some(self.reg(&guard[1..])?), to.to_owned())
            }
            ("ld.global.f32", [to, from]) => Op::Load(self.reg(to)?, self.reg(bracketed(from)?)?),
            ("st.global.f32", [to, from]) => Op::Store(self.reg(bracketed(to)?)?, self.reg(from)?),
            ("add.rn.f32", [to, a, b]) => Op::AddFloats(self.reg(to)?, self.reg(a)?, self.reg(b)?),
            ("ret", [""]) => Op::Return,
            _ => return None,
        };
        self.code.push(op);
        Some(())
    }

    /// `.reg .b64 %rd<10>` declares %rd0 to %rd9.
    fn declare(&mut self, declared: &str) -> Option<()> {
        let (kind, names) = declared.split_once(' ')?;
        let (prefix, count) = names.trim().strip_suffix('>')?.split_once('<')?;
        let count: usize = count.parse().ok()?;
        let is_known = [".pred", ".b32", ".b64", ".f32"].contains(&kind);
        for number in 0..count {
            let next = self.registers.len();
            self.registers.insert(format!("{prefix}{number}"), next);
        }
        is_known.then_some(())
    }

    fn reg(&self, name: &str) -> Option<Reg> {
        self.registers.get(name).copied()
    }

    /// Runs all threads, one after another. `access` reads a word of 4 bytes, or writes one.
    pub(crate) fn run(
        &self,
        grid: Grid,
        arguments: &[u64],
        access: impl Fn(u64, Option<u32>) -> Result<u32, Fault>,
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
        access: impl Fn(u64, Option<u32>) -> Result<u32, Fault>,
    ) -> Result<(), Fault> {
        let mut regs = vec![0_u64; self.registers.len()];
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
                Op::Same(to, from) => regs[to] = regs[from],
                // Both fit into 32 bits.
                Op::MulWide(to, a, b) => regs[to] = regs[a] * regs[b],
                Op::Add(to, a, b) => regs[to] = regs[a].wrapping_add(regs[b]),
                Op::Shl(to, a, by) => regs[to] = regs[a].checked_shl(by).unwrap_or(0),
                Op::Ge(to, a, b) => regs[to] = u64::from(regs[a] >= regs[b]),
                Op::Branch(guard, ref label) => {
                    if guard.is_none_or(|guard| regs[guard] != 0) {
                        at = self.labels[label];
                    }
                }
                Op::Load(to, address) => regs[to] = access(regs[address], None)?.into(),
                Op::Store(address, from) => {
                    access(regs[address], Some(regs[from] as u32))?;
                }
                Op::AddFloats(to, a, b) => {
                    let float = |reg: Reg| f32::from_bits(regs[reg] as u32);
                    regs[to] = (float(a) + float(b)).to_bits().into();
                }
                Op::Return => break,
            }
        }
        Ok(())
    }
}

fn bracketed(text: &str) -> Option<&str> {
    text.strip_prefix('[')?.strip_suffix(']')
}

fn special(name: &str) -> Option<Special> {
    Some(match name {
        "%ctaid.x" => Special::Block,
        "%nctaid.x" => Special::Blocks,
        "%tid.x" => Special::Thread,
        "%ntid.x" => Special::Threads,
        _ => return None,
    })
}
