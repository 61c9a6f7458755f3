//! Sets the NIC up, and restores it.

use devmem_linux::netdev::KernelRxQueueId;
use devmem_linux::nic_setup::{Flow, NicSetup, QueueChoice, SetupRequest};

use super::flags::BindPlan;
use tool::output::{Failure, say};

/// The queues of a bind request.
pub(super) fn queue_ids(first: u32, count: u32) -> Vec<KernelRxQueueId> {
    (first..first.saturating_add(count))
        .map(KernelRxQueueId)
        .collect()
}

/// Sets the NIC up for a binding, unless it is already set up.
///
/// # Errors
///
/// Missing features, or a refused change; nothing is changed then.
pub fn apply(
    interface: &str,
    binding: &BindPlan,
    flow: Option<Flow>,
) -> Result<Option<NicSetup>, Failure> {
    if binding.prepared {
        return Ok(None);
    }
    let queues = queue_ids(binding.first_queue, binding.queue_count);
    let plan = NicSetup::plan(&SetupRequest {
        interface: interface.to_owned(),
        queues: QueueChoice::These(queues),
        flows: flow.into_iter().collect(),
        leases: Vec::new(),
        state_folder: None,
    })?;
    for warning in plan.warnings() {
        say!("warning: {warning}");
    }
    let setup = plan.apply()?;
    for command in setup.changes() {
        say!("Set up as by: {command}");
    }
    for location in setup.rule_locations() {
        say!("Added flow rule with ID {location}");
    }
    say!("TCP header split: on");
    Ok(Some(setup))
}

/// Restores the settings. The queues must not be bound any more.
///
/// # Errors
///
/// A setting could not be restored.
pub fn put_back(setup: Option<NicSetup>) -> Result<(), Failure> {
    let Some(setup) = setup else { return Ok(()) };
    let report = setup.restore();
    for left in &report.left {
        say!("left {left}: another program has changed it");
    }
    match report.failed.first() {
        Some((what, why)) => Err(Failure::failed(format!("could not restore {what}: {why}"))
            .with_remedy("`devmem-tcp restore` tries again")),
        None => Ok(()),
    }
}
