//! Tensors: views of memory for other libraries, without a copy.

use devmem_tcp::{
    Dmabuf as Memory, NiovSize,
    memory::{dma_heap, import, udmabuf},
    vulkan,
};
use pyo3::exceptions::{PyAttributeError, PyBufferError, PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PySlice, PyTuple};

use crate::device::{Device, Place};
use crate::dtype::Dtype;
use crate::error::Error;
use crate::raw::{
    Described, Exported, Foreign, HostBytes, IsCopied, IsVersioned, Use, capsule, duplicate,
};
use crate::released::released;
use crate::source::{Body, Source};
use crate::view::View;

/// A contiguous array in memory of a device or of the host. It keeps its memory, and in received memory the tokens of its
/// frags: they are returned when the last tensor, array or view over them is gone.
///
/// numpy.asarray, numpy.from_dlpack, torch.from_dlpack and memoryview show the same bytes without a copy.
#[pyclass(frozen, subclass, extends = Exported, module = "devmem_tcp")]
#[derive(Debug)]
pub(crate) struct Tensor;

impl Tensor {
    pub(crate) fn make<'py>(py: Python<'py>, view: View) -> PyResult<Bound<'py, Self>> {
        Bound::new(
            py,
            PyClassInitializer::from(Exported::new(view)).add_subclass(Self),
        )
    }
}

