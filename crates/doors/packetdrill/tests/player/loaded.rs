// UNSAFETY: loads the shared object as packetdrill does, and calls the C functions it gives, with pointers to memory
// of this file's own.

//! The shared object, loaded, and its functions with Rust's types around them.
#![allow(unsafe_code)]

use std::ffi::{CString, c_int};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};

use libloading::os::unix::Library;

use super::interface::Interface;

/// A loaded library with one instance.
pub struct Loaded {
    interface: Interface,
}

// SAFETY: 1. the structure is never changed; 2. what its pointer leads to is shared behind locks, as the contract with
// packetdrill wants, which calls from two threads.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

/// A result with its errno.
pub type Outcome = Result<i64, i32>;

fn outcome(answer: i64) -> Outcome {
    match answer {
        -1 => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
        answer => Ok(answer),
    }
}

/// Where cargo put the library: beside this test, or one folder up.
pub fn library() -> PathBuf {
    let test = std::env::current_exe().expect("this program has a path");
    let name = Path::new("libdevmem_packetdrill.so");
    let places = test
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join(name));
    let found = places.into_iter().find(|place| place.exists());
    found.expect("cargo builds the shared object before the test")
}

macro_rules! call {
    ($self:ident.$name:ident($($arg:expr),*)) => {
        // SAFETY: 1. the function came from the library with this userdata, which is freed in `drop` only; 2. pointers
        // lead to memory of this function's own, of the length given with them.
        unsafe { ($self.interface.$name)($self.interface.userdata $(, $arg)*) }
    };
}

impl Loaded {
    /// Loads the library as packetdrill does and makes an instance.
    pub fn new(flags: &str) -> Self {
        let mode = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE | libc::RTLD_DEEPBIND;
        // SAFETY: the library's constructors are Rust's own, and it stays loaded (RTLD_NODELETE).
        let loaded = unsafe { Library::open(Some(library()), mode) };
        let loaded = loaded.expect("the shared object can be loaded");
        type Init = unsafe extern "C" fn(*const std::ffi::c_char, *mut Interface);
        // SAFETY: the symbol is this function, by the contract.
        let init = unsafe { loaded.get::<Init>(b"packetdrill_interface_init") };
        let init = init.expect("the shared object has the symbol");
        let flags = CString::new(flags).expect("flags have no NUL");
        let mut interface = MaybeUninit::<Interface>::uninit();
        // SAFETY: a terminated string, and room for the structure.
        unsafe { init(flags.as_ptr(), interface.as_mut_ptr()) };
        // SAFETY: the function fills in all of it, whatever the flags say.
        let interface = unsafe { interface.assume_init() };
        Self { interface }
    }

    /// libc's close, past the interface.
    pub fn libc_close(fd: c_int) -> Outcome {
        // SAFETY: a number that an instance gave, which is this test's to close.
        outcome(unsafe { libc::close(fd) }.into())
    }

    /// libc's getsockopt, past the interface.
    pub fn libc_getsockopt(fd: c_int, name: (c_int, c_int), value: &mut Vec<u8>) -> Outcome {
        let mut len = u32::try_from(value.len()).expect("short");
        // SAFETY: the value has room for `len` bytes.
        let answer = unsafe {
            libc::getsockopt(fd, name.0, name.1, value.as_mut_ptr().cast(), &raw mut len)
        };
        value.truncate(len as usize);
        outcome(answer.into())
    }

    /// libc's sendfile from the position of the file, past the interface.
    pub fn libc_sendfile(to: c_int, from: c_int, count: usize) -> Outcome {
        // SAFETY: without an offset it has no pointers.
        let answer = unsafe { libc::sendfile(to, from, std::ptr::null_mut(), count) };
        outcome(answer as i64)
    }

    pub fn socket(&self, domain: c_int, kind: c_int, protocol: c_int) -> Outcome {
        outcome(call!(self.socket(domain, kind, protocol)).into())
    }

