//! A peer that is no NIC, and names what it may not.

use super::*;

fn piece(region: u32, offset: u64, len: u32) -> PieceRecord {
    PieceRecord {
        region,
        len,
        offset,
    }
}

#[test]
fn frames_that_name_memory_which_does_not_exist_are_dropped_and_counted() {
    let mut raw = Raw::new();
    raw.send(&memory(3, 8192), Some(&file(8192, SealFlags::SHRINK)));
    let head = packet(Family::V4, FragList::new()).head;
    let head = head.as_slice();
    let bad: &[(&str, PieceRecord)] = &[
        ("unknown region", piece(2, 0, 100)),
        ("no such region", piece(u32::MAX, 0, 100)),
        ("past the end", piece(3, 8000, 193)),
        ("beyond the end", piece(3, 8193, 1)),
        ("an offset that overflows", piece(3, u64::MAX, 2)),
        ("as long as no frame", piece(3, 0, u32::MAX)),
        ("empty", piece(3, 0, 0)),
    ];
    for (what, piece) in bad {
        raw.send_frame(&[*piece], 0, head);
        raw.expect_bad(what);
    }
    raw.send_frame(&[piece(3, 0, 100), piece(4, 0, 100)], 0, head);
    raw.expect_bad("a known and an unknown region");
    raw.send_frame(&[piece(3, 0, 100)], limits::SLOTS as u16, head);
    raw.expect_bad("a slot that does not exist");
    let long = vec![piece(3, 0, 8192); 70];
    raw.send_frame(&long, 0, head);
    raw.expect_bad("longer than a super-packet");
    raw.send(&[0xc0; 40], None);
    raw.expect_bad("a kind that does not exist");
    // As long as none that an IP header can say, and not said in the headers.
    raw.send_frame(&long[..10], 0, head);
    assert!(raw.nic.poll_rx(NOW).is_none());
    assert_eq!(raw.nic.drops().get(DropReason::RxOversize), 1);
    // The headers end in the payload: nothing is read there.
    raw.send_frame(&[piece(3, 0, 100)], 0, &head[..40]);
    assert!(raw.nic.poll_rx(NOW).is_none());
    assert_eq!(raw.nic.drops().get(DropReason::RxTruncated), 1);
    assert!(raw.nic.is_up());
}

#[test]
fn a_peer_has_at_most_as_many_frames_in_use_as_there_are_slots() {
    let mut raw = Raw::new();
    raw.send(&memory(0, 8192), Some(&file(8192, SealFlags::SHRINK)));
    let payload = FragList::from_host_bytes(&mut host_pool(), &[0; 9]).unwrap();
    let tx = packet(Family::V4, payload);
    let mut kept = Vec::new();
    for _ in 0..=limits::SLOTS {
        let checksum = tx.checksum.into();
        let offload = ::wire::Offload {
            checksum,
            gso: None,
        };
        let fields = FrameFields {
            header: VnetHeader::new(offload, tx.head.as_slice()),
            slot: 0,
            number: 1,
            until: BorrowedUntil::Read,
        };
        let mut out = Vec::new();
        emit_frame(&mut out, fields, &[piece(0, 0, 9)], tx.head.as_slice());
        raw.send(&out, None);
        kept.extend(raw.nic.poll_rx(NOW).map(|packet| packet.payload));
    }
    assert_eq!(kept.len(), limits::SLOTS);
    assert_eq!(raw.nic.drops().get(DropReason::RxBadReference), 1);
}

