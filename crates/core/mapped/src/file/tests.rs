use std::io::Write;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::*;

const SEALABLE: MemfdFlags = MemfdFlags::CLOEXEC.union(MemfdFlags::ALLOW_SEALING);

fn memfd(flags: MemfdFlags, size: u64, seals: SealFlags) -> Result<OwnedFd, Errno> {
    let fd = memfd_create("test", flags)?;
    ftruncate(&fd, size)?;
    fcntl_add_seals(&fd, seals)?;
    Ok(fd)
}

#[test]
#[cfg_attr(miri, ignore = "memfd_create")]
fn a_memfd_sealed_against_shrinking_is_accepted_with_its_length() {
    let fd = memfd(SEALABLE, 8192, SealFlags::SHRINK).unwrap();
    for judge in [MappableFile::memfd, MappableFile::memfd_or_dmabuf] {
        let file = judge(fd.as_fd()).unwrap();
        assert_eq!(file.pages(), FilePages::Memory);
        assert_eq!(file.check(4096, 4096), Ok(()));
        let (end, size) = (8193, 8192);
        assert_eq!(
            file.check(4097, 4096),
            Err(UnmappableFile::TooShort { end, size })
        );
    }
}

#[test]
#[cfg_attr(miri, ignore = "memfd_create")]
fn files_that_may_shrink_are_refused_with_the_remedy() {
    let unsealed = memfd(SEALABLE, 8192, SealFlags::GROW).unwrap();
    let unsealable = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    let program = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
    let folder = std::fs::File::open("/").unwrap();
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    let shm = std::fs::File::open("/dev/shm").ok();
    let shm = shm.as_ref().map(AsFd::as_fd);
    let others = [
        unsealed.as_fd(),
        unsealable.as_fd(),
        program.as_fd(),
        folder.as_fd(),
        pipe.as_fd(),
    ];
    for fd in others.into_iter().chain(shm) {
        for judge in [MappableFile::memfd, MappableFile::memfd_or_dmabuf] {
            let error = judge(fd).unwrap_err();
            assert_eq!(error, UnmappableFile::MayShrink);
            assert!(error.to_string().contains("F_SEAL_SHRINK"), "{error}");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "memfd_create")]
fn huge_pages_are_distinguished_from_others() {
    let huge = SEALABLE | MemfdFlags::HUGETLB;
    let Ok(fd) = memfd(huge, 2 << 20, SealFlags::SHRINK) else {
        // Not by println, which the test's harness keeps to itself.
        let reason = "this kernel makes no memfd of huge pages";
        writeln!(
            std::io::stderr(),
            "SKIP huge_pages_are_distinguished_from_others: {reason}"
        )
        .unwrap();
        return;
    };
    let file = MappableFile::memfd(fd.as_fd()).unwrap();
    assert_eq!(file.pages(), FilePages::Huge);
}
