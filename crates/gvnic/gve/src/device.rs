//! The device: its state, and the entry points other than BAR accesses and frames.

mod adminq;
mod bar0;
mod registers;
mod stats_area;

use gve_defs::device_option::RSS_LUT_ENTRIES;
use gve_defs::pci::{DOORBELL_BAR, REGISTER_BAR};
use steer::{HashTypes, IndirectionTable, Rss, Rules, Steering};
use wire::Instant;

use crate::config::{Config, ConfigError, FLOW_RULES, Faults};
use crate::env::Env;
use crate::notify::Notify;
use crate::rx::{RxContext, RxQueue};
use crate::stats::{DeviceStats, RxQueueStats, Stats, TxQueueStats};
use crate::tx::TxQueue;
use crate::tx_offload::TxScratch;
use adminq::ring::Adminq;
use registers::Registers;
use stats_area::StatsArea;

/// State of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// The link is up.
    Up,
    /// The link is down: frames from the wire are dropped.
    Down,
}

/// Bits of the device status that are requests to the driver.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Requests {
    /// Reset the device.
    pub(crate) reset: bool,
    /// Write statistics.
    pub(crate) stats: bool,
    /// The reset that the driver requested is done (not a request, but in the same register).
    pub(crate) is_reset: bool,
}

/// An emulated gVNIC.
///
/// It has no thread and no clock: all work happens in its entry points, with an [`Env`] for everything outside. A guest
/// cannot make it panic, access memory outside the guest, or allocate more than its [`Config`] says.
#[derive(Debug)]
pub struct Gve {
    pub(crate) config: Config,
    pub(crate) registers: Registers,
    pub(crate) requests: Requests,
    pub(crate) adminq: Option<Adminq>,
    /// The driver has configured notification blocks.
    pub(crate) configured: bool,
    pub(crate) notify: Notify,
    /// By queue number.
    pub(crate) tx: Vec<Option<TxQueue>>,
    /// By queue number.
    pub(crate) rx: Vec<Option<RxQueue>>,
    pub(crate) steering: Steering,
    /// RSS hash types set by the driver, in gVNIC bits.
    pub(crate) rss_types: u16,
    pub(crate) stats_area: Option<StatsArea>,
    pub(crate) link: LinkState,
    pub(crate) faults: Faults,
    pub(crate) stats: DeviceStats,
    pub(crate) tx_stats: Vec<TxQueueStats>,
    pub(crate) rx_stats: Vec<RxQueueStats>,
    pub(crate) scratch: TxScratch,
}

/// Hash types that Linux configures: TCP and UDP over IPv4 and IPv6.
pub(crate) const DEFAULT_RSS_TYPES: u16 = 0xd2;