#[test]
fn a_file_that_may_get_shorter_or_is_no_memory_ends_the_wire() {
    let long = 1 << 30;
    let (pipe, _writer) = rustix::pipe::pipe().unwrap();
    let cases: [(&str, u64, Option<OwnedFd>); 6] = [
        ("not sealed", 4096, Some(file(4096, SealFlags::GROW))),
        ("too short", 8192, Some(file(4096, SealFlags::SHRINK))),
        ("an odd size", 100, Some(file(4096, SealFlags::SHRINK))),
        ("no bytes", 0, Some(file(4096, SealFlags::SHRINK))),
        ("a pipe", 4096, Some(pipe)),
        ("no file", 4096, None),
    ];
    for (what, size, file) in cases {
        let mut raw = Raw::new();
        raw.send(&memory(0, size), file.as_ref());
        raw.expect_down(what);
    }
    let mut raw = Raw::new();
    let good = file(long, SealFlags::SHRINK);
    for region in 0..limits::REGIONS as u32 {
        raw.send(&memory(region, long), Some(&good));
    }
    for _ in 0..limits::REGIONS.div_ceil(RX_FILES) {
        assert!(raw.nic.poll_rx(NOW).is_none());
    }
    assert!(raw.nic.is_up());
    raw.send(&memory(limits::REGIONS as u32, long), Some(&good));
    raw.expect_down("more files than there are places");
    let mut raw = Raw::new();
    raw.send(&memory(0, long), Some(&good));
    raw.send(&memory(0, long), Some(&good));
    raw.expect_down("a region that exists");
    let mut raw = Raw::new();
    raw.send(&FileRecord::Revoked { region: 0 }.emit(), None);
    raw.expect_down("a region that does not exist");
    let mut raw = Raw::new();
    let releases = FileRecord::Notes.emit();
    raw.send(&releases, Some(&file(4096, SealFlags::SHRINK)));
    raw.send(&releases, Some(&file(4096, SealFlags::SHRINK)));
    raw.expect_down("a second file for what was let go of");
}

#[test]
fn records_of_files_take_turns_with_all_else() {
    const PAIRS: usize = 40;
    let mut raw = Raw::new();
    let good = file(1 << 30, SealFlags::SHRINK);
    for _ in 0..PAIRS {
        raw.send(&memory(0, 1 << 30), Some(&good));
        raw.send(&FileRecord::Revoked { region: 0 }.emit(), None);
    }
    // A frame behind them: dropped, and counted.
    raw.send(&[0xc0; 40], None);
    let is_counted = |nic: &Nic| nic.drops().get(DropReason::RxBadReference) == 1;
    let mut turns = 0;
    while !is_counted(&raw.nic) {
        assert!(raw.nic.poll_rx(NOW).is_none());
        turns += 1;
        assert!(turns < 1000, "the frame is received in the end");
    }
    // A receive and the next one, after which it goes on.
    assert_eq!(turns, (2 * PAIRS).div_ceil(RX_FILES) + 1);
    assert!(raw.nic.is_up());
}

#[test]
fn a_revoked_region_is_not_named_any_more_but_its_frags_stay_valid() {
    let mut raw = Raw::new();
    let file = file(8192, SealFlags::SHRINK);
    rustix::io::pwrite(&file, &pattern(5, 8192), 0).unwrap();
    raw.send(&memory(0, 8192), Some(&file));
    let payload = FragList::from_host_bytes(&mut host_pool(), &[0; 5000]).unwrap();
    let tx = packet(Family::V4, payload);
    let fields = FrameFields {
        header: VnetHeader::new(
            ::wire::Offload {
                checksum: tx.checksum.into(),
                gso: None,
            },
            tx.head.as_slice(),
        ),
        slot: 9,
        number: 77,
        until: BorrowedUntil::Read,
    };
    let mut out = Vec::new();
    emit_frame(&mut out, fields, &[piece(0, 64, 5000)], tx.head.as_slice());
    raw.send(&out, None);
    let received = receive(&mut raw.nic);
    raw.send(&FileRecord::Revoked { region: 0 }.emit(), None);
    raw.send(&out, None);
    raw.expect_bad("revoked");
    assert_eq!(
        bytes(received.payload.frags().unwrap()),
        pattern(5, 8192)[64..5064]
    );
    // The sender may change it at any time: other bytes arrive, and nothing worse.
    rustix::io::pwrite(&file, &[9; 8192], 0).unwrap();
    assert_eq!(bytes(received.payload.frags().unwrap()), [9; 5000]);
    drop(received);
    assert!(raw.nic.poll_rx(NOW).is_none());
    let releases = loop {
        let mut packet = [0; 100];
        let (len, file) = receive_packet(&raw.peer, &mut packet).unwrap();
        if packet[..len] == FileRecord::Notes.emit() {
            break file.unwrap();
        }
    };
    let mut number = [0; 4];
    rustix::io::pread(&releases, &mut number, 4 * 9).unwrap();
    assert_eq!(
        u32::from_ne_bytes(number),
        77,
        "the sender has its memory back"
    );
}

