//! The tests to run, and the guests that run them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use lab::group::Group;
use lab::machine_plan::MachinePlan;

use crate::places::PROGRAM_PATH;
use crate::suite::{devmem_rows, load_rows, rows};

/// The tests to run.
#[derive(Clone, Debug)]
pub struct TestPlan {
    /// The machine of every guest.
    pub machine: MachinePlan,
    /// The groups to run.
    pub groups: Vec<Group>,
    /// The root file system with iperf3, for [`Group::Long`].
    pub root: Option<PathBuf>,
    /// The plugin for NCCL of the guests that exchange, if there is one here.
    pub plugin: Option<PathBuf>,
    /// Bytes of a large stream.
    pub bytes: u64,
    /// Run only rows with this text in their name.
    pub only: Option<String>,
    /// Print one JSON object to stdout at the end.
    pub json: bool,
}

pub fn wanted_rows(plan: &TestPlan, group: Group) -> Vec<&'static str> {
    let wanted = |name: &&str| plan.only.as_ref().is_none_or(|only| name.contains(only));
    let names = rows::rows(group).iter().map(|(name, _)| *name);
    names.filter(wanted).collect()
}

/// Returns the command of the guest.
pub fn guest_command(plan: &TestPlan, group: Group) -> Vec<String> {
    let bytes = plan.bytes.to_string();
    let name = group_name(group);
    let mut words = vec![PROGRAM_PATH, "__rows", "--group", &name, "--bytes", &bytes];
    if let Some(only) = &plan.only {
        words.extend(["--only", only]);
    }
    words.into_iter().map(str::to_owned).collect()
}

pub fn group_name(group: Group) -> String {
    group
        .to_possible_value()
        .map(|value| value.get_name().to_owned())
        .unwrap_or_default()
}

/// Returns the machine of a group. `wire` is the socket for our stack, if that is the other end.
pub fn machine_for(machine: &MachinePlan, group: Group, wire: &Path) -> MachinePlan {
    /// More time than any group at the default size needs on a busy machine; rows have separate limits.
    const LIMIT: Duration = Duration::from_secs(3600);
    const BAD_WIRE: &str = "loss=1%,reorder=1%,dup=1%,seed=7";
    let mut machine = machine.clone();
    machine.limit = machine.limit.or(Some(LIMIT));
    if matches!(group, Group::Load | Group::LoadLoss) {
        let servers = load_rows::SERVERS.into_iter();
        let found = servers.filter_map(|server| Some((server.path()?, server)));
        let put = found.map(|(path, server)| (path, format!("/bin/{}", server.program())));
        machine.put.extend(put);
    }
    if matches!(
        group,
        Group::Loss | Group::LoadLoss | Group::StackLoss | Group::ExchangeLoss
    ) {
        machine.nics.impair = Some(BAD_WIRE.to_owned());
    }
    if matches!(group, Group::Knobs | Group::ExchangeKnobs) {
        let linear = devmem_rows::LINEAR_BYTES.to_string();
        let options = ["--linear", &linear, "--unsplit-every", "500"];
        machine.nics.options = options.map(str::to_owned).to_vec();
    }
    if group == Group::Resets {
        machine.nics.options = ["--reset-every", "50"].map(str::to_owned).to_vec();
    }
    if has_far_end(group) {
        machine.nics.count = 1;
        machine.nics.wire = Some(format!("unix-listen:{}", wire.display()));
    }
    machine
}

/// Returns whether our stack is at the other end of the guest's wire.
pub fn has_far_end(group: Group) -> bool {
    matches!(group, Group::Stack | Group::StackLoss)
}

/// Returns whether the rows run in two guests at the same time.
pub fn has_two_guests(group: Group) -> bool {
    matches!(
        group,
        Group::Exchange | Group::ExchangeLoss | Group::ExchangeKnobs
    )
}
