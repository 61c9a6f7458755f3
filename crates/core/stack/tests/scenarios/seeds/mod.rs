//! Thousands of simulations, each made from one seed: two stacks, a wire that loses, reorders, duplicates, corrupts and
//! delays packets, connections that send from device memory and receive into it in both directions at once, with small
//! windows, queues and memories, and slow readers.
//!
//! Each must end within a bounded number of steps with every byte right, every send complete and every net_iov given
//! back. A failure prints the seed and the scenario.
//!
//! - `DEVMEM_SEEDS=100000 cargo test -p devmem-stack --test stack seeds` tries more, a quarter in each test,
//! - `DEVMEM_SEED=4711 cargo test -p devmem-stack --test stack seeds` tries one.

mod flow;
mod found;
mod scenario;
mod world;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use scenario::Ending;

use crate::door::SEEDS;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Returns the seeds to run: those of the environment, or the default number from `first` on.
fn seeds(first: u64) -> Range<u64> {
    match number("DEVMEM_SEED") {
        Some(seed) => seed..seed + 1,
        None => first..first + number("DEVMEM_SEEDS").map_or(SEEDS, |all| all / 4),
    }
}

/// Runs the scenarios of `seeds`, all with this ending.
fn try_all(seeds: Range<u64>, ending: Option<Ending>) {
    for seed in seeds {
        try_one(seed, ending);
    }
}

fn try_one(seed: u64, ending: Option<Ending>) {
    let scenario = scenario::Scenario::new(seed, ending);
    if catch_unwind(AssertUnwindSafe(|| world::run(&scenario))).is_err() {
        panic!(
            "seed {seed}: run it alone with DEVMEM_SEED={seed}, in the test of this name; its world is\n{scenario:#?}"
        );
    }
}

#[test]
fn every_world_ends_with_all_bytes_right_all_sends_complete_and_all_memory_home() {
    try_all(seeds(0), None);
}

#[test]
fn so_does_every_world_of_another_thousand() {
    try_all(seeds(1_000_000), None);
}

#[test]
fn a_reset_in_the_middle_completes_every_send_and_frees_all_memory() {
    try_all(seeds(2_000_000), Some(Ending::Abort));
}

#[test]
fn a_peer_that_vanishes_in_the_middle_completes_every_send_and_frees_all_memory() {
    try_all(seeds(3_000_000), Some(Ending::Vanish));
}
