//! Copies: batches, ranges, fences, two devices, and a device that is lost.

use std::sync::Arc;

use netmem::{
    CopyError, CopyPiece, CopyWay, DeviceState, DmaPort, Dmabuf, DmabufId, Frag, FragList, Lane,
    MemoryProvider, NiovSize, PagePool, Payload, PieceList,
};

use super::adopted::hold_default_stream;
use super::support::{Api, copy_ten_bytes, on_each, told};

/// Pools of net_iovs of 4 KiB: of device memory, and of host memory that is pinned for the device.
struct Pools {
    memory: Dmabuf,
    device: PagePool,
    host: PagePool,
    port: DmaPort,
}

impl Pools {
    fn new(api: Api) -> Self {
        let niov = NiovSize::MIN;
        let memory = api.alloc(0, 1 << 20);
        let engine = memory.copy_engine().unwrap();
        let host = MemoryProvider::pinned(1 << 20, niov, engine).unwrap();
        let device = MemoryProvider::of_dmabuf(&memory, DmabufId(1), niov).unwrap();
        let pool = |provider| PagePool::new(provider);
        let (host, device) = (pool(Arc::new(host)), pool(Arc::new(device)));
        let port = host.dma_port(mapped::DmaRight::of_a_nic());
        Self {
            memory,
            device,
            host,
            port,
        }
    }

    /// Returns a piece of `len` bytes at `offset` on both sides, the host's filled with `byte`.
    fn piece(&mut self, offset: u32, len: u32, byte: u8) -> (FragList, FragList) {
        let (host, device) = (self.host.alloc().unwrap(), self.device.alloc().unwrap());
        self.port.copy_in(&host, offset, &vec![byte; len as usize]);
        let list = |netmem| {
            let mut list = FragList::new();
            list.push(Frag::new(netmem, offset, len));
            list
        };
        (list(host), list(device))
    }
}

/// Copies pieces that are not adjacent to the device and back; checks every byte.
fn round_trip(api: Api, pieces: &[(u32, u32)]) {
    let mut pools = Pools::new(api);
    let engine = Arc::clone(pools.memory.copy_engine().unwrap());
    let mut copies = pools.port.staged_copies(&engine, Lane::In);
    let mut kept = Vec::new();
    for (&(offset, len), byte) in pieces.iter().zip(1..) {
        let (host, device) = pools.piece(offset, len, byte);
        copies.add(&host, &device);
        kept.push((host, device, byte));
    }
    let mut flight = copies.submit().unwrap();
    while !flight.is_done().unwrap() {}
    for (_, device, byte) in &kept {
        let at = device.first().unwrap().dmabuf_offset() as usize;
        let read = pools.memory.slice(at..at + device.len()).to_vec();
        assert_eq!(read, vec![*byte; device.len()]);
    }
    // Back, into other host memory.
    let mut back = pools.port.staged_copies(&engine, Lane::Out);
    let mut returned = Vec::new();
    for ((offset, len), (_, device, byte)) in pieces.iter().zip(&kept) {
        let (host, _) = pools.piece(*offset, *len, 0);
        back.add(&host, device);
        returned.push((host, *byte));
    }
    let mut flight = back.submit().unwrap();
    while !flight.is_done().unwrap() {}
    for (host, byte) in returned {
        let mut out = vec![0; host.len()];
        host.first().unwrap().copy_to(0, &mut out).unwrap();
        assert_eq!(out, vec![byte; host.len()]);
    }
}

const PIECES: [(u32, u32); 5] = [(0, 1), (4095, 1), (100, 1448), (0, 4096), (3, 7)];

#[test]
fn pieces_are_one_launch_of_a_kernel() {
    let log = Api::Cuda.with_stub("polls=2", || round_trip(Api::Cuda, &PIECES));
    if let Some(log) = log {
        let counts = ["LaunchKernel", "MemcpyBatchAsync", "MemcpyHtoDAsync"]
            .map(|name| log.count(&Api::Cuda.call(name)));
        assert_eq!(counts, [2, 0, 0]);
        log.assert_all_freed();
    }
}

