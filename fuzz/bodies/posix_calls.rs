//! The socket table: any calls in any order, on files that are open, closed or were never opened, over one stack with
//! connections to itself and payload in device memory.
//!
//! Input: one byte of set-up, then calls of four bytes: the call, the file, two arguments.

use std::sync::Arc;
use std::time::Duration;

use devmem_posix::abi::{ctl, ev};
use devmem_posix::sockaddr::{Family, emit};
use devmem_posix::{
    EpollEvent, Posix, RecvArgs, SendArgs, Settings, SpliceArgs, Table, VirtualTime, Waiter,
    splice_flag,
};
use devmem_uapi::{
    CmsgIter, CmsgWriter, DevmemCmsg, DmabufId, DmabufToken, MsgFlags, cmsg_space, sockopt,
};
use netmem::{Dmabuf, MemoryProvider, NiovSize};
use nic::{Nic, NicConfig, WireLink, WireOptions};
use stack::{Secret, Stack, StackConfig};
use wire::Instant;

/// Set-up: device memory is bound for receiving.
const BOUND: u8 = 1;
/// Set-up: receives without `MSG_SOCK_DEVMEM` get a copy.
const COPY_OUT: u8 = 2;

/// Maximum number of calls of one run, to limit its time.
const MAX_CALLS: usize = 400;
/// Range of file numbers.
const FILES: u8 = 12;
/// Maximum size of a buffer.
const BUFFER: usize = 8192;
/// Bytes of device memory for each direction.
const MEMORY: usize = 1 << 20;
/// Time after which every connection has ended by itself: longer than TIME-WAIT and the timeouts of silent connections.
const LONG: Duration = Duration::from_secs(1000);

thread_local! {
    /// Device memory to send from and to receive into. Kept from run to run, because mapping it takes longer than most
    /// runs. Runs do not affect each other: the first memory is never written, and from the second only bytes that the NIC
    /// wrote in the same run are read.
    static MEMORIES: [Dmabuf; 2] =
        [(); 2].map(|()| Dmabuf::anonymous(MEMORY).expect("a MiB of memory"));
}

/// Address of the stack, to which it also connects.
const OURS: &str = "10.77.0.1";

/// Makes calls, then checks that no socket and no net_iov is left.
pub fn run(data: &[u8]) {
    let Some((&setup, calls)) = data.split_first() else {
        return;
    };
    let (end, _other) = WireLink::pair(WireOptions::default()).expect("a wire without wakeups");
    let config = NicConfig {
        host_mem_bytes: 1 << 20,
        ..NicConfig::default()
    };
    let nic = Nic::new(Box::new(end), config).expect("a configuration that can be");
    let address = OURS.parse().expect("an address");
    let config = StackConfig {
        send_memory_bytes: 1 << 20,
        ..StackConfig::new(address, 24, Secret::from_seed(1))
    };
    let stack = Stack::new(nic, config).expect("a configuration that can be");
    let settings = Settings {
        copy_out: setup & COPY_OUT != 0,
        ..Settings::default()
    };
    let posix = Posix::new(VirtualTime::new(stack, settings, Instant::from_millis(1)));
    let [to_send, to_receive] = MEMORIES.with(Clone::clone);
    let sending = posix
        .call(|table| table.bind_tx(&to_send))
        .expect("memory of whole pages");
    let bound = (setup & BOUND != 0).then(|| bind(&posix, &to_receive));
    let mut run = Run {
        posix: &posix,
        sending,
        tokens: Vec::new(),
    };
    for call in calls.chunks_exact(4).take(MAX_CALLS) {
        run.call([call[0], call[1], call[2], call[3]]);
    }
    finish(&posix, bound);
}

fn bind(posix: &Posix<VirtualTime>, memory: &Dmabuf) -> (DmabufId, Arc<MemoryProvider>) {
    posix.call(|table| {
        let id = table
            .bind_rx(memory, NiovSize::MIN)
            .expect("the queues are unused");
        let provider = table.stack().provider(id).expect("it was bound just now");
        (id, provider)
    })
}

fn finish(posix: &Posix<VirtualTime>, bound: Option<(DmabufId, Arc<MemoryProvider>)>) {
    posix.call(Table::close_all);
    posix.sleep(LONG);
    let table = posix.lock();
    assert_eq!((table.open_files(), table.held_files()), (0, 0));
    let stats = table.stats();
    assert_eq!((stats.sockets, stats.orphans, stats.connections), (0, 0, 0));
    drop(table);
    if let Some((id, provider)) = bound {
        posix.call(|table| table.unbind(id)).expect("it is bound");
        assert_eq!(
            provider.free_niovs(),
            provider.area().count(),
            "some net_iovs were not returned"
        );
    }
}

