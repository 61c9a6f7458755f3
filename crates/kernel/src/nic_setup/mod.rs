//! Setting up a NIC for device memory, and restoring its previous settings.
//!
//! [`NicSetup::plan`] reads the NIC and returns the planned changes, also as `ethtool` commands. [`SetupPlan::apply`] makes
//! the changes and reads them back. The returned [`NicSetup`] restores exactly the previous settings when it is dropped or
//! [`restore`](NicSetup::restore) is called. Each change is written to a state file before it is made, so that
//! [`restore_from_state_file`] can restore the settings after a crash.
//!
//! An agent also leases the queues to the netkits of pods ([`SetupRequest::leases`]). In the pod, or wherever an agent has set the NIC
//! up, [`Configured::find`] finds its queues and checks what can be seen, and writes nothing.
//!
//! The order is RSS table, features, header split, RSS context, flow rules, leases; settings are restored in reverse order. A driver
//! that re-opens the NIC to change header split may forget the RSS table: it is set again afterwards, and restored last.

mod apply;
mod control;
mod leftover;
mod plan;
mod reading;
mod request;
mod restore;
mod setup;
mod state;
mod state_fault;
mod trial;
mod undo;

#[cfg(any(test, fuzzing, feature = "test-util"))]
mod fuzz;
#[cfg(any(test, fuzzing, feature = "test-util"))]
#[cfg_attr(
    not(test),
    allow(dead_code, reason = "fuzzing needs less of it than the tests do")
)]
mod model;
#[cfg(test)]
mod tests;

#[cfg(any(test, fuzzing, feature = "test-util"))]
pub(crate) use fuzz::{fuzz_state_file, fuzz_table};

pub use apply::{ApplyError, StepError};
pub use leftover::{Leftover, LeftoverStatus};
pub use plan::{PlanError, SetupPlan, Step};
pub use reading::configured::Configured;
pub use request::{Flow, LeasedQueue, NewLease, QueueChoice, SetupRequest};
pub use restore::{RestoreReport, restore_from_state_file};
pub use setup::{Drift, NicSetup};
pub use state::{StateError, state_files};
pub use state_fault::StateFault;
