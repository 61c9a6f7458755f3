//! Runs the scenarios through files, with the calls and bytes of a C program.

use std::net::{Shutdown, SocketAddr};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use devmem_posix::abi::{SOCK_NONBLOCK, SOCK_STREAM, SOL_TCP, ev, so, tcp_opt};
use devmem_posix::sockaddr::{Family, ParsedAddress, emit, parse};
use devmem_posix::{
    PollFd, Posix, RecvArgs, SendArgs, Settings, Table, WaitLimit, Waiter, Waits, names_dmabuf,
};
use devmem_uapi::{DmabufId, Errno, MsgFlags, sockopt};
use netmem::{Dmabuf, NiovSize};
use netsim::{RecvResult, RecvRoom};
use stack::{Readiness, SendMsg, SocketId, SocketOption, Stack};
use steer::RxQueueId;
use wire::Instant;

use sockopt::SOL_SOCKET;

/// The interface of the scenarios to a stack.
pub type Door = Files;

/// Number of simulations of each test of seeds, unless the environment sets another: the stack's own tests run thousands.
pub const SEEDS: u64 = 75;

/// A socket table with a clock that the simulation sets. Its files are non-blocking.
#[derive(Debug)]
pub struct Files {
    posix: Posix<Simulated>,
}

/// A table with the simulation's time, in nanoseconds. No call waits.
#[derive(Debug)]
struct Simulated {
    table: Mutex<Table>,
    now: AtomicU64,
}

impl Waiter for Simulated {
    type Locked<'a> = MutexGuard<'a, Table>;

    fn now(&self) -> Instant {
        Instant::from_nanos(self.now.load(Ordering::Relaxed))
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap()
    }

    fn call<T>(&self, _: Waits, call: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = self.lock();
        table.set_clock(self.now());
        let result = call(&mut table);
        table.after_call(self.now());
        result
    }

    fn wait_for<T>(
        &self,
        limit: WaitLimit,
        waits: &mut Waits,
        mut attempt: impl FnMut(&mut Table, Instant) -> Option<T>,
        give_up: impl FnOnce(&mut Table) -> T,
    ) -> T {
        assert_eq!(
            limit,
            WaitLimit::Never,
            "a call on a non-blocking file waits"
        );
        let now = self.now();
        self.call(*waits, |table| {
            attempt(table, now).unwrap_or_else(|| give_up(table))
        })
    }
}

fn family(address: SocketAddr) -> Family {
    match address {
        SocketAddr::V4(_) => Family::V4,
        SocketAddr::V6(_) => Family::V6,
    }
}

/// Parses the address of a socket of either family.
fn address(bytes: &[u8]) -> SocketAddr {
    let given = parse(bytes, Family::V4).or_else(|_| parse(bytes, Family::V6));
    match given {
        Ok(ParsedAddress::Address(address)) => address,
        other => panic!("{bytes:?} is not an address: {other:?}"),
    }
}

fn int(value: impl Into<i32>) -> Vec<u8> {
    value.into().to_ne_bytes().to_vec()
}

