//! A vfio-user client that stands for a virtual machine: memory, interrupts, and the small gVNIC driver. All waits have a
//! time limit.

use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use gve_driver::{BarAccess, Driver, GuestRam, QueueOptions, RxPacket};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{
    MemfdFlags, OFlags, SealFlags, fcntl_add_seals, fcntl_getfl, fcntl_setfl, ftruncate,
    memfd_create,
};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::common::LIMIT;

const RAM_BASE: u64 = 0x10_0000;
const RAM_BYTES: usize = 16 << 20;
/// vfio-user commands.
const VERSION: u16 = 1;
const DMA_MAP: u16 = 2;
const SET_IRQS: u16 = 8;
const REGION_READ: u16 = 9;
const REGION_WRITE: u16 = 10;
const POSTED: u32 = 0x10;
/// The configuration space.
const CONFIG_REGION: u32 = 7;

/// The client's end of the socket.
pub struct Pci {
    stream: UnixStream,
    next: u16,
    vectors: Vec<OwnedFd>,
}

/// A machine with a running driver.
pub struct Machine {
    pub pci: Pci,
    pub driver: Driver,
    queues: u16,
}

impl Machine {
    /// Connects a machine to the NIC and starts its driver.
    pub fn start(socket: &Path, options: QueueOptions) -> Self {
        let queues = options.pairs;
        let stream = UnixStream::connect(socket).expect("the NIC is served");
        stream.set_read_timeout(Some(LIMIT)).expect("a time");
        let mut pci = Pci {
            stream,
            next: 0,
            vectors: Vec::new(),
        };
        pci.ask(VERSION, &[0; 4], &[]);
        let memory = shared_memory();
        let map = [
            &32u32.to_le_bytes()[..],
            &3u32.to_le_bytes(),
            &0u64.to_le_bytes(),
            &RAM_BASE.to_le_bytes(),
            &(RAM_BYTES as u64).to_le_bytes(),
        ];
        pci.ask(DMA_MAP, &map.concat(), &[memory.as_fd()]);
        for vector in 0..2 * u32::from(queues) + 1 {
            let fd =
                eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).expect("an eventfd");
            let set = [20, 0x24, 2, vector, 1].map(u32::to_le_bytes).concat();
            pci.ask(SET_IRQS, &set, &[fd.as_fd()]);
            pci.vectors.push(fd);
        }
        let ram = Rc::new(GuestRam::shared(RAM_BASE, RAM_BYTES, memory));
        let mut driver = Driver::probe(ram, &mut pci).expect("a gVNIC");
        driver.up(&mut pci, options).expect("queues");
        for block in 0..2 * queues {
            driver.enable_irq(&mut pci, block, None);
        }
        let mut machine = Self {
            pci,
            driver,
            queues,
        };
        machine.settle();
        machine
    }

    /// Returns when the device has processed all requests.
    pub fn settle(&mut self) {
        self.pci.read(0, 0, &mut [0; 4]);
    }

    /// Waits for packets on an RX queue: first for the interrupt, then for completions.
    #[track_caller]
    pub fn receive(&mut self, queue: u16) -> Vec<RxPacket> {
        let block = self.queues + queue;
        loop {
            let packets = self.driver.poll_rx(queue).expect("no violation");
            if !packets.is_empty() {
                self.driver.refill(&mut self.pci, queue, usize::MAX);
                return packets;
            }
            self.driver.enable_irq(&mut self.pci, block, None);
            self.pci.wait_for_interrupt(block);
        }
    }

    /// Waits for packets on an RX queue without its interrupt, by polling, as long as the device answers.
    #[track_caller]
    pub fn receive_without_interrupt(&mut self, queue: u16) -> Vec<RxPacket> {
        let until = Instant::now() + LIMIT;
        loop {
            let packets = self.driver.poll_rx(queue).expect("no violation");
            if !packets.is_empty() {
                return packets;
            }
            assert!(Instant::now() < until, "nothing comes");
            self.settle();
        }
    }

    /// Returns a word of configuration space.
    pub fn config(&mut self, offset: u64) -> u32 {
        let mut word = [0; 4];
        self.pci.read_region(CONFIG_REGION, offset, &mut word);
        u32::from_le_bytes(word)
    }
}

