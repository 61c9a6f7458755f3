//! Two guests exchange messages through our plugin for NCCL: their kernels send from dma-bufs and receive into device memory that is
//! bound to the NIC. Each row runs in both guests at the same time.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use nccl_load::Plugin;

use super::devmem::bound::require_rx;
use super::devmem::sending::require_tx;
use super::exchange::{self, Buffers, CommPair, NicSettings, ReceivedBytes, Rendezvous};
use super::nic::without_gro;
use super::row::{Context, PassedRow, Row, Skip};
use super::traffic::Rate;
use crate::places::PLUGIN_PATH;

/// A queue that is bound to find out whether the kernel can.
const QUEUE: u32 = 2;
/// Lengths of messages that are sent one after another.
const SHORT: [usize; 7] = [0, 1, 7, 4096, 65_536, 262_147, 600_000];
/// As above.
const LONG: [usize; 2] = [(4 << 20) + 3, 8 << 20];
/// Message lengths on a bad wire.
const SOME: [usize; 4] = [0, 1, 600_000, (2 << 20) + 3];
/// Communicators at once.
const LINKS: usize = 8;
/// Bytes of each message when there are several at once.
const PIECE_BYTES: usize = 256 << 10;
/// Rounds of messages on several communicators.
const ROUNDS: usize = 3;
/// Bytes of a message when the rate is measured.
const TURN_BYTES: usize = 1 << 20;

const SHORT_ROW: &str = "exchange: messages of 0 B to 600 kB";
const LONG_ROW: &str = "exchange: messages of 4 and 8 MiB";
const TURNS_ROW: &str = "exchange: messages of 1 MiB in turn";
const MANY_ROW: &str = "exchange: 8 communicators at once";
const BAD_WIRE_ROW: &str = "bad wire: exchange: 0 B to 2 MiB";
const BAD_WIRE_MANY_ROW: &str = "bad wire: exchange: 8 communicators";
const KNOBS_ROW: &str = "linear bytes and unsplit packets: exchange: 0 B to 2 MiB";
const KNOBS_MANY_ROW: &str = "linear bytes and unsplit packets: exchange: 8 communicators";

pub const ROWS: &[Row] = &[
    (SHORT_ROW, |context| {
        play(context, SHORT_ROW, Landing::Device, |rank| {
            rank.messages(&SHORT)
        })
    }),
    (LONG_ROW, |context| {
        play(context, LONG_ROW, Landing::Device, |rank| {
            rank.messages(&LONG)
        })
    }),
    (TURNS_ROW, |context| {
        let turns = usize::try_from(context.bytes / TURN_BYTES as u64)?;
        play(context, TURNS_ROW, Landing::Device, |rank| {
            rank.messages(&vec![TURN_BYTES; turns.max(1)])
        })
    }),
    (MANY_ROW, |context| {
        play(context, MANY_ROW, Landing::Device, |rank| rank.many())
    }),
];

pub const LOSS_ROWS: &[Row] = &[
    (BAD_WIRE_ROW, |context| {
        play(context, BAD_WIRE_ROW, Landing::Device, |rank| {
            rank.messages(&SOME)
        })
    }),
    (BAD_WIRE_MANY_ROW, |context| {
        play(context, BAD_WIRE_MANY_ROW, Landing::Device, |rank| {
            rank.many()
        })
    }),
];

pub const KNOB_ROWS: &[Row] = &[
    (KNOBS_ROW, |context| {
        without_gro(|| {
            play(context, KNOBS_ROW, Landing::Mixed, |rank| {
                rank.messages(&SOME)
            })
        })
    }),
    (KNOBS_MANY_ROW, |context| {
        without_gro(|| play(context, KNOBS_MANY_ROW, Landing::Mixed, |rank| rank.many()))
    }),
];

/// Where the NIC receives the bytes of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Landing {
    /// All of them in device memory.
    Device,
    /// The first bytes of each packet, and some whole packets, in host memory: the kernel reports them as linear
    /// (`SCM_DEVMEM_LINEAR`).
    Mixed,
}

impl Landing {
    /// Returns whether `counted` is right for messages of `all` bytes together.
    fn accepts(self, counted: ReceivedBytes, all: u64) -> bool {
        let device = match self {
            Self::Device => all..=all,
            Self::Mixed => 1..=all.saturating_sub(1),
        };
        counted.all == all && device.contains(&counted.device)
    }
}

/// What both guests have sent each other in a row.
struct Exchanged {
    /// Lengths of the messages.
    lens: Vec<usize>,
    /// Time from posting them to the end of both directions.
    elapsed: Duration,
}

/// This guest's side of a row.
struct Rank<'a> {
    guest: u8,
    plugin: &'a Plugin,
    rendezvous: &'a mut Rendezvous,
}