#[test]
fn pieces_are_one_batch_in_both_forms_of_the_call() {
    for plan in ["driver=13000,polls=2", "driver=12080,polls=2"] {
        let plan = format!("{plan},fail=cuModuleLoadData:218");
        let log = Api::Cuda.with_stub(&plan, || round_trip(Api::Cuda, &PIECES));
        if let Some(log) = log {
            let batches: Vec<_> = log
                .0
                .iter()
                .filter(|line| line.starts_with("cuMemcpyBatchAsync"))
                .collect();
            assert_eq!(
                batches,
                ["cuMemcpyBatchAsync count=3 bytes=5656 flags=0"; 2]
            );
            assert_eq!(log.count("cuMemcpyHtoDAsync"), 0);
            log.assert_all_freed();
        }
    }
}

#[test]
fn drivers_without_the_batch_copy_piece_by_piece() {
    let plans = [
        (Api::Cuda, "driver=12000,fail=cuModuleLoadData:218"),
        (Api::Cuda, "no=cuMemcpyBatchAsync,fail=cuModuleLoadData:218"),
        (
            Api::Cuda,
            "fail=cuMemcpyBatchAsync:801,fail=cuMemHostAlloc:2",
        ),
        (Api::Hip, "polls=2"),
    ];
    for (api, plan) in plans {
        let log = api.with_stub(plan, || round_trip(api, &PIECES));
        if let Some(log) = log {
            let count = |name| log.count(&api.call(name));
            let counts = (count("MemcpyHtoDAsync"), count("EventRecord"));
            assert_eq!(counts, (3, 2), "{api:?} {plan}");
            log.assert_all_freed();
        }
    }
}

/// Pieces at all alignments of both sides, of lengths around what a warp moves at a time, and long ones, which are cut.
#[test]
fn gathered_pieces_of_any_alignment_and_length_are_right_in_every_byte() {
    let log = Api::Cuda.with_stub("polls=1", || {
        let (source, target) = (Api::Cuda.alloc(0, 1 << 20), Api::Cuda.alloc(0, 1 << 20));
        let bytes: Vec<u8> = (0..1_u32 << 20)
            .map(|at| (at % 251) as u8 ^ (at >> 11) as u8)
            .collect();
        source.copy_in(0, &bytes).unwrap();
        let (mut ranges, mut at) = (Vec::new(), 0);
        for start in [0, 1, 2, 4, 8, 12, 15] {
            for len in [1, 15, 16, 17, 511, 512, 513, 2047, 2048, 2049, 16_384 + 5] {
                at = (at + 16_usize).next_multiple_of(16) + start;
                ranges.push(at..at + len);
                at += len;
            }
        }
        // Of these, both sides of each piece are multiples of 16.
        let aligned = [528, 1040, 2064, 2576, 37].map(|len| 4096..4096 + len);
        let shifts = [0, 1, 4, 6].map(|offset| (ranges.clone(), offset));
        for (ranges, offset) in shifts.into_iter().chain([(aligned.to_vec(), 32)]) {
            let behind = vec![0xee; 64];
            let total: usize = ranges.iter().map(ExactSizeIterator::len).sum();
            target.copy_in(offset + total, &behind).unwrap();
            let gathered = target.gather_from(&source, ranges.clone(), offset);
            gathered.unwrap().unwrap().wait().unwrap();
            let expected: Vec<u8> = ranges
                .iter()
                .flat_map(|range| bytes[range.clone()].to_vec())
                .chain(behind)
                .collect();
            let read = target.slice(offset..offset + expected.len()).to_vec();
            let wrong = read.iter().zip(&expected).position(|(a, b)| a != b);
            assert_eq!(wrong, None, "at offset {offset}");
        }
    });
    if let Some(log) = log {
        assert_eq!(log.count("cuLaunchKernel"), 5);
        log.assert_all_freed();
    }
}

/// More pieces than a list has room for, and more lists than there are.
#[test]
fn submissions_that_need_many_lists_wait_for_the_oldest() {
    let log = Api::Cuda.with_stub("polls=1", || {
        const PIECES: usize = 17 * PieceList::PIECES;
        let size = PIECES * 8;
        let (source, target) = (Api::Cuda.alloc(0, 2 * size), Api::Cuda.alloc(0, size));
        let bytes: Vec<u8> = (0..2 * size).map(|at| (at % 253) as u8).collect();
        source.copy_in(0, &bytes).unwrap();
        let ranges = (0..PIECES).map(|n| n * 16..n * 16 + 8);
        let gathered = target.gather_from(&source, ranges.clone(), 0);
        gathered.unwrap().unwrap().wait().unwrap();
        let expected: Vec<u8> = ranges.flat_map(|range| bytes[range].to_vec()).collect();
        assert!(target.slice(0..size).to_vec() == expected);
    });
    if let Some(log) = log {
        assert_eq!(log.count("cuLaunchKernel"), 17);
        log.assert_all_freed();
    }
}