#[pymethods]
impl Tensor {
    /// The dimensions.
    #[getter]
    fn shape<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(slf.py(), view_of(slf).shape())
    }

    /// The name of the type of the elements, as numpy and torch write it.
    #[getter]
    fn dtype(slf: &Bound<'_, Self>) -> &'static str {
        view_of(slf).dtype().name()
    }

    /// The number of dimensions.
    #[getter]
    fn ndim(slf: &Bound<'_, Self>) -> usize {
        view_of(slf).shape().len()
    }

    /// The number of bytes.
    #[getter]
    fn nbytes(slf: &Bound<'_, Self>) -> usize {
        view_of(slf).bytes()
    }

    /// Where the memory is: "cpu", "cuda:N", "hip:N" or "vulkan:N".
    #[getter]
    fn device(slf: &Bound<'_, Self>) -> String {
        view_of(slf).source().place().device.name()
    }

    /// The address of the first byte: for the CPU, or for the libraries of the device. Vulkan memory that the CPU does not
    /// access has none (AttributeError).
    #[getter]
    fn data_ptr(slf: &Bound<'_, Self>) -> PyResult<usize> {
        let view = view_of(slf);
        let none = || PyAttributeError::new_err(view.source().place().no_address());
        view.address().ok_or_else(none)
    }

    /// The offset of the first byte in its memory: in a Dmabuf the offset that `Stream.send` takes.
    #[getter]
    fn offset(slf: &Bound<'_, Self>) -> usize {
        view_of(slf).offset()
    }

    /// Returns the same bytes with another type and shape; one dimension may be -1.
    #[pyo3(signature = (dtype, shape=None))]
    fn view<'py>(
        slf: &Bound<'py, Self>,
        dtype: &Bound<'py, PyAny>,
        shape: Option<Shape>,
    ) -> PyResult<Bound<'py, Self>> {
        let shape = shape.map(Shape::into_vec);
        let shaped = view_of(slf).shaped(Dtype::of(dtype)?, shape.as_deref())?;
        Self::make(slf.py(), shaped)
    }

    /// Returns the tensor as an array of numpy, without a copy.
    pub(crate) fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        // Otherwise numpy says that DLPack is not supported.
        view_of(slf).dtype().typestr()?;
        slf.py()
            .import("numpy")?
            .call_method1("from_dlpack", (slf,))
    }

    /// Returns a copy of the bytes.
    fn tobytes<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyBytes>> {
        let view = view_of(slf);
        PyBytes::new_with(slf.py(), view.bytes(), |out| {
            Ok(view.source().copy_out(view.offset(), out)?)
        })
    }

    /// Copies the bytes of a tensor, an array or a buffer of the same length into this tensor.
    fn copy_from(slf: &Bound<'_, Self>, source: &Bound<'_, PyAny>) -> PyResult<()> {
        let to = view_of(slf).clone();
        to.source().check_writable()?;
        let differs = |bytes: usize| {
            let text = format!(
                "{bytes} bytes do not fill the tensor of {} bytes",
                to.bytes()
            );
            PyValueError::new_err(text)
        };
        if let Some(from) = View::of_device(source)? {
            if from.bytes() != to.bytes() {
                return Err(differs(from.bytes()));
            }
            let (at, len) = (to.offset(), to.bytes());
            let copied = released(slf.py(), || {
                let source = from.source();
                source.copy_to(from.offset(), to.source(), at, len)
            });
            return Ok(copied?);
        }
        let bytes = Foreign::of(source, Use::Read)?;
        if bytes.len() != to.bytes() {
            return Err(differs(bytes.len()));
        }
        let overlaps = |address| bytes.overlaps(address, to.bytes());
        if to.address().is_some_and(overlaps) {
            return Err(PyValueError::new_err("the source overlaps the tensor"));
        }
        let copied = released(slf.py(), || to.source().copy_in(to.offset(), bytes.bytes()));
        Ok(copied?)
    }

    fn __len__(slf: &Bound<'_, Self>) -> PyResult<usize> {
        let first = view_of(slf).shape().first();
        let first =
            first.ok_or_else(|| PyTypeError::new_err("a tensor of no dimensions has no length"))?;
        Ok(usize::try_from(*first)?)
    }

    /// Returns a part along the first dimension, without a copy: `tensor[4096:8192]`.
    fn __getitem__<'py>(
        slf: &Bound<'py, Self>,
        part: &Bound<'py, PySlice>,
    ) -> PyResult<Bound<'py, Self>> {
        let view = view_of(slf);
        let (Some(first), rest) = (view.shape().first(), view.shape().get(1..)) else {
            return Err(PyIndexError::new_err(
                "a tensor of no dimensions has no parts",
            ));
        };
        let indices = part.indices(isize::try_from(*first)?)?;
        if indices.step != 1 {
            return Err(PyValueError::new_err(
                "a part must be contiguous: its step is 1",
            ));
        }
        let row = match *first {
            0 => 0,
            first => view.bytes() / usize::try_from(first)?,
        };
        let start = usize::try_from(indices.start)?;
        let bytes = view.part(start.saturating_mul(row), indices.slicelength * row)?;
        let mut shape = vec![i64::try_from(indices.slicelength)?];
        shape.extend_from_slice(rest.unwrap_or_default());
        Self::make(slf.py(), bytes.shaped(view.dtype(), Some(&shape))?)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let view = view_of(slf);
        let name = slf.get_type().name()?;
        let (shape, dtype) = (Self::shape(slf)?.repr()?, view.dtype().name());
        let device = view.source().place().device.name();
        Ok(format!("<{name} {shape} {dtype} on {device}>"))
    }

    /// DLPack: a capsule for another library. A copy only if it is asked for, and of host memory only.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let view = view_of(slf);
        let place = view.source().place();
        check_stream(place, stream)?;
        if dl_device.is_some_and(|wanted| wanted != place.dlpack()) {
            let name = place.device.name();
            let text = format!("the memory is on {name}; copy it with tobytes()");
            return Err(PyBufferError::new_err(text));
        }
        let is_versioned = match max_version {
            Some((1.., _)) => IsVersioned::Yes,
            _ => IsVersioned::No,
        };
        if copy != Some(true) {
            return capsule(slf.py(), view, is_versioned, IsCopied::No);
        }
        if !place.is_host() {
            return Err(PyBufferError::new_err(
                "only host memory is copied: copy=False",
            ));
        }
        let copied = HostBytes::filled(view.bytes(), |out| {
            view.source().copy_out(view.offset(), out)
        })?;
        let copied = View::of_bytes(Source::host(copied), 0, view.bytes())?;
        let copied = copied.shaped(view.dtype(), Some(view.shape()))?;
        capsule(slf.py(), &copied, is_versioned, IsCopied::Yes)
    }

    /// DLPack: type and number of the device.
    fn __dlpack_device__(slf: &Bound<'_, Self>) -> (i32, i32) {
        view_of(slf).source().place().dlpack()
    }

    /// numpy's description of host memory.
    #[getter]
    fn __array_interface__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        match view_of(slf).source().place().is_host() {
            true => interface(slf),
            false => Err(no_interface(slf)),
        }
    }

    /// The description of memory of a CUDA device that CuPy and numba take.
    #[getter]
    fn __cuda_array_interface__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        match view_of(slf).source().place().device {
            Device::Cuda(_) => interface(slf),
            _ => Err(no_interface(slf)),
        }
    }
}

/// A shape as a number or numbers.
#[derive(FromPyObject)]
pub(crate) enum Shape {
    One(i64),
    Many(Vec<i64>),
}

impl Shape {
    pub(crate) fn into_vec(self) -> Vec<i64> {
        match self {
            Self::One(extent) => vec![extent],
            Self::Many(extents) => extents,
        }
    }
}

