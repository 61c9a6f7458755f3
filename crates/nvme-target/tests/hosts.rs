//! Hosts that break the rules, and what the target tells them.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nvme::Status;
use nvme::command::{ANY_CONTROLLER, Blocks, Connect, ConnectData, DataPlace, Sqe};
use nvme::pdu::{
    Capsule, Cqe, Data, DataHeader, Digests, FatalStatus, FromController, Handshake,
    HandshakeRequest, Parsed, Transfer, parse_from_controller,
};
use nvme::property::{self, Capabilities};
use nvme_target::{Disk, Subsystem, Target};

const NQN: &str = "nqn.2014-08.org.example:disk";
const HOST_NQN: &str = "nqn.2014-08.org.example:host";
/// Far longer than an answer takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn target() -> Target {
    let disk = Arc::new(Disk::in_memory(vec![7; 1 << 20], 9));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    Target::start(listener, Subsystem::new(NQN, vec![disk])).unwrap()
}

/// One connection of a host.
struct Host {
    stream: TcpStream,
    digests: Digests,
}

impl Host {
    fn open(target: &Target, digests: Digests) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", target.port())).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut host = Self {
            stream,
            digests: Digests::default(),
        };
        host.send(&Handshake::request(HandshakeRequest {
            version: 0,
            alignment: 0,
            digests,
            most_transfers: 0,
        }));
        assert!(matches!(host.read(), FromController::Handshake(_)));
        host.digests = digests;
        host
    }

    /// Connects a queue, and returns the controller.
    fn connect(&mut self, queue: u16, controller_id: u16) -> Result<u16, Status> {
        let data = ConnectData {
            host_id: [1; 16],
            controller_id,
            subsystem_nqn: NQN.to_owned(),
            host_nqn: HOST_NQN.to_owned(),
        };
        let connect = Connect {
            queue,
            entries: 32,
            without_flow_control: false,
            keep_alive_ms: 0,
        };
        let answer = self.command(Sqe::connect(connect), &data.to_bytes());
        match answer.status().is_success() {
            true => Ok(answer.result.get() as u16),
            false => Err(answer.status()),
        }
    }

    fn enable(&mut self) {
        let cap = self.command(Sqe::property_get(property::CAP, true), &[]);
        let enabled = property::enabled(Capabilities::of(cap.result.get()));
        self.command(Sqe::property_set(property::CC, enabled), &[]);
    }

    fn command(&mut self, sqe: Sqe, data: &[u8]) -> Cqe {
        self.issue(sqe, data);
        match self.read() {
            FromController::Response(cqe) => cqe,
            other => panic!("{other:?}"),
        }
    }

    fn issue(&mut self, sqe: Sqe, data: &[u8]) {
        let mut bytes = Vec::new();
        Capsule::write_all(&sqe.named(5), data, self.digests, &mut bytes);
        self.send(&bytes);
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    fn read(&mut self) -> FromController {
        let mut bytes = Vec::new();
        loop {
            match parse_from_controller(&bytes, self.digests).unwrap() {
                Parsed::Whole(pdu) => return pdu,
                Parsed::More(more) => {
                    let before = bytes.len();
                    bytes.resize(before + more, 0);
                    self.stream.read_exact(&mut bytes[before..]).unwrap();
                }
            }
        }
    }

    /// Reads that the target ends the connection, and why.
    #[track_caller]
    fn is_told(&mut self, why: FatalStatus) {
        let FromController::Terminated(end) = self.read() else {
            panic!("it goes on");
        };
        assert_eq!(end.status, why as u16);
        assert_eq!(self.stream.read(&mut [0]).unwrap(), 0, "it is closed");
    }
}

/// Connects the admin queue and one I/O queue. Returns the I/O queue, and the other, which keeps the association.
fn queues(target: &Target, digests: Digests) -> (Host, Host) {
    let mut admin = Host::open(target, Digests::default());
    let controller = admin.connect(0, ANY_CONTROLLER).unwrap();
    admin.enable();
    let mut io = Host::open(target, digests);
    io.connect(1, controller).unwrap();
    (io, admin)
}

