//! An agent: its memory, its peers, and the connections in both directions. Nothing here waits, and one lock is around it.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use zerocopy::byteorder::little_endian::U64;

use crate::awaited::Placed;
use crate::carriers::Counts;
use crate::connections::{Connections, Identity};
use crate::dial::Dial;
use crate::inbox::{Inbox, Notification};
use crate::info::{AgentInfo, MemoryKind, RegionInfo, boot, random};
use crate::initiator::Job;
use crate::netdev::Nics;
use crate::own::OwnTransfers;
use crate::raw::process::Token;
use crate::raw::region::Region;
use crate::record::{Caller, Entry, MAX_INLINE_BYTES, MAX_NAME_BYTES, MAX_NOTIFICATION_BYTES};
use crate::regions::Regions;
use crate::settings::{Require, Settings, Way};
use crate::sockets::Sockets;
use crate::status::{Failure, Status};
use crate::transfer::{Op, Span, Transfer};
use crate::wire::Network;
use crate::wires::Context;

/// Another agent, whose connection information was loaded.
#[derive(Debug)]
struct Peer {
    name: Arc<str>,
    info: AgentInfo,
}

/// A region of another agent.
#[derive(Clone, Debug)]
struct Remote {
    peer: Arc<str>,
    info: RegionInfo,
}

/// A range as NIXL describes it: an address of the process that it belongs to, and the number of a region.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Range {
    /// Address of the first byte.
    pub address: u64,
    /// Bytes.
    pub len: u64,
    /// The number of its region: of a local one, or of a remote one that was loaded.
    pub region: u64,
}

/// An agent.
#[derive(Debug)]
pub(crate) struct Agent {
    name: Arc<str>,
    info: AgentInfo,
    way: Way,
    /// At an address that others were told.
    _token: Token,
    require: Require,
    has_pool: bool,
    network: Arc<dyn Network>,
    connections: Connections,
    regions: Regions,
    remotes: HashMap<u64, Remote>,
    peers: HashMap<Arc<str>, Peer>,
    own: OwnTransfers,
    inbox: Inbox,
    counts: Counts,
    last_remote: u64,
    last_posting: u64,
    sources: Vec<U64>,
    entries: Vec<Entry>,
    placed: Vec<Placed>,
}

/// What connections need of an agent, from fields that are not `connections`.
macro_rules! context {
    ($agent:ident) => {
        Context {
            regions: &$agent.regions,
            inbox: &mut $agent.inbox,
            counts: &mut $agent.counts,
            inline_bytes: match $agent.require {
                Require::Any => MAX_INLINE_BYTES as u64,
                // Bytes behind a record are copied once more.
                Require::Direct | Require::Device => 0,
            },
            sources: &mut $agent.sources,
            entries: &mut $agent.entries,
            placed: &mut $agent.placed,
        }
    };
}

impl Agent {
    pub(crate) fn new(name: &str, settings: Settings) -> Result<Self, Failure> {
        if name.len() > MAX_NAME_BYTES {
            let text = format!(
                "the agent's name has {} bytes; {MAX_NAME_BYTES} are allowed",
                name.len()
            );
            return Err(Failure::new(Status::InvalidParam, text));
        }
        let cookie = random()?;
        let token = Token::new(cookie);
        let network = open(&settings, cookie)?;
        let info = AgentInfo {
            cookie,
            boot: boot(),
            token: match settings.way.is_near() {
                true => token.address(),
                false => 0,
            },
            port: network.port(),
            payload_port: network.payload_port(),
            addresses: addresses(&*network)?,
        };
        let name: Arc<str> = name.into();
        let identity = Identity {
            name: Arc::clone(&name),
            cookie,
            caller: Caller {
                token: token.address().into(),
                cookie: cookie.into(),
            },
        };
        Ok(Self {
            own: OwnTransfers::new(Arc::clone(&name)),
            name,
            info,
            way: settings.way.clone(),
            _token: token,
            require: settings.require,
            has_pool: settings.pool().is_some(),
            connections: Connections::new(identity, settings, Arc::clone(&network)),
            network,
            regions: Regions::default(),
            remotes: HashMap::new(),
            peers: HashMap::new(),
            inbox: Inbox::default(),
            counts: Counts::default(),
            last_remote: 0,
            last_posting: 0,
            sources: Vec::new(),
            entries: Vec::new(),
            placed: Vec::new(),
        })
    }

