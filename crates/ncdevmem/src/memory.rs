//! The dma-buf to bind.

use anyhow::Context;
use devmem_linux::dmabuf::{DmabufFd, ExportError};

use tool::output::{Failure, say};

/// Number of pages: a little less than udmabuf's limit of 64 MiB.
const PAGES: usize = 16_000;
/// The heap that exists on all machines with dma-heaps.
const HEAP: &str = "system";

/// Allocates the memory: with huge pages if a net_iov is larger than a page, and from a dma-heap if udmabuf is not
/// available.
///
/// # Errors
///
/// The refusal of the exporter.
pub fn make(rx_page_size: Option<u32>) -> Result<DmabufFd, Failure> {
    let page = rustix::param::page_size();
    let size = PAGES * page;
    let large = rx_page_size.is_some_and(|bytes| bytes as usize > page);
    let made = match large {
        true => DmabufFd::udmabuf_huge(size),
        false => udmabuf_or_heap(size),
    };
    let memory = made.context("Failed to allocate memory buffer")?;
    Ok(memory)
}

fn udmabuf_or_heap(size: usize) -> Result<DmabufFd, ExportError> {
    DmabufFd::udmabuf(size).or_else(|refused| match DmabufFd::heap(HEAP, size) {
        Ok(memory) => {
            say!("{refused}; using the dma-heap {HEAP}");
            Ok(memory)
        }
        // The error of udmabuf, because most machines have it.
        Err(_) => Err(refused),
    })
}
