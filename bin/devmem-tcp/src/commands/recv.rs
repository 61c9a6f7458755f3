//! `devmem-tcp recv`: like netcat, into device memory.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;

use anyhow::Context;
use devmem_linux::cpu;
use devmem_tcp::Netdev;

use crate::capture::Capture;
use crate::output::{Failure, note, print_json};
use crate::pattern::{Expected, RepeatingPattern};
use crate::plan::{Destination, RecvPlan};
use crate::progress::Progress;
use crate::receiver::Receiver;
use crate::report::RunReport;
use crate::signals::StopFlag;
use crate::transfer::{Go, Task};

/// Receives as `plan` says.
///
/// # Errors
///
/// Whatever kept it from that; wrong bytes; memory that did not come home.
pub fn run(plan: &RecvPlan) -> Result<(), Failure> {
    let stop = StopFlag::install().context("install signal handlers")?;
    let link = format!("tap:{}", plan.tap);
    let mut output = open_output(plan.output.as_ref())?;
    let capture = open_capture(plan)?;
    let mut builder = Netdev::builder(&link)?.address(&plan.ours.to_string())?;
    if let Some(peers) = plan.peers {
        builder = builder.peer_address(&peers.to_string())?;
    }
    if let Some(capture) = &capture {
        builder = builder.capture(Box::new(capture.clone()));
    }
    let mut receiver = Receiver::open(builder, &plan.nic, plan.local)?;
    note(format_args!("listening on {} over {link}", plan.local));

    let mut progress = Progress::new(None);
    let totals = receiver.run(Task {
        connections: plan.connections,
        keep_listening: plan.keep_listening,
        expected: &|_| {
            plan.validate
                .map(|n| Expected::Repeating(RepeatingPattern::new(n)))
        },
        output: output.as_mut().map(|output| output as &mut dyn Write),
        keep_tokens: plan.keep_tokens,
        clock: cpu::process_cpu_time,
        watch: &mut |sofar| {
            progress.at(sofar.bytes, sofar.elapsed);
            Ok(if stop.is_set() { Go::Stop } else { Go::On })
        },
    })?;
    progress.finish();

    let mut report = RunReport::of("user", link, &plan.nic, plan.ours.address);
    totals.fill(&mut report);
    receiver.finish(&mut report);
    if let (Some(capture), Some(path)) = (capture, &plan.capture) {
        let packets = capture
            .finish()
            .with_context(|| format!("write {}", path.display()))?;
        note(format_args!("{packets} packets in {}", path.display()));
    }
    eprint!("{report}");
    if plan.json {
        print_json(&report)?;
    }
    match report.complaint() {
        Some(complaint) => Err(Failure::failed(complaint)),
        None if totals.broken > 0 && !stop.is_set() => Err(Failure::failed(format!(
            "{} connections broke",
            totals.broken
        ))),
        None => Ok(()),
    }
}

fn open_output(destination: Option<&Destination>) -> Result<Option<Box<dyn Write>>, Failure> {
    Ok(match destination {
        None => None,
        Some(Destination::Stdout) => {
            // Not Stdout itself, which would look for line ends in the payload.
            let stdout = io::stdout().as_fd().try_clone_to_owned();
            Some(Box::new(File::from(stdout.context("duplicate stdout")?)))
        }
        Some(Destination::File(path)) => {
            let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
            Some(Box::new(file))
        }
    })
}

fn open_capture(plan: &RecvPlan) -> Result<Option<Capture>, Failure> {
    let Some(path) = &plan.capture else {
        return Ok(None);
    };
    let capture =
        Capture::create(path, &plan.tap).with_context(|| format!("create {}", path.display()))?;
    Ok(Some(capture))
}
