//! Threads that share sockets, in real time: one reads while another writes, several read, several write, and one closes a
//! socket that others wait for. Bounded by counts; a call that is never woken ends with the timeout of its socket.

use std::thread::scope;

use devmem_posix::abi::{ctl, ev, so};
use devmem_posix::sockaddr::{Family, emit};
use devmem_posix::{Engine, EpollEvent, Posix, RealTime, RecvArgs, SendArgs, Table};
use devmem_uapi::{CmsgIter, DevmemCmsg, Errno, MsgFlags, sockopt, space_for};
use netmem::{Dmabuf, NiovSize};
use netsim::Pattern;
use nic::{Nic, NicConfig, WireLink, WireOptions};
use stack::{Secret, Stack, StackConfig};

use sockopt::{SO_DEVMEM_DONTNEED, SOL_SOCKET};

type Sockets = Posix<RealTime>;

/// Timeout of calls in seconds; a call that is not woken ends with it, and its test fails.
const PATIENCE: i64 = 60;

/// How many times a file is closed while threads wait for it.
const ROUNDS: usize = 100;

/// A stack with connections to itself, and the thread that polls it.
fn engine() -> (Engine, WireLink) {
    let (end, other) = WireLink::pair(WireOptions::default()).unwrap();
    let nic = Nic::new(Box::new(end), NicConfig::default()).unwrap();
    let ours = "10.77.0.1".parse().unwrap();
    let stack = Stack::new(nic, StackConfig::new(ours, 24, Secret::from_seed(5))).unwrap();
    (crate::start(stack), other)
}

fn address(text: &str) -> Vec<u8> {
    emit(text.parse().unwrap(), Family::V4)
}

fn socket(sockets: &Sockets) -> i32 {
    let fd = sockets.call(|t| t.socket(2, 1, 0)).unwrap();
    let timeval = [PATIENCE.to_ne_bytes(), 0i64.to_ne_bytes()].concat();
    for name in [so::RCVTIMEO, so::SNDTIMEO] {
        let set = sockets.call(|t| t.setsockopt(fd, (SOL_SOCKET, name), &timeval));
        assert_eq!(set, Ok(0));
    }
    fd
}

fn listener(sockets: &Sockets) -> i32 {
    let fd = socket(sockets);
    let listens = sockets.call(|t| {
        // Connections of the earlier listener are in TIME-WAIT.
        t.setsockopt(fd, (SOL_SOCKET, so::REUSEADDR), &1i32.to_ne_bytes())?;
        t.bind(fd, &address("10.77.0.1:80"))?;
        t.listen(fd, 64)
    });
    assert_eq!(listens, Ok(()));
    fd
}

/// Returns the connected and the accepted end of a connection.
fn connected(sockets: &Sockets, listener: i32) -> (i32, i32) {
    let client = socket(sockets);
    assert_eq!(sockets.connect(client, &address("10.77.0.1:80")), Ok(()));
    let (server, _) = sockets.accept(listener, 0).unwrap();
    (client, server)
}

fn recv(sockets: &Sockets, fd: i32, len: usize) -> Result<Vec<u8>, Errno> {
    let mut host = vec![0; len];
    let args = RecvArgs {
        host: &mut host,
        len,
        control: &mut [],
    };
    let received = sockets.recv(fd, args, 0)?;
    host.truncate(received.bytes);
    Ok(host)
}

fn write_pattern(sockets: &Sockets, fd: i32, pattern: Pattern, total: usize, chunk: usize) {
    let mut bytes = vec![0; total];
    pattern.fill(0, &mut bytes);
    for piece in bytes.chunks(chunk) {
        assert_eq!(sockets.send(fd, SendArgs::new(piece), 0), Ok(piece.len()));
    }
    assert_eq!(sockets.call(|t| t.shutdown(fd, 1)), Ok(()));
}

fn read_pattern(sockets: &Sockets, fd: i32, pattern: Pattern, len: usize) -> usize {
    let mut seen = 0;
    loop {
        let bytes = recv(sockets, fd, len).unwrap();
        if bytes.is_empty() {
            return seen;
        }
        pattern.check(seen as u64, &bytes).unwrap();
        seen += bytes.len();
    }
}

#[test]
fn one_thread_reads_a_socket_while_another_writes_it_at_both_ends() {
    const TOTAL: usize = 3_000_000;
    let (engine, _other) = engine();
    let sockets = engine.posix();
    let (client, server) = connected(sockets, listener(sockets));
    let (there, back) = (Pattern::new(1), Pattern::new(2));
    scope(|scope| {
        scope.spawn(|| write_pattern(sockets, client, there, TOTAL, 7000));
        scope.spawn(|| write_pattern(sockets, server, back, TOTAL, 30_000));
        let at_server = scope.spawn(|| read_pattern(sockets, server, there, 20_000));
        let at_client = scope.spawn(|| read_pattern(sockets, client, back, 5000));
        let seen = (at_server.join().unwrap(), at_client.join().unwrap());
        assert_eq!(seen, (TOTAL, TOTAL));
    });
}

/// Count of each byte value.
type Histogram = [u64; 256];