impl View {
    /// Returns the view of a tensor of this package, or of one of another library that is on a GPU; `None` for all others.
    pub(crate) fn of_device(object: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        if let Ok(tensor) = object.cast::<Tensor>() {
            return Ok(Some(view_of(tensor).clone()));
        }
        let Some(described) = Described::of_gpu(object)? else {
            return Ok(None);
        };
        let is_read_only = described.is_read_only();
        let (memory, bytes) = released(object.py(), || described.adopt_pages())?;
        let source = Source::adopted(memory, is_read_only)?;
        Ok(Some(Self::of_bytes(source, bytes.start, bytes.len())?))
    }
}

/// Returns what a tensor shows.
pub(crate) fn view_of<'a>(tensor: &'a Bound<'_, Tensor>) -> &'a View {
    tensor.as_super().get().view()
}

/// The bytes of a frag are in their memory before a program sees it, so no stream has to wait for them.
fn check_stream(place: Place, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    let Some(stream) = stream else {
        return Ok(());
    };
    let number: i64 = stream.extract()?;
    // The numbers are those of the Python array API, __dlpack__.
    match place.device {
        _ if place.is_host() && number != -1 => {
            Err(PyValueError::new_err("host memory has no streams"))
        }
        Device::Cuda(_) if number == 0 => {
            Err(PyValueError::new_err("stream 0 is ambiguous: 1 or 2"))
        }
        Device::Hip(_) if matches!(number, 1 | 2) => Err(PyValueError::new_err(format!(
            "ROCm has no stream {number}: 0 is the default one"
        ))),
        _ => Ok(()),
    }
}

/// Returns the array interface.
fn interface<'py>(tensor: &Bound<'py, Tensor>) -> PyResult<Bound<'py, PyDict>> {
    let view = view_of(tensor);
    let (Some(address), Ok(typestr)) = (view.address(), view.dtype().typestr()) else {
        return Err(no_interface(tensor));
    };
    let dict = PyDict::new(tensor.py());
    dict.set_item("version", 3)?;
    dict.set_item("shape", Tensor::shape(tensor)?)?;
    dict.set_item("typestr", typestr)?;
    dict.set_item("data", (address, view.source().is_read_only()))?;
    dict.set_item("strides", tensor.py().None())?;
    Ok(dict)
}

/// An AttributeError, by which hasattr finds that a tensor has no such interface.
fn no_interface(tensor: &Bound<'_, Tensor>) -> PyErr {
    let view = view_of(tensor);
    let device = view.source().place().device.name();
    PyAttributeError::new_err(format!("memory on {device} of {}", view.dtype().name()))
}

/// Device memory: all of it as a tensor of bytes. It is bound to NICs for receiving and sending, and cut into views.
#[pyclass(frozen, extends = Tensor, module = "devmem_tcp")]
#[derive(Debug)]
pub(crate) struct Dmabuf;

impl Dmabuf {
    fn make(py: Python<'_>, memory: Memory) -> PyResult<Py<Self>> {
        Self::of_source(py, Source::device(memory, Vec::new())?)
    }

    fn of_source(py: Python<'_>, source: Source) -> PyResult<Py<Self>> {
        let bytes = source.bytes();
        let view = View::of_bytes(source, 0, bytes)?;
        let base = PyClassInitializer::from(Exported::new(view)).add_subclass(Tensor);
        Py::new(py, base.add_subclass(Self))
    }

    /// Returns the memory.
    pub(crate) fn memory(slf: &Bound<'_, Self>) -> Result<Memory, Error> {
        let memory = view_of(slf.as_super()).source().memory();
        memory.cloned().ok_or_else(|| Error::closed("memory"))
    }
}

/// Returns the memory that a tensor shows, with the tensor's range of it.
pub(crate) fn memory_of(view: &View) -> Option<(&Memory, std::ops::Range<usize>)> {
    match view.source().body() {
        Body::Device(memory) => Some((memory, view.offset()..view.offset() + view.bytes())),
        Body::Host(_) => None,
    }
}

#[pymethods]
impl Dmabuf {
    /// Allocates anonymous memory, in huge pages if the machine has them. For NICs in user space.
    #[staticmethod]
    fn anonymous(py: Python<'_>, nbytes: usize) -> PyResult<Py<Self>> {
        let memory = released(py, || Memory::anonymous(nbytes).map_err(Error::from))?;
        Self::make(py, memory)
    }

    /// Allocates memory with a file descriptor. Bound to a NIC of the kernel, it becomes a udmabuf.
    #[staticmethod]
    fn memfd(py: Python<'_>, nbytes: usize) -> PyResult<Py<Self>> {
        let memory = released(py, || Memory::memfd(nbytes).map_err(Error::from))?;
        Self::make(py, memory)
    }