/// A list is copied as it is, and the pieces that are too long for one by copies of their own.
#[test]
fn long_pieces_are_copied_beside_a_list_of_many_short_ones() {
    const LONG: usize = 300 << 10;
    let body = |api: Api| {
        let (source, target) = (api.alloc(0, 2 << 20), api.alloc(0, 2 << 20));
        let bytes: Vec<u8> = (0..2_u32 << 20).map(|at| (at % 251) as u8).collect();
        source.copy_in(0, &bytes).unwrap();
        let short = (0..2000).map(|n| (n * 100..n * 100 + 1 + n % 64, n * 90));
        let long = [1 << 20, (1 << 20) + LONG + 1].map(|from| (from..from + LONG, from + 3));
        let pieces = short.chain(long);
        let copied = target.scatter_from(&source, pieces.clone());
        copied.unwrap().expect("one device").wait().unwrap();
        for (range, at) in pieces {
            let read = target.slice(at..at + range.len()).to_vec();
            assert!(read == bytes[range.clone()], "{range:?}");
        }
        let outside = (0..2000).map(|n| n * 1100..n * 1100 + 1);
        let refused = target.gather_from(&source, outside, 0).unwrap_err();
        assert!(matches!(refused, CopyError::OutOfBounds(_)));
    };
    on_each("polls=1", body, |api, log| {
        if api == Api::Cuda {
            let counts = ["cuLaunchKernel", "cuMemcpyDtoDAsync"].map(|name| log.count(name));
            assert_eq!(counts, [1, 2]);
        }
    });
}

#[test]
fn one_byte_and_two_gibibytes_are_addressed_to_the_last_byte() {
    let body = |api: Api| {
        let size = 2 << 30;
        let memory = api.alloc(0, size);
        for at in [0, 1, 4095, 4096, (1 << 31) - 1, size - 1] {
            memory.copy_in(at, &[at as u8 ^ 0x5a]).unwrap();
            assert_eq!(memory.slice(at..at + 1).to_vec(), [at as u8 ^ 0x5a]);
        }
        memory.copy_from(&memory, size - 1, 7, 1).unwrap();
        assert_eq!(memory.slice(7..8).to_vec(), [0xff ^ 0x5a]);
        memory.copy_in(size, b"").expect("no bytes, at the end");
        assert!(matches!(
            memory.copy_in(size, b"x"),
            Err(CopyError::OutOfBounds(_))
        ));
    };
    on_each("memory=4294967296", body, |_, _| ());
}

#[test]
fn memory_is_filled_and_moved_as_other_memory_is() {
    let body = |api: Api| {
        let memory = api.alloc(0, 2 << 20);
        memory.fill(10..600_010, 7).unwrap();
        assert_eq!(memory.slice(9..11).to_vec(), [0, 7]);
        assert_eq!(memory.slice(600_009..600_011).to_vec(), [7, 0]);
        let bytes: Vec<u8> = (0..600_000_u32).map(|at| (at % 251) as u8).collect();
        memory.copy_in(0, &bytes).unwrap();
        // Overlapping, in both directions, and to host memory.
        memory.copy_from(&memory, 0, 1000, 600_000).unwrap();
        assert_eq!(memory.slice(1000..601_000).to_vec(), bytes);
        memory.copy_from(&memory, 1000, 500, 600_000).unwrap();
        assert_eq!(memory.slice(500..600_500).to_vec(), bytes);
        let host = Dmabuf::anonymous(1 << 20).unwrap();
        host.copy_from(&memory, 500, 3, 600_000).unwrap();
        assert_eq!(host.slice(3..600_003).to_vec(), bytes);
    };
    on_each("polls=1", body, |_, _| ());
}

#[test]
fn two_devices_copy_through_the_host_and_refuse_each_others_memory() {
    let body = |api: Api| {
        let [zero, one] = [0, 1].map(|ordinal| api.alloc(ordinal, 4096));
        zero.copy_in(0, b"from device 0").unwrap();
        one.copy_from(&zero, 0, 100, 13).unwrap();
        assert_eq!(one.slice(100..113).to_vec(), b"from device 0");
        let (of_zero, of_one) = (zero.exporter().unwrap(), one.exporter().unwrap());
        let way = CopyWay::Within {
            from: of_zero.as_ref(),
            to: of_one.as_ref(),
        };
        let piece = CopyPiece {
            from: 0,
            to: 0,
            len: 13,
        };
        let engine = zero.copy_engine().unwrap();
        let refused = engine.submit(Lane::Gather, way, &[piece]).unwrap_err();
        assert_eq!(refused.state, DeviceState::Usable);
        assert_eq!(engine.device(), format!("{}:0", api.platform().name));
    };
    on_each("devices=2", body, |_, _| ());
}