    pub fn bind(&self, fd: c_int, address: &[u8]) -> Outcome {
        let len = u32::try_from(address.len()).expect("short");
        outcome(call!(self.bind(fd, address.as_ptr().cast(), len)).into())
    }

    pub fn connect(&self, fd: c_int, address: &[u8]) -> Outcome {
        let len = u32::try_from(address.len()).expect("short");
        outcome(call!(self.connect(fd, address.as_ptr().cast(), len)).into())
    }

    pub fn listen(&self, fd: c_int, backlog: c_int) -> Outcome {
        outcome(call!(self.listen(fd, backlog)).into())
    }

    pub fn accept(&self, fd: c_int) -> Outcome {
        let mut address = [0u8; 64];
        let mut len = 64u32;
        outcome(call!(self.accept(fd, address.as_mut_ptr().cast(), &raw mut len)).into())
    }

    pub fn recv(&self, fd: c_int, buf: &mut [u8], flags: c_int) -> Outcome {
        outcome(call!(self.recv(fd, buf.as_mut_ptr().cast(), buf.len(), flags)) as i64)
    }

    pub fn send(&self, fd: c_int, bytes: &[u8], flags: c_int) -> Outcome {
        outcome(call!(self.send(fd, bytes.as_ptr().cast(), bytes.len(), flags)) as i64)
    }

    pub fn sendto(&self, fd: c_int, bytes: &[u8], flags: c_int, address: &[u8]) -> Outcome {
        let len = u32::try_from(address.len()).expect("short");
        let (bytes, size) = (bytes.as_ptr().cast(), bytes.len());
        outcome(call!(self.sendto(fd, bytes, size, flags, address.as_ptr().cast(), len)) as i64)
    }

    pub fn read(&self, fd: c_int, buf: &mut [u8]) -> Outcome {
        outcome(call!(self.read(fd, buf.as_mut_ptr().cast(), buf.len())) as i64)
    }

    pub fn write(&self, fd: c_int, bytes: &[u8]) -> Outcome {
        outcome(call!(self.write(fd, bytes.as_ptr().cast(), bytes.len())) as i64)
    }

    /// pipe: the end that is read and the end that is written.
    pub fn pipe(&self) -> Result<[c_int; 2], i32> {
        let mut fds = [-1; 2];
        outcome(call!(self.pipe(fds.as_mut_ptr())).into())?;
        Ok(fds)
    }

    /// splice; an offset that is given is 0.
    /// splice with offsets of which 0 stands for NULL, as packetdrill passes them.
    pub fn splice(
        &self,
        (from, to): (c_int, c_int),
        (mut from_at, mut to_at): (i64, i64),
        len: usize,
        flags: u32,
    ) -> Outcome {
        let (a, b) = (&raw mut from_at, &raw mut to_at);
        outcome(call!(self.splice(from, a, to, b, len, flags)).into())
    }

    /// sendmsg of one piece.
    pub fn sendmsg(&self, fd: c_int, pieces: &[&[u8]], flags: c_int) -> Outcome {
        let entry = |bytes: &&[u8]| libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        let mut iov: Vec<_> = pieces.iter().map(entry).collect();
        // SAFETY: all zeros are a message with nothing.
        let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
        msg.msg_iov = iov.as_mut_ptr();
        msg.msg_iovlen = iov.len();
        outcome(call!(self.sendmsg(fd, &raw const msg, flags)) as i64)
    }

    /// recvmsg; returns the control messages' bytes and msg_flags, too.
    pub fn recvmsg(&self, fd: c_int, buf: &mut [u8], flags: c_int) -> (Outcome, Vec<u8>, c_int) {
        let mut iov = libc::iovec {
            iov_base: buf.as_mut_ptr().cast(),
            iov_len: buf.len(),
        };
        let mut control = vec![0u8; 512];
        // SAFETY: all zeros are a message with nothing.
        let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
        msg.msg_iov = &raw mut iov;
        msg.msg_iovlen = 1;
        msg.msg_control = control.as_mut_ptr().cast();
        msg.msg_controllen = control.len();
        let answer = outcome(call!(self.recvmsg(fd, &raw mut msg, flags)) as i64);
        control.truncate(msg.msg_controllen);
        (answer, control, msg.msg_flags)
    }

