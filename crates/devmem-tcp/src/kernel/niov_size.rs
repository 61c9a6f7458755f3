//! Net_iovs of another size than a page: what can be told before the kernel is asked to bind.

use std::sync::OnceLock;

use devmem_linux::netdev::{DriverSupport, Netdev};
use devmem_uapi::Errno;
use netmem::{Dmabuf, NiovSize};

use crate::error::{Error, ErrorKind};

/// Fails if the kernel of this machine has no other size than a page, or if the memory is no multiple of the size. Whether the driver has
/// the size, and whether each piece of the dma-buf is a multiple of it, is known to the kernel alone.
pub(super) fn check(netdev: &mut Netdev, memory: &Dmabuf, size: NiovSize) -> Result<(), Error> {
    if let DriverSupport::No { reason } = support(netdev) {
        let text = format!("bind-rx on {}: {reason}", netdev.name());
        return Err(Error::new(ErrorKind::Unsupported, Errno::EINVAL, text)
            .with_remedy("bind without a size for net_iovs of one page")
            .on(netdev.name()));
    }
    let (bytes, of_one) = (memory.size(), size.bytes());
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
}
