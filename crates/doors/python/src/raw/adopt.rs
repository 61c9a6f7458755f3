//! Memory of GPUs that other libraries have allocated: torch, CuPy, jax, numba.
//!
// UNSAFETY: an address and a stream of another library, which its object describes and keeps; the driver is asked about the
// address.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::ops::Range;
use std::process;
use std::ptr;
use std::thread;

use devmem_tcp::{Dmabuf, cuda, hip};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::lent::{Lent, contiguous};
use crate::device::Device;
use crate::error::Error;
use crate::released::attached;

/// Memory that another library describes. Invariant: its library keeps the `len` bytes at `address` until `keeper` is
/// dropped, and `stream` exists until then.
pub(crate) struct Described {
    /// `None`: the description does not name it.
    device: Option<Device>,
    address: u64,
    len: usize,
    /// What must be waited for: `None` if nothing, null if it is the default stream.
    stream: Option<usize>,
    is_read_only: bool,
    keeper: Keeper,
}

impl Described {
    /// Takes the description of `object`: that of DLPack, or `__cuda_array_interface__`.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if is_dlpack(object)? {
            return Self::of_dlpack(object);
        }
        if object.hasattr("__cuda_array_interface__")? {
            let interface = object.getattr("__cuda_array_interface__")?;
            return Self::of_interface(object, interface.cast::<PyDict>()?);
        }
        let name = object.get_type().name()?;
        Err(PyTypeError::new_err(format!(
            "{name} is no tensor: it has neither __dlpack__ nor __cuda_array_interface__\n  pass a tensor of torch, CuPy or jax on a GPU"
        )))
    }

    /// Returns the description of an object on a GPU; `None` for all others.
    pub(crate) fn of_gpu(object: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let is_on_gpu = match is_dlpack(object)? {
            true => matches!(dlpack_kind(object)?, CUDA | HIP),
            false => object.hasattr("__cuda_array_interface__")?,
        };
        is_on_gpu.then(|| Self::of(object)).transpose()
    }

    fn of_dlpack(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let kind = dlpack_kind(object)?;
        // The default streams, by the numbers of the Python array API.
        let stream = match kind {
            CUDA => 1,
            HIP => 0,
            kind => return Err(not_a_gpu(kind).into()),
        };
        let lent = Lent::of(object, Some(stream))?;
        let tensor = lent.tensor();
        let ordinal = u32::try_from(tensor.device_id);
        let device = match (tensor.device_type, ordinal) {
            (CUDA, Ok(ordinal)) => Device::Cuda(ordinal),
            (HIP, Ok(ordinal)) => Device::Hip(ordinal),
            (kind, _) => return Err(not_a_gpu(kind).into()),
        };
        let address = tensor.data.addr() as u64;
        Ok(Self {
            device: Some(device),
            address: address.saturating_add(tensor.byte_offset),
            len: lent.contiguous_bytes()?,
            stream: Some(0),
            is_read_only: lent.is_read_only(),
            keeper: Keeper::new(Keeps::Tensor { _lent: lent }),
        })
    }

    fn of_interface(object: &Bound<'_, PyAny>, interface: &Bound<'_, PyDict>) -> PyResult<Self> {
        let field = |name: &str| -> PyResult<Bound<'_, PyAny>> {
            let none = || {
                PyTypeError::new_err(format!(
                    "its __cuda_array_interface__ has no entry '{name}'"
                ))
            };
            interface.get_item(name)?.ok_or_else(none)
        };
        let optional = |name: &str| -> PyResult<Option<Bound<'_, PyAny>>> {
            let found = interface.get_item(name)?;
            Ok(found.filter(|value| !value.is_none()))
        };
        let (address, is_read_only): (u64, bool) = field("data")?.extract()?;
        if optional("mask")?.is_some() {
            return Err(Error::buffer("arrays with a mask cannot be adopted").into());
        }
        let typestr: String = field("typestr")?.extract()?;
        let item: usize = typestr
            .get(2..)
            .and_then(|digits| digits.parse().ok())
            .ok_or_else(|| Error::buffer("the type of the array's elements is unknown"))?;
        let shape: Vec<i64> = field("shape")?.extract()?;
        let strides = optional("strides")?;
        let strides: Vec<i64> = strides.map_or(Ok(Vec::new()), |strides| strides.extract())?;
        let elements = contiguous(&shape, &strides, item)?;
        let too_long = || Error::buffer("the shape of the array is invalid");
        let stream = match (optional("stream")?, interface.contains("stream")?) {
            (Some(stream), _) => Some(stream.extract()?),
            (None, true) => None,
            // Version 2 has no such entry.
            (None, false) => Some(0),
        };
        Ok(Self {
            device: None,
            address,
            len: elements.checked_mul(item).ok_or_else(too_long)?,
            stream,
            is_read_only,
            keeper: Keeper::new(Keeps::Object {
                _object: object.clone().unbind(),
            }),
        })
    }

    /// Returns whether its library says that the memory must not be written.
    pub(crate) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Waits for the work on the memory, and adopts it. Needs no lock of Python.
    pub(crate) fn adopt(self) -> Result<Dmabuf, Error> {
        let (device, is_named) = match self.device {
            Some(Device::Hip(ordinal)) => (hip::open(ordinal)?, true),
            Some(Device::Cuda(ordinal)) => (cuda::open(ordinal)?, true),
            _ => (cuda::open(0)?, false),
        };
        let device = match self.check(&device) {
            Err(cuda::GpuError::OtherDevice { actual, .. }) if !is_named => cuda::open(actual)?,
            result => {
                result?;
                device
            }
        };
        if let Some(stream) = self.stream {
            let stream = ptr::with_exposed_provenance_mut(stream);
            // SAFETY: null, or a stream that exists (invariant).
            unsafe { device.synchronize_stream(stream) }?;
        }
        let Self {
            address,
            len,
            keeper,
            ..
        } = self;
        // SAFETY: the bytes stay allocated until the keeper is dropped (invariant).
        let adopted = unsafe { cuda::Allocation::adopt_from_owner(&device, address, len, keeper) };
        Ok(adopted?.into_dmabuf())
    }

    /// As [`adopt`](Self::adopt), of the whole pages that the bytes are in, for copies of no others than these. Returns the
    /// memory and the range of the bytes.
    pub(crate) fn adopt_pages(mut self) -> Result<(Dmabuf, Range<usize>), Error> {
        let start = self.address / PAGE_BYTES * PAGE_BYTES;
        let offset = usize::try_from(self.address - start).unwrap_or(usize::MAX);
        let bytes = offset..offset.saturating_add(self.len);
        let pages = bytes.end.checked_next_multiple_of(PAGE_BYTES as usize);
        let too_long = || Error::buffer("the shape of the tensor is invalid");
        // The invariant is kept: the driver is asked whether the pages are of one allocation, which the library keeps as a whole.
        (self.address, self.len) = (start, pages.ok_or_else(too_long)?);
        Ok((self.adopt()?, bytes))
    }

    /// Asks the driver about the memory.
    fn check(&self, device: &cuda::Device) -> Result<(), cuda::GpuError> {
        // SAFETY: the bytes stay allocated while `self` is borrowed (invariant), and nothing is done with them.
        unsafe { cuda::Allocation::adopt(device, self.address, self.len) }.map(drop)
    }
}

