//! SIGINT and SIGTERM end a run cleanly: the loops look here.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};

/// Whether somebody asked for the end.
#[derive(Clone, Debug)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Takes over SIGINT and SIGTERM. A second one ends the process at once.
    ///
    /// # Errors
    ///
    /// What sigaction(2) said.
    pub fn install() -> io::Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // Order matters: the first of these looks at the flag before the second sets it.
            signal_hook::flag::register_conditional_default(signal, Arc::clone(&flag))?;
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
        }
        Ok(Self(flag))
    }

    /// Tells whether a signal has come.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
