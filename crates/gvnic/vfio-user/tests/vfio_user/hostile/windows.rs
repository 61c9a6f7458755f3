//! DMA windows over memory that cannot serve.

use super::*;

#[test]
fn windows_that_overlap_wrap_around_or_are_not_whole_pages_are_refused() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let memory = guest_memory(0x10_000);
    let fd = [memory.as_fd()];
    bench.ask_ok(
        &mut client,
        DMA_MAP,
        &dma_map(MAP_RW, 0, 0x4000, 0x2000),
        &fd,
    );
    let wrong = [
        (dma_map(MAP_RW, 0, 0x4000, 0x2000), EEXIST),
        (dma_map(MAP_RW, 0, 0x3000, 0x2000), EEXIST),
        (dma_map(MAP_RW, 0, 0x5000, 0x1000), EEXIST),
        (dma_map(MAP_RW, 0, 0x3000, 0x8000), EEXIST),
        (dma_map(MAP_RW, 0, 0x8000, 0), EINVAL),
        (dma_map(MAP_RW, 0, 0x8001, 0x1000), EINVAL),
        (dma_map(MAP_RW, 0, 0x8000, 0x1001), EINVAL),
        (dma_map(MAP_RW, 1, 0x8000, 0x1000), EINVAL),
        (dma_map(MAP_RW, 0, u64::MAX - 0xfff, 0x1000), EINVAL),
        (dma_map(0, 0, 0x8000, 0x1000), EINVAL),
        (dma_map(7, 0, 0x8000, 0x1000), EINVAL),
        // Past the end of the file.
        (dma_map(MAP_RW, 0x10_000, 0x8000, 0x1000), EINVAL),
        (dma_map(MAP_RW, u64::MAX - 0xfff, 0x8000, 0x1000), EINVAL),
        (dma_map(MAP_RW, 0, 0x8000, 0x11_000), EINVAL),
    ];
    for (body, errno) in wrong {
        assert_eq!(
            bench.ask(&mut client, DMA_MAP, &body, &fd).errno,
            errno,
            "{body:?}"
        );
    }
    // Without a file, with more bytes than the address space has.
    let huge = dma_map(MAP_RW, 0, 1 << 45, 1 << 45);
    assert_eq!(bench.ask(&mut client, DMA_MAP, &huge, &[]).errno, ENOSPC);
    assert_eq!(bench.server.bus().dma.len(), 1);

    let split = [
        dma_unmap(0, 0x5000, 0x1000),
        dma_unmap(0, 0x4000, 0x1000),
        dma_unmap(0, 0x3000, 0x2000),
    ];
    for body in split {
        assert_eq!(bench.ask(&mut client, DMA_UNMAP, &body, &[]).errno, EINVAL);
    }
    assert_eq!(
        bench
            .ask(&mut client, DMA_UNMAP, &dma_unmap(2, 0, 1), &[])
            .errno,
        EINVAL
    );
    assert_eq!(
        bench
            .ask(&mut client, DMA_UNMAP, &dma_unmap(1, 0x4000, 0x2000), &[])
            .errno,
        EOPNOTSUPP
    );
    // Unmapping more than the window is allowed, and so is unmapping where there is none.
    bench.ask_ok(&mut client, DMA_UNMAP, &dma_unmap(0, 0, 0x10_000), &[]);
    bench.ask_ok(&mut client, DMA_UNMAP, &dma_unmap(0, 0, 0x10_000), &[]);
    assert!(bench.server.bus().dma.is_empty());
    assert_eq!(bench.server.bus().dma.total_bytes(), 0);
}

#[test]
fn the_number_of_windows_is_limited() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    for n in 0..1024u64 {
        bench.ask_ok(
            &mut client,
            DMA_MAP,
            &dma_map(MAP_RW, 0, n << 12, 0x1000),
            &[],
        );
    }
    let one_more = dma_map(MAP_RW, 0, 1024 << 12, 0x1000);
    assert_eq!(
        bench.ask(&mut client, DMA_MAP, &one_more, &[]).errno,
        ENOSPC
    );
}

