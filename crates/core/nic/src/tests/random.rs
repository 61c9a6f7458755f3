//! Random frames and predictions: every byte is correct, and every net_iov goes home.

use proptest::prelude::*;
use wire::{SackBlocks, TcpOptions};

use super::harness::*;
use crate::*;

#[derive(Clone, Debug)]
enum Step {
    Segment {
        segment: Shape,
        delivery: Delivery,
        trusted: bool,
    },
    /// The application returns its oldest payload, through the NIC or by dropping it.
    Release {
        recycle: bool,
    },
    Garbage {
        bytes: Vec<u8>,
        delivery: Delivery,
    },
    /// A good frame with bytes changed or cut off.
    Damaged {
        segment: Shape,
        at: u16,
        with: u8,
        cut: Option<u16>,
        delivery: Delivery,
    },
    Restart {
        host: bool,
    },
    Space,
}

#[derive(Clone, Debug)]
struct Shape {
    v6: bool,
    tagged: bool,
    timestamps: bool,
    sacks: u8,
    port: u16,
    len: usize,
    seed: usize,
}

impl Shape {
    fn tcp(&self) -> Tcp {
        let Self {
            v6,
            tagged,
            timestamps: stamped,
            sacks,
            port,
            len,
            seed,
        } = *self;
        let mut options = if stamped {
            timestamps()
        } else {
            TcpOptions::default()
        };
        let mut blocks = SackBlocks::new();
        for i in 0..u32::from(sacks) {
            blocks.push(i * 10, i * 10 + 5);
        }
        options.sack = blocks;
        let vlan = tagged.then_some(0);
        Tcp {
            v6,
            vlan,
            options,
            dst_port: port,
            ..tcp(&pattern(seed, len))
        }
    }
}

fn shape() -> impl Strategy<Value = Shape> {
    let len = prop_oneof![
        3 => 0..200_usize,
        3 => Just(1448_usize),
        2 => 200..9000_usize,
        3 => Just(65_160_usize),
        1 => 9000..65_400_usize,
    ];
    let port = prop_oneof![Just(80_u16), Just(5201), Just(5201), Just(5202)];
    (any::<(bool, bool, bool)>(), 0..3_u8, port, len, any::<u8>()).prop_map(
        |((v6, tagged, timestamps), sacks, port, len, seed)| Shape {
            v6,
            tagged,
            timestamps,
            sacks,
            port,
            len: len.min(65_535 - 20 - 60),
            seed: seed.into(),
        },
    )
}

fn delivery() -> impl Strategy<Value = Delivery> {
    prop_oneof![3 => Just(Delivery::Scatter), 1 => Just(Delivery::Whole)]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (shape(), delivery(), any::<bool>())
            .prop_map(|(segment, delivery, trusted)| Step::Segment { segment, delivery, trusted }),
        6 => any::<bool>().prop_map(|recycle| Step::Release { recycle }),
        2 => (proptest::collection::vec(any::<u8>(), 0..300), delivery())
            .prop_map(|(bytes, delivery)| Step::Garbage { bytes, delivery }),
        4 => (shape(), any::<(u16, u8)>(), proptest::option::of(any::<u16>()), delivery()).prop_map(
            |(segment, (at, with), cut, delivery)| Step::Damaged { segment, at, with, cut, delivery }
        ),
        1 => any::<bool>().prop_map(|host| Step::Restart { host }),
        1 => Just(Step::Space),
    ]
}

struct Held {
    payload: netmem::FragList,
    expected: Vec<u8>,
}

/// Executes one step; received packets are added to `held`.
#[expect(clippy::too_many_lines, reason = "one row for each case")]
fn take(bench: &mut Bench, step: Step, held: &mut Vec<Held>) {
    match step {
        Step::Segment {
            segment,
            delivery,
            trusted,
        } => {
            let meta = if trusted { PARTIAL } else { UNVERIFIED };
            let sent = segment.tcp();
            bench.link.deliver(sent.frame(), meta, delivery);
            let before = bench.nic.drops().clone();
            match bench.receive() {
                Some(packet) => {
                    assert_eq!(packet.queue.0, sent.dst_port.saturating_sub(5200));
                    held.push(Held {
                        payload: packet.payload.into_frags(),
                        expected: sent.payload,
                    });
                }
                None => {
                    let drops = bench.nic.drops();
                    let short =
                        drops.get(DropReason::RxNoBuffers) + drops.get(DropReason::RxNoHostBuffers);
                    let was = before.get(DropReason::RxNoBuffers)
                        + before.get(DropReason::RxNoHostBuffers);
                    assert_eq!(short, was + 1, "only for lack of memory: {drops:?}");
                }
            }
        }
        Step::Release { recycle } if !held.is_empty() => {
            let Held { payload, expected } = held.remove(0);
            assert_eq!(bench.read(&payload), expected, "the bytes are unchanged");
            match recycle {
                true => bench.nic.recycle(payload),
                false => drop(payload),
            }
        }
        Step::Release { .. } => {}
        Step::Garbage { bytes, delivery } => {
            bench.link.deliver(bytes, UNVERIFIED, delivery);
            bench.receive();
        }
        Step::Damaged {
            segment,
            at,
            with,
            cut,
            delivery,
        } => {
            let mut frame = segment.tcp().frame();
            // In the headers or directly after them.
            let at = usize::from(at) % frame.len().min(150);
            frame[at] = with;
            if let Some(cut) = cut {
                frame.truncate(usize::from(cut) % 200);
            }
            bench.link.deliver(frame, UNVERIFIED, delivery);
            bench.receive();
        }
        Step::Restart { host } => {
            let device = std::sync::Arc::clone(&bench.devices[0]);
            let choice = if host {
                ProviderChoice::Host
            } else {
                ProviderChoice::Provider(device)
            };
            // Refused when the application holds all of the device's memory.
            let _ = bench.nic.restart_queue(Q1, choice);
        }
        Step::Space => {
            for queue in [Q0, Q1, Q2] {
                let RxSpace {
                    free_niovs,
                    niov_size,
                    bytes,
                } = bench.nic.rx_space(queue);
                assert!(bytes <= (free_niovs + 1) * niov_size);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn payload_is_always_correct_and_all_net_iovs_are_recycled(
        steps in proptest::collection::vec(step(), 1..120),
        linear_bytes in prop_oneof![Just(0_usize), Just(1), Just(64), Just(1500)],
        small_niovs in any::<bool>(),
    ) {
        let niov_size = if small_niovs { 4096 } else { 65_536 };
        let devices = vec![opaque(1 << 20, 1, niov_size), opaque(512 << 10, 2, 16_384)];
        let config = NicConfig { linear_bytes, host_mem_bytes: 1 << 20, ..NicConfig::default() };
        let mut bench = Bench::new(PLAIN, config, devices);
        let mut held = Vec::new();
        for step in steps {
            take(&mut bench, step, &mut held);
        }
        for Held { payload, expected } in held {
            prop_assert_eq!(bench.read(&payload), expected);
            bench.nic.recycle(payload);
        }
        bench.finish();
    }
}
