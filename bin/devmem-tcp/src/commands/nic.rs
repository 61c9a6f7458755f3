//! `devmem-tcp nic`: an emulated gVNIC for a virtual machine.

use crate::nic_server;
use crate::output::Failure;
use crate::plan::GvnicPlan;

/// Serves one NIC as `plan` says, until told to stop.
///
/// # Errors
///
/// See [`nic_server::serve`].
pub fn run(plan: &GvnicPlan) -> Result<(), Failure> {
    nic_server::serve(plan)
}
