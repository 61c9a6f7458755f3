//! The commands, on the host.

use std::path::PathBuf;

use lab::args::{Exchange, MachineArgs, Selftests, Test};
use lab::group::Group;
use lab::kit::{self, Kit};
use lab::machine_plan::MachinePlan;
use lab::plan;
use tool::beside;
use tool::output::Failure;

use crate::places::PROGRAM_PATH;
use crate::selftests::host::{self as programs, SelftestPlan};
use crate::selftests::tree::Tree;
use crate::suite::host;
use crate::suite::host::plan::TestPlan;

/// Runs the acceptance tests.
///
/// # Errors
///
/// As [`host::run`]; a part of the guests is missing.
pub fn test(args: Test) -> Result<(), Failure> {
    let options = plan::kit(args.guest.kit);
    let mut groups = match args.group.is_empty() {
        true => Group::ALL.to_vec(),
        false => args.group,
    };
    if args.long && !groups.contains(&Group::Long) {
        groups.push(Group::Long);
    }
    let machine = machine(args.guest.machine)?;
    let kit = Kit::provide(&options)?;
    let root = match groups.contains(&Group::Long) {
        true => Some(kit::selftest_root(&options)?),
        false => None,
    };
    let plan = TestPlan {
        machine,
        groups,
        root,
        plugin: plan::plugin(args.plugin)?,
        bytes: args.bytes.0,
        only: args.only,
        json: args.output.json,
    };
    host::run(&kit, &plan)
}

/// Lets two guests exchange messages: the group of that name alone.
///
/// # Errors
///
/// As [`test()`]; there is no plugin.
pub fn exchange(args: Exchange) -> Result<(), Failure> {
    let plugin = plan::plugin(args.plugin)?.ok_or_else(|| {
        Failure::unsupported("there is no plugin for NCCL on this machine").with_remedy(
            "build it with `cargo build --release -p devmem-nccl`, or name one with --plugin FILE",
        )
    })?;
    let machine = machine(args.guest.machine)?;
    let kit = Kit::provide(&plan::kit(args.guest.kit))?;
    let plan = TestPlan {
        machine,
        groups: vec![Group::Exchange],
        root: None,
        plugin: Some(plugin),
        bytes: args.bytes.0,
        only: None,
        json: args.output.json,
    };
    host::run(&kit, &plan)
}

/// Runs test programs of a Linux source tree.
///
/// # Errors
///
/// As [`programs::run`]; the tree or a part of the guests is missing.
pub fn selftests(args: Selftests) -> Result<(), Failure> {
    let tree = Tree::open(&args.tree, &args.names)?;
    let machine = machine(args.guest.machine)?;
    let options = plan::kit(args.guest.kit);
    let kit = Kit::provide(&options)?;
    let plan = SelftestPlan {
        machine,
        root: kit::selftest_root(&options)?,
        limit: args.limit,
        before: args.before,
        transcript: args.transcript,
        json: args.output.json,
    };
    programs::run(&kit, &tree, &plan)
}

/// Returns the machine of a guest with the tool and this program.
fn machine(args: MachineArgs) -> Result<MachinePlan, Failure> {
    let tool: PathBuf = beside::find("devmem-tcp")?;
    let mut machine = plan::machine(args, tool)?;
    let this = (beside::this_program()?, PROGRAM_PATH.to_owned());
    machine.put.push(this);
    Ok(machine)
}
