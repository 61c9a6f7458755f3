//! `--watch` in a build without the cargo feature `watch`.

use crate::output::Failure;
use crate::signals::StopFlag;
use crate::transmit::Transmit;
use devmem_tcp::Netdev;

use crate::receive::View;

/// Refuses `--watch`.
///
/// # Errors
///
/// Always: the error says how to get it.
pub fn check() -> Result<(), Failure> {
    Err(missing())
}

fn missing() -> Failure {
    Failure::unsupported("--watch is not part of this build").with_remedy(
        "the Debian package has it; `cargo build --release -p devmem-tcp-cli --features watch` builds it",
    )
}

/// The live view, which this build does not have.
#[derive(Debug)]
pub enum Watch {}

impl Watch {
    /// Fails.
    ///
    /// # Errors
    ///
    /// Always.
    pub fn start(_: String, _: Option<u64>, _: Netdev, _: &StopFlag) -> Result<Self, Failure> {
        Err(missing())
    }

    /// Shows a transfer into device memory.
    pub fn receiving(&mut self, _: &View<'_>) {
        match *self {}
    }

    /// Shows a connection that sends from device memory.
    pub fn sending(&mut self, _: usize, _: u64, _: &Transmit<'_>) {
        match *self {}
    }
}
