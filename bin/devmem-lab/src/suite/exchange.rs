//! In one of two guests: a rank of an exchange, which sends to and receives from the rank in the other guest through a network plugin
//! of NCCL, from and into dma-bufs.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use devmem_linux::dmabuf::{CpuAccess, DmabufFd};
use devmem_linux::ethtool::{Ethtool, InstalledRule, NTUPLE, Rings, RssContext};
use nccl_load::{HANDLE_BYTES, Plugin, RecvComm, Registered, Request, SendComm, Tested};

use super::nic;
use super::traffic::{self, Family, STUCK};
use crate::places::PLUGIN_PATH;
use pattern::PositionPattern;

/// Port at which the ranks meet, an ordinary TCP connection beside those of the plugin.
const RENDEZVOUS_PORT: u16 = 5210;
/// Maximum bytes of one message at the rendezvous.
const RENDEZVOUS_BYTES_MAX: usize = 4096;
/// Time between two attempts to connect to a rank that does not listen yet.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// What memory has where nothing was received.
const GUARD: u8 = 0xee;
/// Bytes behind each message that must not change.
const GUARD_BYTES: usize = 64;

/// An ordinary connection between the ranks, by which they agree on the next step.
#[derive(Debug)]
pub struct Rendezvous(TcpStream);

impl Rendezvous {
    /// Waits until both guests run the row of this name.
    ///
    /// # Errors
    ///
    /// The other guest does not come, or runs another row.
    pub fn new(guest: u8, row: &str) -> anyhow::Result<Self> {
        let first = SocketAddr::from((traffic::address(0, Family::V4), RENDEZVOUS_PORT));
        let stream = match guest {
            0 => accept(first),
            _ => connect(first),
        };
        let stream = stream.context("meet the other guest")?;
        traffic::limit(&stream)?;
        let mut rendezvous = Self(stream);
        let theirs = rendezvous.swap(row.as_bytes())?;
        let theirs = String::from_utf8_lossy(&theirs);
        ensure!(theirs == row, "the other guest runs {theirs:?}");
        Ok(rendezvous)
    }

    /// Gives bytes to the other rank, and returns those that it gives at the same step.
    ///
    /// # Errors
    ///
    /// The other rank has failed.
    pub fn swap(&mut self, ours: &[u8]) -> anyhow::Result<Vec<u8>> {
        let len = u32::try_from(ours.len())?;
        let swapped = (|| {
            self.0.write_all(&len.to_be_bytes())?;
            self.0.write_all(ours)?;
            let mut len = [0; 4];
            self.0.read_exact(&mut len)?;
            let len = u32::from_be_bytes(len) as usize;
            if len > RENDEZVOUS_BYTES_MAX {
                return Err(std::io::ErrorKind::InvalidData.into());
            }
            let mut theirs = vec![0; len];
            self.0.read_exact(&mut theirs)?;
            std::io::Result::Ok(theirs)
        })();
        swapped.context("the other guest has failed")
    }
}

fn accept(at: SocketAddr) -> anyhow::Result<TcpStream> {
    let listener = TcpListener::bind(at)?;
    listener.set_nonblocking(true)?;
    let start = Instant::now();
    let stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(error) if start.elapsed() > STUCK => return Err(error.into()),
            Err(_) => thread::sleep(RETRY_INTERVAL),
        }
    };
    stream.set_nonblocking(false)?;
    Ok(stream)
}

fn connect(to: SocketAddr) -> anyhow::Result<TcpStream> {
    let start = Instant::now();
    loop {
        match TcpStream::connect_timeout(&to, STUCK) {
            Ok(stream) => return Ok(stream),
            Err(error) if start.elapsed() > STUCK => return Err(error.into()),
            Err(_) => thread::sleep(RETRY_INTERVAL),
        }
    }
}

/// Loads the plugin.
///
/// # Errors
///
/// It does not find the NIC.
pub fn load() -> anyhow::Result<Plugin> {
    let plugin = Plugin::load(Path::new(PLUGIN_PATH))?;
    let devices = plugin.devices()?;
    ensure!(devices == 1, "the plugin has {devices} devices");
    Ok(plugin)
}

/// A communicator in each direction.
#[derive(Debug)]
pub struct CommPair<'p> {
    /// To the other guest.
    pub to: SendComm<'p>,
    /// From the other guest.
    pub from: RecvComm<'p>,
}