#[test]
fn a_file_that_the_client_could_shrink_is_refused() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let map = dma_map(MAP_RW, 0, 0, 0x1000);
    let memory = unsealed_memory(0x1000);
    let refused = bench.ask(&mut client, DMA_MAP, &map, &[memory.as_fd()]);
    assert_eq!(refused.errno, EINVAL);
    assert!(bench.server.bus().dma.is_empty());
    let reason = bench.server.stats().session.memory_refused;
    assert_eq!(reason, Some(MapError::MayShrink));
    // A file that cannot shrink is accepted, even if it may grow.
    fcntl_add_seals(&memory, SealFlags::SHRINK).unwrap();
    bench.ask_ok(&mut client, DMA_MAP, &map, &[memory.as_fd()]);
    ftruncate(&memory, 0).unwrap_err();
    ftruncate(&memory, 0x2000).unwrap();
    let dma = &bench.server.bus().dma;
    assert_eq!(dma.read(0xff8, &mut [0; 8]), Ok(()));
}

#[test]
fn memory_of_huge_pages_is_refused_sealed_or_not() {
    const TEST: &str = "memory_of_huge_pages_is_refused_sealed_or_not";
    let mut bench = Bench::new();
    let mut client = bench.client();
    for (seals, errno) in [
        (SealFlags::empty(), EINVAL),
        (SealFlags::SHRINK, EOPNOTSUPP),
    ] {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let made = memfd_create("huge", flags).and_then(|fd| {
            ftruncate(&fd, 2 << 20)?;
            fcntl_add_seals(&fd, seals)?;
            Ok(fd)
        });
        // No page of it is accessed, so the machine needs no free huge pages.
        let Ok(memory) = made else {
            // Not with println, whose output the test harness captures.
            let reason = "this kernel makes no memfd of huge pages";
            writeln!(std::io::stderr(), "SKIP {TEST}: {reason}").unwrap();
            return;
        };
        let map = dma_map(MAP_RW, 0, 0, 2 << 20);
        let reply = bench.ask(&mut client, DMA_MAP, &map, &[memory.as_fd()]);
        assert_eq!(reply.errno, errno);
    }
}

#[test]
fn descriptors_of_other_files_are_refused_as_memory() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    let folder = std::fs::File::open("/").unwrap();
    let map = dma_map(1, 0, 0, 0x1000);
    for fd in [
        pipe.as_fd(),
        folder.as_fd(),
        new_eventfd().as_fd(),
        client.stream.try_clone().unwrap().as_fd(),
    ] {
        assert_eq!(bench.ask(&mut client, DMA_MAP, &map, &[fd]).errno, EINVAL);
    }
    // A file on a disk or on FUSE: access to it may block for any time.
    let on_disk = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
    assert_eq!(
        bench
            .ask(&mut client, DMA_MAP, &map, &[on_disk.as_fd()])
            .errno,
        EINVAL
    );
    let memory = unsealed_memory(0x1000);
    let again = format!("/proc/self/fd/{}", memory.as_raw_fd());
    let read_only = std::fs::File::open(again).unwrap();
    let write = dma_map(MAP_RW, 0, 0, 0x1000);
    assert_eq!(
        bench
            .ask(&mut client, DMA_MAP, &write, &[read_only.as_fd()])
            .errno,
        EINVAL
    );
    assert_eq!(
        bench
            .ask(&mut client, DMA_MAP, &map, &[read_only.as_fd()])
            .errno,
        EINVAL
    );
}

#[test]
fn a_read_only_window_is_not_written_to() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let memory = guest_memory(0x1000);
    bench.ask_ok(
        &mut client,
        DMA_MAP,
        &dma_map(1, 0, 0, 0x1000),
        &[memory.as_fd()],
    );
    let dma = &bench.server.bus().dma;
    assert_eq!(dma.read(0, &mut [0; 8]), Ok(()));
    assert_eq!(
        dma.write(8, &[1; 8]),
        Err(DmaError::Forbidden { address: 8 })
    );
}

#[test]
fn an_access_across_two_windows_succeeds_and_across_a_gap_fails() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let memory = guest_memory(0x3000);
    // The guest's second page is the file's third.
    bench.ask_ok(
        &mut client,
        DMA_MAP,
        &dma_map(MAP_RW, 0, 0, 0x1000),
        &[memory.as_fd()],
    );
    bench.ask_ok(
        &mut client,
        DMA_MAP,
        &dma_map(MAP_RW, 0x2000, 0x1000, 0x1000),
        &[memory.as_fd()],
    );
    let dma = &bench.server.bus().dma;
    dma.write(0xffc, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    let mut back = [0; 8];
    dma.read(0xffc, &mut back).unwrap();
    assert_eq!(back, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(peek(&memory, 0x2000)[..4], [5, 6, 7, 8]);
    assert_eq!(
        dma.write(0x1ffc, &[0; 8]),
        Err(DmaError::Unmapped { address: 0x2000 })
    );
}
