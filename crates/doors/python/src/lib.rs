//! Device memory TCP for Python: the extension module `devmem_tcp._native`, on the public API of the library `devmem-tcp`.
//!
//! Key types: `Handle` (a handle of the library that any thread of Python may use), `TimedWait` (a wait in slices, with
//! Python's lock released and signals looked at in between) and `Source` (the memory below tensors, with the frags in it).
//!
//! It is the program at the end of the walk of a received segment: `Stream.recv` takes the frags, `Batch` keeps them, and
//! their tokens are returned with the batch, or with the last tensor over them. It has no protocol and no policy, and
//! of its modules only `raw` has unsafe code.

mod arrivals;
mod batch;
mod batch_state;
mod batches;
mod binding;
mod blocks;
mod checkpoint;
mod closing;
mod device;
mod dtype;
mod error;
mod interrupt;
mod listener;
mod load;
mod netdev;
mod opened;
mod raw;
mod released;
mod remedy;
mod repr;
mod sent;
mod shared;
mod source;
mod stored;
mod stream;
mod subsystems;
mod sums;
mod target;
mod tensor;
mod view;
mod wait;

/// The module.
#[pyo3::pymodule(gil_used = true)]
mod _native {
    #[pymodule_export]
    use crate::arrivals::{Arrivals, Counting};
    #[pymodule_export]
    use crate::batch::{Batch, Frag};
    #[pymodule_export]
    use crate::batches::{_receive_all, Batches};
    #[pymodule_export]
    use crate::binding::{BoundRx, BoundTx, ReceivePlan, Setup};
    #[pymodule_export]
    use crate::blocks::{load, load_into};
    #[pymodule_export]
    use crate::checkpoint::{_open_safetensors, Checkpoint};
    #[pymodule_export]
    use crate::closing::Closing;
    #[pymodule_export]
    use crate::listener::Listener;
    #[pymodule_export]
    use crate::load::load_safetensors;
    #[pymodule_export]
    use crate::netdev::{Attempt, Netdev, resolve};
    #[pymodule_export]
    use crate::raw::Exported;
    #[pymodule_export]
    use crate::released::{_end, _forked};
    #[pymodule_export]
    use crate::remedy::_remedies;
    #[pymodule_export]
    use crate::sent::{Sent, Signal};
    #[pymodule_export]
    use crate::shared::{_shared_file, _shared_part, _shared_tensor};
    #[pymodule_export]
    use crate::stored::{Stored, store};
    #[pymodule_export]
    use crate::stream::Stream;
    #[pymodule_export]
    use crate::subsystems::{Namespace, Subsystem, list_subsystems};
    #[pymodule_export]
    use crate::tensor::{Dmabuf, Tensor};

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        use pyo3::types::PyModuleMethods;
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        crate::released::register(module)
    }
}
