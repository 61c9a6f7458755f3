//! NICs at the two ends of a UNIX wire, in one process and in two: payload crosses by reference, and arrives where it belongs.

#![allow(
    clippy::single_range_in_vec_init,
    reason = "a place is a list of ranges"
)]

use std::io::{Read, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use devmem_linux::test_util::{GuestHas, skip_outside_guest};
use devmem_tcp::{Dmabuf, Frag, Netdev, NetdevBuilder, RxBatch, Stream};

/// Far longer than anything here takes: a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;
const PORT: u16 = 5201;

/// Names the socket for the sender of `a_process_that_is_killed_gives_way_to_the_next_one`, which is this test in another process.
const SENDER_OF: &str = "DEVMEM_TCP_TEST_WIRE";

/// A folder with the socket of a wire.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn socket(&self) -> PathBuf {
        self.0.path().join("wire")
    }
}

fn end(kind: &str, socket: &Path, number: u8) -> NetdevBuilder {
    let link = format!("{kind}:{}", socket.display());
    Netdev::builder(&link)
        .and_then(|nic| nic.address(&format!("10.77.0.{number}/24")))
        .and_then(|nic| nic.address(&format!("fd77::{number}/64")))
        .unwrap()
}

/// Both ends, the listening one first.
fn ends(place: &Place) -> (Netdev, Netdev) {
    let listening = end("unix-listen", &place.socket(), 1).open().unwrap();
    let joining = end("unix", &place.socket(), 2).open().unwrap();
    (listening, joining)
}

fn addresses() -> [IpAddr; 2] {
    ["10.77.0.1", "fd77::1"].map(|text| text.parse().unwrap())
}

fn connect(listening: &Netdev, joining: &Netdev, address: IpAddr) -> (Stream, Stream) {
    let listener = listening.listen((address, PORT)).unwrap();
    let sender = joining.connect((address, PORT)).unwrap();
    let (receiver, _) = listener.accept().unwrap();
    receiver.set_timeout(Some(PATIENCE));
    (sender, receiver)
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    let byte = |at: usize| (at.wrapping_mul(31) ^ (at >> 9) ^ (seed * 89)) as u8;
    (0..len).map(byte).collect()
}

fn assert_no_drops(nic: &Netdev) {
    let bad = nic
        .drops()
        .into_iter()
        .find(|(name, count)| *count > 0 && (name.starts_with("rx_") || name.starts_with("tx_")));
    assert_eq!(bad, None);
}

/// Sends device memory, and waits until it may be changed.
fn send_device(nic: &Netdev, stream: &mut Stream, memory: &Dmabuf, len: usize) {
    let bound = nic.bind_tx(memory).unwrap();
    let completions = stream.completions();
    let mut sent = 0;
    while sent < len {
        let id = stream.send(&bound, &[sent..len]).unwrap();
        sent += id.bytes();
        completions.wait(id).unwrap();
    }
}

#[test]
fn host_bytes_cross_in_both_directions_over_both_families() {
    let place = Place::new();
    let (listening, joining) = ends(&place);
    for (seed, address) in addresses().into_iter().enumerate() {
        let (mut one, mut other) = connect(&listening, &joining, address);
        let sent = pattern(seed, 9 * MIB + 123);
        for _ in 0..2 {
            let got = thread::scope(|scope| {
                scope.spawn(|| one.write_all(&sent).unwrap());
                let mut got = vec![0; sent.len()];
                other.read_exact(&mut got).unwrap();
                got
            });
            assert!(got == sent);
            std::mem::swap(&mut one, &mut other);
        }
    }
    assert_no_drops(&listening);
    assert_no_drops(&joining);
}

#[test]
fn device_memory_with_a_file_and_without_one_arrives_in_bound_memory() {
    const TEST: &str = "device_memory_with_a_file_and_without_one_arrives_in_bound_memory";
    let mut memories = vec![
        Dmabuf::memfd(6 * MIB).unwrap(),
        Dmabuf::anonymous(6 * MIB).unwrap(),
    ];
    match devmem_tcp::memory::udmabuf(6 * MIB) {
        // A dma-buf is not passed on: it is copied as memory without a file is.
        Ok(dmabuf) => memories.push(dmabuf),
        Err(refused) => skip_outside_guest(TEST, GuestHas::Udmabuf, &format!("{refused:?}")),
    }
    let place = Place::new();
    let (listening, joining) = ends(&place);
    for (seed, address) in addresses().into_iter().enumerate() {
        let local = (address, PORT).into();
        let setup = listening.plan_receive(local).apply().unwrap();
        let pool = Dmabuf::anonymous(8 * MIB).unwrap();
        let bound = listening.bind_rx(&pool, setup.queues()).unwrap();
        let len = 5 * MIB + 77;
        for memory in &memories {
            let (mut sender, mut receiver) = connect(&listening, &joining, address);
            let sent = pattern(seed, len);
            memory.copy_in(0, &sent).unwrap();
            let mut got = Vec::new();
            thread::scope(|scope| {
                scope.spawn(|| send_device(&joining, &mut sender, memory, len));
                let mut batch = RxBatch::with_capacity(64);
                while got.len() < len {
                    let bytes = receiver.recv(&mut batch).unwrap();
                    assert!(bytes > 0 && batch.linear_bytes() == 0);
                    let at = got.len();
                    got.resize(at + bytes, 0);
                    batch.copy_to(&mut got[at..]).unwrap();
                }
            });
            assert!(got == sent);
        }
        let net_iovs = bound.unbind().net_iovs();
        assert_eq!(net_iovs.home, net_iovs.total);
    }
    assert_no_drops(&listening);
}

