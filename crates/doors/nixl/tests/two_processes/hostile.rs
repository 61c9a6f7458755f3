//! Bytes of strangers, and of peers that do not keep to the protocol, on the port of an agent.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::far::pattern;
use crate::loaded::{Agent, Memory, Range, SUCCESS};
use crate::near::{NAME, done};

/// An agent that is attacked, and one that uses it meanwhile.
struct Scene {
    target: Agent,
    user: Agent,
    memory: Memory,
    own: Memory,
    ranges: (Range, Range),
    port: u16,
    cookie: [u8; 8],
    key: [u8; 8],
}

const LEN: usize = 100_000;

impl Scene {
    fn new() -> Self {
        let target = Agent::open("target", true, &[]).expect("an agent");
        // Strangers come by TCP, and need no way.
        let user = Agent::open(NAME, true, &[]).expect("an agent");
        let (memory, own) = (Memory::new(LEN), Memory::new(LEN));
        memory.write(0, &pattern(1, LEN));
        let target_region = target.register(&memory);
        let info = target.info();
        let data = target.describe(target_region);
        assert_eq!(user.load_agent("target", &info), SUCCESS);
        let remote = user.load_region("target", &data).expect("a region");
        let local = user.register(&own);
        let range = |memory: &Memory, region| Range {
            address: memory.address(),
            len: LEN as u64,
            region,
        };
        Self {
            ranges: (range(&own, local), range(&memory, remote)),
            target,
            user,
            memory,
            own,
            port: u16::from_le_bytes([info[40], info[41]]),
            cookie: info[8..16].try_into().expect("8 bytes"),
            key: data[8..16].try_into().expect("8 bytes"),
        }
    }

    /// The agent still serves, and its memory is what it was.
    fn check(&self) {
        self.own.write(0, &vec![0; LEN]);
        let read = self
            .user
            .prepare(false, "target", &[self.ranges.0], &[self.ranges.1])
            .expect("a transfer");
        assert_eq!(done(&read, Some(b"alive")), SUCCESS);
        assert!(self.own.read(0, LEN) == pattern(1, LEN));
        assert!(self.memory.read(0, LEN) == pattern(1, LEN));
        crate::far::until("the notification", || {
            let all = self.target.notifications();
            all.iter()
                .any(|(from, message)| from == NAME && message == b"alive")
                .then_some(())
        });
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the port is open");
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .expect("a socket");
        stream
    }

    /// Returns a control connection with one for payload, as a peer would have them.
    fn introduce(&self) -> (TcpStream, TcpStream) {
        let mut control = self.connect();
        control
            .write_all(&record(1, 0, 1, self.cookie, VERSION, 20))
            .expect("a socket");
        control
            .write_all(b"0123456789abcdefevil")
            .expect("a socket");
        let mut welcome = [0; 32];
        control.read_exact(&mut welcome).expect("a welcome");
        let mut data = self.connect();
        let session = welcome[8..16].try_into().expect("8 bytes");
        data.write_all(&record(1, 1, 0, session, VERSION, 0))
            .expect("a socket");
        let mut ready = [0; 32];
        control.read_exact(&mut ready).expect("all are there");
        assert_eq!(ready[0], 3);
        (control, data)
    }
}

/// The version of the protocol.
const VERSION: u64 = 3;

/// A header, in the layout of the protocol.
pub fn record(kind: u16, stream: u16, entries: u32, id: [u8; 8], bytes: u64, tail: u32) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&stream.to_le_bytes());
    out.extend_from_slice(&entries.to_le_bytes());
    out.extend_from_slice(&id);
    out.extend_from_slice(&bytes.to_le_bytes());
    out.extend_from_slice(&tail.to_le_bytes());
    out.extend_from_slice(b"dvmX");
    out
}

fn entry(key: [u8; 8], offset: u64, len: u64) -> Vec<u8> {
    [key, offset.to_le_bytes(), len.to_le_bytes()].concat()
}

/// Returns what the agent says before it ends a connection; it must end it.
fn until_ended(mut stream: TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    match stream.read_to_end(&mut all) {
        Ok(_) => all,
        // It had not read everything.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
            ) =>
        {
            all
        }
        Err(error) => panic!("the connection goes on: {error}"),
    }
}

