//! `devmem-tcp broker`: binds device memory for programs without privileges.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use devmem_linux::broker::{Broker, Event, Grant};
use devmem_linux::netdev::Netdev;
use devmem_linux::netns::NetNs;

use crate::args;
use tool::output::{Failure, note, print_json};
use tool::signals::StopFlag;

/// Listens and serves clients until a signal arrives.
///
/// # Errors
///
/// The namespace cannot be joined, the socket cannot be made, or this kernel has no netdev family.
pub fn run(args: args::Broker) -> Result<(), Failure> {
    let args::Broker {
        socket,
        allow,
        netns,
        output,
    } = args;
    let stop = StopFlag::install().context("install signal handlers")?;
    if let Some(netns) = &netns {
        // The threads of clients inherit it.
        NetNs::open(netns)?.join()?;
    }
    for grant in &allow {
        check(grant);
    }
    let broker = Broker::listen(&socket, allow.clone()).context("listen for programs")?;
    for grant in &allow {
        note(format_args!(
            "serving {grant} at {}",
            broker.path().display()
        ));
    }
    // A reader of the events that has gone must not end the service.
    let has_reader = AtomicBool::new(output.json);
    let tell = move |event: &Event| {
        if !has_reader.load(Ordering::Relaxed) {
            note(event);
        } else if print_json(event).is_err() {
            has_reader.store(false, Ordering::Relaxed);
        }
    };
    Ok(broker
        .serve(tell, || stop.is_set())
        .context("serve programs")?)
}

/// Warns of a grant for an interface that does not exist yet.
fn check(grant: &Grant) {
    if let Err(error) = Netdev::by_name(grant.interface()) {
        note(format_args!("warning: {grant}: {error}"));
    }
}