impl<'p> CommPair<'p> {
    /// Connects both ranks in both directions.
    ///
    /// # Errors
    ///
    /// The plugin failed, or nothing happens.
    pub fn new(plugin: &'p Plugin, rendezvous: &mut Rendezvous) -> anyhow::Result<Self> {
        let (handle, listener) = plugin.listen()?;
        let theirs = rendezvous.swap(&*handle)?;
        let theirs = <[u8; HANDLE_BYTES]>::try_from(theirs).ok();
        let mut theirs = Box::new(theirs.context("a handle has 128 bytes")?);
        let (mut to, mut from) = (None, None);
        until("connecting", || {
            if to.is_none() {
                to = plugin.connect(&mut theirs)?;
            }
            if from.is_none() {
                from = listener.accept()?;
            }
            Ok(match (to.take(), from.take()) {
                (Some(to), Some(from)) => Some(Self { to, from }),
                either => {
                    (to, from) = either;
                    None
                }
            })
        })
    }

    /// Closes both communicators.
    ///
    /// # Errors
    ///
    /// The plugin failed.
    pub fn close(self) -> anyhow::Result<()> {
        self.to.close()?;
        Ok(self.from.close()?)
    }
}

/// Repeats `attempt` until it has a result.
fn until<T>(
    what: &str,
    mut attempt: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let start = Instant::now();
    loop {
        if let Some(result) = attempt().with_context(|| what.to_owned())? {
            return Ok(result);
        }
        ensure!(start.elapsed() < STUCK, "{what}: nothing happens");
        thread::yield_now();
    }
}

/// Waits for a request, and returns the bytes of its message.
fn finish(what: &str, request: Request<'_>) -> anyhow::Result<usize> {
    let mut pending = Some(request);
    until(what, || {
        let Some(request) = pending.take() else {
            return Ok(None);
        };
        match request.test()? {
            Tested::Done(bytes) => Ok(Some(bytes)),
            Tested::Pending(request) => {
                pending = Some(request);
                Ok(None)
            }
        }
    })
}

/// Memory of a link: dma-bufs that are sent from and received into.
#[derive(Debug)]
pub struct Buffers {
    source: DmabufFd,
    target: DmabufFd,
}

/// Both, registered for the communicators of a link.
#[derive(Debug)]
pub struct RegisteredBuffers<'c> {
    link: &'c CommPair<'c>,
    buffers: &'c Buffers,
    source: Registered<'c>,
    target: Registered<'c>,
}

/// Requests of a message in each direction.
#[derive(Debug)]
pub struct Posted<'c> {
    receiving: Request<'c>,
    sending: Request<'c>,
}

impl Buffers {
    /// Allocates memory for messages of at most `len` bytes.
    ///
    /// # Errors
    ///
    /// The kernel refused.
    pub fn new(len: usize) -> anyhow::Result<Self> {
        let size = (len + GUARD_BYTES).next_multiple_of(rustix::param::page_size());
        Ok(Self {
            source: DmabufFd::udmabuf(size)?,
            target: DmabufFd::udmabuf(size)?,
        })
    }

    /// Registers it for a link.
    ///
    /// # Errors
    ///
    /// The plugin refused.
    pub fn register<'c>(&'c self, link: &'c CommPair<'c>) -> anyhow::Result<RegisteredBuffers<'c>> {
        let (source, target) = (&self.source, &self.target);
        Ok(RegisteredBuffers {
            link,
            buffers: self,
            source: link.to.register(source.as_fd(), source.size())?,
            target: link.from.register(target.as_fd(), target.size())?,
        })
    }
}

impl<'c> RegisteredBuffers<'c> {
    /// Writes what the message `seed` of this rank has, and clears what it receives.
    ///
    /// # Errors
    ///
    /// The memory cannot be accessed.
    pub fn prepare(&self, len: usize, seed: u64) -> anyhow::Result<()> {
        let mut bytes = vec![0; len];
        PositionPattern::new(seed).fill(0, &mut bytes);
        let view = self.buffers.source.cpu_view(CpuAccess::Write)?;
        view.copy_in(0, &bytes)?;
        view.end()?;
        let view = self.buffers.target.cpu_view(CpuAccess::Write)?;
        view.copy_in(0, &vec![GUARD; len + GUARD_BYTES])?;
        Ok(view.end()?)
    }