pub fn strangers_are_sent_away() {
    let scene = Scene::new();
    let mut wrong = scene.connect();
    wrong
        .write_all(&record(1, 0, 1, [7; 8], VERSION, 0))
        .expect("a socket");
    let said = until_ended(wrong);
    // Failed, with the reason that another agent is meant.
    assert_eq!((said[0], said[8]), (10, 1));
    let mut version = scene.connect();
    version
        .write_all(&record(1, 0, 1, scene.cookie, 99, 0))
        .expect("a socket");
    let said = until_ended(version);
    assert_eq!((said[0], said[8]), (10, 2));
    let mut session = scene.connect();
    session
        .write_all(&record(1, 1, 0, [9; 8], VERSION, 0))
        .expect("a socket");
    until_ended(session);
    for streams in [0, 65, u32::MAX] {
        let mut many = scene.connect();
        many.write_all(&record(1, 0, streams, scene.cookie, VERSION, 0))
            .expect("a socket");
        until_ended(many);
    }
    scene.check();
}

pub fn random_bytes_end_connections_and_nothing_else() {
    let scene = Scene::new();
    for seed in 0..20 {
        let mut stranger = scene.connect();
        // The agent may end the connection before all is written.
        let _ = stranger.write_all(&pattern(seed, 10_000));
        until_ended(stranger);
        let (mut control, _data) = scene.introduce();
        let _ = control.write_all(&pattern(1000 + seed, 10_000));
        until_ended(control);
    }
    scene.check();
}

type Lie = (&'static str, Vec<u8>);

/// Pieces of a write that no peer announces that keeps to the protocol, by what is wrong.
fn lies_in_pieces(key: [u8; 8]) -> Vec<Lie> {
    let inline = |bytes: u64, range| {
        [
            record(5, 0, 1, ONE, bytes, 0),
            range,
            vec![1; bytes as usize],
        ]
        .concat()
    };
    let nine = |stream| [write(9), record(5, stream, 1, ONE, 9, 0), entry(key, 0, 9)].concat();
    let past = LEN as u64;
    vec![
        ("a piece without a write", inline(1, entry(key, 0, 1))),
        (
            "a piece beyond its write",
            [write(1), inline(2, entry(key, 0, 2))].concat(),
        ),
        (
            "an unknown key",
            [write(1), inline(1, entry([3; 8], 0, 1))].concat(),
        ),
        (
            "a range outside",
            [write(1), inline(1, entry(key, past, 1))].concat(),
        ),
        (
            "a range that wraps",
            [write(2), inline(2, entry(key, u64::MAX, 2))].concat(),
        ),
        (
            "shorter ranges",
            [write(9), inline(9, entry(key, 0, 8))].concat(),
        ),
        ("no such connection", nine(2)),
        (
            "memory of a process, by TCP",
            [nine(u16::MAX), vec![0; 8]].concat(),
        ),
        (
            "a piece that is too long",
            record(5, 1, 1, ONE, (1 << 20) + 1, 0),
        ),
        ("too many ranges", record(5, 1, 1025, ONE, 1025, 0)),
    ]
}

/// Other records that no such peer sends.
fn other_lies(scene: &Scene) -> Vec<Lie> {
    let get =
        |stream, offset| [record(6, stream, 1, ONE, 9, 0), entry(scene.key, offset, 9)].concat();
    vec![
        ("an unknown record", record(99, 0, 0, ONE, 0, 0)),
        ("a record of the other side", record(8, 0, 0, ONE, 0, 0)),
        ("a permission", record(11, 0, 0, ONE, 0, 0)),
        (
            "a second introduction",
            record(1, 0, 1, scene.cookie, VERSION, 0),
        ),
        ("an inline read", get(0, 0)),
        ("a read outside", get(1, LEN as u64)),
        ("no ranges", record(6, 1, 0, ONE, 5, 0)),
        ("too long a notification", record(7, 0, 0, ONE, 0, u32::MAX)),
        (
            "a write that was begun before",
            [write(5), write(5)].concat(),
        ),
    ]
}

/// The number of a transfer.
pub const ONE: [u8; 8] = [1, 0, 0, 0, 0, 0, 0, 0];

fn write(bytes: u64) -> Vec<u8> {
    record(4, 0, 0, ONE, bytes, 0)
}

pub fn records_that_lie_end_connections_and_nothing_else() {
    let scene = Scene::new();
    for (what, bytes) in lies_in_pieces(scene.key)
        .into_iter()
        .chain(other_lies(&scene))
    {
        let (mut control, _data) = scene.introduce();
        let _ = control.write_all(&bytes);
        let said = until_ended(control);
        assert_eq!(
            said.get(..2),
            Some(&[10, 0][..]),
            "{what}: the agent says why"
        );
    }
    scene.check();
    // A peer that stops in the middle holds up nothing of others.
    let (mut control, _data) = scene.introduce();
    let piece = [record(5, 1, 1, ONE, 1000, 0), entry(scene.key, 0, 1000)].concat();
    control
        .write_all(&[write(LEN as u64), piece].concat())
        .expect("a socket");
    scene.check();
}