impl Gve {
    /// Returns a device with its link up.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        let pairs = usize::from(config.queue_pairs);
        let steering = default_steering(&config)?;
        Ok(Self {
            registers: Registers::default(),
            requests: Requests::default(),
            adminq: None,
            configured: false,
            notify: Notify::default(),
            tx: empty(pairs),
            rx: empty(pairs),
            steering,
            rss_types: DEFAULT_RSS_TYPES,
            stats_area: None,
            link: LinkState::Up,
            faults: Faults::default(),
            stats: DeviceStats::default(),
            tx_stats: vec![TxQueueStats::default(); pairs],
            rx_stats: vec![RxQueueStats::default(); pairs],
            scratch: TxScratch::new(),
            config,
        })
    }

    /// Returns the configuration.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Reads from a BAR; offsets without a register read as zero. BAR 1 (MSI-X) is not part of this model.
    pub fn read_bar(&self, bar: u8, offset: u64, out: &mut [u8]) {
        out.fill(0);
        if bar == REGISTER_BAR {
            self.read_registers(offset, out);
        }
    }

    /// Writes to a BAR; ignores offsets without a register.
    pub fn write_bar(&mut self, bar: u8, offset: u64, bytes: &[u8], env: &mut Env<'_>) {
        match bar {
            REGISTER_BAR => self.write_registers(offset, bytes, env),
            DOORBELL_BAR => self.ring_doorbells(offset, bytes, env),
            _ => {}
        }
    }

    /// Does all work that is due: interrupts after their interval, interrupts for a queue without buffers, statistics.
    /// Also delivers packets from the backlog after [`set_faults`](Self::set_faults) has released buffers.
    pub fn poll(&mut self, env: &mut Env<'_>) {
        for index in 0..self.rx.len() {
            if self.rx[index].as_ref().is_some_and(RxQueue::has_backlog) {
                self.run_rx(index, env);
            }
        }
        self.notify.poll(env.now, env.irqs);
        self.report_stats(env);
    }

    /// Returns when [`poll`](Self::poll) must be called next, `None` if there is no deadline.
    pub fn poll_at(&self) -> Option<Instant> {
        let report = self.stats_area.as_ref().and_then(StatsArea::due);
        let starved = self.rx.iter().flatten().filter_map(RxQueue::wake_at);
        let others = [self.notify.poll_at(), report];
        others.into_iter().flatten().chain(starved).min()
    }

    /// Sends packets again for which the wire was full. Call this when the wire has room again.
    pub fn resume_tx(&mut self, env: &mut Env<'_>) {
        for index in 0..self.tx.len() {
            if self.tx[index].as_ref().is_some_and(TxQueue::is_blocked) {
                self.run_tx(index, env);
            }
        }
    }

    /// True if a packet waits for the wire: call [`resume_tx`](Self::resume_tx) when the wire has room again.
    pub fn tx_blocked(&self) -> bool {
        self.tx.iter().flatten().any(TxQueue::is_blocked)
    }

    /// Resets the device as a PCI reset does (a restart of the guest). Link, faults and counters are kept.
    pub fn reset(&mut self) {
        self.forget_driver();
        self.registers = Registers::default();
        self.requests = Requests::default();
        if let Ok(steering) = default_steering(&self.config) {
            self.steering = steering;
        }
        self.rss_types = DEFAULT_RSS_TYPES;
    }

    /// Requests a reset from the driver, as hardware does after an internal error.
    pub fn request_reset(&mut self, env: &mut Env<'_>) {
        self.stats.reset_requests += 1;
        self.requests.reset = true;
        self.raise_management(env);
    }

    /// Requests that the driver write its statistics to the shared statistics area.
    pub fn request_stats(&mut self, env: &mut Env<'_>) {
        self.requests.stats = true;
        self.raise_management(env);
    }

    /// Sets the link state and informs the driver.
    pub fn set_link(&mut self, link: LinkState, env: &mut Env<'_>) {
        if self.link != link {
            self.link = link;
            self.raise_management(env);
        }
    }

    /// Returns the link state.
    pub const fn link(&self) -> LinkState {
        self.link
    }

    /// Sets the faults to inject.
    pub const fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Returns a copy of the current flow rules and RSS settings.
    pub fn steering(&self) -> Steering {
        self.steering.clone()
    }

    /// Returns a copy of all counters.
    pub fn stats(&self) -> Stats {
        Stats {
            device: self.stats,
            rx: self.rx_stats.clone(),
            tx: self.tx_stats.clone(),
        }
    }

    /// Resets the device at the request of its driver. Flow rules and RSS are kept: the driver does not set them again, and
    /// without its rule a devmem stream would continue in ordinary memory.
    pub(crate) fn reset_by_driver(&mut self) {
        self.stats.driver_resets += 1;
        self.forget_driver();
        self.requests = Requests {
            is_reset: true,
            ..Requests::default()
        };
    }

    /// Drops every reference to guest memory.
    fn forget_driver(&mut self) {
        self.adminq = None;
        self.configured = false;
        self.notify.clear();
        self.tx.fill_with(|| None);
        self.rx.fill_with(|| None);
        self.stats_area = None;
        for stats in &mut self.rx_stats {
            stats.backlog = 0;
        }
    }

    /// Tells the driver to look at the status. One that has no notification blocks yet looks at it when it begins.
    fn raise_management(&self, env: &Env<'_>) {
        if self.configured {
            env.irqs.fire(self.config.management_vector());
        }
    }

    pub(crate) fn run_tx(&mut self, index: usize, env: &mut Env<'_>) {
        let Some(queue) = self.tx.get_mut(index).and_then(Option::as_mut) else {
            return;
        };
        let completed = queue.run(env, &mut self.scratch, &mut self.tx_stats[index]);
        if completed {
            self.notify.raise(queue.block(), env.now, env.irqs);
        }
    }

    pub(crate) fn run_rx(&mut self, index: usize, env: &mut Env<'_>) {
        let Some(queue) = self.rx.get_mut(index).and_then(Option::as_mut) else {
            return;
        };
        let context = RxContext {
            memory: env.memory,
            faults: self.faults,
        };
        let drained = queue.drain(context, &mut self.rx_stats[index]);
        if queue.is_starved(env.now) || drained {
            self.notify.raise(queue.block(), env.now, env.irqs);
        }
    }

    fn report_stats(&mut self, env: &Env<'_>) {
        let Some(area) = self.stats_area.as_mut() else {
            return;
        };
        if area.due().is_some_and(|due| due <= env.now) {
            let live = self.rx.iter().map(Option::is_some);
            area.write(live.zip(&self.rx_stats), env.memory);
            area.next(env.now);
        }
    }
}

fn empty<T>(count: usize) -> Vec<Option<T>> {
    std::iter::repeat_with(|| None).take(count).collect()
}

/// Returns RSS over all queues in turn, and no rules.
fn default_steering(config: &Config) -> Result<Steering, ConfigError> {
    let queue_pairs = config.queue_pairs;
    let table = IndirectionTable::round_robin(RSS_LUT_ENTRIES.into(), queue_pairs);
    let table = table.map_err(|_| ConfigError::QueuePairs { queue_pairs })?;
    let ports = HashTypes::TCP4 | HashTypes::UDP4 | HashTypes::TCP6 | HashTypes::UDP6;
    Ok(Steering {
        rss: Rss {
            key: config.rss_key,
            table,
            types: ports,
        },
        rules: Rules::new(FLOW_RULES),
    })
}
