//! What handles that are closed have in common: a `with` block closes them at its end.

use pyo3::PyClass;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// A handle that has `close`.
#[pyclass(frozen, subclass, module = "devmem_tcp._native", name = "_Closing")]
#[derive(Debug)]
pub(crate) struct Closing;

#[pymethods]
impl Closing {
    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(slf: &Bound<'_, Self>, _raised: &Bound<'_, PyTuple>) -> PyResult<()> {
        slf.call_method0("close").map(drop)
    }
}

/// A handle that Python gets, of a class that extends [`Closing`].
#[derive(Debug)]
pub(crate) struct Open<T>(pub(crate) T);

impl<'py, T: PyClass<BaseType = Closing>> IntoPyObject<'py> for Open<T> {
    type Target = T;
    type Output = Bound<'py, T>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, T>> {
        Bound::new(py, PyClassInitializer::from(Closing).add_subclass(self.0))
    }
}
