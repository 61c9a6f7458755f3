//! Options of a binding for receiving.

use netmem::NiovSize;

/// Options of [`Netdev::bind_rx_with`](crate::Netdev::bind_rx_with).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BindOptions {
    pub(crate) niov_size: Option<NiovSize>,
}

impl BindOptions {
    /// Returns the defaults: net_iovs of 64 KiB in user space, of one page in the kernel.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the size of the net_iovs. A kernel before Linux 7.3 supports only one page; later ones what the driver supports
    /// (`rx-page-size`: those of mlx5_core and bnxt_en), and each contiguous piece of the memory must begin and end at a multiple of it, as
    /// with huge pages ([`Dmabuf::memfd`](crate::Dmabuf::memfd) uses reserved ones). Memory whose
    /// [pages are smaller](crate::Dmabuf::page_bytes) is refused before the kernel is asked, unless an IOMMU or the machine's settings for
    /// large pages may make larger pieces of them.
    pub fn niov_size(mut self, size: NiovSize) -> Self {
        self.niov_size = Some(size);
        self
    }
}
