//! Reads the part of packetdrill's script language that the scenarios use.

use wire::Ecn;

use super::packet::{Opt, Segment};

/// When an event is to happen, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    After(i64),
    At(i64),
    Any,
}

/// One event.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub line: usize,
    pub when: When,
    /// Of a blocking call: how long after the event before it it ends.
    pub ends_after: Option<i64>,
    pub what: What,
}

#[derive(Debug, Clone, PartialEq)]
pub enum What {
    In(Segment),
    Out(Segment),
    Call {
        name: String,
        args: Vec<Expr>,
        result: Expr,
        errno: Option<String>,
    },
}

/// An argument or a result.
#[derive(Debug, Clone, PartialEq)]
pub enum Expr {
    Dots,
    Num(i64),
    Name(String),
    Or(Vec<Expr>),
    List(Vec<Expr>),
    Struct(Vec<(String, Expr)>),
}

/// Reads a script; a mistake in it is the test's.
pub fn parse(text: &str) -> Vec<Event> {
    let mut events = Vec::new();
    let mut shell = false;
    for (at, line) in text.lines().enumerate() {
        let line = line.split("//").next().unwrap_or("").trim();
        let ticks = line.matches('`').count();
        let was_shell = shell;
        if ticks % 2 == 1 {
            shell = !shell;
        }
        // Shell commands set up the host's stack, which is not judged here.
        if line.is_empty() || ticks > 0 || was_shell || line.starts_with("--") {
            continue;
        }
        let mut reader = Reader {
            text: line,
            line: at + 1,
        };
        events.push(reader.event());
    }
    events
}

struct Reader<'t> {
    text: &'t str,
    line: usize,
}

impl<'t> Reader<'t> {
    fn fail(&self, what: &str) -> ! {
        panic!("line {}: {what} at {:?}", self.line, self.text)
    }

    fn skip(&mut self) {
        self.text = self.text.trim_start();
    }

    fn take(&mut self, token: &str) -> bool {
        self.skip();
        let found = self.text.strip_prefix(token);
        if let Some(rest) = found {
            self.text = rest;
        }
        found.is_some()
    }

    fn expect(&mut self, token: &str) {
        if !self.take(token) {
            self.fail(&format!("expected {token:?}"));
        }
    }

