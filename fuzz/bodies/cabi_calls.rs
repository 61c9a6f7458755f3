// UNSAFETY: makes the calls as C does. Memory has exactly the given length, so that AddressSanitizer finds every access
// beyond it.

//! The socket calls as C programs make them: messages, vectors, control buffers, addresses and options of any bytes,
//! impossible lengths, null pointers. As in C, pointers refer to memory of the given length.
//!
//! Input: calls, each with a byte that selects the call, one that selects the file, and its arguments.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::time::Duration;

use cabi::call;
use devmem_posix::abi::SOCK_NONBLOCK;
use devmem_posix::sockaddr::{Family, emit};
use devmem_posix::{FD_BASE, Posix, Table, VirtualTime};
use devmem_uapi::{CmsgWriter, DmabufId, cmsg_space};
use libc::{epoll_event, pollfd, sockaddr};
use netmem::{Dmabuf, NiovSize};
use nic::WireLink;

use super::input::{FILES, Input, OURS, Vector, connection, message, told_len};

/// Maximum number of calls of one run, to limit its time.
const MAX_CALLS: usize = 200;
/// Bytes of device memory for each direction.
const MEMORY: usize = 256 << 10;
/// Time after which every connection has ended by itself.
const LONG: Duration = Duration::from_secs(1000);

thread_local! {
    /// Device memory to send from and to receive into, kept from run to run: mapping it takes longer than most runs.
    static MEMORIES: [Dmabuf; 2] =
        [(); 2].map(|()| Dmabuf::anonymous(MEMORY).expect("a quarter of a MiB"));
}

/// Makes an unsafe call.
macro_rules! c {
    ($call:expr) => {
        // SAFETY: each pointer is null, or refers to memory that is owned here and has the given length; the call refuses
        // impossible lengths before it accesses memory.
        unsafe { $call }
    };
}

/// Makes calls, then checks that no socket is left.
pub fn run(data: &[u8]) {
    let mut world = World::new();
    let mut input = Input(data);
    for _ in 0..MAX_CALLS {
        if input.0.is_empty() {
            break;
        }
        world.call(&mut input);
    }
    world.posix.call(Table::close_all);
    world.posix.sleep(LONG);
    let table = world.posix.lock();
    assert_eq!((table.open_files(), table.held_files()), (0, 0));
    let stats = table.stats();
    assert_eq!((stats.sockets, stats.orphans, stats.connections), (0, 0, 0));
}

struct World {
    posix: Posix<VirtualTime>,
    sending: DmabufId,
    _other: WireLink,
}

impl World {
    fn new() -> Self {
        let (posix, other) = connection();
        let [to_send, to_receive] = MEMORIES.with(Clone::clone);
        let (receiving, sending) = posix.call(|table| {
            let receiving = table.bind_rx(&to_receive, NiovSize::MIN);
            (receiving, table.bind_tx(&to_send))
        });
        receiving.expect("the memory is a multiple of the net_iov size, and the queues are unused");
        posix.run_now();
        Self {
            posix,
            sending: sending.expect("the memory has whole pages"),
            _other: other,
        }
    }

    fn call(&mut self, input: &mut Input<'_>) {
        let (which, fd) = (
            input.byte(),
            FD_BASE + c_int::from(input.byte() % FILES) - 1,
        );
        // Non-blocking, because no event would end a wait.
        let _ = self.posix.call(|table| table.set_nonblocking(fd, true));
        match which % 12 {
            0 | 1 => self.sendmsg(fd, input),
            2 | 3 => self.recvmsg(fd, input),
            4 => self.setsockopt(fd, input),
            5 => self.getsockopt(fd, input),
            6 => self.address(fd, input),
            7 => self.name(fd, input),
            8 => self.file(fd, input),
            9 => self.watch(fd, input),
            10 => self.control(fd, input),
            _ => self
                .posix
                .sleep(Duration::from_millis(u64::from(input.byte()) * 4)),
        }
    }

    fn sendmsg(&self, fd: c_int, input: &mut Input<'_>) {
        let choice = input.byte();
        let mut control = match choice % 4 {
            0 => input.memory(),
            1 => Box::default(),
            _ => self.names_device_memory(),
        };
        let mut vector = match choice % 4 {
            // The control bytes may or may not contain a dma-buf id, so the entries must be valid in both cases.
            0 | 1 => Vector::new(input),
            _ => Vector::offsets(input),
        };
        let msg = message(&mut vector, &mut control, input);
        let sent = c!(call::sendmsg(
            &self.posix,
            fd,
            &raw const msg,
            input.flags()
        ));
        drop((vector, control, sent));
    }

    fn names_device_memory(&self) -> Box<[u8]> {
        let mut control = vec![0; cmsg_space(4)];
        let pushed = CmsgWriter::new(&mut control).push_tx_dmabuf(self.sending);
        pushed.expect("there is room");
        control.into()
    }

    fn recvmsg(&self, fd: c_int, input: &mut Input<'_>) {
        let (mut vector, mut control) = (Vector::new(input), input.memory());
        let mut msg = message(&mut vector, &mut control, input);
        let received = c!(call::recvmsg(&self.posix, fd, &raw mut msg, input.flags()));
        if received.is_ok() {
            assert!(msg.msg_controllen <= control.len());
            assert_eq!(msg.msg_namelen, 0);
        }
    }