    pub(crate) fn info(&self) -> &AgentInfo {
        &self.info
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns where peers may connect, for people.
    pub(crate) fn addresses(&self) -> String {
        let all = self.info.targets(self.info.boot, &self.way);
        let all: Vec<_> = all.iter().map(ToString::to_string).collect();
        all.join(", ")
    }

    pub(crate) fn way(&self) -> &Way {
        &self.way
    }

    pub(crate) fn network(&self) -> &Arc<dyn Network> {
        &self.network
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// Fails if a kind of memory is not taken.
    pub(crate) fn check_kind(&self, kind: MemoryKind) -> Result<(), Failure> {
        let why = match (self.require, kind, self.has_pool) {
            (Require::Any, _, _) | (_, MemoryKind::Host, false) | (_, MemoryKind::Gpu, true) => {
                return Ok(());
            }
            (_, MemoryKind::Gpu, false) => {
                "memory of GPUs goes through host memory; use way=kernel:INTERFACE with pool=67108864, or require=any"
            }
            (_, MemoryKind::Host, true) => {
                "payload is received into memory of a GPU, so that memory of the host would be copied; use an agent without a pool for it, or \
                 require=any"
            }
        };
        let text = format!("require={}, but {why}", self.require);
        Err(Failure::new(Status::NotSupported, text))
    }

    pub(crate) fn new_key(&self) -> Result<u64, Failure> {
        self.regions.new_key()
    }

    pub(crate) fn register(&mut self, region: Arc<Region>) -> Result<u64, Failure> {
        self.check_kind(kind_of(&region))?;
        if let Some(gpu) = region.gpu() {
            self.network.register(gpu)?;
        }
        Ok(self.regions.add(region))
    }

    pub(crate) fn deregister(&mut self, number: u64) -> Result<(), Failure> {
        self.regions.remove(number)
    }

    /// Returns what a peer must know of a region.
    pub(crate) fn describe(&self, number: u64) -> Result<RegionInfo, Failure> {
        let region = self.regions.get(number)?;
        let (address, len) = (region.address() as u64, region.len() as u64);
        Ok(RegionInfo {
            key: region.key(),
            address,
            len,
            kind: kind_of(region),
        })
    }

    /// Takes the connection information of a peer.
    pub(crate) fn load_agent(&mut self, name: &str, info: AgentInfo) -> Result<(), Failure> {
        if name == &*self.name {
            return Ok(());
        }
        if let Some(peer) = self.peers.get(name) {
            return match peer.info == info {
                true => Ok(()),
                false => Err(Failure::new(
                    Status::NotAllowed,
                    format!(
                        "the agent {} is known with other connection information; remove it first",
                        name.escape_debug()
                    ),
                )),
            };
        }
        let name: Arc<str> = name.into();
        self.peers.insert(Arc::clone(&name), Peer { name, info });
        Ok(())
    }

    /// Takes the description of a peer's region, or of one of this agent, and returns its number.
    pub(crate) fn load_region(&mut self, peer: &str, info: RegionInfo) -> u64 {
        self.last_remote += 1;
        self.remotes.insert(
            self.last_remote,
            Remote {
                peer: peer.into(),
                info,
            },
        );
        self.last_remote
    }

    pub(crate) fn unload_region(&mut self, number: u64) {
        self.remotes.remove(&number);
    }

    /// Checks the ranges of a transfer.
    pub(crate) fn prepare(
        &self,
        op: Op,
        peer: &str,
        locals: &[Range],
        remotes: &[Range],
    ) -> Result<Arc<Transfer>, Failure> {
        if locals.len() != remotes.len() {
            let text = format!(
                "{} local and {} remote descriptors; both lists must be equally long",
                locals.len(),
                remotes.len()
            );
            return Err(Failure::new(Status::InvalidParam, text));
        }
        let mut regions = Vec::new();
        let mut indices: HashMap<u64, usize> = HashMap::new();
        let mut spans = Vec::with_capacity(locals.len());
        let mut kind = MemoryKind::Host;
        for (local, remote) in locals.iter().zip(remotes) {
            if local.len != remote.len {
                let text = format!(
                    "a local descriptor has {} bytes, and its remote one {}",
                    local.len, remote.len
                );
                return Err(Failure::new(Status::Mismatch, text));
            }
            let region = match indices.get(&local.region) {
                Some(index) => *index,
                None => {
                    regions.push(Arc::clone(self.regions.get(local.region)?));
                    indices.insert(local.region, regions.len() - 1);
                    regions.len() - 1
                }
            };
            let offset = local_offset(&regions[region], local)?;
            let (there, remote_offset) = self.remote_offset(peer, remote)?;
            if there.kind == MemoryKind::Gpu {
                kind = MemoryKind::Gpu;
            }
            spans.push(Span {
                region,
                offset,
                len: local.len,
                key: there.key,
                remote_offset,
                remote_address: remote.address,
            });
        }
        Transfer::new(op, peer.into(), regions, spans, kind)
    }

    fn remote_offset(&self, peer: &str, range: &Range) -> Result<(RegionInfo, u64), Failure> {
        let remote = self
            .remotes
            .get(&range.region)
            .filter(|remote| &*remote.peer == peer);
        let remote = remote.ok_or_else(|| {
            let text = format!(
                "memory of the agent {} is not known; load its metadata",
                peer.escape_debug()
            );
            Failure::new(Status::NotFound, text)
        })?;
        let offset = remote.info.offset_of(range.address, range.len);
        let refused = || outside("remote", range, remote.info.address, remote.info.len);
        Ok((remote.info, offset.ok_or_else(refused)?))
    }

    /// Posts a transfer, and sends what can be sent at once.
    pub(crate) fn post(
        &mut self,
        transfer: &Arc<Transfer>,
        notification: Option<Vec<u8>>,
    ) -> Result<Status, Failure> {
        if transfer.status() == Status::InProgress {
            return Err(Failure::new(
                Status::RepostActive,
                "the transfer is still going on; wait until it is done before it is posted again",
            ));
        }
        check_notification(notification.as_deref().unwrap_or_default())?;
        self.last_posting += 1;
        let posted = transfer.post(self.last_posting, notification)?;
        let taken = match *transfer.peer == *self.name {
            true => self.own.post(posted, &self.regions),
            false => self.give(&transfer.peer, Job::Transfer(posted)),
        };
        if let Err(failure) = taken {
            transfer.set_status(failure.status);
            return Err(failure);
        }
        self.counts.own += self.own.turn(&mut self.inbox) as u64;
        Ok(transfer.status())
    }

    /// Ends a transfer that the program does not wait for.
    pub(crate) fn cancel(&mut self, transfer: &Arc<Transfer>) {
        if transfer.status() != Status::InProgress {
            return;
        }
        if *transfer.peer == *self.name {
            return self.own.cancel(transfer);
        }
        self.connections.cancel(transfer);
    }

    /// Sends a notification.
    pub(crate) fn notify(&mut self, peer: &str, message: &[u8]) -> Result<(), Failure> {
        check_notification(message)?;
        match peer == &*self.name {
            true => {
                self.inbox.push(&self.name, message.to_vec());
                Ok(())
            }
            false => self.give(peer, Job::Notify(message.to_vec())),
        }
    }

    /// Takes the notifications that have come.
    pub(crate) fn notifications(&mut self) -> VecDeque<Notification> {
        self.turn();
        let had_room = self.inbox.has_room();
        let taken = self.inbox.take();
        if !had_room {
            // Records that nobody has read make no socket ready.
            self.turn();
        }
        taken
    }

    /// Begins to connect a peer, if it is not connected.
    pub(crate) fn connect(&mut self, name: &str) -> Result<(), Failure> {
        match name == &*self.name {
            true => Ok(()),
            false => self.call(name),
        }
    }

    /// Ends the connections to a peer, and forgets it.
    pub(crate) fn disconnect(&mut self, name: &str) -> Result<(), Failure> {
        if self.peers.remove(name).is_none() && name != &*self.name {
            return Err(unknown(name));
        }
        self.connections.hang_up(name);
        Ok(())
    }

    /// Gives a peer a job, and lets it begin.
    fn give(&mut self, name: &str, job: Job) -> Result<(), Failure> {
        self.call(name)?;
        let mut context = context!(self);
        self.connections.give(name, job, &mut context)
    }

    /// Begins to connect a peer, if it is not connected.
    fn call(&mut self, name: &str) -> Result<(), Failure> {
        if self.connections.calls(name) {
            return Ok(());
        }
        let peer = self.peers.get(name).ok_or_else(|| unknown(name))?;
        let dial = Dial::new(
            Arc::clone(&peer.name),
            &peer.info,
            self.info.boot,
            &self.way,
        );
        self.connections.call(dial);
        Ok(())
    }

    /// Returns whether a turn would move something, without a socket becoming ready.
    pub(crate) fn can_go_on(&self) -> bool {
        !self.own.is_idle() || self.connections.can_go_on()
    }

    /// Returns whether something waits to be told to a peer.
    pub(crate) fn has_unsent(&self) -> bool {
        self.connections.has_unsent()
    }

    /// Moves what can be moved. Returns whether that was something: then there may be more.
    pub(crate) fn turn(&mut self) -> bool {
        let copied = self.own.turn(&mut self.inbox);
        self.counts.own += copied as u64;
        let mut context = context!(self);
        self.connections.turn(&mut context) || copied > 0
    }
}

fn kind_of(region: &Region) -> MemoryKind {
    match region.gpu() {
        None => MemoryKind::Host,
        Some(_) => MemoryKind::Gpu,
    }
}

/// Opens what connections are made of, and listens there.
fn open(settings: &Settings, cookie: u64) -> Result<Arc<dyn Network>, Failure> {
    let failed = |what: String| {
        let text = format!("cannot listen for other agents: {what}");
        Failure::new(Status::Backend, text)
    };
    if let Way::Nic(nic) = &settings.way {
        let opened = Nics::listen(nic, settings.port, settings.timeout)?;
        return Ok(Arc::new(opened));
    }
    let unix = settings.way.is_near().then_some(cookie);
    let sockets = Sockets::listen(settings, unix).map_err(|error| {
        failed(format!(
            "{error}; check the parameters address (of this machine?) and port (in use?)"
        ))
    })?;
    Ok(Arc::new(sockets))
}

/// Returns the addresses that peers are told.
fn addresses(network: &dyn Network) -> Result<Vec<IpAddr>, Failure> {
    let addresses = network
        .addresses()
        .map_err(|error| Failure::system("asking for the addresses of this machine", error))?;
    if addresses.is_empty() {
        let text = "no interface of this machine is up and has an address; bring one up (ip link set lo up), or name one in the parameter address";
        return Err(Failure::new(Status::Backend, text));
    }
    Ok(addresses)
}

fn unknown(peer: &str) -> Failure {
    let text = format!(
        "the agent {} is not known; load its metadata",
        peer.escape_debug()
    );
    Failure::new(Status::NotFound, text)
}

fn check_notification(message: &[u8]) -> Result<(), Failure> {
    if message.len() <= MAX_NOTIFICATION_BYTES {
        return Ok(());
    }
    let text = format!(
        "a notification of {} bytes is longer than {MAX_NOTIFICATION_BYTES}; send long data by a transfer",
        message.len()
    );
    Err(Failure::new(Status::InvalidParam, text))
}

fn outside(side: &str, range: &Range, address: u64, len: u64) -> Failure {
    let text = format!(
        "a {side} descriptor ({} bytes at {:#x}) is outside of its registered memory ({len} bytes at {address:#x})",
        range.len, range.address
    );
    Failure::new(Status::InvalidParam, text)
}

fn local_offset(region: &Region, range: &Range) -> Result<u64, Failure> {
    let address = usize::try_from(range.address).ok();
    let len = usize::try_from(range.len).ok();
    let offset = address
        .zip(len)
        .and_then(|(address, len)| region.offset_of(address, len));
    let offset =
        offset.ok_or_else(|| outside("local", range, region.address() as u64, region.len() as u64));
    offset.map(|offset| offset as u64)
}