impl Drop for Pci {
    fn drop(&mut self) {
        // Closing is not enough: a process that another test starts has a copy of this descriptor for a moment.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Pci {
    /// Waits for the interrupt of a vector, and clears it.
    #[track_caller]
    pub fn wait_for_interrupt(&self, vector: u16) {
        let fd = &self.vectors[usize::from(vector)];
        let limit = Timespec::try_from(LIMIT).expect("a time");
        let mut fds = [PollFd::new(fd, PollFlags::IN)];
        let ready = poll(&mut fds, Some(&limit)).expect("poll");
        assert_eq!(ready, 1, "vector {vector} was not raised");
        rustix::io::read(fd, &mut [0; 8]).expect("it was raised");
    }

    /// Fills the eventfds of all vectors and makes them blocking, so that a write to one blocks until it is read.
    pub fn make_interrupts_wait(&self) {
        for fd in &self.vectors {
            rustix::io::read(fd, &mut [0; 8]).ok();
            rustix::io::write(fd, &(u64::MAX - 1).to_ne_bytes()).expect("it was empty");
            let flags = fcntl_getfl(fd).expect("flags");
            fcntl_setfl(fd, flags - OFlags::NONBLOCK).expect("flags");
        }
    }

    fn send(&mut self, command: u16, flags: u32, body: &[u8], fds: &[BorrowedFd<'_>]) {
        self.next = self.next.wrapping_add(1);
        let size = u32::try_from(16 + body.len()).expect("a short message");
        let header = [
            &self.next.to_le_bytes()[..],
            &command.to_le_bytes(),
            &size.to_le_bytes(),
            &flags.to_le_bytes(),
            &[0; 4],
        ];
        let header = header.concat();
        if fds.is_empty() {
            self.stream
                .write_all(&[&header, body].concat())
                .expect("the server is there");
            return;
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        let parts = [IoSlice::new(&header), IoSlice::new(body)];
        let sent = sendmsg(&self.stream, &parts, &mut control, SendFlags::NOSIGNAL);
        assert_eq!(
            sent.expect("the server is there"),
            header.len() + body.len()
        );
    }

    fn ask(&mut self, command: u16, body: &[u8], fds: &[BorrowedFd<'_>]) -> Vec<u8> {
        self.send(command, 0, body, fds);
        let mut header = [0; 16];
        self.stream.read_exact(&mut header).expect("an answer");
        assert_eq!(header[..2], self.next.to_le_bytes(), "the answer to this");
        assert_eq!(header[12..], [0; 4], "command {command} was refused");
        let size = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        let mut body = vec![0; usize::try_from(size).expect("a size") - 16];
        self.stream
            .read_exact(&mut body)
            .expect("all of the answer");
        body
    }

    fn read_region(&mut self, region: u32, offset: u64, out: &mut [u8]) {
        let answer = self.ask(REGION_READ, &access(region, offset, out.len()), &[]);
        out.copy_from_slice(&answer[16..]);
    }
}

impl BarAccess for Pci {
    fn read(&mut self, bar: u8, offset: u64, out: &mut [u8]) {
        self.read_region(bar.into(), offset, out);
    }

    fn write(&mut self, bar: u8, offset: u64, bytes: &[u8]) {
        let mut body = access(bar.into(), offset, bytes.len());
        body.extend_from_slice(bytes);
        // Doorbells are posted writes, as in QEMU. The small driver expects a command to be complete when the write of its
        // register returns; Linux polls the event counter.
        match bar {
            0 => drop(self.ask(REGION_WRITE, &body, &[])),
            _ => self.send(REGION_WRITE, POSTED, &body, &[]),
        }
    }
}

fn access(region: u32, offset: u64, len: usize) -> Vec<u8> {
    let len = u32::try_from(len).expect("a short access");
    [
        &offset.to_le_bytes()[..],
        &region.to_le_bytes(),
        &len.to_le_bytes(),
    ]
    .concat()
}

/// Creates memory as QEMU's memory-backend-memfd does.
fn shared_memory() -> File {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = memfd_create("guest", flags).expect("memory");
    ftruncate(&fd, RAM_BYTES as u64).expect("memory");
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).expect("seals");
    File::from(fd)
}