    fn setsockopt(&self, fd: c_int, input: &mut Input<'_>) {
        let ((level, name), value) = (input.option(), input.memory());
        let len = told_len(value.len(), input);
        let value = value.as_ptr().cast::<c_void>();
        let _ = c!(call::setsockopt(&self.posix, fd, level, name, value, len));
    }

    fn getsockopt(&self, fd: c_int, input: &mut Input<'_>) {
        let ((level, name), mut value) = (input.option(), input.memory());
        let mut len = told_len(value.len(), input);
        let to = value.as_mut_ptr().cast::<c_void>();
        if c!(call::getsockopt(
            &self.posix,
            fd,
            level,
            name,
            to,
            &raw mut len
        ))
        .is_ok()
        {
            assert!(usize::try_from(len).is_ok_and(|len| len <= value.len()));
        }
    }

    fn address(&self, fd: c_int, input: &mut Input<'_>) {
        let (choice, mut bytes) = (input.byte(), input.memory());
        if choice & 2 != 0 {
            bytes = emit(OURS.parse().expect("an address"), Family::V4).into();
        }
        let (at, len) = (
            bytes.as_ptr().cast::<sockaddr>(),
            told_len(bytes.len(), input),
        );
        let _ = match choice & 1 {
            0 => c!(call::bind(&self.posix, fd, at, len)),
            _ => c!(call::connect(&self.posix, fd, at, len)),
        };
    }

    fn name(&self, fd: c_int, input: &mut Input<'_>) {
        let (choice, mut bytes) = (input.byte(), input.memory());
        let mut len = told_len(bytes.len(), input);
        let (to, room) = if choice & 4 == 0 {
            (bytes.as_mut_ptr().cast::<sockaddr>(), &raw mut len)
        } else {
            (null_mut(), null_mut())
        };
        let _ = match choice % 3 {
            0 => c!(call::accept(&self.posix, fd, to, room, SOCK_NONBLOCK)).map(drop),
            1 => c!(call::name(
                &self.posix,
                fd,
                call::SocketEnd::Local,
                to,
                room
            )),
            _ => c!(call::name(&self.posix, fd, call::SocketEnd::Peer, to, room)),
        };
    }

    fn file(&self, fd: c_int, input: &mut Input<'_>) {
        let choice = input.byte();
        let vector = Vector::new(input);
        let count = c_int::try_from(vector.count(input)).unwrap_or(-1);
        let entries = vector.entries.as_ptr();
        let _ = match choice % 4 {
            0 => c!(call::readv(&self.posix, fd, entries, count)),
            1 => c!(call::writev(&self.posix, fd, entries, count)),
            2 => {
                let mut bytes = input.memory();
                let to = bytes.as_mut_ptr().cast::<c_void>();
                c!(call::read_file(&self.posix, fd, to, bytes.len()))
            }
            _ => {
                let bytes = input.memory();
                let from = bytes.as_ptr().cast::<c_void>();
                c!(call::write_file(&self.posix, fd, from, bytes.len()))
            }
        };
    }

    fn watch(&self, fd: c_int, input: &mut Input<'_>) {
        let (choice, number) = (input.byte(), c_int::from(input.byte()));
        let (events, other) = (input.byte(), FD_BASE + number % c_int::from(FILES));
        let mut room: Box<[epoll_event]> = (0..events % 4)
            .map(|_| epoll_event {
                events: events.into(),
                u64: 7,
            })
            .collect();
        let most = c_int::try_from(room.len()).expect("three");
        let entry = |fd| pollfd {
            fd,
            events: events.into(),
            revents: -1,
        };
        let mut fds: Box<[pollfd]> = [entry(fd), entry(other), entry(number - 9)].into();
        let count = if choice & 64 == 0 {
            3
        } else {
            u64::MAX - u64::from(events)
        };
        let _ = match choice % 4 {
            0 => c!(call::poll(&self.posix, fds.as_mut_ptr(), count, 0)),
            1 => self.posix.call(|table| table.epoll_create(0)),
            2 => {
                let event = room
                    .first()
                    .map_or(std::ptr::null(), |event| &raw const *event);
                c!(call::epoll_ctl(&self.posix, fd, number % 5, other, event)).map(|()| 0)
            }
            _ => c!(call::epoll_wait(
                &self.posix,
                fd,
                room.as_mut_ptr(),
                most.min(number),
                0
            )),
        };
    }

    /// ioctl with any request, and calls that open, shut down and close.
    fn control(&self, fd: c_int, input: &mut Input<'_>) {
        let (choice, mut number) = (input.byte(), c_int::from(input.byte()));
        let request =
            [0x541b, 0x5421, 0x5411, u64::from(input.byte()) << 8][usize::from(choice >> 2 & 3)];
        let argument = if number == 9 {
            null_mut()
        } else {
            &raw mut number
        };
        let _ = match choice % 4 {
            0 => c!(call::ioctl(&self.posix, fd, request, argument)).map(|()| 0),
            1 => self
                .posix
                .call(|table| table.socket(2, 1 | SOCK_NONBLOCK, number)),
            2 => self
                .posix
                .call(|table| table.shutdown(fd, number % 4))
                .map(|()| 0),
            _ => self.posix.call(|table| table.close(fd)).map(|()| 0),
        };
    }
}
