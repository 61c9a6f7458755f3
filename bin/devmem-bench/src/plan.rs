//! The plan of `bench rx` and `bench tx`: their validated command lines.

use std::time::Duration;

use clap::Args;
use netmem::NiovSize;

use crate::form::FormArgs;
use crate::repetitions::at_least_one;
use crate::row::Case;
use tool::memory::MemoryKind;
use tool::output::Failure;
use tool::size::Size;

/// Options of a measurement.
#[derive(Debug, Args)]
pub struct MeasureArgs {
    /// Repetitions of all rows; use at least 5 to see the spread
    #[arg(long, value_name = "N", default_value_t = 7)]
    reps: usize,
    /// Duration of each run, in seconds
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    seconds: f64,
    /// MTU: largest IP packet
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    mtu: u16,
    /// Size of the device memory
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    mem_size: Size,
    /// Kind of that memory: anonymous, udmabuf, cuda:N or hip:N for GPU N. With memory of a GPU, only the rows of our library run:
    /// the others access it by the CPU
    #[arg(long, value_name = "KIND", default_value = "anonymous")]
    memory: MemoryKind,
    /// Processors for receiver and sender [default: the first two]
    #[arg(long, value_name = "R,S", value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Run only these rows
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<String>,
    /// List the rows and exit
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    form: FormArgs,
}

/// A run of a benchmark with rows.
#[derive(Clone, Debug)]
pub struct Plan<C> {
    /// The rows.
    pub cases: Vec<C>,
    /// Repetitions of all of them.
    pub repetitions: usize,
    /// Duration of each run.
    pub time: Duration,
    /// Largest IP packet.
    pub mtu: u16,
    /// Bytes of device memory.
    pub mem_bytes: usize,
    /// Kind of that memory.
    pub memory: MemoryKind,
    /// Processors for receiver and sender, if given.
    pub cpus: Option<(usize, usize)>,
    /// Only list the rows.
    pub list: bool,
    /// Form of the report.
    pub form: FormArgs,
}

impl<C: Case> Plan<C> {
    /// Validates the command line; `all` are the existing rows.
    ///
    /// # Errors
    ///
    /// A usage error that names the invalid option.
    pub fn new(args: &MeasureArgs, all: &[C]) -> Result<Self, Failure> {
        let MeasureArgs {
            reps,
            seconds,
            mtu,
            mem_size,
            memory,
            cpus,
            only,
            list,
            form,
        } = args;
        at_least_one("--reps", *reps as u64)?;
        let time = Duration::try_from_secs_f64(*seconds)
            .ok()
            .filter(|time| TIMES.contains(time));
        let Some(time) = time else {
            return Err(Failure::usage(format_args!(
                "--seconds {seconds}: must be 0.1 to 60"
            )));
        };
        if *mtu < MIN_MTU {
            return Err(Failure::usage(format_args!(
                "--mtu {mtu}: must be at least {MIN_MTU}"
            )));
        }
        let mem_bytes = usize::try_from(mem_size.0).unwrap_or(usize::MAX);
        if mem_bytes < MIN_MEMORY || !mem_bytes.is_multiple_of(NiovSize::MAX.bytes()) {
            let (unit, least) = (NiovSize::MAX, Size(MIN_MEMORY as u64));
            return Err(Failure::usage(format_args!(
                "--mem-size {mem_size}: a multiple of {unit}, {least} at least"
            )));
        }
        let cpus = match cpus.as_slice() {
            [] => None,
            &[receiver, sender] => Some((receiver, sender)),
            _ => {
                return Err(Failure::usage(
                    "--cpus takes two: the receiver's and the sender's",
                ));
            }
        };
        Ok(Self {
            cases: able(chosen(only, all)?, only, *memory)?,
            repetitions: *reps,
            time,
            mtu: *mtu,
            mem_bytes,
            memory: *memory,
            cpus,
            list: *list,
            form: form.clone(),
        })
    }
}

/// Allowed durations. A shorter run would be only slow start, a longer one is probably a typing error.
const TIMES: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(60);

/// Packet size that every IPv4 host accepts (RFC 791 3.2).
const MIN_MTU: u16 = 576;

/// Several times the data that a sender may have in flight.
const MIN_MEMORY: usize = 32 << 20;

