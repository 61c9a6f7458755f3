//! The other process: an agent that does what it is told by lines, and answers each by one: on its standard input and output, or if it is on
//! another machine, on a connection. Only the bytes of a memory follow their line as they are: megabytes as text would take this program, which
//! is not optimised, most of the tests' time.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::gpu::GpuSide;
use crate::loaded::{Agent, IN_PROGRESS, Memory, Range, SUCCESS, fork_and_check};
use crate::setup::{Setup, setup, use_setup};

/// Far longer than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Far longer than another machine takes to boot.
const BOOT_PATIENCE: Duration = Duration::from_secs(600);

/// Set in the other process: the name of its agent.
pub const ROLE: &str = "DEVMEM_NIXL_TEST_AGENT";

/// Attempts without a rest in between, which a transfer that goes well needs.
const EAGER_ATTEMPTS: u32 = 500;

/// The rest between later attempts: what is waited for needs the processor, and so do the tests beside this one.
const REST: Duration = Duration::from_micros(200);

/// Repeats `attempt` until it has a result.
pub fn until<T>(what: &str, attempt: impl FnMut() -> Option<T>) -> T {
    until_at_most(PATIENCE, what, attempt)
}

fn until_at_most<T>(patience: Duration, what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    let mut attempts = 0;
    loop {
        if let Some(result) = attempt() {
            return result;
        }
        assert!(started.elapsed() < patience, "{what}: no outcome");
        attempts += 1;
        match attempts < EAGER_ATTEMPTS {
            true => std::thread::yield_now(),
            false => std::thread::sleep(REST),
        }
    }
}

/// After so many bytes a pattern repeats. It is prime: of what is moved in whole pages, no two places in 256 MiB have the same bytes.
const PERIOD: usize = 65_537;

/// Bytes that differ by seed and position. One period is computed, the rest copied.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len.max(PERIOD + 8));
    while bytes.len() < len.min(PERIOD) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len.min(PERIOD));
    while bytes.len() < len {
        bytes.extend_from_within(..PERIOD.min(len - bytes.len()));
    }
    bytes
}

pub fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from(b"0123456789abcdef"[usize::from(value)]);
    // A line has one word for no bytes, too.
    let mut text = String::with_capacity(1 + 2 * bytes.len());
    text.push('x');
    for byte in bytes {
        text.push(digit(byte >> 4));
        text.push(digit(byte & 15));
    }
    text
}

pub fn unhex(text: &str) -> Vec<u8> {
    let digits = text.strip_prefix('x').expect("hex").as_bytes();
    let value = |digit: u8| match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => panic!("hex: {digit}"),
    };
    let (pairs, rest) = digits.as_chunks::<2>();
    assert!(rest.is_empty(), "hex");
    let byte = |[high, low]: &[u8; 2]| value(*high) << 4 | value(*low);
    pairs.iter().map(byte).collect()
}

/// The side of the test: another process, which can be killed.
pub struct Far {
    pub name: String,
    /// `None` on another machine.
    process: Option<Child>,
    input: Box<dyn Write + Send>,
    output: BufReader<Box<dyn Read + Send>>,
    /// What it tells of itself when it is open, if that was read.
    info: Option<Vec<u8>>,
}

/// Memory of the other process, and what is known of it here.
pub struct FarMemory {
    pub number: u64,
    pub address: u64,
    pub data: Vec<u8>,
}

impl Far {
    /// Starts an agent of that name, with or without a thread. It opens beside what the test does next.
    pub fn start(name: &str, has_thread: bool) -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let mut command = Command::new(program);
        command
            .env(ROLE, name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = command.spawn().expect("this program can be started");
        let input = process.stdin.take().expect("a pipe");
        let output = process.stdout.take().expect("a pipe");
        Self::open(name, Some(process), input, output, has_thread)
    }

    /// As [`start`](Self::start), in a process on another machine that plays at this address, or will soon.
    pub fn call(name: &str, at: SocketAddr, has_thread: bool) -> Self {
        let call = || TcpStream::connect(at).ok();
        let stream = until_at_most(BOOT_PATIENCE, "the other machine", call);
        let input = stream.try_clone().expect("a descriptor");
        Self::open(name, None, input, stream, has_thread)
    }

