//! How fast the engine of a GPU is, in lines `FIGURE name value` for whoever reads the output; the bytes are checked, the
//! rates are not. `DEVMEM_REQUIRE=cuda cargo test -p devmem-gpu-stub --test gpu rates -- --nocapture`.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use devmem_cuda::Floats;
use devmem_gpu::Device;
use netmem::Dmabuf;

use super::real::{gpus, memory};
use super::support::Api;

/// Repetitions, of which the fastest counts: a GPU that was idle needs a moment to reach its clock.
const ROUNDS: usize = 5;

/// Bytes that are moved: fewer on the stub, where a debug build of the CPU moves them.
fn amount() -> usize {
    match std::env::var_os("DEVMEM_LIBCUDA") {
        None => 256 << 20,
        Some(_) => 4 << 20,
    }
}

/// Prints the best rate of `work`, which moves `bytes`; the CPU waits until it is done.
fn rate(name: &str, bytes: usize, mut work: impl FnMut()) -> f64 {
    let seconds = (0..ROUNDS).map(|_| {
        let begun = Instant::now();
        work();
        begun.elapsed().as_secs_f64()
    });
    let rate = bytes as f64 / seconds.fold(f64::INFINITY, f64::min) / 1e9;
    println!("FIGURE {name}_gb_per_s {rate:.3}");
    rate
}

/// Pieces of `piece` bytes from all over `size` bytes, in an order that no copy engine can merge.
fn scattered(size: usize, piece: usize) -> Vec<Range<usize>> {
    let count = size / piece;
    // An odd step visits each of a power of two.
    let place = |n: usize| n * 7919 % count * piece;
    (0..count).map(|n| place(n)..place(n) + piece).collect()
}

fn gathers(device: &Device) {
    let size = amount();
    let (source, target) = (memory(device, size), memory(device, size));
    let bytes: Vec<u8> = (0..size)
        .map(|at| (at % 251) as u8 ^ (at >> 12) as u8)
        .collect();
    source.copy_in(0, &bytes).expect("copied");
    let whole = rate("one_copy", size, || {
        target.copy_from(&source, 0, 0, size).expect("inside");
    });
    for piece in [64 << 10, 4 << 10] {
        let ranges = scattered(size, piece);
        let kib = piece >> 10;
        let mut start_ns = f64::INFINITY;
        let gathered = rate(&format!("gather_{kib}k"), size, || {
            let begun = Instant::now();
            let gather = target.gather_from(&source, ranges.iter().cloned(), 0);
            start_ns = begun.elapsed().as_secs_f64().min(start_ns / 1e9) * 1e9;
            let fence = gather.expect("inside").expect("one device");
            fence.wait().expect("copied");
        });
        // What the CPU does before it waits: the checks, the lists, and the calls of the driver.
        let of_piece = start_ns / ranges.len() as f64;
        println!("FIGURE gather_{kib}k_start_ns_per_piece {of_piece:.3}");
        println!("FIGURE gather_{kib}k_of_one_copy {:.3}", gathered / whole);
        let read = target.slice(0..size).to_vec();
        let right = ranges.iter().enumerate();
        let wrong = right
            .filter(|(n, range)| read[n * piece..][..piece] != bytes[(*range).clone()])
            .count();
        assert_eq!(wrong, 0, "pieces of {piece}");
        one_by_one(&source, &target, &ranges, kib);
    }
}

/// A copy of its own for each piece, as a program without a gather makes them: one call of the driver, and one wait.
fn one_by_one(source: &Dmabuf, target: &Dmabuf, ranges: &[Range<usize>], kib: usize) {
    // A quarter is enough to tell: this is the slow way.
    let some = &ranges[..ranges.len() / 4];
    let bytes = some.iter().map(ExactSizeIterator::len).sum();
    rate(&format!("piecewise_{kib}k"), bytes, || {
        let mut at = 0;
        for range in some {
            let len = range.len();
            target
                .copy_from(source, range.start, at, len)
                .expect("inside");
            at += len;
        }
    });
}

#[test]
fn gathers_beside_one_copy_and_beside_a_copy_for_each_piece() {
    for device in gpus("gathers_beside_one_copy_and_beside_a_copy_for_each_piece") {
        gathers(&device);
    }
}

#[test]
fn copies_to_and_from_the_host() {
    for device in gpus("copies_to_and_from_the_host") {
        let memory = memory(&device, amount());
        let bytes = vec![0x5a; amount()];
        rate("copy_in", bytes.len(), || {
            memory.copy_in(0, &bytes).expect("copied");
        });
        rate("copy_out", bytes.len(), || {
            assert_eq!(memory.slice(0..bytes.len()).to_vec().last(), Some(&0x5a));
        });
    }
}

#[test]
fn checksums_and_sums() {
    for device in gpus("checksums_and_sums") {
        if device.platform() != Api::Cuda.platform() {
            continue;
        }
        // The stub interprets the kernels, an instruction at a time.
        let size = if amount() < 256 << 20 {
            64 << 10
        } else {
            amount()
        };
        let bytes = vec![0x3c; size];
        let memory = memory(&device, size);
        memory.copy_in(0, &bytes).expect("copied");
        let expected = crc32c::crc32c(&bytes);
        rate("crc32c", size, || {
            let sum = memory.crc32c(0..size).expect("inside");
            assert_eq!(sum.value, expected);
            assert!(sum.device.is_some(), "the CPU has computed it");
        });
        let adder = device.adder().expect("an NVIDIA GPU adds");
        let vector = || Arc::new(device.alloc(size).expect("memory"));
        let (sums, summands) = (vector(), vector());
        sums.dmabuf().copy_in(0, &vec![0; size]).expect("copied");
        let ones: Vec<u8> = (0..size / 4).flat_map(|_| 1f32.to_ne_bytes()).collect();
        summands.dmabuf().copy_in(0, &ones).expect("copied");
        let at = |memory| Floats { memory, offset: 0 };
        rate("adder", size, || {
            let added = adder.add(at(&sums), at(&summands), size / 4);
            added.expect("both are inside");
        });
        let total = sums.dmabuf().slice(size - 4..size).to_vec();
        let total = f32::from_ne_bytes(total.try_into().expect("4 bytes"));
        assert_eq!(total, ROUNDS as f32);
    }
}