    /// Posts a receive that is longer than its message, and a send.
    ///
    /// # Errors
    ///
    /// The plugin failed, or takes no request.
    pub fn post(&self, len: usize) -> anyhow::Result<Posted<'_>> {
        let (link, range): (_, Range<usize>) = (self.link, 0..len + GUARD_BYTES);
        Ok(Posted {
            receiving: until("posting a receive", || {
                Ok(link.from.receive(&self.target, range.clone())?)
            })?,
            sending: until("posting a send", || {
                Ok(link.to.send(&self.source, 0..len)?)
            })?,
        })
    }

    /// Compares what was received with what the message `seed` of the other rank has.
    ///
    /// # Errors
    ///
    /// A byte is wrong.
    pub fn check(&self, len: usize, seed: u64) -> anyhow::Result<()> {
        let mut bytes = vec![0; len + GUARD_BYTES];
        let view = self.buffers.target.cpu_view(CpuAccess::Read)?;
        view.copy_out(0, &mut bytes)?;
        view.end()?;
        let mut expected = vec![GUARD; len + GUARD_BYTES];
        PositionPattern::new(seed).fill(0, &mut expected[..len]);
        let wrong = bytes.iter().zip(&expected).position(|(a, b)| a != b);
        match wrong {
            None => Ok(()),
            Some(at) => anyhow::bail!("byte {at} of a message of {len} is wrong"),
        }
    }
}

impl Posted<'_> {
    /// Waits for both messages of `len` bytes.
    ///
    /// # Errors
    ///
    /// The plugin failed, or says another length.
    pub fn finish(self, len: usize) -> anyhow::Result<()> {
        let received = finish("a receive", self.receiving)?;
        let sent = finish("a send", self.sending)?;
        ensure!(
            (received, sent) == (len, len),
            "{received} bytes received and {sent} sent, not {len}"
        );
        Ok(())
    }
}

/// Settings of the NIC that the plugin changes.
#[derive(Debug, PartialEq)]
pub struct NicSettings {
    rings: Rings,
    rss: RssContext,
    rules: Vec<InstalledRule>,
    flow_rules_on: Option<bool>,
}

impl NicSettings {
    /// Reads them.
    ///
    /// # Errors
    ///
    /// The driver refused.
    pub fn read() -> anyhow::Result<Self> {
        let mut ethtool = Ethtool::by_name(nic::nic())?;
        Ok(Self {
            rings: ethtool.rings()?,
            rss: ethtool.rss()?,
            rules: ethtool.rules()?,
            flow_rules_on: ethtool.feature(NTUPLE)?.map(|feature| feature.active),
        })
    }
}

/// Bytes that the plugin has received, by its own count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceivedBytes {
    /// All of them.
    pub all: u64,
    /// Those in device memory, in net_iovs of the bound pool.
    pub device: u64,
}

impl ReceivedBytes {
    /// Adds up the counts in the lines that the plugin logs when a communicator is closed.
    pub fn in_notes(notes: &[String]) -> Self {
        let mut sum = Self::default();
        for (all, device) in notes.iter().filter_map(|note| Self::parse(note)) {
            sum.all += all;
            sum.device += device;
        }
        sum
    }

    /// Parses "... sent, N received, M of them by way of device memory".
    fn parse(note: &str) -> Option<(u64, u64)> {
        let (_, counts) = note.split_once(" sent, ")?;
        let (all, counts) = counts.split_once(" received, ")?;
        let device = counts.strip_suffix(" of them by way of device memory")?;
        Some((all.parse().ok()?, device.parse().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_of_closed_communicators_are_added_up() {
        let close = |counts: &str| format!("NET/Devmem: a communicator is closed: {counts}");
        let notes = [
            "NET/Devmem: 1 NIC".to_owned(),
            close("5 bytes sent, 70 received, 60 of them by way of device memory"),
            close("5 bytes sent, 7 received, 0 of them by way of device memory"),
        ];
        let sum = ReceivedBytes::in_notes(&notes);
        assert_eq!(
            sum,
            ReceivedBytes {
                all: 77,
                device: 60
            }
        );
    }
}