/// A write of 64 blocks, and the transfer that the target requests for it.
fn requested(io: &mut Host) -> Transfer {
    let blocks = Blocks {
        start: 0,
        count: 64,
    };
    io.issue(
        Sqe::write(1, blocks, 32768, DataPlace::OnRequest, false),
        &[],
    );
    match io.read() {
        FromController::ReadyToTransfer(transfer) => transfer,
        other => panic!("{other:?}"),
    }
}

#[test]
fn data_of_another_transfer_command_or_place_are_told_and_not_written() {
    type Spoil = fn(&mut DataHeader);
    let spoilt: [(Spoil, FatalStatus); 6] = [
        (|it| it.transfer_tag += 1, FatalStatus::Sequence),
        (|it| it.command_id += 1, FatalStatus::OutOfRange),
        (|it| it.offset += 512, FatalStatus::OutOfRange),
        (|it| it.len += 512, FatalStatus::OutOfRange),
        (|it| it.is_last = false, FatalStatus::OutOfRange),
        (|it| it.len = u32::MAX, FatalStatus::InvalidField),
    ];
    let target = target();
    for (spoil, expected) in spoilt {
        let (mut io, _admin) = queues(&target, Digests::default());
        let Transfer {
            command_id,
            tag,
            offset,
            len,
        } = requested(&mut io);
        let mut header = DataHeader {
            command_id,
            transfer_tag: tag,
            offset,
            len,
            is_last: true,
            is_success: false,
        };
        spoil(&mut header);
        let mut bytes = Vec::new();
        Data::from_host(&header, Digests::default(), &mut bytes);
        io.send(&bytes);
        io.is_told(expected);
    }
}

#[test]
fn wrong_digests_of_headers_and_of_data_are_told() {
    let target = target();
    let digests = Digests::of_bits(3);
    for (at, expected) in [
        // A reserved byte of the header.
        (22, FatalStatus::HeaderDigest),
        // A byte of the data.
        (24 + 4 + 10, FatalStatus::InvalidField),
    ] {
        let (mut io, _admin) = queues(&target, digests);
        let Transfer {
            command_id,
            tag,
            offset,
            len,
        } = requested(&mut io);
        let header = DataHeader {
            command_id,
            transfer_tag: tag,
            offset,
            len,
            is_last: true,
            is_success: false,
        };
        let mut bytes = Vec::new();
        Data::from_host(&header, digests, &mut bytes);
        if at > bytes.len() {
            bytes.resize(bytes.len() + len as usize + 4, 0);
        }
        bytes[at] ^= 1;
        io.send(&bytes);
        io.is_told(expected);
    }
}

#[test]
fn a_host_that_does_not_begin_as_a_host_is_told_or_refused() {
    let target = target();
    // A command before Connect.
    let mut host = Host::open(&target, Digests::default());
    host.issue(Sqe::keep_alive(), &[]);
    host.is_told(FatalStatus::Sequence);
    // A second handshake.
    let (mut io, _admin) = queues(&target, Digests::default());
    io.send(&Handshake::request(HandshakeRequest {
        version: 0,
        alignment: 0,
        digests: Digests::default(),
        most_transfers: 0,
    }));
    io.is_told(FatalStatus::Sequence);
    // A queue that is connected, one of no controller, and one that does not exist.
    let (_io, mut admin) = queues(&target, Digests::default());
    let controller = admin.command(Sqe::property_get(property::CC, false), &[]);
    assert!(controller.status().is_success());
    for (queue, controller) in [(1, 1234), (99, 1)] {
        let mut io = Host::open(&target, Digests::default());
        let refused = io.connect(queue, controller).unwrap_err();
        assert!(refused.is(Status::CONNECT_INVALID), "{refused}");
    }
    // Not a PDU.
    let mut stream = TcpStream::connect(("127.0.0.1", target.port())).unwrap();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert_eq!(answer.first(), Some(&3), "C2HTermReq");
    assert!(target.counts().connections.load(Ordering::Relaxed) >= 5);
}
