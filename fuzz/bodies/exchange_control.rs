//! The control stream of an exchange endpoint: records of a peer that lies.
//!
//! Input: records in short form (8 bytes: kind, then seven numbers for its fields; the bytes that follow the record are made
//! up), or whole (a byte 0x80 or more, then 64 bytes as they are on the stream).

use std::io::Write;
use std::sync::Arc;

use devmem_exchange::{
    Access, Buffer, Carrier, Endpoint, Event, Fabric, Failure, Hello, INLINE_BYTES, Memory,
    Options, Part, Record, Region, TICKET_BYTES,
};
use devmem_tcp::{Impairment, Netdev};

/// Length of a chunk.
const CHUNK: u64 = 4096;
/// Bytes of each memory of the endpoint, of which only the second quarter may be written.
const BYTES: usize = 32 << 10;
/// A byte that nobody sends.
const GUARD: u8 = 0xee;
/// The number that stands for the key of the published region.
const GIVEN: u64 = 3;
/// Maximum number of records.
const MAX_RECORDS: usize = 64;
/// Turns of the endpoint after the last record.
const TURNS: usize = 50;

/// Numbers that fields have: small ones, those around the borders, and absurd ones.
const NUMBERS: [u64; 16] = [
    0,
    1,
    2,
    3,
    20,
    100,
    CHUNK - 1,
    CHUNK,
    CHUNK + 1,
    5000,
    8192,
    8193,
    1 << 31,
    1 << 32,
    i64::MAX as u64,
    u64::MAX,
];

/// Checks that no record makes an endpoint write outside of what it posted and published, end an operation twice, or panic.
pub fn run(data: &[u8]) {
    let (peer, nic) = Netdev::pair(Impairment::NONE).expect("a wire in memory");
    let fabric = Fabric::open(nic, Options::default()).expect("the NIC is new");
    let listener = fabric.listen().expect("random numbers");
    let ticket: [u8; TICKET_BYTES] = listener.ticket().to_bytes();
    let cookie = u64::from_le_bytes(*ticket[12..].first_chunk().expect("a cookie"));
    let port = u16::from_le_bytes(*ticket[54..].first_chunk().expect("a port"));
    let mut control = peer.connect(fabric.address()).expect("the fabric listens");
    let to = (fabric.address().ip(), port);
    let mut payload = peer.connect(to).expect("the fabric listens");
    let local = payload.local_addr().expect("connected");
    let hello = Hello {
        cookie,
        streams: 1,
        chunk: CHUNK,
    };
    for record in [Record::Hello(hello), Record::Address { stream: 0, local }] {
        control.write_all(&record.encode()).expect("connected");
    }
    let endpoint = loop {
        if let Some(endpoint) = listener.poll().expect("the fabric listens") {
            break endpoint;
        }
    };
    control.set_nonblocking(true);
    payload.set_nonblocking(true);
    let (buffers, published) = post(&fabric, &endpoint);
    let key = endpoint.publish(&published).expect("random numbers");
    let mut ended = [0; 3];
    for bytes in records(data, key.0) {
        // The endpoint may have closed the connection.
        let _ = control.write(&bytes);
        let _ = payload.write(&[1; 3000]);
        turn(&endpoint, &mut ended);
    }
    for _ in 0..TURNS {
        turn(&endpoint, &mut ended);
    }
    assert!(ended.iter().all(|times| *times <= 1), "{ended:?}");
    for buffer in &buffers {
        buffer.with(|bytes| {
            let (before, rest) = bytes.split_at(BYTES / 4);
            let behind = &rest[BYTES / 4..];
            assert!(before.iter().chain(behind).all(|byte| *byte == GUARD));
        });
    }
}

/// Posts two receives and publishes a region, each in the second quarter of a memory. The region is published as long as the
/// returned handle exists.
fn post(fabric: &Fabric, endpoint: &Endpoint) -> (Vec<Arc<Buffer>>, Region) {
    let quarter = BYTES / 4..BYTES / 2;
    let mut buffers = Vec::new();
    for user in 0..2 {
        let buffer = Buffer::new(vec![GUARD; BYTES]);
        let region = fabric.register(Memory::Host(buffer.clone()), Access::PRIVATE);
        let region = region.expect("host memory");
        let part = |from: usize, len: usize, tag| Part {
            region: &region,
            range: quarter.start + from..quarter.start + from + len,
            tag,
        };
        let posted = endpoint.receive(&[part(0, 5000, 0), part(5000, 3000, 1)], user);
        posted.expect("the endpoint is new");
        buffers.push(buffer);
    }
    let buffer = Buffer::new(vec![GUARD; BYTES]);
    let access = Access::PUBLIC;
    let region = fabric.register_range(Memory::Host(buffer.clone()), quarter, access);
    buffers.push(buffer);
    (buffers, region.expect("host memory"))
}

fn turn(endpoint: &Endpoint, ended: &mut [u32; 3]) {
    endpoint.progress();
    while let Some(event) = endpoint.next_event() {
        match event {
            Event::Received { user, .. } | Event::Failed { user } => ended[user as usize] += 1,
            Event::Broken(_) => ended[2] += 1,
            Event::Notified { bytes } => assert!(bytes.len() <= 4096),
            event => panic!("nothing else was posted: {event:?}"),
        }
    }
}

/// Returns the records, each with the bytes that follow it. `key` is that of the published region.
fn records(mut data: &[u8], key: u64) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    while records.len() < MAX_RECORDS {
        if let [0x80..=0xff, rest @ ..] = data {
            let Some((raw, rest)) = rest.split_first_chunk() else {
                break;
            };
            if let Ok(record) = Record::decode(raw) {
                assert_eq!(record.encode(), *raw, "one record has one form");
            }
            records.push(raw.to_vec());
            data = rest;
        } else {
            let Some((short, rest)) = data.split_first_chunk() else {
                break;
            };
            let record = record(*short, key);
            let behind = record.inline_bytes().min(INLINE_BYTES);
            records.push([record.encode().as_slice(), &vec![1; behind]].concat());
            data = rest;
        }
    }
    records
}

fn record([kind, fields @ ..]: [u8; 8], key: u64) -> Record {
    let number = |at: usize| NUMBERS[usize::from(fields[at]) % NUMBERS.len()];
    let (op, offset, len, total) = (number(0), number(1), number(2), number(3));
    // A key that the peer was given, or one that it guesses.
    let named = |number| if number == GIVEN { key } else { number };
    let (part, tag) = (fields[4] % 4, number(6) as u32);
    let carrier = match fields[5] % 4 {
        3 => Carrier::Control,
        stream => Carrier::Data(stream.into()),
    };
    match kind % 8 {
        0 => Record::Posted { op, part, len, tag },
        1 | 2 => Record::Chunk {
            op,
            part,
            carrier,
            offset,
            len,
            total,
        },
        3 => Record::Put {
            key: named(op),
            carrier,
            offset,
            len,
        },
        4 => Record::Get {
            op,
            key: named(total),
            offset,
            len,
        },
        5 => Record::Notify { len },
        6 => Record::Failed(Failure::Other),
        _ => Record::Bye,
    }
}
