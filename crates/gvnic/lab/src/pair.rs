//! Two guests, with one NIC each, on one wire.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use crate::job::Job;
use crate::kit::Kit;
use crate::machine::{self, RunReport};
use crate::machine_plan::MachinePlan;
use crate::pass_on::Output;
use crate::scratch::Scratch;
use tool::output::Failure;

/// Time between two checks whether the first guest's NIC listens.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The machines of two guests. Each has the NIC `eth0`: 10.77.0.1 and fd77::1 in the first, 10.77.0.2 and fd77::2 in the second.
#[derive(Debug)]
pub struct Pair {
    /// The machines.
    pub machines: [MachinePlan; 2],
    wire: PathBuf,
    /// Has the socket of the wire.
    _folder: Scratch,
}

impl Pair {
    /// Plans two guests like `machine`, each with half of its processors.
    ///
    /// # Errors
    ///
    /// The folder for the socket of the wire cannot be created.
    pub fn new(machine: &MachinePlan) -> Result<Self, Failure> {
        let folder = Scratch::new()?;
        let wire = folder.path("wire");
        let plan = |guest: u8, wire: String| {
            let mut machine = machine.clone();
            machine.cpus = machine.cpus.div_ceil(2);
            machine.nics.count = 1;
            machine.nics.first = guest;
            machine.nics.wire = Some(wire);
            machine
        };
        let first = plan(0, format!("unix-listen:{}", wire.display()));
        let mut second = plan(1, format!("unix:{}", wire.display()));
        // The packets of both NICs are in the capture of the first one.
        second.nics.capture = None;
        second.log = second.log.map(|mut log| {
            log.as_mut_os_string().push(".2");
            log
        });
        Ok(Self {
            machines: [first, second],
            wire,
            _folder: folder,
        })
    }

    /// Runs a job in each guest at the same time.
    ///
    /// # Errors
    ///
    /// For each guest as [`machine::run`].
    pub fn run(
        &self,
        kit: &Kit,
        jobs: &[Job; 2],
        outputs: [&mut dyn Output; 2],
    ) -> [Result<RunReport, Failure>; 2] {
        let ([first, second], [first_job, second_job]) = (&self.machines, jobs);
        let [first_output, second_output] = outputs;
        thread::scope(|scope| {
            let first = scope.spawn(|| machine::run(kit, first, first_job, first_output));
            // The second guest's NIC connects to the first one's.
            while !self.wire.exists() && !first.is_finished() {
                thread::sleep(POLL_INTERVAL);
            }
            let second = machine::run(kit, second, second_job, second_output);
            let panicked = |_| Err(Failure::failed("the thread of the first guest panicked"));
            [first.join().unwrap_or_else(panicked), second]
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::MachineArgs;
    use crate::plan;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        machine: MachineArgs,
    }

    #[test]
    fn the_guests_share_a_wire_and_the_processors_but_no_file() {
        let words = ["lab", "--cpus", "4", "--capture", "c.pcapng", "--log", "l"];
        let machine = plan::machine(Line::parse_from(words).machine, "/tool".into()).unwrap();
        let pair = Pair::new(&machine).unwrap();
        let [first, second] = &pair.machines;
        let wire = pair.wire.display();
        assert_eq!(first.nics.wire, Some(format!("unix-listen:{wire}")));
        assert_eq!(second.nics.wire, Some(format!("unix:{wire}")));
        assert_eq!((first.cpus, second.cpus), (2, 2));
        assert_eq!((first.nics.first, second.nics.first), (0, 1));
        assert!(first.nics.capture.is_some() && second.nics.capture.is_none());
        assert_eq!(first.log, Some(PathBuf::from("l")));
        assert_eq!(second.log, Some(PathBuf::from("l.2")));
    }
}
