//! Net_iovs of another size than a page: what can be told before the kernel is asked to bind.

use std::sync::OnceLock;

use devmem_linux::dmabuf::memory_files_may_have_large_pages;
use devmem_linux::netdev::{DriverSupport, Netdev};
use devmem_uapi::Errno;
use netmem::{Dmabuf, NiovSize};

use crate::error::{Error, ErrorKind};

/// Bytes of the huge pages that most machines have.
const HUGE_PAGE: usize = 2 << 20;

/// Fails if the kernel of this machine has no other size than a page, if the memory is no multiple of the size, or if it has smaller pages
/// that are adjacent by chance alone. Whether the driver has the size, and what pieces memory of another origin has, is known to the kernel
/// alone.
pub(super) fn check(netdev: &mut Netdev, memory: &Dmabuf, size: NiovSize) -> Result<(), Error> {
    if let DriverSupport::No { reason } = support(netdev) {
        let text = format!("bind-rx on {}: {reason}", netdev.name());
        return Err(Error::new(ErrorKind::Unsupported, Errno::EINVAL, text)
            .with_remedy("bind without a size for net_iovs of one page")
            .on(netdev.name()));
    }
    check_size(memory.size(), size)?;
    check_pieces(memory, size, || {
        netdev.may_join_pages() || memory_files_may_have_large_pages()
    })
}

fn check_size(bytes: usize, size: NiovSize) -> Result<(), Error> {
    let of_one = size.bytes();
    match bytes % of_one {
        0 => Ok(()),
        rest => Err(Error::invalid(format!(
            "the memory has {bytes} bytes, {rest} more than a multiple of a net_iov of {of_one} bytes"
        ))
        .with_remedy(format!(
            "round its size up to {} bytes; huge pages (sysctl vm.nr_hugepages=512) have pieces that are large enough",
            bytes.next_multiple_of(of_one)
        ))),
    }
}

/// Fails if the pages of the memory are known to be smaller than a net_iov, unless they `may_be_larger` for the NIC.
fn check_pieces(
    memory: &Dmabuf,
    size: NiovSize,
    may_be_larger: impl FnOnce() -> bool,
) -> Result<(), Error> {
    let of_one = size.bytes();
    let known = memory.page_bytes().filter(|page| *page < of_one);
    let Some(page) = known.filter(|_| !may_be_larger()) else {
        return Ok(());
    };
    let count = memory.size().div_ceil(HUGE_PAGE);
    Err(Error::invalid(format!(
        "the memory has pieces of {page} bytes, at multiples of {page} bytes: too small for net_iovs of {of_one} bytes, of which each piece \
         must begin and end at a multiple"
    ))
    .with_remedy(format!(
        "reserve huge pages (sysctl vm.nr_hugepages={count}) and allocate the memory as a memory file, which uses them; or take a dma-heap or \
         memory of a GPU; or bind with net_iovs of {page} bytes"
    )))
}

/// Returns whether the kernel knows the attribute, asked once: the answer is the same for all interfaces, unless the privilege is missing.
fn support(netdev: &mut Netdev) -> DriverSupport {
    static KNOWN: OnceLock<DriverSupport> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return known.clone();
    }
    let found = netdev.probe_niov_size();
    match found {
        DriverSupport::Unknown { .. } => found,
        _ => KNOWN.get_or_init(|| found).clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::sync::Arc;

    use netmem::{CpuAccess, Exporter};

    use super::*;

    #[test]
    fn a_size_that_the_kernel_or_the_memory_does_not_have_is_refused_by_name() {
        let mut lo = Netdev::by_name("lo").expect("lo is in the netdev family");
        let memory = Dmabuf::anonymous(3 << 12).expect("memory");
        let size = NiovSize::new(2 << 12).expect("a size");
        let refused = check(&mut lo, &memory, size).expect_err("three pages in pairs");
        let text = refused.to_string();
        match support(&mut lo) {
            DriverSupport::No { .. } => {
                assert!(text.contains("Linux 7.3"), "{text}");
                assert_eq!(refused.kind(), ErrorKind::Unsupported);
            }
            // With the attribute, or without the privilege to ask for it.
            _ => assert!(text.contains("4096 more than a multiple"), "{text}"),
        }
    }

    /// Says what its pages are, and is a memory file.
    struct Pages(OwnedFd, Option<usize>);

    impl Exporter for Pages {
        fn size(&self) -> usize {
            BYTES
        }
        fn as_fd(&self) -> Option<BorrowedFd<'_>> {
            Some(self.0.as_fd())
        }
        fn page_bytes(&self) -> Option<usize> {
            self.1
        }
        fn begin_cpu_access(&self, _: CpuAccess) -> io::Result<()> {
            Ok(())
        }
        fn end_cpu_access(&self, _: CpuAccess) -> io::Result<()> {
            Ok(())
        }
    }

    const BYTES: usize = 128 << 10;

    fn of_pages(page_bytes: Option<usize>) -> Dmabuf {
        let file = Dmabuf::memfd(BYTES).expect("memory");
        let file = file.as_fd().expect("a file").try_clone_to_owned();
        let pages = Pages(file.expect("a descriptor"), page_bytes);
        Dmabuf::exported(Arc::new(pages)).expect("memory of the file")
    }

    fn niov(kib: usize) -> NiovSize {
        NiovSize::new(kib << 10).expect("a size")
    }

    #[test]
    fn pages_smaller_than_a_net_iov_are_refused_with_cause_and_remedy() {
        for (page, kib) in [(4 << 10, 8), (4 << 10, 64), (16 << 10, 64)] {
            let refused = check_pieces(&of_pages(Some(page)), niov(kib), || false);
            let refused = refused.expect_err("pages that are too small");
            let text = format!("{refused:?}");
            let bytes = kib << 10;
            for word in [
                format!("pieces of {page} bytes, at multiples of {page} bytes"),
                format!("net_iovs of {bytes} bytes"),
                "sysctl vm.nr_hugepages=1)".to_owned(),
                format!("net_iovs of {page} bytes"),
            ] {
                assert!(text.contains(&word), "{word}: {text}");
            }
            assert_eq!(refused.errno(), Errno::EINVAL);
        }
    }

    #[test]
    fn a_memory_file_of_base_pages_has_pieces_of_a_page() {
        // Never of reserved huge pages, and too short for others.
        let memory = Dmabuf::shared_memfd(BYTES).expect("memory");
        let page = rustix::param::page_size();
        assert_eq!(memory.page_bytes(), Some(page));
        let refused = check_pieces(&memory, niov(128), || false).expect_err("base pages");
        let text = refused.to_string();
        assert!(text.contains(&format!("pieces of {page} bytes")), "{text}");
    }

    #[test]
    fn nothing_is_refused_that_may_succeed() {
        let large_enough = of_pages(Some(64 << 10));
        check_pieces(&large_enough, niov(64), || false).expect("pages of a net_iov");
        check_pieces(&large_enough, niov(16), || false).expect("pages of several net_iovs");
        // A heap, a GPU, the dma-buf of another driver.
        check_pieces(&of_pages(None), niov(64), || false).expect("unknown pages");
        check_pieces(&of_pages(Some(4096)), niov(64), || true).expect("an IOMMU joins pages");
    }
}
