//! `devmem-tcp lab`: guests in which the kernel runs device memory TCP.

use serde::Serialize;

use crate::accel::{self, Accel, RunsBy};
use crate::args::{Fetch, Lab, LabCommand, Run, Shell, Status};
use crate::kit::{self, Kit};
use crate::machine::{self, RunReport};
use crate::machine_plan::{Debugger, DebuggerStart};
use crate::pair::Pair;
use crate::pass_on::{Output, PassOn};
use crate::plan::{self, LabRunPlan};
use tool::beside;
use tool::output::{Failure, note, print_json, say};
use tool::parse::OutputArgs;

/// The environment variable that tells the guests of a pair apart: 0 or 1.
const GUEST: &str = "DEVMEM_TEST_GUEST";

/// The program with the acceptance tests.
const TESTS: &str = "devmem-lab";

/// Runs the subcommand.
///
/// # Errors
///
/// The subcommand failed, or the command in the guest did.
pub fn run(args: Lab) -> Result<(), Failure> {
    match args.command {
        LabCommand::Fetch(args) => fetch(args),
        LabCommand::Status(args) => status(args),
        LabCommand::Run(args) => run_command(args),
        LabCommand::Shell(args) => shell(args),
        LabCommand::Test(_) | LabCommand::Exchange(_) | LabCommand::Selftests(_) => hand_over(),
    }
}

/// Replaces this process by the program with the tests, which has these commands with the same options.
fn hand_over() -> Result<(), Failure> {
    // What follows `devmem-tcp lab`; the tool has no options before it.
    beside::become_program(TESTS, std::env::args_os().skip(2))
}

fn fetch(args: Fetch) -> Result<(), Failure> {
    let mut options = plan::kit(args.kit);
    options.refresh = args.refresh;
    let kit = Kit::provide(&options)?;
    // A guest without shared folders does not need it.
    if let Err(failure) = kit::virtiofsd(&options) {
        note(format_args!("--share cannot be used: {failure}"));
    }
    show(&kit, &args.output)
}

fn status(args: Status) -> Result<(), Failure> {
    let mut options = plan::kit(args.kit);
    options.offline = true;
    show(&Kit::provide(&options)?, &args.output)
}

fn show(kit: &Kit, output: &OutputArgs) -> Result<(), Failure> {
    say!(
        "QEMU     {} ({})",
        kit.qemu.version,
        kit.qemu.program.display()
    );
    say!(
        "kernel   {} ({})",
        kit.kernel.release,
        kit.kernel.image.display()
    );
    for module in &kit.kernel.modules {
        say!("module   {}", module.display());
    }
    say!("shell    {}", kit.busybox.display());
    for (name, place) in &kit.programs {
        say!("program  {name} ({})", place.display());
    }
    let by = decision(kit)?;
    say!("runs by  {by}");
    if output.json {
        print_json(&Shown {
            kit,
            accel: by.accel(),
            runs_by: by.to_string(),
        })?;
    }
    Ok(())
}

/// The parts of a guest, and how guests are run.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    kit: &'a Kit,
    accel: Accel,
    runs_by: String,
}

/// Returns how guests are run, as the next run will decide. Whether KVM works is tried with a guest, once after a boot of this
/// machine.
fn decision(kit: &Kit) -> Result<RunsBy, Failure> {
    if accel::is_to_be_tried(kit) {
        note("trying KVM with a guest, once");
        let machine = plan::bare_machine()?;
        let job = plan::job(&machine, vec!["true".to_owned()]);
        if let Err(failure) = machine::run(kit, &machine, &job, &mut PassOn::default()) {
            note(format_args!("the guest failed: {failure}"));
        }
    }
    accel::decide(Accel::Auto, kit)
}

/// Output of the command to stderr, because stdout is for the JSON.
#[derive(Default)]
struct ToStderr(PassOn);

impl Output for ToStderr {
    fn stdout(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.0.stderr(bytes)
    }

    fn stderr(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.0.stderr(bytes)
    }
}

fn run_command(args: Run) -> Result<(), Failure> {
    let mut plan = LabRunPlan::run(args)?;
    let kit = parts(&mut plan)?;
    if plan.is_pair {
        return run_pair(&kit, &plan);
    }
    tell_about_debugger(&plan);
    let mut output: Box<dyn Output> = if plan.json {
        Box::<ToStderr>::default()
    } else {
        Box::<PassOn>::default()
    };
    let outcome = machine::run(&kit, &plan.machine, &plan.job, output.as_mut())?;
    if plan.json {
        print_json(&outcome)?;
    }
    judge(&plan, &outcome)
}

/// Runs the job in two guests at the same time. Their output is passed on as it comes.
fn run_pair(kit: &Kit, plan: &LabRunPlan) -> Result<(), Failure> {
    let pair = Pair::new(&plan.machine)?;
    let jobs = [0, 1].map(|guest| {
        let mut job = plan.job.clone();
        job.nics = plan::nics(&pair.machines[guest]);
        job.env.push((GUEST.to_owned(), guest.to_string()));
        job
    });
    let [mut first, mut second] = [PassOn::default(), PassOn::default()];
    for outcome in pair.run(kit, &jobs, [&mut first, &mut second]) {
        judge(plan, &outcome?)?;
    }
    Ok(())
}

/// Finds or fetches the parts of a guest, with the server of its shared folders if it has any.
fn parts(plan: &mut LabRunPlan) -> Result<Kit, Failure> {
    let kit = Kit::provide(&plan.kit)?;
    kit.kernel.check_drivers(&plan.machine.extra_drivers())?;
    if !plan.machine.shares.folders.is_empty() {
        plan.machine.shares.program = Some(kit::virtiofsd(&plan.kit)?);
    }
    Ok(kit)
}

fn tell_about_debugger(plan: &LabRunPlan) {
    if let Some(Debugger { port, start }) = plan.machine.debugger {
        let what = match start {
            DebuggerStart::Waits => "the guest waits for its `continue`",
            DebuggerStart::Runs => "the guest runs",
        };
        note(format_args!(
            "gdb vmlinux -ex 'target remote 127.0.0.1:{port}' connects a debugger; {what}"
        ));
    }
}

fn shell(args: Shell) -> Result<(), Failure> {
    let mut plan = LabRunPlan::shell(args)?;
    let kit = parts(&mut plan)?;
    tell_about_debugger(&plan);
    note("starting a guest; `exit` or Ctrl-D ends it");
    let outcome = machine::run(&kit, &plan.machine, &plan.job, &mut PassOn::default())?;
    for line in &outcome.kernel_complaints {
        note(format_args!("the guest's kernel log: {line}"));
    }
    Ok(())
}

fn judge(plan: &LabRunPlan, outcome: &RunReport) -> Result<(), Failure> {
    if let Some(file) = outcome.missing_files.first() {
        return Err(Failure::failed(format!("--get: {file}")));
    }
    if let Some(first) = outcome
        .kernel_complaints
        .first()
        .filter(|_| !plan.allow_warnings)
    {
        let count = outcome.kernel_complaints.len();
        return Err(Failure::failed(format!(
            "the guest's kernel logged {count} warnings or errors, the first: {first}"
        ))
        .with_remedy("keep the log with --log FILE"));
    }
    match outcome.exit_code {
        0 => Ok(()),
        code => Err(Failure::of_command(code)),
    }
}