#[test]
fn pieces_outside_of_their_memory_are_refused_alone_and_among_others() {
    // Allocations have whole large pages.
    const SIZE: usize = 2 << 20;
    let body = |api: Api| {
        let [source, target] = [(); 2].map(|()| api.alloc(0, SIZE));
        let way = CopyWay::Within {
            from: source.exporter().unwrap().as_ref(),
            to: target.exporter().unwrap().as_ref(),
        };
        let engine = source.copy_engine().unwrap();
        let piece = |from, to, len| CopyPiece { from, to, len };
        let good = piece(0, SIZE - 1, 1);
        for bad in [
            piece(SIZE, 0, 1),
            piece(0, SIZE, 1),
            piece(1, 0, SIZE),
            piece(usize::MAX, 0, 2),
        ] {
            for pieces in [&[bad][..], &[good, bad]] {
                let refused = engine.submit(Lane::Gather, way, pieces).unwrap_err();
                assert_eq!((refused.call, refused.state), ("copy", DeviceState::Usable));
            }
        }
        let copied = engine.submit(Lane::Gather, way, &[good, good]).unwrap();
        engine.wait(copied).unwrap();
    };
    on_each("polls=1", body, |_, _| ());
}

#[test]
fn a_stream_of_the_program_waits_for_a_gather_and_the_program_does_not() {
    let body = |api: Api| {
        let device = api.open(0).unwrap();
        let [source, target] = [(); 2].map(|()| api.alloc(0, 8192));
        source.copy_in(0, b"first and last").unwrap();
        let gathered = target.gather_from(&source, [0..5, 10..14], 100).unwrap();
        let mut gathered = gathered.expect("one device");
        assert_eq!(gathered.is_done(), Ok(false));
        hold_default_stream(&device, gathered.fence().unwrap()).unwrap();
        gathered.wait().unwrap();
        assert_eq!(target.slice(100..109).to_vec(), b"firstlast");
    };
    on_each("polls=1000000", body, |api, log| {
        let held = log.arguments(&api.call("StreamWaitEvent"), 0);
        assert_eq!(held, ["0x0"]);
        assert!(log.first(&api.call("EventRecord")) < log.first(&api.call("StreamWaitEvent")));
    });
}

#[test]
fn more_submissions_than_events_wait_for_the_oldest() {
    let body = |api: Api| {
        let memory = api.alloc(0, 4096);
        let engine = memory.copy_engine().unwrap();
        let fences: Vec<_> = (0..200)
            .map(|_| copy_ten_bytes(&memory, Lane::Gather).unwrap())
            .collect();
        assert!(
            engine.is_done(fences[0]).unwrap(),
            "its event was used again"
        );
        assert!(!engine.is_done(fences[199]).unwrap());
        engine.wait(fences[199]).unwrap();
        assert!(fences.iter().all(|&fence| engine.is_done(fence).unwrap()));
    };
    on_each("polls=1000000", body, |_, _| ());
}

#[test]
fn a_lost_device_repeats_its_error_and_is_closed() {
    let body = |api: Api| {
        let memory = api.alloc(0, 4096);
        let engine = memory.copy_engine().unwrap();
        let first = copy_ten_bytes(&memory, Lane::Gather).unwrap();
        engine.wait(first).unwrap();
        let second = copy_ten_bytes(&memory, Lane::Gather).unwrap();
        let lost = engine.is_done(second).unwrap_err();
        assert_eq!((lost.code, lost.state), (700, DeviceState::Lost));
        assert_eq!(lost.call, api.call("EventQuery"));
        for later in [
            engine.wait(second).unwrap_err(),
            copy_ten_bytes(&memory, Lane::In).unwrap_err(),
        ] {
            assert_eq!(later, lost, "the first error, which is the cause");
        }
        assert!(engine.is_done(first).unwrap(), "it was done before");
        let error = told(&memory.copy_in(0, b"x").unwrap_err());
        assert!(
            error.contains(api.error(700)) && error.contains("`dmesg`"),
            "{error}"
        );
    };
    on_each("lost=1", body, |_, _| ());
}