impl Files {
    fn set_time(&self, now: Instant) {
        let clock = &self.posix.waiter().now;
        clock.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Creates a socket, and closes it again if `begin` fails.
    fn socket(
        &self,
        family: Family,
        begin: impl FnOnce(i32) -> Result<(), Errno>,
    ) -> Result<i32, Errno> {
        let kind = SOCK_STREAM | SOCK_NONBLOCK;
        let domain = i32::from(family.domain());
        let fd = self.posix.call(|table| table.socket(domain, kind, 0))?;
        match begin(fd) {
            Ok(()) => Ok(fd),
            Err(errno) => {
                self.posix.close(fd).expect("it was made a moment ago");
                Err(errno)
            }
        }
    }

    fn set(&self, fd: i32, name: (i32, i32), value: &[u8]) -> Result<i32, Errno> {
        self.posix.call(|table| table.setsockopt(fd, name, value))
    }
}

/// Returns an option's level, name and value, one entry for each call.
fn calls(option: SocketOption) -> Vec<((i32, i32), Vec<u8>)> {
    let seconds = |time: std::time::Duration| i32::try_from(time.as_secs()).unwrap();
    match option {
        SocketOption::NoDelay(on) => vec![((SOL_TCP, tcp_opt::NODELAY), int(on))],
        SocketOption::Cork(on) => vec![((SOL_TCP, tcp_opt::CORK), int(on))],
        SocketOption::Zerocopy(on) => vec![((SOL_SOCKET, so::ZEROCOPY), int(on))],
        SocketOption::UserTimeout(time) => {
            let ms = i32::try_from(time.unwrap_or_default().as_millis()).unwrap();
            vec![((SOL_TCP, tcp_opt::USER_TIMEOUT), int(ms))]
        }
        // Linux doubles the number.
        SocketOption::SndBuf(bytes) => {
            let half = i32::try_from(bytes / 2).unwrap();
            vec![((SOL_SOCKET, so::SNDBUFFORCE), int(half))]
        }
        SocketOption::KeepAlive(Some(times)) => vec![
            ((SOL_TCP, tcp_opt::KEEPIDLE), int(seconds(times.idle))),
            ((SOL_TCP, tcp_opt::KEEPINTVL), int(seconds(times.interval))),
            ((SOL_TCP, tcp_opt::KEEPCNT), int(times.count)),
            ((SOL_SOCKET, so::KEEPALIVE), int(1)),
        ],
        other => panic!("{other:?} is not tested through files"),
    }
}

impl netsim::Door for Files {
    type Socket = i32;

    fn open(stack: Stack) -> Self {
        let posix = Posix::new(Simulated {
            table: Mutex::new(Table::new(stack, Settings::default())),
            now: AtomicU64::new(0),
        });
        Self { posix }
    }

    fn look<T>(&self, look: impl FnOnce(&Stack) -> T) -> T {
        look(self.posix.lock().stack())
    }

    fn stack_mut(&mut self) -> &mut Stack {
        self.posix.waiter_mut().table.get_mut().unwrap().stack_mut()
    }

    fn id(&self, fd: i32) -> Result<SocketId, Errno> {
        self.posix.lock().socket_id(fd)
    }

    fn poll(&mut self, now: Instant) -> bool {
        self.set_time(now);
        self.posix.call(|table| table.poll_stack(now))
    }

    fn bind_rx(
        &mut self,
        memory: &Dmabuf,
        niov_size: NiovSize,
        queues: &[RxQueueId],
    ) -> Result<DmabufId, Errno> {
        self.posix
            .call(|table| table.bind_rx_queues(memory, niov_size, queues))
            .map_err(|error| error.errno())
    }

    fn bind_tx(&mut self, memory: &Dmabuf) -> Result<DmabufId, Errno> {
        let bound = self.posix.call(|table| table.bind_tx(memory));
        bound.map_err(|error| error.errno())
    }

    fn unbind(&mut self, id: DmabufId) -> Result<(), Errno> {
        self.posix.call(|table| table.unbind(id))
    }

    fn listen(&mut self, local: SocketAddr, backlog: usize) -> Result<i32, Errno> {
        let family = family(local);
        // As in most servers: connections of an earlier listener may be in TIME-WAIT.
        let reuse = (SOL_SOCKET, so::REUSEADDR);
        // Linux queues one connection more than the backlog of listen(2).
        let backlog = i32::try_from(backlog.saturating_sub(1)).unwrap();
        self.socket(family, |fd| {
            self.set(fd, reuse, &int(1))?;
            self.posix
                .call(|table| table.bind(fd, &emit(local, family)))?;
            self.posix.call(|table| table.listen(fd, backlog))
        })
    }

    fn accept(&mut self, listener: i32) -> Result<(i32, SocketAddr), Errno> {
        let (fd, peer) = self.posix.accept(listener, SOCK_NONBLOCK)?;
        Ok((fd, address(&peer)))
    }