fn count(bytes: &[u8], seen: &mut Histogram) {
    for byte in bytes {
        seen[usize::from(*byte)] += 1;
    }
}

fn sum(parts: Vec<Histogram>) -> Histogram {
    let add = |sum: Histogram, part: Histogram| std::array::from_fn(|at| sum[at] + part[at]);
    parts.into_iter().fold([0; 256], add)
}

/// Reads to the end of the stream, and counts the byte values.
fn count_all(sockets: &Sockets, fd: i32) -> Histogram {
    let mut seen = [0; 256];
    loop {
        let bytes = recv(sockets, fd, 1000).unwrap();
        if bytes.is_empty() {
            return seen;
        }
        count(&bytes, &mut seen);
    }
}

#[test]
fn four_writers_and_four_readers_of_one_connection_lose_and_duplicate_no_byte() {
    const EACH: usize = 400_000;
    let (engine, _other) = engine();
    let sockets = engine.posix();
    let (client, server) = connected(sockets, listener(sockets));
    let seen = scope(|scope| {
        let readers: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| count_all(sockets, server)))
            .collect();
        let writers: Vec<_> = (0..4u8)
            .map(|writer| {
                scope.spawn(move || {
                    for piece in vec![writer; EACH].chunks(3000) {
                        let sent = sockets.send(client, SendArgs::new(piece), 0);
                        assert_eq!(sent, Ok(piece.len()));
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|it| it.join().unwrap());
        assert_eq!(sockets.call(|t| t.shutdown(client, 1)), Ok(()));
        sum(readers.into_iter().map(|it| it.join().unwrap()).collect())
    });
    let expected: Histogram = std::array::from_fn(|at| if at < 4 { EACH as u64 } else { 0 });
    assert_eq!(seen, expected);
}

/// Receives device memory to the end of the stream: counts the bytes in place, and gives each frag back.
fn count_device(sockets: &Sockets, fd: i32, memory: &Dmabuf) -> Histogram {
    let mut seen = [0; 256];
    loop {
        let mut control = vec![0; space_for(16)];
        let args = RecvArgs {
            host: &mut [],
            len: 20_000,
            control: &mut control,
        };
        let flags = MsgFlags::SOCK_DEVMEM.bits();
        let received = sockets.recv(fd, args, flags).unwrap();
        if received.bytes == 0 {
            return seen;
        }
        for cmsg in CmsgIter::new(&control[..received.control_bytes]) {
            let Some(DevmemCmsg::Dmabuf(frag)) = DevmemCmsg::parse(&cmsg) else {
                panic!("{cmsg:?}");
            };
            let mut bytes = vec![0; frag.frag_size as usize];
            let at = usize::try_from(frag.frag_offset).unwrap();
            memory.copy_out(at, &mut bytes).unwrap();
            count(&bytes, &mut seen);
            let token = [frag.frag_token.0, 1].map(u32::to_ne_bytes).concat();
            let name = (SOL_SOCKET, SO_DEVMEM_DONTNEED);
            let freed = sockets.call(|t| t.setsockopt(fd, name, &token));
            assert_eq!(freed, Ok(1), "a frag is lent to one reader");
        }
    }
}

#[test]
fn three_readers_of_one_connection_receive_device_memory_and_give_every_frag_back() {
    const TOTAL: usize = 2_000_000;
    let (engine, _other) = engine();
    let sockets = engine.posix();
    let memory = Dmabuf::anonymous(1 << 20).unwrap();
    let bound = sockets.call(|t| t.bind_rx(&memory, NiovSize::MIN));
    let (client, server) = connected(sockets, listener(sockets));
    let pattern = Pattern::new(9);
    let seen = scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| count_device(sockets, server, &memory)))
            .collect();
        write_pattern(sockets, client, pattern, TOTAL, 10_000);
        sum(readers.into_iter().map(|it| it.join().unwrap()).collect())
    });
    let mut expected = [0; 256];
    let mut bytes = vec![0; TOTAL];
    pattern.fill(0, &mut bytes);
    count(&bytes, &mut expected);
    assert_eq!(seen, expected);
    let out = sockets.call(|t| {
        let id = t.socket_id(server).unwrap();
        t.stack().tokens_outstanding(id).unwrap()
    });
    assert_eq!(out, 0);
    // After every frag was given back, only the binding and the test hold the memory.
    sockets.call(Table::close_all);
    assert_eq!(sockets.call(|t| t.unbind(bound.unwrap())), Ok(()));
}

/// Returns when calls of other threads wait for this number of files.
fn until_held(sockets: &Sockets, files: usize) {
    while sockets.lock().held_files() != files {
        std::thread::yield_now();
    }
}

