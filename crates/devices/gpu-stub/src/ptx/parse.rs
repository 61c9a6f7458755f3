//! Reading PTX.

use std::collections::HashMap;

use super::{Address, Binary, Op, Operand, Program, Reg, Special, Unary};

/// What was read of a function.
#[derive(Default)]
struct Parser {
    parameters: Vec<String>,
    registers: HashMap<String, Reg>,
    code: Vec<Op>,
    labels: HashMap<String, usize>,
    /// Branches, whose instruction is set when all labels are known.
    branches: Vec<(usize, String)>,
}

impl Program {
    /// Reads a text; `None` if something is not understood.
    pub fn parse(text: &str) -> Option<Self> {
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
        let mut parser = Parser {
            parameters: parameters.collect::<Option<_>>()?,
            ..Parser::default()
        };
        let (statements, rest) = body.rsplit_once(';')?;
        for statement in statements.split(';') {
            parser.statement(statement.trim())?;
        }
        let ends = matches!(parser.code.last(), Some(Op::Return | Op::Branch(None, _)));
        let code = parser.resolved()?;
        (rest.trim().is_empty() && ends).then_some(Self {
            entry: entry.to_owned(),
            parameters: parser.parameters,
            registers: parser.registers.len(),
            code,
        })
    }
}

impl Parser {
    /// Returns the code with the instructions that branches lead to.
    fn resolved(&mut self) -> Option<Vec<Op>> {
        for (at, label) in &self.branches {
            if let Op::Branch(_, to) = &mut self.code[*at] {
                *to = *self.labels.get(label)?;
            }
        }
        Some(std::mem::take(&mut self.code))
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
            ("mov.u32", [to, from]) if special(from).is_some() => {
                Op::Special(self.reg(to)?, special(from)?)
            }
            ("bra", [to]) => self.branch(None, to),
            (guard, [branch]) if guard.starts_with('@') => {
                let guard = self.reg(&guard[1..])?;
                self.branch(Some(guard), branch.strip_prefix("bra ")?)
            }
            ("ld.global.f32" | "ld.global.u32", [to, from]) => {
                Op::Load(vec![self.reg(to)?], self.address(from)?)
            }
            ("ld.global.v4.u32", [words @ .., from]) => {
                Op::Load(self.four(words)?, self.address(from)?)
            }
            ("ld.global.u64", [to, from]) => Op::LoadLong(self.reg(to)?, self.address(from)?),
            ("ld.global.u8", [to, from]) => Op::LoadByte(self.reg(to)?, self.address(from)?),
            ("st.global.f32" | "st.global.u32", [to, from]) => {
                Op::Store(self.address(to)?, vec![self.reg(from)?])
            }
            ("st.global.v4.u32", [to, words @ ..]) => {
                Op::Store(self.address(to)?, self.four(words)?)
            }
            ("st.global.u8", [to, from]) => Op::StoreByte(self.address(to)?, self.reg(from)?),
            ("ret", [""]) => Op::Return,
            (name, [to, of]) => Op::Unary(unary(name)?, self.reg(to)?, self.operand(of)?),
            (name, [to, a, b]) => {
                let (to, a, b) = (self.reg(to)?, self.reg(a)?, self.operand(b)?);
                Op::Binary(binary(name)?, to, a, b)
            }
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

    fn branch(&mut self, guard: Option<Reg>, label: &str) -> Op {
        self.branches
            .push((self.code.len(), label.trim().to_owned()));
        Op::Branch(guard, 0)
    }

    /// Reads `[%rd1]`, or `[%rd1+8]`.
    fn address(&self, text: &str) -> Option<Address> {
        let text = bracketed(text)?;
        let (base, offset) = text.split_once('+').unwrap_or((text, "0"));
        Some(Address {
            base: self.reg(base)?,
            offset: offset.parse().ok()?,
        })
    }

    /// Reads `{%r1, %r2, %r3, %r4}`, which was split at the commas.
    fn four(&self, words: &[&str]) -> Option<Vec<Reg>> {
        let [first, second, third, last] = words else {
            return None;
        };
        let (first, last) = (first.strip_prefix('{')?, last.strip_suffix('}')?);
        let names = [first, second, third, last];
        names.into_iter().map(|name| self.reg(name)).collect()
    }

    fn reg(&self, name: &str) -> Option<Reg> {
        self.registers.get(name).copied()
    }

    /// Reads a register, or a constant.
    fn operand(&self, text: &str) -> Option<Operand> {
        if let Some(reg) = self.reg(text) {
            return Some(Operand::Register(reg));
        }
        let value = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        };
        value.ok().map(Operand::Constant)
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

fn unary(name: &str) -> Option<Unary> {
    Some(match name {
        "cvta.to.global.u64" | "cvt.u64.u32" | "mov.u32" | "mov.u64" => Unary::Same,
        "brev.b32" => Unary::Reverse,
        "not.b32" => Unary::Not,
        _ => return None,
    })
}

fn binary(name: &str) -> Option<Binary> {
    Some(match name {
        "mul.wide.u32" => Binary::MulWide,
        "mul.lo.u64" => Binary::MulLow,
        "add.u64" => Binary::Add,
        "sub.u32" => Binary::Sub,
        "sub.u64" => Binary::SubLong,
        "shr.u64" => Binary::Shr,
        "and.b64" => Binary::AndLong,
        "or.b64" => Binary::OrLong,
        "shl.b64" => Binary::Shl,
        "shl.b32" => Binary::ShlWord,
        "shr.s32" => Binary::ShrSigned,
        "and.b32" => Binary::And,
        "xor.b32" => Binary::Xor,
        "setp.ge.u64" => Binary::GreaterOrEqual,
        "setp.ne.u64" | "setp.ne.u32" => Binary::NotEqual,
        "add.rn.f32" => Binary::AddFloats,
        _ => return None,
    })
}