/// Runs a row between both guests, and checks where the bytes were received and what the plugin leaves behind.
fn play(
    context: &Context,
    row: &str,
    landing: Landing,
    work: impl FnOnce(&mut Rank<'_>) -> anyhow::Result<Exchanged>,
) -> anyhow::Result<PassedRow> {
    if !Path::new(PLUGIN_PATH).exists() {
        let reason = "this machine has no plugin for NCCL for the guests: cargo build --release -p devmem-nccl";
        return Err(Skip(reason.to_owned()).into());
    }
    require_rx(QUEUE)?;
    require_tx()?;
    let before = NicSettings::read()?;
    let mut rendezvous = Rendezvous::new(context.guest, row)?;
    // Those of a row that has failed.
    drop(nccl_load::take_notes());
    let plugin = exchange::load()?;
    let mut rank = Rank {
        guest: context.guest,
        plugin: &plugin,
        rendezvous: &mut rendezvous,
    };
    let exchanged = work(&mut rank)?;
    ensure!(
        NicSettings::read()? != before,
        "the plugin has not set the NIC up"
    );
    plugin.unload()?;
    ensure!(
        NicSettings::read()? == before,
        "the plugin has not restored the NIC's settings"
    );
    let all = exchanged.lens.iter().map(|len| *len as u64).sum();
    let counted = ReceivedBytes::in_notes(&nccl_load::take_notes());
    // Short messages, too: they would follow their record, to host memory, if the other guest's kernel did not send from the dma-buf.
    ensure!(
        landing.accepts(counted, all),
        "{all} bytes exchanged, {counted:?}"
    );
    Ok(PassedRow {
        detail: format!(
            "{} messages each way correct, {} of {all} bytes received in device memory",
            exchanged.lens.len(),
            counted.device
        ),
        rate: Some(Rate {
            bytes: all,
            elapsed: exchanged.elapsed,
        }),
    })
}

impl Rank<'_> {
    /// Returns the seed of message `number` that a guest sends.
    fn seed(guest: u8, number: usize) -> u64 {
        2 * number as u64 + u64::from(guest)
    }

    /// Exchanges one message after another, in both directions at the same time.
    fn messages(&mut self, lens: &[usize]) -> anyhow::Result<Exchanged> {
        let link = CommPair::new(self.plugin, self.rendezvous)?;
        let longest = lens.iter().copied().max().unwrap_or(0);
        let buffers = Buffers::new(longest)?;
        let registered = buffers.register(&link)?;
        let mut elapsed = Duration::ZERO;
        for (number, len) in lens.iter().copied().enumerate() {
            registered.prepare(len, Self::seed(self.guest, number))?;
            let start = Instant::now();
            registered.post(len)?.finish(len)?;
            elapsed += start.elapsed();
            registered.check(len, Self::seed(1 - self.guest, number))?;
        }
        drop(registered);
        self.end([link])?;
        Ok(Exchanged {
            lens: lens.to_vec(),
            elapsed,
        })
    }

    /// Exchanges messages on several communicators at the same time.
    fn many(&mut self) -> anyhow::Result<Exchanged> {
        let links = (0..LINKS).map(|_| CommPair::new(self.plugin, self.rendezvous));
        let links = links.collect::<anyhow::Result<Vec<_>>>()?;
        let buffers = links.iter().map(|_| Buffers::new(PIECE_BYTES + LINKS));
        let buffers = buffers.collect::<anyhow::Result<Vec<_>>>()?;
        let registered = links.iter().zip(&buffers);
        let registered = registered.map(|(link, buffers)| buffers.register(link));
        let registered = registered.collect::<anyhow::Result<Vec<_>>>()?;
        // Lengths that tell one communicator from another.
        let lens: Vec<usize> = (0..LINKS).map(|link| PIECE_BYTES + link).collect();
        let mut elapsed = Duration::ZERO;
        for round in 0..ROUNDS {
            let number = |link| round * LINKS + link;
            for (link, (memory, len)) in registered.iter().zip(&lens).enumerate() {
                memory.prepare(*len, Self::seed(self.guest, number(link)))?;
            }
            let start = Instant::now();
            let posted = registered.iter().zip(&lens);
            let posted = posted.map(|(memory, len)| memory.post(*len));
            let posted = posted.collect::<anyhow::Result<Vec<_>>>()?;
            for (posted, len) in posted.into_iter().zip(&lens) {
                posted.finish(*len)?;
            }
            elapsed += start.elapsed();
            for (link, (memory, len)) in registered.iter().zip(&lens).enumerate() {
                let theirs = Self::seed(1 - self.guest, number(link));
                let checked = memory.check(*len, theirs);
                checked.with_context(|| format!("communicator {link}, round {round}"))?;
            }
        }
        drop(registered);
        self.end(links)?;
        Ok(Exchanged {
            lens: lens.repeat(ROUNDS),
            elapsed,
        })
    }

    /// Closes the communicators when both ranks have checked what they have received.
    fn end<'p>(&mut self, links: impl IntoIterator<Item = CommPair<'p>>) -> anyhow::Result<()> {
        self.rendezvous.swap(b"end")?;
        links.into_iter().try_for_each(CommPair::close)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_must_be_received_where_the_nics_put_them() {
        let accepts =
            |landing: Landing, all, device| landing.accepts(ReceivedBytes { all, device }, 100);
        assert!(accepts(Landing::Device, 100, 100));
        assert!(!accepts(Landing::Device, 100, 99));
        assert!(accepts(Landing::Mixed, 100, 99));
        assert!(!accepts(Landing::Mixed, 100, 100));
        assert!(!accepts(Landing::Mixed, 100, 0));
        assert!(!accepts(Landing::Mixed, 99, 50));
    }
}
