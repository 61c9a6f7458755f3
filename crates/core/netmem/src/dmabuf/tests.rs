use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;

use super::*;
use crate::lent::LentMemory;

const MIB: usize = 1 << 20;

#[test]
fn sizes_that_are_no_pages_are_refused_with_the_remedy() {
    for size in [0, 1, 4095, 4097, usize::MAX] {
        for made in [Dmabuf::anonymous(size), Dmabuf::memfd(size)] {
            let error = made.unwrap_err();
            assert!(
                matches!(error, DmabufError::Size { size: s } if s == size),
                "{error:?}"
            );
            assert!(error.to_string().ends_with("multiple of 4096"), "{error}");
            assert_eq!(error.remedy().as_deref(), Some("round it up"));
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "mmap of a size that is refused")]
fn memory_that_the_machine_does_not_have_is_refused_with_the_remedy() {
    let size = 1 << 60;
    let error = Dmabuf::anonymous(size).unwrap_err();
    assert!(matches!(error, DmabufError::Map { .. }), "{error:?}");
    assert!(
        error.to_string().contains("1152921504606846976 bytes"),
        "{error}"
    );
    assert!(
        error
            .remedy()
            .is_some_and(|remedy| remedy.contains("ulimit -v"))
    );
}

#[test]
fn the_owner_reads_the_bytes_it_wrote_and_no_others_change() {
    let memory = Dmabuf::anonymous(8192).unwrap();
    memory.copy_in(4090, b"across a page").unwrap();
    memory.fill(0..4, 0xaa).unwrap();
    let mut out = [0; 13];
    memory.copy_out(4090, &mut out).unwrap();
    assert_eq!(&out, b"across a page");
    let all = memory.slice(0..8192).to_vec();
    assert_eq!(all[..4], [0xaa; 4]);
    assert_eq!(all.iter().filter(|&&byte| byte != 0).count(), 4 + 13);
    assert_eq!((memory.size(), memory.as_fd().is_none()), (8192, true));
}

/// An exporter of `size` bytes that has mapped memory itself.
struct Lender {
    size: usize,
    mapping: Mutex<Option<mapped::Mapping>>,
}

impl Lender {
    fn exported(size: usize, mapped: usize) -> Result<Dmabuf, DmabufError> {
        let mapping = mapped::Mapping::anonymous(mapped, mapped::Commit::Lazily).unwrap();
        let mapping = Mutex::new(Some(mapping));
        Dmabuf::exported(Arc::new(Self { size, mapping }))
    }
}

impl Exporter for Lender {
    fn size(&self) -> usize {
        self.size
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn begin_cpu_access(&self, _access: CpuAccess) -> io::Result<()> {
        Ok(())
    }

    fn end_cpu_access(&self, _access: CpuAccess) -> io::Result<()> {
        Ok(())
    }

    fn mapping(&self) -> Option<LentMemory> {
        self.mapping.lock().unwrap().take().map(LentMemory::from)
    }
}

#[test]
fn memory_that_the_exporter_has_mapped_needs_no_file_and_must_be_whole() {
    let memory = Lender::exported(8192, 8192).unwrap();
    memory.copy_in(8188, b"lent").unwrap();
    assert_eq!(memory.slice(8188..8192).to_vec(), b"lent");
    assert!(memory.copy_in(8189, b"lent").is_err());
    assert_eq!((memory.size(), memory.as_fd().is_none()), (8192, true));
    assert!(memory.cpu_address().is_some());
    for mapped in [4096, 12288] {
        let error = Lender::exported(8192, mapped).unwrap_err();
        assert!(
            matches!(error, DmabufError::Lent { size: 8192, mapped: m } if m == mapped),
            "{error}"
        );
    }
}

#[test]
#[cfg_attr(miri, ignore = "readv")]
fn a_file_is_read_into_ordinary_memory_once_and_only_into_the_range() {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    let (mut from, to) = UnixStream::pair().unwrap();
    let memory = Dmabuf::anonymous(8192).unwrap();
    memory.fill(0..8192, 9).unwrap();
    from.write_all(b"weights").unwrap();
    assert_eq!(memory.read_file(4094..4098, to.as_fd()).unwrap(), Some(4));
    assert_eq!(memory.read_file(4098..8192, to.as_fd()).unwrap(), Some(3));
    assert_eq!(
        memory.slice(4092..4103).to_vec(),
        b"\x09\x09weights\x09\x09"
    );

    from.write_all(b"more").unwrap();
    let error = memory.read_file(8190..8193, to.as_fd()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
    let lent = Lender::exported(8192, 8192).unwrap();
    assert_eq!(lent.read_file(0..4, to.as_fd()).unwrap(), None);
    drop(from);
    assert_eq!(memory.read_file(0..8192, to.as_fd()).unwrap(), Some(4));
    assert_eq!(memory.slice(0..4).to_vec(), b"more");
    assert_eq!(memory.read_file(0..8192, to.as_fd()).unwrap(), Some(0));
}

#[test]
fn ranges_past_the_end_are_refused_and_nothing_moves() {
    let memory = Dmabuf::anonymous(4096).unwrap();
    let other = Dmabuf::anonymous(8192).unwrap();
    other.fill(0..8192, 1).unwrap();
    let past = |offset, len| OutOfBounds {
        offset,
        len,
        size: 4096,
    };
    let refused = |offset, len| Err(CopyError::OutOfBounds(past(offset, len)));
    assert_eq!(memory.copy_in(4095, &[1; 2]), refused(4095, 2));
    assert_eq!(
        memory.copy_out(usize::MAX, &mut [0; 1]),
        refused(usize::MAX, 1)
    );
    assert_eq!(memory.fill(4096..4097, 1), refused(4096, 1));
    let (end, start) = (3, 5);
    assert_eq!(memory.fill(start..end, 1), refused(5, 0));
    assert_eq!(memory.copy_from(&other, 0, 1, 4096), refused(1, 4096));
    assert!(memory.copy_from(&other, 8192, 0, 1).is_err());
    assert!(memory.slice(0..4).try_copy_to(&mut [0; 5]).is_err());
    assert_eq!(memory.get(0..4097).err(), Some(past(0, 4097)));
    assert_eq!(memory.slice(0..4096).to_vec(), vec![0; 4096]);
    assert_eq!(
        past(1, 2).to_string(),
        "2 bytes at offset 1 are not inside 4096 bytes of memory"
    );
}

#[test]
#[should_panic(expected = "2 bytes at offset 4095 are not inside 4096 bytes")]
fn slicing_past_the_end_panics_as_slices_do() {
    let memory = Dmabuf::anonymous(4096).unwrap();
    let _slice = memory.slice(4095..4097);
}

#[test]
fn device_to_device_copies_may_overlap() {
    let memory = Dmabuf::anonymous(4096).unwrap();
    let other = Dmabuf::anonymous(4096).unwrap();
    memory.copy_in(0, b"0123456789").unwrap();
    memory.copy_from(&memory, 0, 3, 7).unwrap();
    assert_eq!(memory.slice(0..10).to_vec(), b"0120123456");
    other.copy_from(&memory, 3, 100, 4).unwrap();
    let slice = other.slice(100..104);
    assert_eq!(
        (slice.to_vec(), slice.offset(), slice.len()),
        (b"0123".to_vec(), 100, 4)
    );
    let mut front = [0; 2];
    slice.copy_to(&mut front);
    assert_eq!((&front, slice.is_empty()), (b"01", false));
}

#[test]
fn handles_are_of_the_same_memory_and_the_last_unmaps_it() {
    let memory = Dmabuf::anonymous(4096).unwrap();
    let (same, other) = (memory.clone(), Dmabuf::anonymous(4096).unwrap());
    assert!(memory.is_same(&same) && !memory.is_same(&other));
    let observer = memory.observer();
    drop(memory);
    assert!(!observer.is_freed());
    drop(same);
    assert!(observer.is_freed());
}

#[test]
#[cfg_attr(miri, ignore = "memfd")]
fn a_memfd_is_the_same_memory_by_its_descriptor_and_cannot_shrink() {
    let memory = Dmabuf::memfd(2 * MIB + 4096).unwrap();
    memory.copy_in(2 * MIB, b"by either way").unwrap();
    let fd = memory.as_fd().unwrap();
    let mut out = [0; 13];
    assert_eq!(rustix::io::pread(fd, &mut out, 2 * MIB as u64).unwrap(), 13);
    assert_eq!(&out, b"by either way");
    assert_eq!(
        rustix::fs::ftruncate(fd, 4096),
        Err(rustix::io::Errno::PERM)
    );
    assert_eq!(
        rustix::fs::fstat(fd).unwrap().st_size,
        2 * MIB as i64 + 4096
    );
}

#[test]
#[cfg_attr(miri, ignore = "/proc/self/smaps")]
fn smaps_is_read_at_the_first_call_of_page_kind_only() {
    let observations = || crate::page_kind::OBSERVATIONS.get();
    let before = observations();
    let memories = [
        Dmabuf::anonymous(64 << 10).unwrap(),
        Dmabuf::memfd(64 << 10).unwrap(),
    ];
    assert_eq!(observations(), before, "making memory read smaps");
    for memory in &memories {
        assert_eq!(memory.page_kind(), memory.clone().page_kind());
    }
    assert_eq!(observations(), before + memories.len());
}

/// What came cannot be foretold; that it was looked at can.
#[test]
#[cfg_attr(miri, ignore = "/proc/self/smaps")]
fn the_page_kind_is_that_of_smaps() {
    for memory in [
        Dmabuf::anonymous(8 * MIB).unwrap(),
        Dmabuf::memfd(8 * MIB).unwrap(),
    ] {
        let address = memory.memory().dma().address();
        assert_eq!(
            crate::page_kind::observe(address, 8 * MIB),
            Some(memory.page_kind())
        );
        println!("8 MiB, fd {:?}: {}", memory.as_fd(), memory.page_kind());
    }
    let small = Dmabuf::anonymous(64 << 10).unwrap();
    assert_eq!(small.page_kind(), PageKind::Base);
    let exporter: &dyn Exporter = &small;
    assert_eq!(
        (exporter.size(), exporter.as_fd().is_none()),
        (64 << 10, true)
    );
    exporter.begin_cpu_access(CpuAccess::ReadWrite).unwrap();
    exporter.end_cpu_access(CpuAccess::ReadWrite).unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "gigabytes")]
fn offsets_beyond_four_gigabytes_do_not_wrap() {
    // Host memory is lazy: five GiB of addresses, two pages of memory.
    let size = 5 << 30;
    let memory = Dmabuf::new(Memory::lazy(size).unwrap());
    memory.copy_in(size - 4, b"last").unwrap();
    memory.copy_in((4 << 30) + 8, b"beyond").unwrap();
    assert_eq!(memory.slice(size - 4..size).to_vec(), b"last");
    assert_eq!(memory.slice(8..14).to_vec(), [0; 6]);
    let niov = crate::NiovSize::DEFAULT;
    let area =
        crate::NetIovArea::cut(std::sync::Arc::clone(memory.memory()), 0, size, niov).unwrap();
    assert_eq!(area.count() as usize, size / niov.bytes());
    assert_eq!(area.offset_of(area.count() - 1), size - niov.bytes());
}

/// Exports a memory file, and notes what it is told.
struct Noting {
    file: OwnedFd,
    told: Arc<Mutex<Vec<String>>>,
    fails: bool,
}

impl Exporter for Noting {
    fn size(&self) -> usize {
        8192
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn begin_cpu_access(&self, access: CpuAccess) -> io::Result<()> {
        if self.fails {
            return Err(io::Error::from_raw_os_error(devmem_uapi::Errno::ENOMEM.0));
        }
        self.told.lock().unwrap().push(format!("begin {access:?}"));
        Ok(())
    }

    fn end_cpu_access(&self, access: CpuAccess) -> io::Result<()> {
        self.told.lock().unwrap().push(format!("end {access:?}"));
        Ok(())
    }
}

fn noting(memory: &Dmabuf, fails: bool) -> (Arc<dyn Exporter>, Arc<Mutex<Vec<String>>>) {
    let file = memory.as_fd().unwrap().try_clone_to_owned().unwrap();
    let told = Arc::default();
    let exporter = Noting {
        file,
        told: Arc::clone(&told),
        fails,
    };
    (Arc::new(exporter), told)
}

#[test]
#[cfg_attr(miri, ignore = "memory files")]
fn an_exporter_is_called_around_every_access_and_its_memory_is_that_of_the_file() {
    let file = Dmabuf::memfd(8192).unwrap();
    let (exporter, told) = noting(&file, false);
    let memory = Dmabuf::exported(exporter).unwrap();
    memory.copy_in(4094, b"both").unwrap();
    assert_eq!(file.slice(4094..4098).to_vec(), b"both", "one memory");
    assert_eq!(memory.slice(4094..4098).to_vec(), b"both");
    memory.copy_from(&memory, 4094, 0, 4).unwrap();
    let told_so_far = std::mem::take(&mut *told.lock().unwrap());
    assert_eq!(
        told_so_far,
        [
            "begin Write",
            "end Write",
            "begin Read",
            "end Read",
            "begin Read",
            "begin Write",
            "end Read",
            "end Write",
        ]
    );
    // One view, many copies.
    let view = memory.cpu_view(CpuAccess::ReadWrite).unwrap();
    let mut out = [0; 4];
    view.copy_out(0, &mut out).unwrap();
    view.fill(0, 8192, 7).unwrap();
    assert!(view.copy_in(8190, &out).is_err());
    drop(view);
    let told_so_far = std::mem::take(&mut *told.lock().unwrap());
    assert_eq!(told_so_far, ["begin ReadWrite", "end ReadWrite"]);
    memory.crc32c(0..8192).unwrap();
    assert_eq!(*told.lock().unwrap(), ["begin Read", "end Read"]);
}

#[test]
#[cfg_attr(miri, ignore = "memory files")]
fn memory_with_a_file_is_exported_once_and_anonymous_memory_never() {
    let memory = Dmabuf::memfd(8192).unwrap();
    assert!(memory.exporter().is_none());
    let (exporter, told) = noting(&memory, false);
    let made = memory.export_with(|_, size| {
        assert_eq!(size, 8192);
        Ok::<_, io::Error>(exporter)
    });
    assert!(made.unwrap().is_some());
    memory.fill(0..1, 1).unwrap();
    assert_eq!(*told.lock().unwrap(), ["begin Write", "end Write"]);
    let again = memory.export_with::<io::Error>(|_, _| panic!("it has one"));
    assert!(again.unwrap().is_some());
    let anonymous = Dmabuf::anonymous(4096).unwrap();
    let none = anonymous.export_with::<io::Error>(|_, _| panic!("there is no file"));
    assert!(none.unwrap().is_none());
}

#[test]
#[cfg_attr(miri, ignore = "memory files")]
fn nothing_is_copied_if_synchronisation_fails() {
    let file = Dmabuf::memfd(8192).unwrap();
    let memory = Dmabuf::exported(noting(&file, true).0).unwrap();
    let errno = devmem_uapi::Errno::ENOMEM;
    assert_eq!(memory.copy_in(0, b"x"), Err(CopyError::Sync { errno }));
    assert_eq!(file.slice(0..1).to_vec(), [0]);
}

/// Every copy of the owner's, by two threads at once over the same bytes. Natively this only runs; Miri judges it.
#[test]
fn concurrent_copies_to_the_same_bytes_are_not_a_data_race() {
    let memory = Dmabuf::anonymous(4096).unwrap();
    let rounds = if cfg!(miri) { 3 } else { 1000 };
    std::thread::scope(|scope| {
        for seed in 1..3_u8 {
            let memory = memory.clone();
            scope.spawn(move || {
                let mut out = [0; 41];
                for _ in 0..rounds {
                    memory.copy_in(5, &[seed; 41]).unwrap();
                    memory.copy_out(1, &mut out).unwrap();
                    memory.fill(0..24, seed).unwrap();
                    memory.copy_from(&memory, 3, 9, 40).unwrap();
                    memory.copy_from(&memory, 64, 16, 40).unwrap();
                }
            });
        }
    });
}

/// Says that its file has 8192 bytes.
fn exporter_of(file: OwnedFd) -> Arc<dyn Exporter> {
    Arc::new(Noting {
        file,
        told: Arc::default(),
        fails: false,
    })
}

#[test]
#[cfg_attr(miri, ignore = "memory files")]
fn an_exporter_with_a_file_that_is_too_short_or_may_shrink_is_refused() {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let unsealed = memfd_create("test", flags).unwrap();
    ftruncate(&unsealed, 8192).unwrap();
    let short = memfd_create("test", flags).unwrap();
    ftruncate(&short, 4096).unwrap();
    fcntl_add_seals(&short, SealFlags::SHRINK).unwrap();
    let program = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
    for (file, remedy) in [
        (unsealed, "F_SEAL_SHRINK"),
        (short, "make the file longer"),
        (OwnedFd::from(program), "F_SEAL_SHRINK"),
    ] {
        let error = Dmabuf::exported(exporter_of(file)).unwrap_err();
        assert!(error.to_string().contains(remedy), "{error}");
    }
}

#[test]
fn only_memory_that_the_application_may_access_has_an_address() {
    let memory = Dmabuf::anonymous(8192).unwrap();
    assert_eq!(memory.cpu_address().unwrap() % 4096, 0);
    let opaque = Dmabuf::opaque(4096).unwrap();
    assert_eq!(opaque.cpu_address(), None);
}
