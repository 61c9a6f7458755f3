//! The dma-buf that it binds.

use anyhow::Context;
use devmem_linux::dmabuf::{DmabufFd, ExportError};

use tool::output::{Failure, say};

/// Pages of its memory: a little less than udmabuf's limit of 64 MiB.
const PAGES: usize = 16_000;
/// The heap that every machine with dma-heaps has.
const HEAP: &str = "system";

/// Makes the memory; of huge pages where a net_iov is larger than a page. Where there is no udmabuf it comes from a
/// dma-heap.
///
/// # Errors
///
/// What the exporter refused.
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
        // What udmabuf said helps more: it is what is expected to work.
        Err(_) => Err(refused),
    })
}