/// The unit of dma-bufs.
const PAGE_BYTES: u64 = 4096;

/// dlpack.h DLDeviceType: kDLCUDA, kDLROCM.
const CUDA: i32 = 2;
const HIP: i32 = 10;

fn is_dlpack(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(object.hasattr("__dlpack__")? && object.hasattr("__dlpack_device__")?)
}

fn dlpack_kind(object: &Bound<'_, PyAny>) -> PyResult<i32> {
    let (kind, _): (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
    Ok(kind)
}

/// Why memory of another kind of device is not adopted.
fn not_a_gpu(kind: i32) -> Error {
    match kind {
        1 | 3 | 11 => Error::buffer(
            "the tensor is in host memory\n  move it to a GPU first, as torch does with tensor.cuda(); or copy it: \
             Dmabuf.anonymous(nbytes).copy_from(tensor)",
        ),
        13 => Error::buffer(
            "the tensor is in managed memory, which moves between device and host\n  allocate it on the device",
        ),
        kind => Error::buffer(format!(
            "DLPack's device {kind} is neither CUDA (2) nor ROCm (10)\n  copy the tensor: Dmabuf.cuda(nbytes).copy_from(tensor)"
        )),
    }
}

/// Keeps memory of another library. The library's code that frees it needs Python's lock; the drop may be in any thread, which
/// may hold locks of a NIC, so that another thread does it.
struct Keeper {
    keeps: ManuallyDrop<Keeps>,
    process: u32,
}

enum Keeps {
    Tensor { _lent: Lent },
    Object { _object: Py<PyAny> },
}

impl Keeper {
    fn new(keeps: Keeps) -> Self {
        Self {
            keeps: ManuallyDrop::new(keeps),
            process: process::id(),
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if self.process != process::id() {
            // The GPU, and what is on it, belongs to the parent of this process.
            return;
        }
        // SAFETY: the field is used no more.
        let keeps = ManuallyDrop::new(unsafe { ManuallyDrop::take(&mut self.keeps) });
        let freed = move || attached(|_py| drop(ManuallyDrop::into_inner(keeps)));
        // At the end of the interpreter, and where there is no thread, the memory stays allocated until the process ends.
        let _ = thread::Builder::new()
            .name("devmem-free".to_owned())
            .spawn(freed);
    }
}