    fn open(
        name: &str,
        process: Option<Child>,
        input: impl Write + Send + 'static,
        output: impl Read + Send + 'static,
        has_thread: bool,
    ) -> Self {
        let mut it = Self {
            name: name.to_owned(),
            process,
            input: Box::new(input),
            output: BufReader::new(Box::new(output)),
            info: None,
        };
        let parameters = setup().far.into_iter();
        let parameters: String = parameters
            .map(|(key, value)| format!(" {key}={value}"))
            .collect();
        it.write(&format!("open {}{parameters}", u8::from(has_thread)));
        it
    }

    /// Waits until it is open, and returns its connection information.
    pub fn info(&mut self) -> &[u8] {
        if self.info.is_none() {
            self.info = Some(unhex(&self.answer()));
        }
        self.info.as_deref().unwrap_or_default()
    }

    fn write(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("the other process lives");
    }

    /// Tells the other process to do something without waiting for its answer.
    pub fn begin(&mut self, line: &str) {
        self.info();
        self.write(line);
    }

    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        self.output
            .read_line(&mut line)
            .expect("the other process lives");
        assert!(line.ends_with('\n'), "the other process has ended");
        line.trim_end().to_owned()
    }

    pub fn tell(&mut self, line: &str) -> String {
        self.begin(line);
        self.answer()
    }

    /// Registers memory with the pattern of a seed.
    pub fn memory(&mut self, len: usize, seed: u64) -> FarMemory {
        self.registered(&format!("memory {len} {seed}"))
    }

    fn registered(&mut self, line: &str) -> FarMemory {
        let answer = self.tell(line);
        let words: Vec<_> = answer.split(' ').collect();
        let [number, address, data] = words[..] else {
            panic!("{answer}");
        };
        let value = |text: &str| text.parse().expect("a number");
        FarMemory {
            number: value(number),
            address: value(address),
            data: unhex(data),
        }
    }

    /// Registers memory of a GPU with the pattern of a seed.
    pub fn gpu(&mut self, len: usize, seed: u64) -> FarMemory {
        self.registered(&format!("gpu {len} {seed}"))
    }

    /// Returns bytes of its memory.
    pub fn bytes(&mut self, memory: &FarMemory, offset: usize, len: usize) -> Vec<u8> {
        let answer = self.tell(&format!("bytes {} {offset} {len}", memory.number));
        assert_eq!(answer, "they follow");
        let mut bytes = vec![0; len];
        self.output
            .read_exact(&mut bytes)
            .expect("the other process lives");
        bytes
    }

    /// Returns the next notifications, as many as asked for.
    pub fn notifications(&mut self, count: usize) -> Vec<(String, Vec<u8>)> {
        let answer = self.tell(&format!("notifications {count}"));
        let one = |word: &str| {
            let (from, message) = word.split_once(':').expect("a notification");
            (
                String::from_utf8(unhex(from)).expect("a name"),
                unhex(message),
            )
        };
        answer
            .split(' ')
            .filter(|word| !word.is_empty())
            .map(one)
            .collect()
    }

    pub fn kill(&mut self) {
        let process = self.process.as_mut().expect("it is on this machine");
        process.kill().expect("the other process lives");
        process.wait().expect("it was killed");
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Agents of this process have the parameters that the test has given.
fn take_setup(parameters: &[&str]) {
    let pair = |word: &&str| {
        let (key, value) = word.split_once('=').expect("a parameter");
        (key.to_owned(), value.to_owned())
    };
    use_setup(Setup {
        near: parameters.iter().map(pair).collect(),
        far: Vec::new(),
    });
}

/// What the other process is, at the end of a pipe.
pub fn play(name: &str) {
    play_with(name, std::io::stdin().lock(), std::io::stdout());
}

/// How long the other guest may say nothing.
const SILENCE: Duration = Duration::from_secs(120);

/// What the other guest says, until it says nothing for so long: it may be off before its FIN has crossed a wire that loses packets.
struct UntilSilent(TcpStream);

impl Read for UntilSilent {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        match self.0.read(into) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
            read => read,
        }
    }
}

/// What it is on another machine: waits for the test there.
pub fn play_at(name: &str, at: SocketAddr) {
    let listener = TcpListener::bind(at).expect("the address is of this machine");
    let (stream, _) = listener.accept().expect("the test calls");
    let input = stream.try_clone().expect("a descriptor");
    let limited = input.set_read_timeout(Some(SILENCE));
    limited.expect("a socket takes a limit");
    play_with(name, BufReader::new(UntilSilent(input)), stream);
}

