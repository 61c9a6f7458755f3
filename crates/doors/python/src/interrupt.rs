//! Long calls without Python's lock, which a signal ends.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use devmem_transfer::load::CancelCheck;
use pyo3::prelude::*;

use crate::error::Error;
use crate::released::{attached, released};

/// How often signals are looked for.
const INTERVAL: Duration = Duration::from_millis(50);

/// Runs `call` with Python's lock released. The check that `call` gets cancels it after a signal whose handler has raised an
/// exception, which is the result then.
pub(crate) fn interruptible<R: Send>(
    py: Python<'_>,
    call: impl FnOnce(&mut CancelCheck<'_>) -> Result<R, Error> + Send,
) -> PyResult<R> {
    let mut raised = None;
    let result = released(py, || {
        let mut looked = Instant::now();
        call(&mut || {
            if looked.elapsed() < INTERVAL {
                return ControlFlow::Continue(());
            }
            looked = Instant::now();
            match attached(|py| py.check_signals()) {
                Some(Err(error)) => {
                    raised = Some(error);
                    ControlFlow::Break(())
                }
                Some(Ok(())) | None => ControlFlow::Continue(()),
            }
        })
    });
    match raised {
        Some(error) => Err(error),
        None => Ok(result?),
    }
}