#[test]
fn calls_that_wait_for_a_closed_socket_end_when_its_peer_resets() {
    let (engine, _other) = engine();
    let sockets = engine.posix();
    let listener = listener(sockets);
    let big = vec![1; 16 << 20];
    for _ in 0..ROUNDS {
        let (client, server) = connected(sockets, listener);
        // Its send queue is full, and the peer does not read: a send waits.
        let dont_wait = MsgFlags::DONTWAIT.bits();
        let chunk = [1; 65_536];
        while sockets
            .send(client, SendArgs::new(&chunk), dont_wait)
            .is_ok()
        {}
        scope(|scope| {
            let readers = [(); 2].map(|()| scope.spawn(|| recv(sockets, client, 1)));
            let writers =
                [(); 2].map(|()| scope.spawn(|| sockets.send(client, SendArgs::new(&big), 0)));
            until_held(sockets, 4);
            assert_eq!(sockets.close(client), Ok(()));
            assert_eq!(sockets.close(client), Err(Errno::EBADF));
            assert_eq!(recv(sockets, client, 1), Err(Errno::EBADF));
            // With unread bytes: a reset.
            assert_eq!(sockets.close(server), Ok(()));
            for reader in readers {
                let got = reader.join().unwrap();
                let is_over = got == Err(Errno::ECONNRESET) || got == Ok(Vec::new());
                assert!(is_over, "{got:?}");
            }
            for writer in writers {
                let sent = writer.join().unwrap();
                // Bytes that were queued before the wait stay queued.
                let is_over = matches!(sent, Err(Errno::ECONNRESET | Errno::EPIPE) | Ok(1..));
                assert!(is_over, "{sent:?}");
            }
        });
        assert_eq!(sockets.lock().open_files(), 1);
    }
}

#[test]
fn a_listener_that_is_closed_listens_until_the_last_accept_has_returned() {
    let (engine, _other) = engine();
    let sockets = engine.posix();
    for _ in 0..ROUNDS {
        let listener = listener(sockets);
        let epfd = sockets.call(|t| t.epoll_create(0)).unwrap();
        let watch = EpollEvent {
            events: ev::IN,
            data: 7,
        };
        let added = sockets.call(|t| t.epoll_ctl(epfd, ctl::ADD, listener, watch));
        assert_eq!(added, Ok(()));
        let accepted = scope(|scope| {
            let accepts = [(); 2].map(|()| scope.spawn(|| sockets.accept(listener, 0)));
            until_held(sockets, 2);
            assert_eq!(sockets.close(listener), Ok(()));
            assert_eq!(sockets.accept(listener, 0), Err(Errno::EBADF));
            let clients = [(); 2].map(|()| {
                let client = socket(sockets);
                assert_eq!(sockets.connect(client, &address("10.77.0.1:80")), Ok(()));
                client
            });
            let servers = accepts.map(|accept| accept.join().unwrap().unwrap().0);
            [clients, servers].concat()
        });
        let late = socket(sockets);
        let refused = sockets.connect(late, &address("10.77.0.1:80"));
        assert_eq!(refused, Err(Errno::ECONNREFUSED));
        assert_eq!(sockets.epoll_wait(epfd, 1, 0), Ok(Vec::new()));
        for fd in [&accepted[..], &[epfd, late]].concat() {
            assert_eq!(sockets.close(fd), Ok(()));
        }
        assert_eq!(sockets.lock().open_files(), 0);
    }
}

#[test]
fn shutdown_ends_calls_that_wait_for_the_socket() {
    let (engine, _other) = engine();
    let sockets = engine.posix();
    let listener = listener(sockets);
    for _ in 0..ROUNDS {
        let (client, server) = connected(sockets, listener);
        scope(|scope| {
            let ours = [(); 2].map(|()| scope.spawn(|| recv(sockets, client, 1)));
            let theirs = scope.spawn(|| recv(sockets, server, 1));
            until_held(sockets, 3);
            assert_eq!(sockets.call(|t| t.shutdown(client, 2)), Ok(()));
            for reader in ours.into_iter().chain([theirs]) {
                assert_eq!(reader.join().unwrap(), Ok(Vec::new()));
            }
        });
        for fd in [client, server] {
            assert_eq!(sockets.close(fd), Ok(()));
        }
    }
}

#[test]
fn threads_that_open_use_and_close_sockets_concurrently_leave_no_file_open() {
    const THREADS: usize = 6;
    const EACH: usize = 40;
    let (engine, _other) = engine();
    let sockets = engine.posix();
    let listener = listener(sockets);
    scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..EACH {
                    let (fd, _) = sockets.accept(listener, 0).unwrap();
                    let question = recv(sockets, fd, 100).unwrap();
                    let sent = sockets.send(fd, SendArgs::new(&question), 0);
                    assert_eq!(sent, Ok(question.len()));
                    sockets.close(fd).unwrap();
                }
            });
            scope.spawn(|| {
                for round in 0..EACH {
                    let fd = socket(sockets);
                    assert_eq!(sockets.connect(fd, &address("10.77.0.1:80")), Ok(()));
                    let question = vec![round as u8; 1 + round];
                    let sent = sockets.send(fd, SendArgs::new(&question), 0);
                    assert_eq!(sent, Ok(question.len()));
                    assert_eq!(recv(sockets, fd, 100), Ok(question));
                    assert_eq!(recv(sockets, fd, 100), Ok(Vec::new()));
                    sockets.close(fd).unwrap();
                }
            });
        }
    });
    sockets.close(listener).unwrap();
    assert_eq!(sockets.lock().open_files(), 0);
}