struct Run<'p> {
    posix: &'p Posix<VirtualTime>,
    sending: DmabufId,
    tokens: Vec<(i32, DmabufToken)>,
}

impl Run<'_> {
    #[expect(clippy::too_many_lines, reason = "one arm for each call")]
    fn call(&mut self, [which, file, a, b]: [u8; 4]) {
        let fd = devmem_posix::FD_BASE + i32::from(file % FILES) - 1;
        let (posix, number) = (self.posix, i32::from(a));
        let family = if b & 1 == 0 { Family::V4 } else { Family::V6 };
        let at = |port: u8| {
            emit(
                (
                    OURS.parse::<std::net::IpAddr>().expect("an address"),
                    5000 + u16::from(port % 4),
                )
                    .into(),
                family,
            )
        };
        match which % 25 {
            0 => ignore(posix.call(|table| table.socket(family.domain().into(), 1, 0))),
            1 => ignore(posix.call(|table| table.bind(fd, &at(a)))),
            2 => ignore(posix.call(|table| table.listen(fd, number - 1))),
            3 => ignore(posix.call(|table| table.accept(fd, 0))),
            4 => ignore(posix.call(|table| table.connect(fd, &at(a), posix.waiter().now()))),
            5 => self.receive(fd, a, b),
            6 => self.send(fd, a, b),
            7 => self.send_device(fd, a, b),
            8 => ignore(posix.call(|table| table.shutdown(fd, number % 4))),
            9 => ignore(posix.call(|table| table.close(fd))),
            10 => self.set(fd, a, b),
            11 => {
                ignore(posix.call(|table| {
                    table.getsockopt(fd, ([1, 6, 0, 41][usize::from(b % 4)], number))
                }))
            }
            12 => ignore(posix.call(|table| {
                (
                    table.getsockname(fd),
                    table.getpeername(fd),
                    table.ioctl(fd, 0x541b),
                )
            })),
            13 => ignore(posix.call(|table| table.poll_events(fd))),
            14 => ignore(posix.call(|table| table.epoll_create(0))),
            15 => {
                let event = EpollEvent {
                    events: u32::from(b) | ev::ET.wrapping_mul(u32::from(b & 1)),
                    data: 0,
                };
                let other = devmem_posix::FD_BASE + i32::from(a % FILES);
                ignore(posix.call(|table| {
                    table.epoll_ctl(
                        fd,
                        [ctl::ADD, ctl::MOD, ctl::DEL, 9][usize::from(b % 4)],
                        other,
                        event,
                    )
                }));
            }
            16 => ignore(posix.call(|table| table.epoll_take(fd, number))),
            17 => self.dontneed(fd, a),
            18 => posix.run_now(),
            20 => ignore(posix.call(|table| table.pipe(number << 4))),
            21 => self.splice(fd, a, b),
            22 => self.write(fd, a, b),
            23 => self.read(fd, a, b),
            24 => self.set_times(fd, a, b),
            _ => posix.sleep(Duration::from_millis(u64::from(a) * u64::from(b))),
        }
    }

    fn receive(&mut self, fd: i32, a: u8, b: u8) {
        let (mut host, mut control) = (vec![0; BUFFER], vec![0; usize::from(b) * 4]);
        let len = usize::from(a) * 32;
        let choices = [
            MsgFlags::SOCK_DEVMEM,
            MsgFlags::PEEK,
            MsgFlags::TRUNC,
            MsgFlags::ERRQUEUE,
        ];
        let chosen = choices
            .iter()
            .enumerate()
            .filter(|(bit, _)| b >> bit & 1 == 1);
        let flags: MsgFlags = chosen.map(|(_, flag)| *flag).collect();
        let args = RecvArgs {
            host: &mut host[..len],
            len,
            control: &mut control,
        };
        let Ok(received) = self.posix.call(|table| table.recv(fd, args, flags.bits())) else {
            return;
        };
        assert!(received.bytes <= len && received.host_bytes <= received.bytes);
        assert!(received.control_bytes <= control.len());
        for cmsg in CmsgIter::new(&control[..received.control_bytes]) {
            if let Some(DevmemCmsg::Dmabuf(frag)) = DevmemCmsg::parse(&cmsg) {
                self.tokens.push((fd, DmabufToken::one(frag.frag_token)));
            }
        }
    }

    fn send(&mut self, fd: i32, a: u8, b: u8) {
        let bytes = vec![a; usize::from(b) * 32];
        let flags = if a & 1 == 0 {
            MsgFlags::MORE
        } else {
            MsgFlags::ZEROCOPY
        };
        let sent = self
            .posix
            .call(|table| table.send(fd, SendArgs::new(&bytes), flags.bits()));
        assert!(sent.unwrap_or(0) <= bytes.len());
    }

    fn send_device(&mut self, fd: i32, a: u8, b: u8) {
        let mut control = vec![0; cmsg_space(4)];
        let id = if b == 0 {
            DmabufId(a.into())
        } else {
            self.sending
        };
        CmsgWriter::new(&mut control)
            .push_tx_dmabuf(id)
            .expect("there is room");
        let start = usize::from(a) * 5000;
        let ranges = [start..start + usize::from(b) * 40, 0..usize::from(a)];
        let args = SendArgs {
            address: &[],
            host: &[],
            ranges: &ranges,
            control: &control,
        };
        ignore(
            self.posix
                .call(|table| table.send(fd, args, MsgFlags::ZEROCOPY.bits())),
        );
    }

    fn set(&mut self, fd: i32, a: u8, b: u8) {
        let level = [1, 6, 0, 41][usize::from(b % 4)];
        // SO_ZEROCOPY is frequent, because many calls depend on it and random numbers would seldom select it.
        let name = if a > 200 {
            sockopt::SO_ZEROCOPY
        } else {
            a.into()
        };
        let value = i32::from(b >> 2).to_ne_bytes();
        ignore(self.posix.call(|table| {
            table.setsockopt(fd, (level, name), &value[..usize::from(b >> 5).min(4)])
        }));
        ignore(
            self.posix
                .call(|table| table.setsockopt(fd, (level, name), &value)),
        );
    }

    /// Makes the files non-blocking, because no event would end a wait.
    fn without_waiting(&self, files: &[i32]) {
        for fd in files {
            ignore(self.posix.call(|table| table.set_nonblocking(*fd, true)));
        }
    }

    fn splice(&mut self, fd: i32, a: u8, b: u8) {
        let to = devmem_posix::FD_BASE + i32::from(a % FILES);
        self.without_waiting(&[fd, to]);
        let args = SpliceArgs {
            from: fd,
            to,
            has_offset: (b & 0x80 != 0, b & 0x40 != 0),
            len: usize::from(b) * 700,
            flags: (u32::from(a) >> 4) | splice_flag::NONBLOCK,
        };
        let moved = self.posix.splice(args);
        assert!(moved.unwrap_or(0) <= args.len);
    }

    fn write(&mut self, fd: i32, a: u8, b: u8) {
        self.without_waiting(&[fd]);
        let bytes = vec![a; usize::from(b) * 300];
        assert!(self.posix.write(fd, &bytes).unwrap_or(0) <= bytes.len());
    }

    fn read(&mut self, fd: i32, a: u8, b: u8) {
        self.without_waiting(&[fd]);
        let mut host = vec![0; usize::from(a) * 300];
        let len = host.len();
        let mut control = vec![0; usize::from(b)];
        let args = RecvArgs {
            host: &mut host,
            len,
            control: &mut control,
        };
        if let Ok(received) = self.posix.read(fd, args) {
            assert!(received.bytes <= len && received.control_bytes <= usize::from(b));
        }
    }

    fn set_times(&mut self, fd: i32, a: u8, b: u8) {
        let names = [29, 35, 37, 63, 64, 65];
        let name = names[usize::from(a) % names.len()];
        // Random events of both bytes, and all events of receives.
        let receives = if b & 1 == 1 { 1 << 3 | 1 << 4 } else { 0 };
        let flags = (u32::from(b) << (a & 8)) | receives;
        let value = flags.to_ne_bytes();
        let name = (sockopt::SOL_SOCKET, name);
        ignore(self.posix.call(|table| table.setsockopt(fd, name, &value)));
        ignore(self.posix.call(|table| table.getsockopt(fd, name)));
    }

    fn dontneed(&mut self, fd: i32, a: u8) {
        let index = usize::from(a) % (self.tokens.len() + 1);
        let (fd, token) = match self.tokens.get(index) {
            Some(_) => self.tokens.swap_remove(index),
            None => (
                fd,
                DmabufToken {
                    token_start: devmem_uapi::FragToken(a.into()),
                    token_count: a.into(),
                },
            ),
        };
        let bytes = [
            token.token_start.0.to_ne_bytes(),
            token.token_count.to_ne_bytes(),
        ]
        .concat();
        let name = (sockopt::SOL_SOCKET, sockopt::SO_DEVMEM_DONTNEED);
        ignore(self.posix.call(|table| table.setsockopt(fd, name, &bytes)));
    }
}

/// Any result is valid.
fn ignore<T>(_: T) {}