    fn word(&mut self, of: impl Fn(char) -> bool) -> &'t str {
        self.skip();
        let end = self.text.find(|c| !of(c)).unwrap_or(self.text.len());
        let (word, rest) = self.text.split_at(end);
        self.text = rest;
        word
    }

    fn name(&mut self) -> &'t str {
        self.word(|c| c.is_alphanumeric() || c == '_')
    }

    fn number<T: std::str::FromStr>(&mut self) -> T {
        let word = self.word(|c| c.is_ascii_digit());
        word.parse()
            .unwrap_or_else(|_| self.fail("expected a number"))
    }

    fn seconds(&mut self) -> i64 {
        self.skip();
        let end = match self.text.find("...") {
            Some(dots)
                if self.text[..dots]
                    .chars()
                    .all(|c| c.is_ascii_digit() || c == '.') =>
            {
                dots
            }
            _ => self
                .text
                .find(|c: char| !(c.is_ascii_digit() || c == '.'))
                .unwrap_or(self.text.len()),
        };
        let (word, rest) = self.text.split_at(end);
        self.text = rest;
        let seconds: f64 = format!("0{word}")
            .parse()
            .unwrap_or_else(|_| self.fail("a time"));
        (seconds * 1e6).round() as i64
    }

    fn event(&mut self) -> Event {
        let line = self.line;
        let when = match (self.take("*"), self.take("+")) {
            (true, _) => When::Any,
            (false, true) => When::After(self.seconds()),
            (false, false) => When::At(self.seconds()),
        };
        let ends_after = self.take("...").then(|| self.seconds());
        let what = match () {
            () if self.take("<") => What::In(self.segment()),
            () if self.take(">") => What::Out(self.segment()),
            () => self.call(),
        };
        Event {
            line,
            when,
            ends_after,
            what,
        }
    }

    fn segment(&mut self) -> Segment {
        let ecn = self.take("[").then(|| self.ecn());
        let flags = self.word(|c| "FSRP.UEWA".contains(c)).to_owned();
        let seq: u32 = self.number();
        self.expect(":");
        let _end: u32 = self.number();
        self.expect("(");
        let len = self.number();
        self.expect(")");
        let ack = self.take("ack").then(|| self.number());
        let win = self.take("win").then(|| self.number());
        let options = self.take("<").then(|| self.options());
        if !self.text.trim().is_empty() {
            self.fail("more than a segment");
        }
        Segment {
            flags,
            ecn,
            seq,
            len,
            ack,
            win,
            options,
        }
    }

    /// Reads the ECN field, as packetdrill writes it.
    fn ecn(&mut self) -> Ecn {
        let ecn = match self.name() {
            "noecn" => Ecn::NotEct,
            "ect0" => Ecn::Ect0,
            "ect1" => Ecn::Ect1,
            "ce" => Ecn::Ce,
            _ => self.fail("an ECN codepoint"),
        };
        self.expect("]");
        ecn
    }

    fn options(&mut self) -> Vec<Opt> {
        let mut options = Vec::new();
        while !self.take(">") {
            options.push(match self.name() {
                "nop" => Opt::Nop,
                "mss" => Opt::Mss(self.number()),
                "wscale" => Opt::Wscale(self.number()),
                "sackOK" => Opt::SackOk,
                "FO" => Opt::FastOpen(self.cookie()),
                "ECN" => {
                    let mut field = |name: &str| {
                        self.expect(name);
                        self.number()
                    };
                    Opt::AccEcn([field("e1b"), field("ceb"), field("e0b")])
                }
                "TS" => {
                    self.expect("val");
                    let val = self.number();
                    self.expect("ecr");
                    Opt::Ts {
                        val,
                        ecr: self.number(),
                    }
                }
                "sack" => {
                    let mut blocks = Vec::new();
                    while self
                        .text
                        .trim_start()
                        .starts_with(|c: char| c.is_ascii_digit())
                    {
                        let from = self.number();
                        self.expect(":");
                        blocks.push((from, self.number()));
                    }
                    Opt::Sack(blocks)
                }
                _ => self.fail("an option"),
            });
            self.take(",");
        }
        options
    }

    /// Reads a cookie in hexadecimal digits, or nothing.
    fn cookie(&mut self) -> Vec<u8> {
        let digits = self.word(|c| c.is_ascii_hexdigit());
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16);
        let bytes: Result<Vec<u8>, _> = (0..digits.len()).step_by(2).map(byte).collect();
        bytes.unwrap_or_else(|_| self.fail("a cookie"))
    }

    fn call(&mut self) -> What {
        let name = self.name().to_owned();
        self.expect("(");
        let args = self.list(")");
        self.expect("=");
        let result = self.expr();
        let errno = (!self.text.trim().is_empty()).then(|| self.name().to_owned());
        What::Call {
            name,
            args,
            result,
            errno,
        }
    }

    fn list(&mut self, end: &str) -> Vec<Expr> {
        let mut list = Vec::new();
        while !self.take(end) {
            list.push(self.expr());
            self.take(",");
        }
        list
    }

    fn expr(&mut self) -> Expr {
        let first = self.term();
        if !self.text.trim_start().starts_with('|') {
            return first;
        }
        let mut all = vec![first];
        while self.take("|") {
            all.push(self.term());
        }
        Expr::Or(all)
    }

    fn term(&mut self) -> Expr {
        if self.take("...") {
            return Expr::Dots;
        }
        if self.take("[") {
            return Expr::List(self.list("]"));
        }
        if self.take("{") {
            return Expr::Struct(self.fields());
        }
        let negative = self.take("-");
        let word = self.name();
        let number = match word.strip_prefix("0x") {
            Some(hex) => i64::from_str_radix(hex, 16).ok(),
            None => word.parse().ok(),
        };
        match number {
            Some(number) if negative => Expr::Num(-number),
            Some(number) => Expr::Num(number),
            None if word.is_empty() => self.fail("an expression"),
            None => Expr::Name(word.to_owned()),
        }
    }

    fn fields(&mut self) -> Vec<(String, Expr)> {
        let mut fields = Vec::new();
        while !self.take("}") {
            if self.take("...") {
                fields.push(("iov_base".to_owned(), Expr::Dots));
                self.take(",");
                fields.push(("iov_len".to_owned(), self.expr()));
                continue;
            }
            let name = self.name().to_owned();
            // msg_iov(1)=...
            if self.take("(") {
                self.list(")");
            }
            self.expect("=");
            fields.push((name, self.expr()));
            self.take(",");
        }
        fields
    }
}