fn play_with(name: &str, input: impl BufRead, mut output: impl Write) {
    let mut far: Option<Agent> = None;
    let mut memories = HashMap::new();
    let mut gpus = HashMap::new();
    for line in input.lines() {
        let line = line.expect("text");
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().expect("a number");
        let mut behind = Vec::new();
        let answer = match (words[0], &far) {
            ("open", _) => {
                take_setup(&words[2..]);
                let agent = Agent::open(name, number(1) == 1, &[]).expect("an agent");
                let info = hex(&agent.info());
                far = Some(agent);
                info
            }
            ("close", _) => {
                far = None;
                "closed".to_owned()
            }
            (_, None) => panic!("{line}: no agent"),
            ("memory", Some(agent)) => {
                let memory = Memory::new(number(1) as usize);
                memory.write(0, &pattern(number(2), number(1) as usize));
                let region = agent.register(&memory);
                let answer = described(agent, region, memory.address());
                memories.insert(region, memory);
                answer
            }
            ("gpu", Some(agent)) => {
                let memory = GpuSide::new(agent, number(1) as usize, number(2));
                let (region, address) = (memory.region, memory.address());
                gpus.insert(region, memory);
                described(agent, region, address)
            }
            ("bytes", Some(_)) => {
                let (offset, len) = (number(2) as usize, number(3) as usize);
                behind = match gpus.get(&number(1)) {
                    Some(side) => side.read(offset, len),
                    None => memories[&number(1)].read(offset, len),
                };
                "they follow".to_owned()
            }
            ("deregister", Some(agent)) => agent.deregister(number(1)).to_string(),
            ("load", Some(agent)) => agent.load_agent(words[1], &unhex(words[2])).to_string(),
            ("notify", Some(agent)) => agent.notify(words[1], &unhex(words[2])).to_string(),
            ("notifications", Some(agent)) => notifications(agent, number(1) as usize),
            ("fork", Some(agent)) => fork(agent, name, number(1), &memories[&number(1)]),
            ("write", Some(agent)) => {
                let address = match gpus.get(&number(2)) {
                    Some(side) => side.address(),
                    None => memories[&number(2)].address(),
                };
                write(agent, &words, address)
            }
            _ => panic!("{line}: not known"),
        };
        let sent = writeln!(output, "{answer}").and_then(|()| output.write_all(&behind));
        sent.and_then(|()| output.flush()).expect("the test lives");
    }
}

/// What the test knows of a region.
fn described(agent: &Agent, region: u64, address: u64) -> String {
    format!("{region} {address} {}", hex(&agent.describe(region)))
}

fn notifications(agent: &Agent, count: usize) -> String {
    let mut all = Vec::new();
    until("notifications", || {
        all.extend(agent.notifications());
        (all.len() >= count).then_some(())
    });
    let words: Vec<_> = all
        .iter()
        .map(|(from, message)| format!("{}:{}", hex(from.as_bytes()), hex(message)))
        .collect();
    words.join(" ")
}

/// `fork REGION`: posts a transfer to itself in a child of fork(2), and answers with the status there. This process has no other thread that
/// could hold a lock.
fn fork(agent: &Agent, name: &str, region: u64, memory: &Memory) -> String {
    let remote = agent.load_own(region);
    let range = |region| Range {
        address: memory.address(),
        len: 8,
        region,
    };
    let transfer = agent.prepare(true, name, &[range(region)], &[range(remote)]);
    fork_and_check(&transfer.expect("a transfer")).to_string()
}

/// `write PEER REGION DATA ADDRESS LEN`: writes the first bytes of a memory to a peer, and waits.
fn write(agent: &Agent, words: &[&str], address: u64) -> String {
    let number = |at: usize| words[at].parse::<u64>().expect("a number");
    let remote = agent
        .load_region(words[1], &unhex(words[3]))
        .expect("a region");
    let len = number(5);
    let local = Range {
        address,
        len,
        region: number(2),
    };
    let transfer = agent.prepare(
        true,
        words[1],
        &[local],
        &[Range {
            address: number(4),
            len,
            region: remote,
        }],
    );
    let transfer = transfer.expect("a transfer");
    let mut status = transfer.post(None);
    until("a write of the other process", || {
        status = transfer.check();
        (status != IN_PROGRESS).then_some(())
    });
    assert_eq!(status, SUCCESS);
    status.to_string()
}