    fn connect(&mut self, remote: SocketAddr, now: Instant) -> Result<i32, Errno> {
        self.set_time(now);
        let family = family(remote);
        self.socket(family, |fd| {
            match self.posix.connect(fd, &emit(remote, family)) {
                Err(Errno::EINPROGRESS) => Ok(()),
                outcome => outcome,
            }
        })
    }

    fn sendmsg(&mut self, fd: i32, msg: &SendMsg<'_>, flags: MsgFlags) -> Result<usize, Errno> {
        let control = msg.control();
        // If a control message names a dma-buf, an iovec entry is an offset, even if the program meant an address.
        let at = msg.host().as_ptr().addr();
        let address: &[Range<usize>] = &[Range {
            start: at,
            end: at + msg.host().len(),
        }];
        let meant_addresses = names_dmabuf(control) && !msg.host().is_empty();
        let args = SendArgs {
            address: &[],
            host: msg.host(),
            ranges: match meant_addresses {
                true => address,
                false => msg.ranges(),
            },
            control,
        };
        self.posix.send(fd, args, flags.bits())
    }

    fn recvmsg(
        &mut self,
        fd: i32,
        room: RecvRoom<'_>,
        flags: MsgFlags,
    ) -> Result<RecvResult, Errno> {
        let RecvRoom { host, len, control } = room;
        let args = RecvArgs { host, len, control };
        let received = self.posix.recv(fd, args, flags.bits())?;
        Ok(RecvResult {
            bytes: received.bytes,
            host_bytes: received.host_bytes,
            control_bytes: received.control_bytes,
            stopped: received.stopped,
        })
    }

    fn dontneed_bytes(&mut self, fd: i32, value: &[u8]) -> Result<u32, Errno> {
        let freed = self.set(fd, (SOL_SOCKET, sockopt::SO_DEVMEM_DONTNEED), value)?;
        Ok(u32::try_from(freed).expect("a count"))
    }

    fn set_option(&mut self, fd: i32, option: SocketOption) -> Result<(), Errno> {
        for (name, value) in calls(option) {
            assert_eq!(self.set(fd, name, &value)?, 0);
        }
        Ok(())
    }

    fn take_error(&mut self, fd: i32) -> Result<Option<Errno>, Errno> {
        let name = (SOL_SOCKET, so::ERROR);
        let value = self.posix.call(|table| table.getsockopt(fd, name))?;
        let errno = i32::from_ne_bytes(value.try_into().expect("an int"));
        Ok((errno != 0).then_some(Errno(errno)))
    }

    fn readiness(&self, fd: i32) -> Result<Readiness, Errno> {
        let mut fds = [PollFd {
            fd,
            events: u16::MAX,
            revents: 0,
        }];
        self.posix.poll(&mut fds, 0)?;
        let bits = u32::from(fds[0].revents);
        if bits & ev::NVAL != 0 {
            return Err(Errno::EBADF);
        }
        let pairs = [
            (ev::IN, Readiness::READABLE),
            (ev::OUT, Readiness::WRITABLE),
            (ev::RDHUP, Readiness::READ_CLOSED),
            (ev::ERR, Readiness::ERROR),
        ];
        let told = pairs.map(|(bit, ready)| ready.when(bits & bit != 0));
        Ok(told.into_iter().fold(Readiness::NONE, Readiness::union))
    }

    fn local_addr(&self, fd: i32) -> Result<SocketAddr, Errno> {
        let name = self.posix.call(|table| table.getsockname(fd))?;
        Ok(address(&name))
    }

    fn shutdown(&mut self, fd: i32, how: Shutdown) -> Result<(), Errno> {
        let how = match how {
            Shutdown::Read => 0,
            Shutdown::Write => 1,
            Shutdown::Both => 2,
        };
        self.posix.call(|table| table.shutdown(fd, how))
    }

    fn close(&mut self, fd: i32) -> Result<(), Errno> {
        self.posix.close(fd)
    }

    fn abort(&mut self, fd: i32) -> Result<(), Errno> {
        let linger = [int(1), int(0)].concat();
        self.set(fd, (SOL_SOCKET, so::LINGER), &linger)?;
        self.posix.close(fd)
    }
}
