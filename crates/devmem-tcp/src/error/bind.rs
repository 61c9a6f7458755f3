//! Why memory could not be had, or not be bound.

use std::io;

use devmem_linux::dmabuf::ExportError;
use netmem::{DmabufError, InUse};

use super::Forked;
use super::kernel::{Hinted, KernelError};

/// Why device memory could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceMemoryError {
    /// The exporter refuses.
    #[error("{}", Hinted(.0, &.0.cause))]
    Export(Box<ExportError>),
    /// The descriptor is not a dma-buf.
    #[error("the descriptor is not an open dma-buf: {0}")]
    NotADmabuf(io::Error),
    /// The CPU cannot map it.
    #[error(transparent)]
    Map(#[from] DmabufError),
}

impl From<ExportError> for DeviceMemoryError {
    fn from(error: ExportError) -> Self {
        Self::Export(Box::new(error))
    }
}

/// Why memory is not a dma-buf that the kernel could bind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoDmabuf {
    /// Anonymous memory has no file descriptor.
    #[error(
        "anonymous memory is not a dma-buf and cannot be bound to a NIC of the kernel\n  make it with `devmem_tcp::udmabuf`, \
         `devmem_tcp::dma_heap` or `Dmabuf::memfd`"
    )]
    Anonymous,
    /// The memory's file cannot be made a dma-buf.
    #[error("{}", Hinted(.0, &.0.cause))]
    Export(Box<ExportError>),
}

/// Why memory could not be bound.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The NIC is another process's.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// The stack refuses.
    #[error(transparent)]
    Refused(stack::BindRxError),
    /// The memory is bound for receiving already, or some of it is still lent from an earlier binding. Both backends
    /// refuse it, in the same words, because a second binding hands out what the first has lent; Linux itself does not.
    #[error(transparent)]
    InUse(InUse),
    /// The kernel refuses.
    #[error("{}", Hinted(.0, &.0.cause))]
    Kernel(Box<devmem_linux::netdev::BindError>),
    /// The memory is none that the kernel could bind.
    #[error(transparent)]
    Memory(NoDmabuf),
    /// The kernel has no call for it.
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
    /// The NIC is another process's.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// The stack refuses.
    #[error(transparent)]
    Refused(#[from] stack::BindTxError),
    /// The kernel refuses.
    #[error("{}", Hinted(.0, &.0.cause))]
    Kernel(Box<devmem_linux::netdev::BindError>),
    /// The memory is none that the kernel could bind.
    #[error(transparent)]
    Memory(NoDmabuf),
    /// The kernel has no call for it.
    #[error(transparent)]
    NoFamily(Box<KernelError>),
}
