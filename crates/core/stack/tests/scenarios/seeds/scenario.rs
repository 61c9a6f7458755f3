//! The scenario of a seed.

use std::time::Duration;

use netsim::PairConfig;
use nic::{Impairment, Probability};
use tcp::{CongestionKind, EcnPolicy};

/// A deterministic random generator: SplitMix64.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 0x5eed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// Returns true with a probability of `1 / times`.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// The end of a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// All programs send all bytes and close.
    Whole,
    /// One side resets every connection in the middle.
    Abort,
    /// The cable is disconnected in the middle, for ever.
    Vanish,
}

/// Behaviour of a reading program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// Reads and gives back at once.
    Eager,
    /// Keeps this number of frags.
    Keeps(usize),
    /// Gives all frags back, but only from time to time.
    Hoards,
    /// Reads only from time to time.
    Sleepy,
}

/// One direction of a connection.
#[derive(Debug, Clone, Copy)]
pub struct FlowPlan {
    /// Bytes.
    pub total: u64,
    /// Bytes of one send.
    pub chunk: usize,
    /// Device memory to send from, used as a ring; `None`: host memory.
    pub ring: Option<usize>,
    pub reader: Reader,
}

/// Device memory to receive into, of one side.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    pub bytes: usize,
    pub niov: usize,
}

/// A scenario.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub seed: u64,
    pub pair: PairConfig,
    pub ipv6: bool,
    /// Device memory at A and at B.
    pub memories: [Option<Memory>; 2],
    /// There and back, by connection. The last may go from A to A.
    pub connections: Vec<[FlowPlan; 2]>,
    /// The last connection is one of A with itself.
    pub loops: bool,
    /// Time for which both programs pause now and then, so that windows close.
    pub nap: Option<Duration>,
    /// Time for which the cable is disconnected once.
    pub outage: Option<Duration>,
    pub ending: Ending,
}

impl Scenario {
    /// Makes the scenario of `seed`; the ending is given or random.
    pub fn new(seed: u64, ending: Option<Ending>) -> Self {
        let mut dice = Dice::new(seed);
        let rx_queues = dice.pick(&[1, 1, 2]);
        let niov = dice.pick(&[4096, 4096, 16_384, 65_536]);
        let memories = [(); 2].map(|()| memory(&mut dice, niov, rx_queues));
        let connections = 1 + dice.below(3) as usize;
        let largest = 90_000 / connections as u64;
        let mut pair = pair_config(&mut dice, seed, rx_queues);
        mark(&mut pair, seed);
        Self {
            seed,
            pair,
            ipv6: dice.once_in(2),
            connections: (0..connections)
                .map(|_| [(); 2].map(|()| flow(&mut dice, largest)))
                .collect(),
            memories,
            loops: dice.once_in(6),
            nap: dice
                .once_in(3)
                .then(|| Duration::from_millis(dice.pick(&[1, 50, 300, 2000]))),
            outage: dice
                .once_in(8)
                .then(|| Duration::from_millis(dice.pick(&[100, 900, 7000]))),
            ending: ending.unwrap_or(Ending::Whole),
        }
    }
}

/// Half of all scenarios use ECN, and in most of those routers mark packets. A separate generator decides, so that the
/// other half does not change.
fn mark(pair: &mut PairConfig, seed: u64) {
    let mut dice = Dice::new(!seed);
    if dice.once_in(2) {
        return;
    }
    pair.tcp.ecn.policy = dice.pick(&[EcnPolicy::Request, EcnPolicy::Accurate]);
    pair.tcp.ecn.accecn_option = !dice.once_in(4);
    if let Some(impairment) = &mut pair.impairment {
        // Packets that are not ECN-capable are dropped instead: ACKs and retransmissions.
        let ppm = dice.pick(&[0, 10, 30, 100]) * 1000;
        impairment.ce = Probability::from_ppm(ppm).expect("less than all");
    }
}

