//! Scenarios that once failed, written out: seeds may produce other scenarios since.

use std::time::Duration;

use netsim::PairConfig;

use super::scenario::{Ending, FlowPlan, Memory, Reader, Scenario};
use super::world;

#[test]
fn a_promise_too_small_for_the_window_field_counts_as_none() {
    // A SYN promises 65,535 bytes, and later windows are advertised in units of two bytes. The last byte was promised
    // but could not be advertised, so that probes of the peer, which saw a closed window, did not count as probes.
    world::run(&Scenario {
        seed: 1_007_442,
        pair: PairConfig {
            seed: 1_007_442,
            impairment: Some("loss=12%,reorder=5%".parse().expect("an impairment")),
            mtu: 9000,
            host_mem_bytes: 256 << 10,
            tcp: tcp::Config {
                settings: tcp::Settings {
                    rcv_buf_max: 64 << 10,
                    nodelay: true,
                    syn_retries: 12,
                    ..tcp::Settings::default()
                },
                acks: tcp::AckConfig {
                    quick: 1,
                    ..tcp::AckConfig::default()
                },
                timers: tcp::TimerConfig {
                    syn_ack_retries: 12,
                    ..tcp::TimerConfig::default()
                },
                pacing: true,
                ..tcp::Config::default()
            },
            wire_frames: 1,
            ..PairConfig::default()
        },
        ipv6: false,
        memories: [
            Some(Memory {
                bytes: 24 * 4096,
                niov: 4096,
            }),
            None,
        ],
        connections: vec![[
            FlowPlan {
                total: 476,
                chunk: 3,
                ring: Some(4096),
                reader: Reader::Eager,
            },
            FlowPlan {
                total: 75_147,
                chunk: 20_000,
                ring: Some(65_536),
                reader: Reader::Sleepy,
            },
        ]],
        loops: false,
        nap: Some(Duration::from_millis(300)),
        outage: None,
        ending: Ending::Whole,
    });
}
