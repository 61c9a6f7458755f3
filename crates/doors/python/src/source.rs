//! The memory below tensors, and what keeps it.

use std::sync::Arc;

use devmem_tcp::{Dmabuf, RxFrag, memory::CpuAccess};
use devmem_transfer::load::Share;

use crate::device::{Access, Device, Place};
use crate::error::Error;
use crate::raw::HostBytes;

/// Memory that tensors show. The last clone returns the frags that are in it, and frees the memory. It holds nothing of
/// Python, so any thread may drop it, also after the end of the interpreter.
#[derive(Clone, Debug)]
pub(crate) struct Source(Arc<Held>);

#[derive(Debug)]
struct Held {
    /// Lent by a stream; returned by the drop, before the memory.
    _frags: Vec<RxFrag>,
    body: Body,
    place: Place,
    /// Counts the memory; told by the drop that it is free.
    _share: Option<Arc<Share>>,
    /// The library that has allocated the memory says so.
    is_read_only: bool,
}

#[derive(Debug)]
pub(crate) enum Body {
    Device(Dmabuf),
    Host(HostBytes),
}

impl Source {
    /// Memory of the library, and the frags that a stream has lent in it.
    pub(crate) fn device(memory: Dmabuf, frags: Vec<RxFrag>) -> Result<Self, Error> {
        Self::of_device(memory, frags, None)
    }

    /// Memory that counts until it is free.
    pub(crate) fn counted(memory: Dmabuf, share: Arc<Share>) -> Result<Self, Error> {
        Self::of_device(memory, Vec::new(), Some(share))
    }

    fn of_device(
        memory: Dmabuf,
        frags: Vec<RxFrag>,
        share: Option<Arc<Share>>,
    ) -> Result<Self, Error> {
        let place = Place::of(&memory)?;
        if memory.exporter().is_some() && place.is_host() {
            // What a device has written becomes visible to the CPU.
            memory.cpu_view(CpuAccess::Read)?.end()?;
        }
        Ok(Self(Arc::new(Held {
            _frags: frags,
            body: Body::Device(memory),
            place,
            _share: share,
            is_read_only: false,
        })))
    }

    /// Memory of another library on a GPU.
    pub(crate) fn adopted(memory: Dmabuf, is_read_only: bool) -> Result<Self, Error> {
        let place = Place::of(&memory)?;
        Ok(Self(Arc::new(Held {
            _frags: Vec::new(),
            body: Body::Device(memory),
            place,
            _share: None,
            is_read_only,
        })))
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.0.is_read_only
    }

    /// Refuses to write to memory of which its library says that it is read-only.
    pub(crate) fn check_writable(&self) -> Result<(), Error> {
        match self.is_read_only() {
            true => Err(Error::buffer(
                "the tensor is read-only\n  take a writable one, such as a copy",
            )),
            false => Ok(()),
        }
    }

    pub(crate) fn host(bytes: HostBytes) -> Self {
        let place = Place {
            device: Device::Cpu,
            access: Access::Cpu(bytes.address()),
        };
        Self(Arc::new(Held {
            _frags: Vec::new(),
            body: Body::Host(bytes),
            place,
            _share: None,
            is_read_only: false,
        }))
    }

    pub(crate) fn body(&self) -> &Body {
        &self.0.body
    }

    pub(crate) fn memory(&self) -> Option<&Dmabuf> {
        match &self.0.body {
            Body::Device(memory) => Some(memory),
            Body::Host(_) => None,
        }
    }

    pub(crate) fn place(&self) -> Place {
        self.0.place
    }

    pub(crate) fn bytes(&self) -> usize {
        match &self.0.body {
            Body::Device(memory) => memory.size(),
            Body::Host(bytes) => bytes.len(),
        }
    }

    /// Copies from `offset` to all of `out`.
    pub(crate) fn copy_out(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        match &self.0.body {
            Body::Device(memory) => Ok(memory.copy_out(offset, out)?),
            Body::Host(bytes) => bytes.copy_out(offset, out),
        }
    }

    /// Copies `bytes` to `offset`.
    pub(crate) fn copy_in(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        match &self.0.body {
            Body::Device(memory) => Ok(memory.copy_in(offset, bytes)?),
            Body::Host(own) => own.copy_in(offset, bytes),
        }
    }

    /// Copies `len` bytes at `from` to `to` of `target`.
    pub(crate) fn copy_to(
        &self,
        from: usize,
        target: &Self,
        to: usize,
        len: usize,
    ) -> Result<(), Error> {
        if let (Body::Device(source), Body::Device(target)) = (&self.0.body, &target.0.body) {
            return Ok(target.copy_from(source, from, to, len)?);
        }
        let mut block = vec![0; len.min(COPY_BLOCK)];
        let mut done = 0;
        while done < len {
            let block = &mut block[..(len - done).min(COPY_BLOCK)];
            // No overflow: both ends are inside their memories, or the copy fails.
            self.copy_out(from.saturating_add(done), block)?;
            target.copy_in(to.saturating_add(done), block)?;
            done += block.len();
        }
        Ok(())
    }
}

/// Bytes that are copied at a time where two kinds of memory meet: they fit into the second-level cache.
const COPY_BLOCK: usize = 256 << 10;