fn memory(dice: &mut Dice, niov: usize, queues: u16) -> Option<Memory> {
    // Readers that keep frags must leave some memory: each frag occupies a whole net_iov.
    let niovs = dice.pick(&[16, 24, 40, 64]) * usize::from(queues);
    (!dice.once_in(5)).then_some(Memory {
        bytes: niov * niovs,
        niov,
    })
}

fn flow(dice: &mut Dice, largest: u64) -> FlowPlan {
    let chunk = dice.pick(&[1, 3, 500, 1448, 4095, 4096, 4097, 20_000, 65_536]);
    let total = dice.below(largest.min(chunk * 400)) + dice.below(2);
    FlowPlan {
        total,
        chunk: chunk as usize,
        ring: (!dice.once_in(4)).then(|| 4096 * dice.pick(&[1, 2, 5, 16])),
        reader: match dice.below(6) {
            0 => Reader::Keeps(1 + dice.below(3) as usize),
            1 => Reader::Hoards,
            2 => Reader::Sleepy,
            _ => Reader::Eager,
        },
    }
}

fn pair_config(dice: &mut Dice, seed: u64, rx_queues: u16) -> PairConfig {
    PairConfig {
        seed,
        impairment: (!dice.once_in(8)).then(|| impairment(dice)),
        mtu: dice.pick(&[1280, 1500, 1500, 9000]),
        rx_queues,
        linear_bytes: dice.pick(&[0, 0, 0, 64, 300]),
        host_mem_bytes: dice.pick(&[256 << 10, 1 << 20]),
        tcp: tcp_config(dice),
        wire_frames: dice.pick(&[1, 2, 7, 64, 1024, 1024]),
        ..PairConfig::default()
    }
}

fn impairment(dice: &mut Dice) -> Impairment {
    let mut percent = |choices: &[u32]| {
        let rolled = dice.pick(choices);
        Probability::from_ppm(rolled * 1000).expect("less than all")
    };
    let loss = percent(&[0, 0, 10, 10, 50, 120]);
    let reorder = percent(&[0, 0, 10, 50]);
    let duplicate = percent(&[0, 0, 10, 50]);
    let corrupt = percent(&[0, 0, 10, 30]);
    let delay = dice.pick(&[0, 0, 100, 2_000, 20_000, 150_000]);
    Impairment {
        loss,
        ce: Probability::NEVER,
        reorder,
        reorder_gap: dice.pick(&[1, 4, 4, 20]),
        duplicate,
        corrupt,
        delay: Duration::from_micros(delay),
        jitter: Duration::from_micros(dice.pick(&[0, 0, delay / 4, delay])),
        ordered: dice.once_in(2),
        rate: dice.pick(&[None, None, None, Some(1_000_000), Some(100_000_000)]),
        limit: dice.pick(&[8, 40, 1000, 1000]),
        ce_threshold: None,
        mtu: dice.once_in(6).then_some(1280),
        seed: 1,
    }
}

fn tcp_config(dice: &mut Dice) -> tcp::Config {
    // The order of the calls determines the scenario of each seed.
    let mut config = tcp::Config::default();
    config.settings.rcv_buf_max = dice.pick(&[8 << 10, 64 << 10, 6 << 20, 6 << 20]);
    config.settings.snd_buf_max = dice.pick(&[4 << 10, 16 << 10, 64 << 10, 4 << 20]);
    config.window_scaling = !dice.once_in(5);
    config.timestamps = !dice.once_in(4);
    config.sack = !dice.once_in(4);
    config.acks.delay = Duration::from_millis(dice.pick(&[0, 1, 40, 40, 200]));
    config.acks.quick = dice.pick(&[0, 1, 16]);
    config.settings.nodelay = dice.once_in(2);
    config.settings.congestion = dice.pick(&CongestionKind::ALL);
    config.initial_cwnd = dice.pick(&[1, 2, 10, 10]);
    config.pacing = dice.once_in(4);
    // Up to a twelfth of all frames is lost, including those that open a connection.
    config.settings.syn_retries = 12;
    config.timers.syn_ack_retries = 12;
    config
}