#[test]
fn every_byte_is_received_at_the_place_that_the_program_chose() {
    let place = Place::new();
    let (listening, joining) = ends(&place);
    let local = (addresses()[0], PORT).into();
    let setup = listening.plan_receive(local).apply().unwrap();
    let pool = Dmabuf::anonymous(8 * MIB).unwrap();
    let bound = listening.bind_rx(&pool, setup.queues()).unwrap();
    let chosen = Dmabuf::anonymous(4 * MIB).unwrap();
    let target = listening.bind_target(&chosen).unwrap();
    let (mut sender, mut receiver) = connect(&listening, &joining, addresses()[0]);
    let sent = pattern(3, 3 * MIB);
    let memory = Dmabuf::memfd(4 * MIB).unwrap();
    memory.copy_in(0, &sent).unwrap();
    receiver
        .place_next(&target, &[100..100 + sent.len()])
        .unwrap();
    thread::scope(|scope| {
        scope.spawn(|| send_device(&joining, &mut sender, &memory, sent.len()));
        let (mut batch, mut got) = (RxBatch::with_capacity(64), 0);
        while got < sent.len() {
            got += receiver.recv(&mut batch).unwrap();
            for frag in &batch {
                assert!(matches!(frag, Frag::Device { dmabuf, .. } if dmabuf == target.id()));
            }
        }
    });
    assert!(chosen.slice(100..100 + sent.len()).to_vec() == sent);
    let direct: u64 = listening
        .queue_stats()
        .iter()
        .map(|queue| queue.direct_bytes)
        .sum();
    assert_eq!(direct, sent.len() as u64);
    let net_iovs = bound.unbind().net_iovs();
    assert_eq!(net_iovs.home, net_iovs.total);
}

#[test]
fn impaired_ends_share_no_memory_and_bytes_arrive_nevertheless() {
    let place = Place::new();
    let impairment = "loss=1%,reorder=1%,dup=1%,seed=5".parse().unwrap();
    let both = ["unix-listen", "unix"].into_iter().zip([1, 2]);
    let nics: Vec<_> = both
        .map(|(kind, number)| {
            let nic = end(kind, &place.socket(), number).impair(impairment);
            nic.open().unwrap()
        })
        .collect();
    let (mut sender, mut receiver) = connect(&nics[0], &nics[1], addresses()[0]);
    let sent = pattern(4, MIB / 2);
    let got = thread::scope(|scope| {
        scope.spawn(|| sender.write_all(&sent).unwrap());
        let mut got = vec![0; sent.len()];
        receiver.read_exact(&mut got).unwrap();
        got
    });
    assert!(got == sent);
}

#[test]
fn an_impaired_end_is_refused_by_a_listening_end_that_is_not_and_both_say_so() {
    let place = Place::new();
    let impairment = "loss=1%,seed=5".parse().unwrap();
    let listening = end("unix-listen", &place.socket(), 1).open().unwrap();
    let refused = || {
        let drops = listening.drops().into_iter();
        let mut of_it = drops.filter(|(name, _)| *name == "rx_peer_refused");
        of_it.next().map_or(0, |(_, count)| count)
    };
    assert_eq!(refused(), 0);
    let joining = end("unix", &place.socket(), 2).impair(impairment).open();
    let said = format!("{:?}", joining.unwrap_err());
    assert!(
        said.contains("the listening end refuses this one"),
        "{said}"
    );
    assert!(said.contains("let the impaired end listen"), "{said}");
    let started = Instant::now();
    while refused() == 0 {
        assert!(started.elapsed() < PATIENCE);
        thread::yield_now();
    }
    // What the error says works, and a refused end does not keep others away.
    drop(end("unix", &place.socket(), 2).open().unwrap());
    drop(listening);
    let _listening = end("unix-listen", &place.socket(), 1)
        .impair(impairment)
        .open()
        .unwrap();
    end("unix", &place.socket(), 2).open().unwrap();
}

#[test]
fn a_stale_socket_file_is_replaced_and_one_in_use_is_refused() {
    let place = Place::new();
    let listening = end("unix-listen", &place.socket(), 1).open().unwrap();
    let refused = end("unix-listen", &place.socket(), 2).open().unwrap_err();
    assert!(
        format!("{refused:?}").contains("connect to it with unix:PATH"),
        "{refused}"
    );
    drop(listening);
    assert!(!place.socket().exists(), "removed with the NIC");
    // The file of a listener that has ended without removing it.
    let stale = std::os::unix::net::UnixListener::bind(place.socket()).unwrap();
    drop(stale);
    assert!(place.socket().exists());
    drop(end("unix-listen", &place.socket(), 1).open().unwrap());
    std::fs::write(place.socket(), b"a file").unwrap();
    assert!(end("unix-listen", &place.socket(), 1).open().is_err());
    assert_eq!(std::fs::read(place.socket()).unwrap(), b"a file");
}

