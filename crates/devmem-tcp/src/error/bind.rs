//! Errors of making and binding memory.

use std::io;

use devmem_linux::dmabuf::ExportError;
use netmem::{DmabufError, InUse};

use super::Forked;
use super::kernel::{Hinted, KernelError};

/// Why device memory could not be created or imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceMemoryError {
    /// The exporter refused.
    #[error("{}", Hinted(.0, &.0.cause))]
    Export(Box<ExportError>),
    /// The descriptor is not a dma-buf.
    #[error("the descriptor is not an open dma-buf: {0}")]
    NotADmabuf(io::Error),
    /// The dma-buf cannot be mapped for the CPU.
    #[error(transparent)]
    Map(#[from] DmabufError),
}

impl From<ExportError> for DeviceMemoryError {
    fn from(error: ExportError) -> Self {
        Self::Export(Box::new(error))
    }
}

/// Why the kernel cannot bind a memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoDmabuf {
    /// Anonymous memory has no file descriptor.
    #[error(
        "anonymous memory is not a dma-buf and cannot be bound to a NIC of the kernel\n  make it with `devmem_tcp::udmabuf`, \
         `devmem_tcp::dma_heap` or `Dmabuf::memfd`"
    )]
    Anonymous,
    /// The memory's file cannot be turned into a dma-buf.
    #[error("{}", Hinted(.0, &.0.cause))]
    Export(Box<ExportError>),
}

/// Why memory could not be bound.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The NIC belongs to another process.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// The stack refused the binding.
    #[error(transparent)]
    Refused(stack::BindRxError),
    /// The memory is bound for receiving already, or some of it is still lent from an earlier binding. The library refuses
    /// this with both backends, because the second binding would receive into memory that the first has lent. Linux itself
    /// allows it.
    #[error(transparent)]
    InUse(InUse),
    /// The kernel refused the binding.
    #[error("{}", Hinted(.0, &.0.cause))]
    Kernel(Box<devmem_linux::netdev::BindError>),
    /// The kernel cannot bind this memory.
    #[error(transparent)]
    Memory(NoDmabuf),
    /// The kernel lacks the netdev netlink family or the operation.
    #[error(transparent)]
    NoFamily(Box<KernelError>),
}

impl From<stack::BindRxError> for BindError {
    fn from(error: stack::BindRxError) -> Self {
        match error {
            stack::BindRxError::InUse(in_use) => Self::InUse(in_use),
            error => Self::Refused(error),
        }
    }
}

/// Why memory could not be bound for sending.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindTxError {
    /// The NIC belongs to another process.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// The stack refused the binding.
    #[error(transparent)]
    Refused(#[from] stack::BindTxError),
    /// The kernel refused the binding.
    #[error("{}", Hinted(.0, &.0.cause))]
    Kernel(Box<devmem_linux::netdev::BindError>),
    /// The kernel cannot bind this memory.
    #[error(transparent)]
    Memory(NoDmabuf),
    /// The kernel lacks the netdev netlink family or the operation.
    #[error(transparent)]
    NoFamily(Box<KernelError>),
}
