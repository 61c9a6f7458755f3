//! `devmem-tcp lab test`: runs a guest for each group and prints a table of the results.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::far_end::FarEnd;
use super::{
    Group, Line, RowReport, Verdict, devmem_rows, load_rows, rows, stack_rows, two_guests,
};
use crate::accel::Accel;
use crate::job::{Job, ROWS_PATH};
use crate::kit::Kit;
use crate::machine::{self, MachinePlan, RunReport};
use crate::pass_on::{Output, PassOn};
use crate::scratch::Scratch;
use crate::selftests::{MIN_MEMORY_MIB, ROOT};
use tool::output::{Failure, note, print_json};
use tool::terminal::tell_table;

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

/// Results of a group.
#[derive(Debug, Serialize)]
pub(super) struct GroupReport {
    pub(super) group: Group,
    /// How instructions were executed; `None` if the guest did not run.
    #[serde(skip)]
    accel: Option<Accel>,
    /// Of two guests, the longer time.
    boot_s: f64,
    /// How often a guest was started again because it gave no sign of life while booting.
    boot_retries: u32,
    total_s: f64,
    kernel_complaints: Vec<String>,
    pub(super) rows: Vec<RowReport>,
}

impl GroupReport {
    fn new(group: Group) -> Self {
        Self {
            group,
            accel: None,
            boot_s: 0.0,
            boot_retries: 0,
            total_s: 0.0,
            kernel_complaints: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// Returns the results of a group whose guest failed before any row: all have.
    fn lost(plan: &TestPlan, group: Group, failure: &Failure) -> Self {
        let rows = missing_rows(&wanted_rows(plan, group), &[], &failure.to_string());
        rows.iter().for_each(print_row);
        Self {
            rows,
            ..Self::new(group)
        }
    }

    /// Adds the run of a guest.
    pub(super) fn add_run(&mut self, run: RunReport) {
        self.accel = Some(run.accel);
        self.boot_s = self.boot_s.max(run.boot_s);
        self.boot_retries += run.boot_retries;
        self.total_s = self.total_s.max(run.total_s);
        self.kernel_complaints.extend(run.kernel_complaints);
    }
}

/// Results of all groups.
#[derive(Debug, Serialize)]
struct TestReport {
    passed: usize,
    failed: usize,
    skipped: usize,
    accel: Accel,
    bytes: u64,
    qemu: String,
    kernel: String,
    seconds: f64,
    /// How often a guest was started again because it gave no sign of life while booting.
    boot_retries: u32,
    /// Rate of device memory divided by that of an ordinary socket, for streams without verification.
    #[serde(skip_serializing_if = "Option::is_none")]
    devmem_rx_to_plain: Option<f64>,
    groups: Vec<GroupReport>,
}

/// Runs the groups.
///
/// # Errors
///
/// A guest did not boot; a row failed or did not run; or the kernel logged a warning.
pub fn run(
    kit: &Kit,
    plan: &TestPlan,
    job: impl Fn(&MachinePlan, Vec<String>) -> Job,
) -> Result<(), Failure> {
    let start = Instant::now();
    let groups = run_groups(kit, plan, &job)?;
    let all = || groups.iter().flat_map(|group: &GroupReport| &group.rows);
    let count = |verdict| all().filter(|row| row.verdict == verdict).count();
    let rate = |name: &str| all().find(|row| row.row == name)?.mb_per_s;
    let (plain, devmem) = (
        rate(stack_rows::SPEED_PLAIN),
        rate(stack_rows::SPEED_DEVMEM),
    );
    let devmem_rx_to_plain = plain
        .zip(devmem)
        .map(|(plain, devmem)| devmem / plain.max(1e-9));
    let report = TestReport {
        devmem_rx_to_plain,
        passed: count(Verdict::Passed),
        failed: count(Verdict::Failed),
        skipped: count(Verdict::Skipped),
        accel: groups
            .iter()
            .find_map(|group| group.accel)
            .unwrap_or(plan.machine.accel),
        bytes: plan.bytes,
        qemu: kit.qemu.version.clone(),
        kernel: kit.kernel.release.clone(),
        seconds: start.elapsed().as_secs_f64(),
        boot_retries: groups.iter().map(|group| group.boot_retries).sum(),
        groups,
    };
    note(format_args!(
        "{} passed, {} failed, {} skipped, in {:.0} s",
        report.passed, report.failed, report.skipped, report.seconds
    ));
    if report.boot_retries > 0 {
        note(format_args!(
            "guests that gave no sign of life while booting, and were started again: {}",
            report.boot_retries
        ));
    }
    if let Some(ratio) = report.devmem_rx_to_plain {
        note(format_args!(
            "devmem rx runs at {ratio:.1}x the rate of an ordinary socket"
        ));
    }
    if plan.json {
        print_json(&report)?;
    }
    judge(&report)
}

/// Runs each group. Once a guest has run, a group whose guest fails is a failed group, and the next ones run.
fn run_groups(
    kit: &Kit,
    plan: &TestPlan,
    job: &impl Fn(&MachinePlan, Vec<String>) -> Job,
) -> Result<Vec<GroupReport>, Failure> {
    let mut groups: Vec<GroupReport> = Vec::new();
    for group in &plan.groups {
        let has_run = groups.iter().any(|group| group.accel.is_some());
        groups.push(match run_group(kit, plan, *group, job) {
            Err(failure) if has_run && !plan.machine.stop.is_set() => {
                GroupReport::lost(plan, *group, &failure)
            }
            ran => ran?,
        });
    }
    Ok(groups)
}

fn judge(report: &TestReport) -> Result<(), Failure> {
    match *report {
        TestReport {
            passed: 0,
            failed: 0,
            skipped: 0,
            ..
        } => Err(Failure::usage("no row has that text in its name")),
        TestReport { failed: 0, .. } => Ok(()),
        TestReport { failed, .. } => {
            Err(Failure::failed(format!("{failed} rows of the lab failed")))
        }
    }
}

fn run_group(
    kit: &Kit,
    plan: &TestPlan,
    group: Group,
    job: &impl Fn(&MachinePlan, Vec<String>) -> Job,
) -> Result<GroupReport, Failure> {
    let mut report = GroupReport::new(group);
    let names = wanted_rows(plan, group);
    if names.is_empty() {
        return Ok(report);
    }
    if group.has_two_guests() {
        return two_guests::run_group(kit, plan, report, job);
    }
    let folder = Scratch::new()?;
    let wire = folder.path("wire");
    let far_end = has_far_end(group).then(|| FarEnd::new(&wire, plan.bytes, names.len()));
    let mut collected = Collector::new(names.clone(), far_end, None, print_row);
    let mut machine = machine_for(&plan.machine, group, &wire);
    if let (Group::Long, Some(root)) = (group, &plan.root) {
        machine.trees.push((root.clone(), ROOT.to_owned()));
        machine.memory_mib = machine.memory_mib.max(MIN_MEMORY_MIB);
    }
    note(format_args!("{}: starting a guest", group_name(group)));
    let job = job(&machine, guest_command(plan, group));
    let outcome = machine::run(kit, &machine, &job, &mut collected);
    report.rows = collected.rows;
    let trouble = match outcome {
        Ok(outcome) => {
            report.add_run(outcome);
            NOT_RUN.to_owned()
        }
        Err(failure) if report.rows.is_empty() => return Err(failure),
        Err(failure) => failure.to_string(),
    };
    report
        .rows
        .extend(far_rows(group, collected.far_end, plan.bytes));
    let missing = missing_rows(&names, &report.rows, &trouble);
    report.rows.extend(missing.into_iter().inspect(print_row));
    let log = log_row(&report);
    print_row(&log);
    report.rows.push(log);
    Ok(report)
}

/// Returns a failed row for each name that has no report, with the reason.
pub(super) fn missing_rows(
    names: &[impl AsRef<str>],
    reported: &[RowReport],
    trouble: &str,
) -> Vec<RowReport> {
    let is_missing = |name: &&str| reported.iter().all(|row| row.row != *name);
    let names = names.iter().map(AsRef::as_ref).filter(is_missing);
    names.map(|name| failed_row(name, trouble)).collect()
}

pub(super) fn wanted_rows(plan: &TestPlan, group: Group) -> Vec<&'static str> {
    let wanted = |name: &&str| plan.only.as_ref().is_none_or(|only| name.contains(only));
    let names = rows::rows(group).iter().map(|(name, _)| *name);
    names.filter(wanted).collect()
}

/// Returns the command of the guest.
pub(super) fn guest_command(plan: &TestPlan, group: Group) -> Vec<String> {
    let bytes = plan.bytes.to_string();
    let name = group_name(group);
    let mut words = vec![ROWS_PATH, "--group", &name, "--bytes", &bytes];
    if let Some(only) = &plan.only {
        words.extend(["--only", only]);
    }
    words.into_iter().map(str::to_owned).collect()
}

/// Returns the row for the kernel's log.
pub(super) fn log_row(report: &GroupReport) -> RowReport {
    let name = format!("{}: no kernel warning", group_name(report.group));
    if report.total_s == 0.0 {
        return failed_row(
            &name,
            "the guest did not end by itself: its log is not checked",
        );
    }
    match report.kernel_complaints.first() {
        None => RowReport {
            verdict: Verdict::Passed,
            ..failed_row(&name, &format!("boot {:.1} s", report.boot_s))
        },
        Some(first) => {
            let count = report.kernel_complaints.len();
            failed_row(&name, &format!("{count} complaints, the first: {first}"))
        }
    }
}

pub(super) fn failed_row(name: &str, detail: &str) -> RowReport {
    RowReport {
        row: name.to_owned(),
        verdict: Verdict::Failed,
        detail: detail.to_owned(),
        seconds: 0.0,
        mb_per_s: None,
    }
}

pub(super) fn group_name(group: Group) -> String {
    use clap::ValueEnum;
    group
        .to_possible_value()
        .map(|value| value.get_name().to_owned())
        .unwrap_or_default()
}

/// Returns the machine of a group. `wire` is the socket for our stack, if that is the other end.
pub(super) fn machine_for(machine: &MachinePlan, group: Group, wire: &Path) -> MachinePlan {
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

fn has_far_end(group: Group) -> bool {
    matches!(group, Group::Stack | Group::StackLoss)
}

/// Waits for the processes of our stack, and returns their results: each has a stream of `bytes`.
fn far_rows(group: Group, far_end: Option<FarEnd>, bytes: u64) -> Vec<RowReport> {
    let ended = far_end.map(FarEnd::finish).unwrap_or_default();
    let rows = ended.into_iter().enumerate().map(|(at, (what, ok, said))| {
        let ok = ok && bytes_of(&said) == Some(bytes);
        RowReport {
            verdict: match ok {
                true => Verdict::Passed,
                false => Verdict::Failed,
            },
            row: format!("{}: our end {}", group_name(group), at + 1),
            detail: if ok { what } else { format!("{what}: {said}") },
            ..failed_row("", "")
        }
    });
    rows.inspect(print_row).collect()
}

/// Returns the payload bytes in a report of `send` or `recv`.
fn bytes_of(report: &str) -> Option<u64> {
    #[derive(Deserialize)]
    struct Report {
        bytes: u64,
    }
    let report: Report = serde_json::from_str(report).ok()?;
    Some(report.bytes)
}

/// Reason why a row of a guest that ended well has no report.
pub(super) const NOT_RUN: &str = "it did not run";

/// Maximum number of characters of a row's detail.
const DETAIL_CHARS_MAX: usize = 4096;

/// Collects the reports of rows. Its memory is limited for any output of the guest: one line, and one report for each
/// requested row.
#[derive(Debug)]
pub(super) struct Collector {
    line: Vec<u8>,
    pub(super) rows: Vec<RowReport>,
    far_end: Option<FarEnd>,
    /// Number of the guest, if there are two.
    guest: Option<u8>,
    /// Rows that have not been reported yet.
    wanted: Vec<&'static str>,
    /// Called with each row.
    show: fn(&RowReport),
    passed_on: PassOn,
}

impl Collector {
    pub(super) fn new(
        wanted: Vec<&'static str>,
        far_end: Option<FarEnd>,
        guest: Option<u8>,
        show: fn(&RowReport),
    ) -> Self {
        Self {
            line: Vec::new(),
            rows: Vec::new(),
            far_end,
            guest,
            wanted,
            show,
            passed_on: PassOn::default(),
        }
    }

    fn take(&mut self, line: Line) -> io::Result<()> {
        match (line, &mut self.far_end) {
            (Line::Row(row), _) => {
                let row = self.checked(row)?;
                (self.show)(&row);
                self.rows.push(row);
            }
            (Line::Wish { far_end: wish }, Some(far_end)) => {
                far_end
                    .start(wish)
                    .map_err(|failure| io::Error::other(failure.to_string()))?;
            }
            (Line::Wish { .. }, None) => {
                return Err(io::Error::other(
                    "the guest requested our stack, but has a peer",
                ));
            }
        }
        Ok(())
    }

    /// Checks that the row was requested and not reported yet. Returns the report with a truncated detail without control
    /// characters, and the guest in its name.
    fn checked(&mut self, mut row: RowReport) -> io::Result<RowReport> {
        let at = self.wanted.iter().position(|name| *name == row.row);
        let at = at.ok_or_else(|| {
            io::Error::other(
                "the guest reported a row that was not requested, or reported one twice",
            )
        })?;
        self.wanted.swap_remove(at);
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        row.row = guest_row(&row.row, self.guest);
        row.detail = row
            .detail
            .chars()
            .take(DETAIL_CHARS_MAX)
            .map(plain)
            .collect();
        Ok(row)
    }
}

/// Returns the name of a row that runs in each of two guests, or in the only one.
pub(super) fn guest_row(name: &str, guest: Option<u8>) -> String {
    match guest {
        None => name.to_owned(),
        Some(guest) => format!("{name}, guest {guest}"),
    }
}

/// Reads one line of a guest.
fn parse_line(line: &[u8]) -> io::Result<Line> {
    serde_json::from_slice(line).map_err(|error| {
        io::Error::other(format!(
            "the guest printed neither a row nor a valid request: {error}"
        ))
    })
}

impl Output for Collector {
    fn stdout(&mut self, bytes: &[u8]) -> io::Result<()> {
        /// More than the length of any report.
        const MAX_LINE_BYTES: usize = 1 << 20;
        for byte in bytes {
            match byte {
                b'\n' => {
                    let line = std::mem::take(&mut self.line);
                    self.take(parse_line(&line)?)?;
                }
                _ if self.line.len() < MAX_LINE_BYTES => self.line.push(*byte),
                _ => return Err(io::Error::other("the report of a row is too long")),
            }
        }
        Ok(())
    }

    fn stderr(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.passed_on.stderr(bytes)
    }
}

/// Prints a row of the table.
pub(super) fn print_row(row: &RowReport) {
    let mark = row.verdict.mark();
    let rate = row
        .mb_per_s
        .map(|rate| format!("{rate:7.1} MB/s"))
        .unwrap_or_else(|| " ".repeat(12));
    tell_table(format_args!(
        "{mark} {:<46} {:6.1} s {rate}  {}\n",
        row.row, row.seconds, row.detail
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collector(wanted: &[&'static str]) -> Collector {
        let far_end = FarEnd::new(Path::new("/nowhere"), 1, 0);
        Collector::new(wanted.to_vec(), Some(far_end), None, |_| {})
    }

    fn line(row: &RowReport) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(row).unwrap();
        bytes.push(b'\n');
        bytes
    }

    #[test]
    fn rows_are_collected_from_pieces_of_any_size() {
        let mut collector = collector(&["a", "c"]);
        let (first, second) = (line(&failed_row("c", "d")), line(&failed_row("a", "b")));
        for byte in first.iter().chain(&second) {
            collector.stdout(&[*byte]).unwrap();
        }
        assert_eq!(collector.rows.len(), 2);
        assert_eq!(collector.rows[1].row, "a");
        assert!(collector.stdout(b"no json\n").is_err());
    }

    #[test]
    fn a_guest_cannot_choose_arguments_of_the_hosts_programs() {
        for wish in [
            &br#"{"far_end":["send","10.77.0.2","9","--capture","/tmp/file"]}"#[..],
            br#"{"far_end":{"send":{"port":0}}}"#,
            br#"{"far_end":{"send":{"port":9,"bytes":1}}}"#,
            br#"{"far_end":"demo"}"#,
            br#"{"far_end":{"receive":["--out","/tmp/file"]}}"#,
        ] {
            let refused = collector(&[]).stdout(&[wish, b"\n"].concat());
            let said = refused.unwrap_err().to_string();
            assert!(said.contains("neither a row nor a valid request"), "{said}");
        }
        for wish in [
            &br#"{"far_end":"receive"}"#[..],
            br#"{"far_end":{"send":{"port":9}}}"#,
        ] {
            assert!(matches!(parse_line(wish), Ok(Line::Wish { .. })));
        }
    }

    #[test]
    fn a_guest_can_report_only_requested_rows_and_each_once() {
        let mut collector = collector(&["a"]);
        assert!(collector.stdout(&line(&failed_row("b", ""))).is_err());
        assert!(collector.stdout(&line(&failed_row("a", ""))).is_ok());
        assert!(collector.stdout(&line(&failed_row("a", ""))).is_err());
        assert_eq!(collector.rows.len(), 1);
    }

    #[test]
    fn a_row_of_two_guests_names_its_guest() {
        let mut second = Collector::new(vec!["a"], None, Some(1), |_| {});
        second.stdout(&line(&failed_row("a", ""))).unwrap();
        assert_eq!(second.rows[0].row, "a, guest 1");
        let wanted = ["a, guest 0", "a, guest 1"];
        let missing = missing_rows(&wanted, &second.rows, "no boot");
        assert_eq!(missing.len(), 1);
        assert_eq!(
            (&*missing[0].row, &*missing[0].detail),
            ("a, guest 0", "no boot")
        );
    }

    #[test]
    fn the_detail_of_a_row_is_truncated_and_has_no_control_characters() {
        let mut collector = collector(&["a"]);
        let long = format!("\u{1b}[2J{}", "x".repeat(100_000));
        collector.stdout(&line(&failed_row("a", &long))).unwrap();
        let kept = &collector.rows[0].detail;
        assert_eq!(kept.chars().count(), DETAIL_CHARS_MAX);
        assert!(kept.starts_with(" [2Jx"), "{}", &kept[..8]);
    }

    #[test]
    fn the_bytes_of_a_report_are_parsed() {
        assert_eq!(bytes_of(r#"{"backend":"user","bytes":4096}"#), Some(4096));
        assert_eq!(bytes_of(r#"{"bytes":0}"#), Some(0));
        assert_eq!(bytes_of("connection refused"), None);
    }
}