fn start_sender(socket: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "a_process_that_is_killed_gives_way_to_the_next_one",
        ])
        .env(SENDER_OF, socket)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Sends host bytes without end.
fn send_for_ever(socket: &Path) {
    let nic = end("unix", socket, 2).open().unwrap();
    let mut stream = nic.connect((addresses()[0], PORT)).unwrap();
    let bytes = pattern(6, MIB);
    while stream.write_all(&bytes).is_ok() {}
}

#[test]
fn a_process_that_is_killed_gives_way_to_the_next_one() {
    if let Some(socket) = std::env::var_os(SENDER_OF) {
        return send_for_ever(Path::new(&socket));
    }
    let place = Place::new();
    let nic = end("unix-listen", &place.socket(), 1).open().unwrap();
    let listener = nic.listen((addresses()[0], PORT)).unwrap();
    let expected = pattern(6, MIB);
    for _ in 0..2 {
        let mut sender = start_sender(&place.socket());
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_timeout(Some(PATIENCE));
        let mut got = vec![0; MIB];
        for _ in 0..4 {
            stream.read_exact(&mut got).unwrap();
            assert!(got == expected);
        }
        // On a busy machine the sender may just have begun to wait for a processor, and everything was read.
        while stream.peek(&mut got[..1000]).unwrap() < 1000 {
            thread::yield_now();
        }
        sender.kill().unwrap();
        sender.wait().unwrap();
        // What had arrived is still there: the memory of the process that is gone stays mapped.
        stream.read_exact(&mut got[..1000]).unwrap();
        assert!(got[..1000] == expected[..1000]);
        let started = Instant::now();
        while nic.link_state() == devmem_tcp::LinkState::Up {
            assert!(started.elapsed() < PATIENCE);
            thread::yield_now();
        }
    }
}

/// Returns how many times `word` is in the memory files of this process, at even places: what it could give to a peer.
fn in_memory_files(word: [u8; 8]) -> usize {
    let is_file = |path: &Path| {
        let target = std::fs::read_link(path).unwrap_or_default();
        target.to_string_lossy().starts_with("/memfd:devmem-tcp")
    };
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let paths = fds.map(|fd| fd.path()).filter(|path| is_file(path));
    let count = |path: PathBuf| {
        // Other tests of this process close theirs meanwhile.
        let bytes = std::fs::read(path).unwrap_or_default();
        let words = bytes.as_chunks::<8>().0;
        words.iter().filter(|found| **found == word).count()
    };
    paths.map(count).sum()
}

#[test]
fn nothing_that_was_sent_to_one_peer_is_in_a_file_that_the_next_one_could_get() {
    for options in ["", ",share=send"] {
        let place = Place::new();
        let link = format!("{}{options}", place.socket().display());
        let listening = end("unix-listen", Path::new(&link), 1).open().unwrap();
        let memory = Dmabuf::memfd(MIB).unwrap();
        let mut words = [*b"TO-PEER1", *b"TO-PEER2"];
        for word in &mut words {
            // Not those of the last round.
            word[2] += options.len() as u8;
            let joining = end("unix", &place.socket(), 2).open().unwrap();
            let (receiver, sender) = {
                let listener = listening.listen((addresses()[0], PORT)).unwrap();
                let joined = joining.connect((addresses()[0], PORT)).unwrap();
                (joined, listener.accept().unwrap().0)
            };
            let (mut sender, mut receiver) = (sender, receiver);
            let text = word.repeat(MIB / 8 / 2);
            let got = thread::scope(|scope| {
                scope.spawn(|| {
                    sender.write_all(&text).unwrap();
                    memory.copy_in(0, &text).unwrap();
                    send_device(&listening, &mut sender, &memory, text.len());
                });
                let mut got = vec![0; 2 * text.len()];
                receiver.read_exact(&mut got).unwrap();
                got
            });
            assert!(got == text.repeat(2));
            // What a program has in memory with a file is not given to a peer, unless it is marked as shared.
            memory.copy_in(0, &vec![0; MIB]).unwrap();
        }
        assert_eq!(
            in_memory_files(words[0]),
            0,
            "of the first peer, with '{options}'"
        );
    }
}

#[test]
fn only_a_unix_wire_shares_what_waits_to_be_sent() {
    for link in ["mem:no-send-memory", "tap:dm0"] {
        let nic = Netdev::builder(link)
            .unwrap()
            .address("10.77.9.1/24")
            .unwrap();
        let refused = format!("{:?}", nic.share_send_memory().open().unwrap_err());
        assert!(refused.contains("unix:PATH"), "{refused}");
    }
    // A path may contain commas.
    let place = Place::new();
    let socket = place.0.path().join("a,b");
    let _nic = end("unix-listen", &socket, 1).open().unwrap();
    assert!(socket.exists());
}