    pub fn close(&self, fd: c_int) -> Outcome {
        outcome(call!(self.close(fd)).into())
    }

    pub fn shutdown(&self, fd: c_int, how: c_int) -> Outcome {
        outcome(call!(self.shutdown(fd, how)).into())
    }

    pub fn setsockopt(&self, fd: c_int, name: (c_int, c_int), value: &[u8]) -> Outcome {
        let len = u32::try_from(value.len()).expect("short");
        outcome(call!(self.setsockopt(fd, name.0, name.1, value.as_ptr().cast(), len)).into())
    }

    pub fn getsockopt(&self, fd: c_int, name: (c_int, c_int), value: &mut Vec<u8>) -> Outcome {
        let mut len = u32::try_from(value.len()).expect("short");
        let answer =
            call!(self.getsockopt(fd, name.0, name.1, value.as_mut_ptr().cast(), &raw mut len));
        value.truncate(len as usize);
        outcome(answer.into())
    }

    pub fn fcntl(&self, fd: c_int, command: c_int, argument: c_int) -> Outcome {
        let argument = u64::from(argument.cast_unsigned());
        outcome(call!(self.fcntl(fd, command, argument)).into())
    }

    pub fn ioctl(&self, fd: c_int, request: u64, number: &mut c_int) -> Outcome {
        outcome(call!(self.ioctl(fd, request, std::ptr::from_mut(number))).into())
    }

    pub fn poll(&self, fds: &mut [libc::pollfd], timeout_ms: c_int) -> Outcome {
        outcome(call!(self.poll(fds.as_mut_ptr(), fds.len() as u64, timeout_ms)).into())
    }

    pub fn epoll_create(&self) -> Outcome {
        outcome(call!(self.epoll_create(1)).into())
    }

    pub fn epoll_ctl(&self, epfd: c_int, operation: c_int, fd: c_int, events: u32) -> Outcome {
        let mut event = libc::epoll_event {
            events,
            u64: u64::from(fd.cast_unsigned()),
        };
        outcome(call!(self.epoll_ctl(epfd, operation, fd, &raw mut event)).into())
    }

    /// epoll_wait for one event.
    pub fn epoll_wait(&self, epfd: c_int, timeout_ms: c_int) -> (Outcome, u32) {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        let answer = call!(self.epoll_wait(epfd, &raw mut event, 1, timeout_ms));
        (outcome(answer.into()), event.events)
    }

    pub fn netdev_send(&self, packet: &[u8]) -> Outcome {
        outcome(call!(self.netdev_send(packet.as_ptr().cast(), packet.len())).into())
    }

    /// The next packet that leaves, and when, in microseconds; empty if none will.
    pub fn netdev_receive(&self) -> (Vec<u8>, i64) {
        let mut packet = vec![0u8; 65_536];
        let (mut len, mut at) = (packet.len(), 0i64);
        let answer =
            call!(self.netdev_receive(packet.as_mut_ptr().cast(), &raw mut len, &raw mut at));
        assert_eq!(outcome(answer.into()), Ok(0));
        packet.truncate(len);
        (packet, at)
    }

    pub fn usleep(&self, usecs: u32) {
        assert_eq!(outcome(call!(self.usleep(usecs)).into()), Ok(0));
    }

    pub fn now(&self) -> i64 {
        let mut time = libc::timeval {
            tv_sec: 0,
            tv_usec: 0,
        };
        let answer = call!(self.gettimeofday(&raw mut time, std::ptr::null_mut()));
        assert_eq!(outcome(answer.into()), Ok(0));
        time.tv_sec * 1_000_000 + time.tv_usec
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: the instance of this library, freed once.
        unsafe { (self.interface.free)(self.interface.userdata) };
    }
}