    /// Allocates memory with a file descriptor, and marks it as shared: sent on a "unix:" link, it crosses without a copy of the
    /// sender, and the other process can read all of it, not only what is sent, for as long as it likes.
    #[staticmethod]
    fn shared_memfd(py: Python<'_>, nbytes: usize) -> PyResult<Py<Self>> {
        let memory = released(py, || Memory::shared_memfd(nbytes).map_err(Error::from))?;
        Self::make(py, memory)
    }

    /// Allocates a dma-buf of ordinary memory, through /dev/udmabuf. For both kinds of NIC.
    #[staticmethod]
    fn udmabuf(py: Python<'_>, nbytes: usize) -> PyResult<Py<Self>> {
        let memory = released(py, || udmabuf(nbytes).map_err(Error::from))?;
        Self::make(py, memory)
    }

    /// Allocates a dma-buf from a heap of the kernel, as "system". For both kinds of NIC.
    #[staticmethod]
    fn dma_heap(py: Python<'_>, name: &str, nbytes: usize) -> PyResult<Py<Self>> {
        let memory = released(py, || dma_heap(name, nbytes).map_err(Error::from))?;
        Self::make(py, memory)
    }

    /// Allocates memory of the NVIDIA GPU `device`, rounded up to whole pages. For both kinds of NIC.
    #[staticmethod]
    #[pyo3(signature = (nbytes, device=0))]
    fn cuda(py: Python<'_>, nbytes: usize, device: u32) -> PyResult<Py<Self>> {
        let memory = released(py, || Device::Cuda(device).alloc(nbytes))?;
        Self::make(py, memory)
    }

    /// Allocates memory of the AMD GPU `device`, rounded up to whole pages. For NICs in user space.
    #[staticmethod]
    #[pyo3(signature = (nbytes, device=0))]
    fn hip(py: Python<'_>, nbytes: usize, device: u32) -> PyResult<Py<Self>> {
        let memory = released(py, || Device::Hip(device).alloc(nbytes))?;
        Self::make(py, memory)
    }

    /// Allocates memory of the Vulkan device `device`, of any vendor, rounded up to whole pages: memory that the CPU accesses,
    /// too, if the device has it, or with `mapped=False` memory that only the device accesses. For NICs in user space, and
    /// for those of the kernel if the driver exports it.
    #[staticmethod]
    #[pyo3(signature = (nbytes, device=0, *, mapped=true))]
    fn vulkan(py: Python<'_>, nbytes: usize, device: u32, mapped: bool) -> PyResult<Py<Self>> {
        let memory = released(py, || match mapped {
            true => Device::Vulkan(device).alloc(nbytes),
            false => Ok(vulkan::alloc_unmapped(device, nbytes)?),
        })?;
        Self::make(py, memory)
    }

    /// Takes memory of a GPU that another library has allocated: a tensor of torch, CuPy, jax or numba, which is kept as long as
    /// the memory is used. Both show the same bytes. Waits until the library's work on the tensor is done. The tensor must be
    /// contiguous, and whole pages of 4096 bytes. One that is read-only, as arrays of jax are, can be sent only.
    #[staticmethod]
    fn adopt(tensor: &Bound<'_, PyAny>) -> PyResult<Py<Self>> {
        let described = Described::of(tensor)?;
        let is_read_only = described.is_read_only();
        let memory = released(tensor.py(), || described.adopt())?;
        Self::of_source(tensor.py(), Source::adopted(memory, is_read_only)?)
    }

    /// Takes a dma-buf of another library. The descriptor is duplicated: the caller closes its own.
    #[staticmethod]
    fn from_fd(fd: &Bound<'_, PyAny>) -> PyResult<Py<Self>> {
        let copy = duplicate(fd)?;
        let memory = released(fd.py(), || import(copy).map_err(Error::from))?;
        Self::make(fd.py(), memory)
    }

    /// Returns the file descriptor of the memory; -1 if it has none. It belongs to this object.
    fn fileno(slf: &Bound<'_, Self>) -> i32 {
        use std::os::fd::AsRawFd;
        let memory = view_of(slf.as_super()).source().memory();
        let fd = memory.and_then(|memory| memory.as_fd());
        fd.map_or(-1, |fd| fd.as_raw_fd())
    }

    /// Sets every byte to `byte`.
    fn fill(slf: &Bound<'_, Self>, byte: u8) -> PyResult<()> {
        let view = view_of(slf.as_super());
        view.source().check_writable()?;
        let Some((memory, range)) = memory_of(view) else {
            return Ok(());
        };
        released(slf.py(), || memory.fill(range, byte).map_err(Error::from))?;
        Ok(())
    }
}

/// Returns the size of net_iovs, or the default.
pub(crate) fn niov_size(bytes: Option<usize>) -> Result<Option<NiovSize>, Error> {
    Ok(bytes.map(NiovSize::new).transpose()?)
}
