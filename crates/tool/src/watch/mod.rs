//! `--watch`: shows a transfer live on the whole terminal.
//!
//! [`Watch`] is called from the loop of the transfer. A few times per second it collects a `Sample` (`sample.rs`), draws it
//! (`draw.rs`) on the `Screen` (`screen.rs`), and handles keys.

mod draw;
mod meter;
mod sample;
mod screen;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use crate::output::{Failure, HeldOutput, hold};
use crate::signals::StopFlag;
use crate::transmit::Transmit;
use anyhow::Context;
use devmem_tcp::Netdev;

use crate::receive::View;
use meter::Meter;
use sample::{ConnectionSample, Memory, QueueSample, Sample};
use screen::{Key, Screen};

/// Time between two updates of the screen.
const INTERVAL: Duration = Duration::from_millis(200);
/// Messages kept for the screen.
const MESSAGES: usize = 100;

/// Checks that the live view can be shown.
///
/// # Errors
///
/// A usage error: stderr is not a terminal.
pub fn check() -> Result<(), Failure> {
    if !io::stderr().is_terminal() {
        return Err(Failure::usage(
            "--watch needs a terminal on stderr; without one, `recv -i 1` prints a line for each second",
        ));
    }
    Ok(())
}

/// The live view of one transfer. The terminal is restored when it is dropped, and messages that were printed meanwhile follow.
#[derive(Debug)]
pub struct Watch {
    screen: Screen,
    messages: HeldOutput,
    title: String,
    total: Option<u64>,
    nic: Netdev,
    stop: StopFlag,
    start: Instant,
    drawn: Option<Instant>,
    meter: Meter,
    /// Rates of the queues and connections, by name.
    meters: BTreeMap<String, Meter>,
    /// Last sample of each sending connection.
    senders: BTreeMap<usize, (Instant, ConnectionSample)>,
}

impl Watch {
    /// Takes over the terminal. `total` is the number of bytes to transfer, if known.
    ///
    /// # Errors
    ///
    /// The terminal refuses raw mode.
    pub fn start(
        title: String,
        total: Option<u64>,
        nic: Netdev,
        stop: &StopFlag,
    ) -> Result<Self, Failure> {
        Ok(Self {
            screen: Screen::open().context("prepare the terminal for --watch")?,
            messages: hold(),
            title,
            total,
            nic,
            stop: stop.clone(),
            start: Instant::now(),
            drawn: None,
            meter: Meter::default(),
            meters: BTreeMap::new(),
            senders: BTreeMap::new(),
        })
    }

    /// Shows a transfer into device memory, if the last update is old enough.
    pub fn receiving(&mut self, view: &View<'_>) {
        let now = Instant::now();
        if !self.is_due(now) {
            return;
        }
        let queues = self.queues(now);
        let (tokens_lent, tokens_returned) = view.tokens();
        let count = view.bound().net_iovs();
        let connections: Vec<_> = view
            .connections()
            .map(|(peer, bytes, stream)| {
                let info = stream.tcp_info().unwrap_or_default();
                let rate = self.rate(&format!("connection {peer}"), now, bytes);
                ConnectionSample::receiving(peer, bytes, rate, &info)
            })
            .collect();
        // Connections that have ended.
        self.meters.retain(|_, meter| meter.was_read_at(now));
        let sample = Sample {
            memory: Some(Memory {
                niov_bytes: view.bound().niov_size().bytes() as u64,
                total: count.total as u64,
                home: count.home as u64,
                tokens_lent,
                tokens_returned,
            }),
            queues,
            connections,
            elapsed: view.counts.running,
            average: view.counts.elapsed,
            ..self.sample(now, view.counts.bytes)
        };
        self.draw(now, &sample);
    }

    /// Shows connection `index`, which sends from device memory, with the others; `bytes` are those of all connections.
    pub fn sending(&mut self, index: usize, bytes: u64, transmit: &Transmit<'_>) {
        let now = Instant::now();
        let last = self.senders.get(&index).map(|(at, _)| *at);
        if last.is_none_or(|at| now.duration_since(at) >= INTERVAL) {
            let own = transmit.bytes();
            let rate = self.rate(&format!("sender {index}"), now, own);
            if let (Some(peer), Some(info)) = (transmit.peer_addr(), transmit.tcp_info()) {
                let sample = ConnectionSample::sending(peer, own, rate, &info, transmit.chunks());
                self.senders.insert(index, (now, sample));
            }
        }
        if !self.is_due(now) {
            return;
        }
        let elapsed = self.start.elapsed();
        let sample = Sample {
            connections: self.senders.values().map(|(_, s)| s.clone()).collect(),
            tx: self.nic.tx_stats(),
            elapsed,
            average: elapsed,
            ..self.sample(now, bytes)
        };
        self.draw(now, &sample);
    }

    fn is_due(&self, now: Instant) -> bool {
        self.drawn
            .is_none_or(|drawn| now.duration_since(drawn) >= INTERVAL)
    }

    /// Returns the part that is the same in both directions.
    fn sample(&mut self, now: Instant, bytes: u64) -> Sample {
        Sample {
            title: self.title.clone(),
            bytes,
            total: self.total,
            rate: self.meter.rate(now, bytes),
            history: self.meter.history(),
            drops: self.nic.drops(),
            messages: self.messages.last(MESSAGES),
            ..Sample::default()
        }
    }

    /// Returns the counters of the RX queues, and their rates.
    fn queues(&mut self, now: Instant) -> Vec<QueueSample> {
        let stats = self.nic.queue_stats().into_iter();
        stats
            .map(|stats| QueueSample {
                rate: self.rate(&format!("queue {}", stats.queue.0), now, stats.bytes),
                stats,
            })
            .collect()
    }

    /// Returns the rate of a byte counter in bits per second.
    fn rate(&mut self, name: &str, now: Instant, bytes: u64) -> f64 {
        let meter = self.meters.entry(name.to_owned()).or_default();
        meter.rate(now, bytes)
    }

    /// Draws a sample and handles the keys pressed since the last one.
    fn draw(&mut self, now: Instant, sample: &Sample) {
        self.drawn = Some(now);
        // A terminal that has gone ends the run by SIGHUP.
        let _ = self.screen.draw(|frame| draw::draw(frame, sample));
        while let Some(key) = self.screen.key() {
            if key == Key::End {
                self.stop.set();
                break;
            }
        }
    }
}
