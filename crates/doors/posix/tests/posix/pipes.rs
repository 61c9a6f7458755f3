//! Pipes of the table: bounds, ends, waiting.

use devmem_posix::abi::{SOCK_NONBLOCK, ctl, ev, fcntl};
use devmem_posix::{EpollEvent, Posix, RecvArgs, Settings, SpliceArgs, VirtualTime};
use devmem_uapi::Errno;
use nic::{Nic, NicConfig, WireLink, WireOptions};
use stack::{Secret, Stack, StackConfig};
use wire::Instant;

/// Default capacity of a pipe in Linux.
const PIPE_SIZE: usize = 65_536;

fn table() -> (Posix<VirtualTime>, WireLink) {
    let (end, other) = WireLink::pair(WireOptions::default()).unwrap();
    let nic = Nic::new(Box::new(end), NicConfig::default()).unwrap();
    let address = "10.77.0.1".parse().unwrap();
    let stack = Stack::new(nic, StackConfig::new(address, 24, Secret::from_seed(1))).unwrap();
    let time = VirtualTime::new(stack, Settings::default(), Instant::from_millis(1));
    (Posix::new(time), other)
}

fn read(posix: &Posix<VirtualTime>, fd: i32, len: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; len];
    let args = RecvArgs {
        len,
        host: &mut bytes,
        control: &mut [],
    };
    let n = posix.read(fd, args)?.bytes;
    bytes.truncate(n);
    Ok(bytes)
}

fn moving(from: i32, to: i32, len: usize) -> SpliceArgs {
    SpliceArgs {
        from,
        to,
        has_offset: (false, false),
        len,
        flags: 0,
    }
}

#[test]
fn a_pipe_holds_64_kib_and_small_writes_are_atomic() {
    let (posix, _other) = table();
    let (reader, writer) = posix.call(|t| t.pipe(SOCK_NONBLOCK)).unwrap();
    assert_eq!(read(&posix, reader, 10), Err(Errno::EAGAIN));
    let bytes: Vec<u8> = (0..=255).cycle().take(PIPE_SIZE + 9000).collect();
    assert_eq!(
        posix.write(writer, &bytes[..PIPE_SIZE - 100]),
        Ok(PIPE_SIZE - 100)
    );
    assert_eq!(posix.write(writer, &bytes[..101]), Err(Errno::EAGAIN));
    assert_eq!(posix.write(writer, &bytes[PIPE_SIZE - 100..]), Ok(100));
    assert_eq!(posix.write(writer, &bytes), Err(Errno::EAGAIN));
    assert_eq!(posix.write(writer, &[]), Ok(0));
    assert_eq!(read(&posix, reader, 0), Ok(Vec::new()));
    assert_eq!(read(&posix, reader, 1 << 20).unwrap(), bytes[..PIPE_SIZE]);
    assert_eq!(read(&posix, writer, 1), Err(Errno::EBADF));
    assert_eq!(posix.write(reader, b"x"), Err(Errno::EBADF));
}

#[test]
fn a_close_is_reported_at_the_other_end_and_the_last_close_frees_the_pipe() {
    let (posix, _other) = table();
    let (reader, writer) = posix.call(|t| t.pipe(0)).unwrap();
    assert_eq!(posix.call(|t| t.fcntl(reader, fcntl::GETFL, 0)), Ok(0));
    assert_eq!(posix.call(|t| t.fcntl(writer, fcntl::GETFL, 0)), Ok(1));
    assert_eq!(posix.write(writer, b"last words"), Ok(10));
    posix.close(writer).unwrap();
    assert_eq!(read(&posix, reader, 100).unwrap(), b"last words");
    assert_eq!(read(&posix, reader, 100).unwrap(), b"");
    posix.close(reader).unwrap();
    let (reader, writer) = posix.call(|t| t.pipe(0)).unwrap();
    posix.close(reader).unwrap();
    assert_eq!(posix.write(writer, b"x"), Err(Errno::EPIPE));
    posix.close(writer).unwrap();
    assert_eq!(posix.call(|t| t.open_files()), 0);
    assert_eq!(posix.call(|t| t.pipe(1)), Err(Errno::EINVAL));
}

#[test]
fn each_write_and_new_room_is_an_edge() {
    let (posix, _other) = table();
    let (reader, writer) = posix.call(|t| t.pipe(SOCK_NONBLOCK)).unwrap();
    let epoll = posix.call(|t| t.epoll_create(0)).unwrap();
    for (fd, events) in [(reader, ev::IN | ev::ET), (writer, ev::OUT | ev::ET)] {
        let data = u64::from(fd.cast_unsigned());
        let event = EpollEvent { events, data };
        posix
            .call(|t| t.epoll_ctl(epoll, ctl::ADD, fd, event))
            .unwrap();
    }
    let next = || {
        let events = posix.epoll_wait(epoll, 8, 0).unwrap();
        let of = |event: EpollEvent| (event.events, i32::try_from(event.data).unwrap());
        events.into_iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(next(), [(ev::OUT, writer)]);
    posix.write(writer, b"a").unwrap();
    assert_eq!(next(), [(ev::IN, reader)]);
    assert_eq!(next(), []);
    posix.write(writer, &vec![0; PIPE_SIZE]).unwrap();
    assert_eq!(next(), [(ev::IN, reader)]);
    read(&posix, reader, 4095).unwrap();
    assert_eq!(next(), []);
    read(&posix, reader, 1).unwrap();
    assert_eq!(next(), [(ev::OUT, writer)]);
    posix.close(writer).unwrap();
    assert_eq!(next(), [(ev::IN | ev::HUP, reader)]);
}

#[test]
fn a_blocked_write_continues_when_the_pipe_is_read() {
    let (posix, _other) = table();
    let (reader, writer) = posix.call(|t| t.pipe(0)).unwrap();
    let bytes: Vec<u8> = (0..3 * PIPE_SIZE).map(|at| (at % 251) as u8).collect();
    let mut seen = Vec::new();
    std::thread::scope(|scope| {
        let write = scope.spawn(|| posix.write(writer, &bytes));
        while seen.len() < bytes.len() {
            seen.extend(read(&posix, reader, 10_000).unwrap());
        }
        assert_eq!(write.join().unwrap(), Ok(bytes.len()));
    });
    assert_eq!(seen, bytes);
}

#[test]
fn a_splice_between_pipes_moves_what_fits() {
    let (posix, _other) = table();
    let (a, into_a) = posix.call(|t| t.pipe(SOCK_NONBLOCK)).unwrap();
    let (b, into_b) = posix.call(|t| t.pipe(SOCK_NONBLOCK)).unwrap();
    assert_eq!(posix.splice(moving(a, into_b, 10)), Err(Errno::EAGAIN));
    posix.write(into_a, &[1; 5000]).unwrap();
    posix.write(into_b, &vec![2; PIPE_SIZE - 1000]).unwrap();
    assert_eq!(posix.splice(moving(a, into_b, 5000)), Ok(1000));
    assert_eq!(posix.splice(moving(a, into_b, 5000)), Err(Errno::EAGAIN));
    let all = read(&posix, b, PIPE_SIZE).unwrap();
    assert!(all[PIPE_SIZE - 1000..].iter().all(|byte| *byte == 1));
    assert_eq!(posix.splice(moving(a, into_b, usize::MAX)), Ok(4000));
    posix.close(into_a).unwrap();
    assert_eq!(posix.splice(moving(a, into_b, 1)), Ok(0));
}
