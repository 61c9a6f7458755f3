//! TCP Fast Open through socket calls: MSG_FASTOPEN, TCP_FASTOPEN and its relatives.

use devmem_posix::abi::{MSG_FASTOPEN, SOCK_NONBLOCK, SOL_TCP, ev, tcp_opt};
use devmem_posix::{Posix, SendArgs, VirtualTime};
use devmem_uapi::Errno;

use super::{at, table};

const SERVER: &str = "10.77.0.1:5201";
const ON: [u8; 4] = 1i32.to_ne_bytes();

fn socket(posix: &Posix<VirtualTime>) -> i32 {
    let made = posix.call(|t| t.socket(2, 1 | SOCK_NONBLOCK, 0));
    made.unwrap()
}

/// A table with a listener that allows five pending opens.
fn listening() -> (Posix<VirtualTime>, nic::WireLink, i32) {
    let (posix, other) = table();
    let listener = socket(&posix);
    posix.call(|t| t.bind(listener, &at(SERVER))).unwrap();
    let queue = 5i32.to_ne_bytes();
    let allowed = posix.call(|t| t.setsockopt(listener, (SOL_TCP, tcp_opt::FASTOPEN), &queue));
    assert_eq!(allowed, Ok(0));
    posix.call(|t| t.listen(listener, 5)).unwrap();
    (posix, other, listener)
}

fn send_to(posix: &Posix<VirtualTime>, fd: i32, bytes: &[u8], to: &str) -> Result<usize, Errno> {
    let address = at(to);
    let args = SendArgs {
        address: &address,
        ..SendArgs::new(bytes)
    };
    posix.send(fd, args, MSG_FASTOPEN)
}

/// Gets a cookie, and closes the connection that returned it.
fn fetch_cookie(posix: &Posix<VirtualTime>, listener: i32) {
    let first = socket(posix);
    let sent = send_to(posix, first, b"early", SERVER);
    assert_eq!(sent, Err(Errno::EINPROGRESS), "no cookie, no payload");
    posix.run_now();
    let (accepted, _) = posix.call(|t| t.accept(listener, 0)).unwrap();
    posix.close(first).unwrap();
    posix.close(accepted).unwrap();
    posix.run_now();
}

fn read(posix: &Posix<VirtualTime>, fd: i32) -> Vec<u8> {
    let mut bytes = [0; 100];
    let args = devmem_posix::RecvArgs {
        host: &mut bytes,
        len: 100,
        control: &mut [],
    };
    let n = posix.recv(fd, args, 0).unwrap().bytes;
    bytes[..n].to_vec()
}

/// Returns `tcpi_options` and `tcpi_fastopen_client_fail`.
fn facts(posix: &Posix<VirtualTime>, fd: i32) -> (u8, u8) {
    let info = posix.call(|t| t.getsockopt(fd, (SOL_TCP, tcp_opt::INFO)));
    let info = info.unwrap();
    (info[5], info[7] >> 1 & 3)
}

#[test]
fn msg_fastopen_sends_in_the_syn_once_there_is_a_cookie() {
    let (posix, _other, listener) = listening();
    fetch_cookie(&posix, listener);
    let client = socket(&posix);
    assert_eq!(send_to(&posix, client, b"hello", SERVER), Ok(5));
    posix.run_now();
    let (server, _) = posix.call(|t| t.accept(listener, 0)).unwrap();
    assert_eq!(read(&posix, server), b"hello");
    assert_eq!(
        (facts(&posix, client).0 & 32, facts(&posix, server).0 & 32),
        (32, 32)
    );
}

#[test]
fn a_deferred_connect_begins_with_the_first_send() {
    let (posix, _other, listener) = listening();
    fetch_cookie(&posix, listener);
    let client = socket(&posix);
    let name = (SOL_TCP, tcp_opt::FASTOPEN_CONNECT);
    posix.call(|t| t.setsockopt(client, name, &ON)).unwrap();
    assert_eq!(posix.connect(client, &at(SERVER)), Ok(()));
    assert_eq!(posix.connect(client, &at(SERVER)), Err(Errno::EISCONN));
    posix.run_now();
    assert_eq!(
        posix.call(|t| t.accept(listener, 0)).err(),
        Some(Errno::EAGAIN)
    );
    let events = posix.call(|t| t.poll_events(client)).unwrap();
    assert_eq!(events & (ev::OUT | ev::HUP), ev::OUT);
    assert_eq!(posix.send(client, SendArgs::new(b"hello"), 0), Ok(5));
    posix.run_now();
    let (server, _) = posix.call(|t| t.accept(listener, 0)).unwrap();
    assert_eq!(read(&posix, server), b"hello");
}

#[test]
fn without_a_cookie_the_reason_is_in_tcp_info() {
    let (posix, _other, _) = listening();
    let client = socket(&posix);
    let _ = send_to(&posix, client, b"hello", SERVER);
    posix.run_now();
    assert_eq!(facts(&posix, client), (facts(&posix, client).0 & !32, 1));
    assert_eq!(
        send_to(&posix, client, b"again", SERVER),
        Ok(5),
        "it is connected"
    );
}

#[test]
fn options_of_fast_open_are_refused_where_they_make_no_sense() {
    let (posix, _other, listener) = listening();
    let set = |fd, name, value: &[u8]| posix.call(|t| t.setsockopt(fd, (SOL_TCP, name), value));
    for bad in [0, 15, 17, 48] {
        let refused = set(listener, tcp_opt::FASTOPEN_KEY, &vec![7; bad]);
        assert_eq!(refused, Err(Errno::EINVAL), "{bad} bytes");
    }
    assert_eq!(set(listener, tcp_opt::FASTOPEN_KEY, &[7; 32]), Ok(0));
    let key = posix.call(|t| t.getsockopt(listener, (SOL_TCP, tcp_opt::FASTOPEN_KEY)));
    assert_eq!(key, Ok(vec![7; 32]));
    let minus = (-1i32).to_ne_bytes();
    assert_eq!(set(listener, tcp_opt::FASTOPEN, &minus), Err(Errno::EINVAL));
    assert_eq!(
        set(listener, tcp_opt::FASTOPEN_CONNECT, &ON),
        Err(Errno::EINVAL)
    );
    let client = socket(&posix);
    let _ = posix.connect(client, &at(SERVER));
    assert_eq!(set(client, tcp_opt::FASTOPEN, &ON), Err(Errno::EINVAL));
}