#[test]
fn a_peer_that_leaves_gives_all_memory_back() {
    let (mut ours, peer) = nics();
    let memory = Dmabuf::shared_memfd(MIB).unwrap();
    let (_bound, mut send, payload) = device(&memory, 60_000, 1);
    ours.transmit(packet(Family::V4, payload), NOW).unwrap();
    assert!(!send.is_over());
    drop(peer);
    assert!(ours.poll_rx(NOW).is_none());
    assert!(!ours.is_up());
    assert!(send.is_over());
    let (_bound, _send, payload) = device(&memory, 60_000, 2);
    let refused = ours.transmit(packet(Family::V4, payload), NOW);
    assert_eq!(refused, Err(DropReason::TxLinkDown));
}

#[test]
fn the_other_end_gets_files_that_it_can_only_read() {
    let (a, peer) = sockets();
    let mut ours = nic_on(a, OURS);
    let mut packet_bytes = [0; 100];
    assert!(ours.poll_rx(NOW).is_none());
    let (_, releases) = receive_packet(&peer, &mut packet_bytes).unwrap();
    let raw = Raw { nic: ours, peer };
    raw.send(&FileRecord::Notes.emit(), releases.as_ref());
    let mut ours = raw.nic;
    assert!(ours.poll_rx(NOW).is_none());
    let memory = Dmabuf::shared_memfd(MIB).unwrap();
    let (_bound, _send, payload) = device(&memory, 60_000, 1);
    ours.transmit(packet(Family::V4, payload), NOW).unwrap();
    let size = MIB as u64;
    for record in [FileRecord::Ring, FileRecord::Memory { region: 0, size }] {
        let (len, file) = receive_packet(&raw.peer, &mut packet_bytes).unwrap();
        assert_eq!(packet_bytes[..len], record.emit());
        let refused = rustix::io::pwrite(file.unwrap(), b"x", 0);
        assert_eq!(refused, Err(Errno::BADF));
    }
}

#[test]
fn only_ends_that_both_share_memory_do() {
    for (ours, theirs) in [(true, false), (false, true), (true, true)] {
        let (a, _b) = sockets();
        let [ours, theirs] = [ours, theirs].map(|shares_memory| WireHello {
            shares_memory,
            ..HELLO
        });
        let caps = UnixLink::new(a, ours, theirs).unwrap();
        let LinkCaps {
            borrows,
            max_super_packet,
            ..
        } = crate::Link::caps(&caps);
        let both = ours.shares_memory && theirs.shares_memory;
        assert_eq!(borrows, both);
        assert_eq!(max_super_packet > MAX_FRAME_LEN, both);
    }
}

#[test]
fn pieces_longer_than_any_frame_make_no_frags() {
    const REGION_BYTES: u64 = 16 << 20;
    let mut incoming = Incoming::new();
    let file = file(REGION_BYTES, SealFlags::SHRINK);
    incoming.map(0, &file, REGION_BYTES, &port()).unwrap();
    let fields = FrameFields {
        header: VnetHeader::default(),
        slot: 0,
        number: 1,
        until: BorrowedUntil::Copied,
    };
    let pieces = vec![piece(0, 0, REGION_BYTES as u32); record::MAX_PIECES];
    let mut packet = Vec::new();
    emit_frame(&mut packet, fields, &pieces, &[0; 54]);
    let Packet::Frame(record) = Packet::parse(&packet) else {
        panic!("a frame by reference");
    };
    let mut list = FragList::new();
    assert!(incoming.borrow(&record, &mut list).is_none());
    assert!(list.is_empty(), "{} bytes were borrowed", list.len());
}
