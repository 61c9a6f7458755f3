//! Why a peer ended its connections counts, in whatever order their ends arrive.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::sleep;
use std::time::Duration;

use crate::hostile::{ONE, record};
use crate::loaded::{Agent, Memory, NOT_ALLOWED, REMOTE_DISCONNECT, Range, SUCCESS};
use crate::near::{NAME, done};
use crate::setup::use_way;

const LEN: usize = 100_000;

/// Long enough for the agent to see what came before.
const MOMENT: Duration = Duration::from_millis(200);

/// Accepts an agent with one connection for payload, and returns both connections when it has asked for bytes of a read.
fn accept_reader(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let accept = || {
        let (mut stream, _) = listener.accept().expect("the agent connects");
        let mut hello = [0; 32];
        stream.read_exact(&mut hello).expect("a hello");
        let tail = u32::from_le_bytes([hello[24], hello[25], hello[26], hello[27]]);
        let mut behind = vec![0; tail as usize];
        stream.read_exact(&mut behind).expect("what follows it");
        stream
    };
    let mut control = accept();
    let welcome = record(2, 0, 0, ONE, 0, 0);
    control.write_all(&welcome).expect("a socket");
    let data = accept();
    let ready = record(3, 0, 0, [0; 8], 0, 0);
    control.write_all(&ready).expect("a socket");
    let mut get = [0; 32 + 24];
    control.read_exact(&mut get).expect("a read of one range");
    assert_eq!(get[0], 6);
    (control, data)
}

/// Returns how a read ends whose peer behaves as `end` says after the request.
fn read_from(end: impl FnOnce(TcpStream, TcpStream) + Send) -> i32 {
    use_way("sockets");
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener.local_addr().expect("a socket").port();
    // What an agent would tell, but for its ports.
    let target = Agent::open("target", true, &[]).expect("an agent");
    let remote = Memory::new(LEN);
    let region = target.register(&remote);
    let mut info = target.info();
    for at in [40, 42] {
        info[at..at + 2].copy_from_slice(&port.to_le_bytes());
    }
    let near = Agent::open(NAME, true, &[("connections", "1")]).expect("an agent");
    assert_eq!(near.load_agent("target", &info), SUCCESS);
    let known = near.load_region("target", &target.describe(region));
    let local = Memory::new(LEN);
    let range = |memory: &Memory, region| Range {
        address: memory.address(),
        len: LEN as u64,
        region,
    };
    let locals = [range(&local, near.register(&local))];
    let remotes = [range(&remote, known.expect("a region"))];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (control, data) = accept_reader(&listener);
            end(control, data);
        });
        let read = near.prepare(false, "target", &locals, &remotes);
        done(&read.expect("a transfer"), None)
    })
}

pub fn a_reason_that_comes_after_the_end_of_another_connection_counts() {
    let status = read_from(|mut control, data| {
        drop(data);
        sleep(MOMENT);
        let region = [3, 0, 0, 0, 0, 0, 0, 0];
        control
            .write_all(&record(10, 0, 0, region, 0, 0))
            .expect("the agent waits for it");
    });
    assert_eq!(status, NOT_ALLOWED);
}

pub fn a_peer_that_ends_its_connections_without_a_reason_is_gone() {
    for reverse in [false, true] {
        let status = read_from(|control, data| {
            let (first, second) = if reverse {
                (control, data)
            } else {
                (data, control)
            };
            drop(first);
            sleep(MOMENT);
            drop(second);
        });
        assert_eq!(status, REMOTE_DISCONNECT);
    }
}

pub fn a_peer_that_ends_one_connection_for_payload_and_says_nothing_is_gone() {
    let status = read_from(|mut control, data| {
        drop(data);
        // Until the agent gives it up.
        let mut rest = Vec::new();
        let _ = control.read_to_end(&mut rest);
    });
    assert_eq!(status, REMOTE_DISCONNECT);
}
