//! Where received bytes are copied to.

use devmem_tcp::RxBatch;
use pyo3::prelude::*;

use crate::device::Device;
use crate::error::Error;
use crate::raw::{Foreign, Use};
use crate::view::View;

/// Where bytes are copied to.
#[derive(Debug)]
pub(crate) enum Target {
    Own(View),
    Foreign(Foreign),
}

impl Target {
    pub(crate) fn of(out: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(match View::of_device(out)? {
            Some(view) => {
                view.source().check_writable()?;
                Self::Own(view)
            }
            None => Self::Foreign(Foreign::of(out, Use::Write)?),
        })
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Own(view) => view.bytes(),
            Self::Foreign(foreign) => foreign.len(),
        }
    }

    /// Returns where the memory is.
    pub(crate) fn device(&self) -> Device {
        match self {
            Self::Own(view) => view.source().place().device,
            Self::Foreign(_) => Device::Cpu,
        }
    }

    pub(crate) fn check(&self, at: usize, bytes: usize) -> Result<(), Error> {
        let room = self.len().saturating_sub(at);
        if bytes <= room {
            return Ok(());
        }
        Err(Error::value(format!(
            "{bytes} bytes do not fit into the {room} bytes of the target"
        )))
    }

    /// Copies a batch of the library to the bytes from `at` on.
    pub(crate) fn put(&mut self, at: usize, batch: &RxBatch) -> Result<(), Error> {
        self.check(at, batch.device_bytes() + batch.linear_bytes())?;
        match self {
            Self::Foreign(foreign) => {
                let out = foreign.bytes_mut().get_mut(at..).unwrap_or_default();
                batch.copy_to(out)?;
            }
            Self::Own(view) => match view.source().memory() {
                Some(memory) => {
                    batch.gather_into(memory, view.offset() + at)?;
                }
                None => {
                    let mut bytes = vec![0; batch.device_bytes() + batch.linear_bytes()];
                    batch.copy_to(&mut bytes)?;
                    view.source().copy_in(view.offset() + at, &bytes)?;
                }
            },
        }
        Ok(())
    }

    /// Copies bytes of host memory to the bytes from `at` on.
    pub(crate) fn put_bytes(&mut self, at: usize, bytes: &[u8]) -> Result<(), Error> {
        self.check(at, bytes.len())?;
        match self {
            Self::Foreign(foreign) => {
                let out = foreign.bytes_mut().get_mut(at..at + bytes.len());
                out.unwrap_or_default().copy_from_slice(bytes);
                Ok(())
            }
            Self::Own(view) => view.source().copy_in(view.offset() + at, bytes),
        }
    }

    /// Makes `len` bytes from `at` on zeros.
    pub(crate) fn zero(&mut self, at: usize, len: u64) -> Result<(), Error> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        self.check(at, len)?;
        match self {
            Self::Foreign(foreign) => {
                let out = foreign.bytes_mut().get_mut(at..).unwrap_or_default();
                out.iter_mut().take(len).for_each(|byte| *byte = 0);
                Ok(())
            }
            Self::Own(view) => {
                let at = view.offset() + at;
                match view.source().memory() {
                    Some(memory) => Ok(memory.fill(at..at + len, 0)?),
                    None => view.source().copy_in(at, &vec![0; len]),
                }
            }
        }
    }
}