fn chosen<C: Case>(only: &[String], all: &[C]) -> Result<Vec<C>, Failure> {
    rows_named(only, all, |case| case.row_name().name)
}

/// Returns the rows that `only` names; all if it is empty.
///
/// # Errors
///
/// A usage error that names the row that does not exist.
pub fn rows_named<R: Copy>(
    only: &[String],
    all: &[R],
    name_of: impl Fn(&R) -> &'static str,
) -> Result<Vec<R>, Failure> {
    let exists = |name: &&String| all.iter().any(|row| name_of(row) == name.as_str());
    if let Some(unknown) = only.iter().find(|name| !exists(name)) {
        let failure = Failure::usage(format_args!("--only: there is no row {unknown:?}"));
        return Err(failure.with_remedy("--list prints the rows"));
    }
    let is_wanted = |row: &&R| {
        let name = name_of(row);
        only.is_empty() || only.iter().any(|wanted| wanted == name)
    };
    Ok(all.iter().filter(is_wanted).copied().collect())
}

/// Removes the rows that cannot use the memory; refuses them if `only` names them.
fn able<C: Case>(
    mut cases: Vec<C>,
    only: &[String],
    memory: MemoryKind,
) -> Result<Vec<C>, Failure> {
    let is_able = |case: &C| memory.is_mapped() || !case.maps_memory();
    if let Some(unable) = cases.iter().find(|case| !is_able(case))
        && !only.is_empty()
    {
        let name = unable.row_name().name;
        let failure = Failure::usage(format_args!(
            "--only {name}: this row accesses the memory by the CPU, which cannot access {memory}"
        ));
        return Err(failure.with_remedy("--memory anonymous, or rows of our library"));
    }
    cases.retain(is_able);
    Ok(cases)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::rx::cases::{self, CASES};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: MeasureArgs,
    }

    fn plan(line: &str) -> Result<Plan<cases::RxCase>, String> {
        let words = ["rx"].into_iter().chain(line.split_whitespace());
        let args = Line::try_parse_from(words)
            .map_err(|error| error.to_string())?
            .args;
        Plan::new(&args, CASES).map_err(|failure| failure.to_string())
    }

    #[test]
    fn the_defaults_run_every_row() {
        let plan = plan("").unwrap();
        assert_eq!(plan.cases.len(), CASES.len());
        assert_eq!(
            (plan.repetitions, plan.time, plan.mtu),
            (7, Duration::from_secs(1), 1500)
        );
        assert_eq!((plan.mem_bytes, plan.cpus), (256 << 20, None));
    }

    #[test]
    fn rows_and_processors_can_be_chosen() {
        let plan = plan("--only kernel-copy,ours/1core --cpus 2,4").unwrap();
        let names: Vec<&str> = plan.cases.iter().map(|case| case.name).collect();
        assert_eq!(
            (names, plan.cpus),
            (vec!["kernel-copy", "ours/1core"], Some((2, 4)))
        );
    }

    #[test]
    fn memory_of_a_gpu_is_for_the_rows_of_our_library() {
        let plan = plan("--memory cuda:0").unwrap();
        assert_eq!(plan.memory, MemoryKind::Cuda(0));
        assert!(plan.cases.len() > 3);
        let ours = |case: &cases::RxCase| case.name.starts_with("ours");
        assert!(plan.cases.iter().all(ours));
    }

    #[test]
    fn an_invalid_option_is_named() {
        let cases = [
            ("--reps 0", "--reps 0"),
            ("--seconds 0", "--seconds 0: "),
            ("--seconds 1e9", "--seconds 1000000000: "),
            ("--seconds nan", "--seconds NaN: "),
            ("--mtu 100", "--mtu 100: "),
            ("--mem-size 33M", "--mem-size 33 MiB: a multiple of 2 MiB"),
            ("--mem-size 2M", "32 MiB at least"),
            ("--cpus 1", "--cpus takes two"),
            ("--only kernel-copy,nosuch", "there is no row \"nosuch\""),
            ("--memory gpu", "takes anonymous, udmabuf"),
            (
                "--memory hip:1 --only ours,readv",
                "--only readv: this row accesses the memory by the CPU, which cannot access hip:1",
            ),
        ];
        for (line, text) in cases {
            let error = plan(line).expect_err(line);
            assert!(error.contains(text), "{line}: {error}");
        }
    }
}
