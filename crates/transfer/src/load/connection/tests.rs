use std::io::Write;
use std::net::Ipv4Addr;

use devmem_tcp::{Dmabuf, Poller};

use super::*;
use crate::load::landing::Places;
use crate::load::part::{Layout, Part};

/// Longer than a loopback needs, on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A reply of so many bytes, of which `header` come first.
#[derive(Debug)]
struct Reply {
    header: usize,
    at: u64,
    end: u64,
    outgoing: Vec<u8>,
}

impl Session for Reply {
    fn accepts(&self, _: Piece) -> bool {
        false
    }

    fn request(&mut self, _: Piece) {}

    fn outgoing(&mut self) -> &mut Vec<u8> {
        &mut self.outgoing
    }

    fn next(&self) -> Next {
        match (self.header, self.end - self.at) {
            (0, 0) => Next::Nothing,
            (0, len) => Next::Payload { at: self.at, len },
            (header, _) => Next::Header(header),
        }
    }

    fn on_text(&mut self, bytes: &[u8]) -> Result<usize, Fault> {
        self.header -= bytes.len();
        Ok(bytes.len())
    }

    fn on_bytes(&mut self, len: u64) -> Result<(), Fault> {
        self.at += len;
        Ok(())
    }

    fn on_end(&mut self) -> Fault {
        Fault::Closed
    }

    fn completed(&mut self) -> Option<Piece> {
        None
    }

    fn outstanding(&self) -> usize {
        (self.at < self.end).into()
    }

    fn take_outstanding(&mut self) -> Vec<Piece> {
        Vec::new()
    }
}

#[test]
fn a_turn_is_worth_no_more_bytes_than_must_come_and_the_last_ones_are_not_kept_back() {
    const BYTES: usize = 2 * TURN_BYTES + 100;
    let nic = Netdev::kernel_to(Ipv4Addr::LOCALHOST.into()).unwrap();
    let listener = nic.listen((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let stream = nic.connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let reply = Reply {
        header: 4,
        at: 0,
        end: BYTES as u64,
        outgoing: Vec::new(),
    };
    let transport = Transport::Tcp(Box::new(stream));
    let mut connection = Connection::new(transport, Box::new(reply));
    let memory = Dmabuf::anonymous(BYTES.next_multiple_of(4096)).unwrap();
    let part = Part {
        source: 0..BYTES as u64,
        memory: memory.clone(),
        offset: 0,
    };
    let layout = Layout::new(&[part]).unwrap();
    let mut landing = Landing::Memory(Places::new(&nic, &layout, None));
    // Turns until so much payload is in place.
    let mut turn_until = |connection: &mut Connection, placed: usize| {
        while connection.placed < placed as u64 {
            connection.turn(&mut landing, Instant::now()).unwrap();
        }
    };

    assert_eq!(connection.least_bytes(), 1, "a header is needed at once");
    server.write_all(&[7; 5]).unwrap();
    turn_until(&mut connection, 1);
    assert_eq!(connection.least_bytes(), TURN_BYTES);
    for (bytes, left) in [(2 * TURN_BYTES - 1, 100), (99, 1)] {
        // So few at a time that the buffers have room.
        for part in vec![7; bytes].chunks(64 << 10) {
            let placed = connection.placed as usize + part.len();
            server.write_all(part).unwrap();
            turn_until(&mut connection, placed);
        }
        assert_eq!(connection.least_bytes(), left);
    }
    server.write_all(&[7]).unwrap();
    let poller = Poller::new(&nic).unwrap();
    let watch = connection.stream().watch(Interest::Receive);
    let watch = watch.at_least(connection.least_bytes());
    assert!(poller.wait(&[watch], PATIENCE).unwrap(), "its time is over");
    turn_until(&mut connection, BYTES);
    assert_eq!(connection.placed, BYTES as u64);
    assert!(memory.slice(0..BYTES).to_vec() == [7; BYTES]);
    assert_eq!(connection.least_bytes(), 1, "nothing is awaited");
}
