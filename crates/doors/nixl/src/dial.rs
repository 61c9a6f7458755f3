//! Connecting to a peer: its addresses in turn, until the agent with its cookie answers.
//!
//! ```text
//! initiator                                             target
//! connect control   Hello{cookie of the target, N, name of the initiator}  ->
//!                                                       <-  Welcome{session}, or Failed{Stranger | Version}
//! connect payload 1..N   Hello{session, i}, each  ->    at its port for payload
//!                                                       <-  Ready, when all are there
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use zerocopy::IntoBytes;

use crate::address::Address;
use crate::broken::Broken;
use crate::carriers::Carriers;
use crate::control::Control;
use crate::data::DataStream;
use crate::info::AgentInfo;
use crate::initiator::{Connected, Job};
use crate::near::NearMemory;
use crate::raw::process::can_read;
use crate::record::{CALLER_BYTES, Caller, HEADER_BYTES, Record, VERSION, Violation};
use crate::settings::{Settings, Way};
use crate::status::{Failure, Status};
use crate::transfer::Transfer;
use crate::wire::{Network, Ready, Wire};
use crate::wires::Wires;

/// Longest attempt at one address, unless the parameter `timeout` is less.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(10);

/// Jobs that wait for a connection.
const MAX_JOBS: usize = 1 << 16;

/// What an attempt needs of the agent.
pub(crate) struct Dialing<'a> {
    pub(crate) network: &'a dyn Network,
    /// Number of the first connection; those of the others follow.
    pub(crate) number: u64,
    pub(crate) settings: &'a Settings,
    /// Name of this agent.
    pub(crate) agent: &'a str,
    pub(crate) caller: Caller,
    pub(crate) now: Instant,
}

/// A peer that is being connected.
#[derive(Debug)]
pub(crate) struct Dial {
    pub(crate) peer: Arc<str>,
    cookie: u64,
    targets: VecDeque<Address>,
    payload_port: u16,
    token: u64,
    attempt: Option<Attempt>,
    /// What failed, for people.
    failures: Vec<String>,
    pub(crate) jobs: Vec<Job>,
}

/// An attempt at one address.
#[derive(Debug)]
struct Attempt {
    target: Address,
    /// Where the connections for payload go.
    payload: Address,
    until: Instant,
    control: Control,
    is_introduced: bool,
    /// The peer says that it can read the memory of this process.
    is_near: bool,
    session: Option<u64>,
    data: Vec<DataConnection>,
}

#[derive(Debug)]
struct DataConnection {
    wire: Box<dyn Wire>,
    done: bool,
}

impl Dial {
    pub(crate) fn new(peer: Arc<str>, info: &AgentInfo, boot: [u8; 16], way: &Way) -> Self {
        Self {
            peer,
            cookie: info.cookie,
            targets: info.targets(boot, way).into(),
            payload_port: info.payload_port,
            token: info.token,
            attempt: None,
            failures: Vec::new(),
            jobs: Vec::new(),
        }
    }

    pub(crate) fn take(&mut self, job: Job) -> Result<(), Failure> {
        if self.jobs.len() >= MAX_JOBS {
            let text = format!(
                "{MAX_JOBS} transfers and notifications wait for a connection to {}",
                self.peer.escape_debug()
            );
            return Err(Failure::new(Status::Backend, text));
        }
        self.jobs.push(job);
        Ok(())
    }

    /// Ends a transfer that waits.
    pub(crate) fn cancel(&mut self, transfer: &Arc<Transfer>) {
        self.jobs.retain(
            |job| !matches!(job, Job::Transfer(posted) if Arc::ptr_eq(&posted.transfer, transfer)),
        );
        transfer.set_status(Status::Cancelled);
    }

    /// Returns whether it has made a connection, or tried to.
    pub(crate) fn has_begun(&self) -> bool {
        self.attempt.is_some() || !self.failures.is_empty()
    }

    pub(crate) fn on_ready(&mut self, stream: usize, ready: Ready) {
        let Some(attempt) = &mut self.attempt else {
            return;
        };
        match stream.checked_sub(1) {
            None => attempt.control.wire.on_ready(ready),
            Some(index) => {
                if let Some(data) = attempt.data.get_mut(index) {
                    data.wire.on_ready(ready);
                }
            }
        }
    }

    /// Goes on. Returns the connections when they are all there.
    pub(crate) fn turn(&mut self, with: &Dialing<'_>) -> Result<Option<Connected>, Broken> {
        loop {
            if self.attempt.is_none() {
                self.begin(with)?;
            }
            let Some(attempt) = &mut self.attempt else {
                continue;
            };
            let stepped = match with.now > attempt.until {
                true => Err(Broken::Unreachable("no answer in time".to_owned())),
                false => attempt.step(self.cookie, with),
            };
            match stepped {
                Ok(true) => return self.connected(&with.settings.way),
                Ok(false) => return Ok(None),
                Err(broken @ Broken::Fault(_)) if self.targets.is_empty() => return Err(broken),
                Err(broken) => {
                    self.failures.push(format!("{}: {broken}", attempt.target));
                    self.attempt = None;
                }
            }
        }
    }

    /// All connections are there: finds out whether the memory of each side can be read by the other one.
    fn connected(&mut self, way: &Way) -> Result<Option<Connected>, Broken> {
        let Some(attempt) = self.attempt.take() else {
            return Ok(None);
        };
        let process = attempt.control.wire.process();
        let process = process.filter(|process| can_read(*process, self.token, self.cookie));
        let is_near = attempt.is_near;
        if *way == Way::Unix && (process.is_none() || !is_near) {
            let text = "way=unix, and the memory of its process, or of this one, cannot be read by the other: other user, container or Yama";
            return Err(Broken::Unreachable(text.to_owned()));
        }
        let mut wires = attempt.into_wires();
        wires.carriers.near = process.map(NearMemory::new);
        Ok(Some(Connected { wires, is_near }))
    }

    /// Begins an attempt at the next address.
    fn begin(&mut self, with: &Dialing<'_>) -> Result<(), Broken> {
        let Some(target) = self.targets.pop_front() else {
            return Err(Broken::Unreachable(self.failures.join("; ")));
        };
        let timeout = with.settings.timeout;
        match with.network.connect(target, with.number) {
            Ok(wire) => {
                self.attempt = Some(Attempt {
                    target,
                    payload: target.with_port(self.payload_port),
                    until: with.now + timeout.min(LONGEST_ATTEMPT),
                    control: Control::new(wire),
                    is_introduced: false,
                    is_near: false,
                    session: None,
                    data: Vec::new(),
                });
            }
            Err(error) => self.failures.push(format!("{target}: {error}")),
        }
        Ok(())
    }

    /// Nobody answers: takes out the transfers that wait.
    pub(crate) fn into_transfers(self) -> impl Iterator<Item = Arc<Transfer>> {
        self.jobs.into_iter().filter_map(|job| match job {
            // Lets go of its memory first.
            Job::Transfer(posted) => Some(Arc::clone(&posted.transfer)),
            Job::Notify(_) => None,
        })
    }
}

impl Attempt {
    /// Returns whether all connections are there.
    fn step(&mut self, cookie: u64, with: &Dialing<'_>) -> Result<bool, Broken> {
        if !self.is_introduced {
            if !self.control.wire.is_connected()? {
                return Ok(false);
            }
            self.introduce(cookie, with);
        }
        self.control.flush()?;
        while let Some((record, _)) = self.control.next()? {
            match (record, self.session) {
                (Record::Welcome { session, is_near }, None) => {
                    self.is_near = is_near;
                    self.connect_data(session, with)?;
                }
                (Record::Ready, Some(_)) if self.data.iter().all(|it| it.done) => return Ok(true),
                (Record::Failed(fault), _) => return Err(Broken::Fault(fault)),
                _ => return Err(Violation::Order.into()),
            }
        }
        if let Some(session) = self.session {
            for (index, data) in (1..).zip(&mut self.data) {
                data.introduce(session, index)?;
            }
        }
        Ok(false)
    }

    fn introduce(&mut self, cookie: u64, with: &Dialing<'_>) {
        let hello = Record::Hello {
            version: VERSION,
            stream: 0,
            streams: u32::from(with.settings.connections),
            number: cookie,
            // Checked when the agent was made.
            tail: (CALLER_BYTES + with.agent.len()) as u32,
        };
        let behind = [with.caller.as_bytes(), with.agent.as_bytes()].concat();
        self.control.queue_with(hello, &behind);
        self.is_introduced = true;
    }

    fn connect_data(&mut self, session: u64, with: &Dialing<'_>) -> Result<(), Broken> {
        self.session = Some(session);
        for index in 1..=with.settings.connections {
            let number = with.number + u64::from(index);
            let wire = with.network.connect_payload(self.payload, number)?;
            self.data.push(DataConnection { wire, done: false });
        }
        Ok(())
    }

    fn into_wires(self) -> Wires {
        let streams = self.data.into_iter().map(|it| DataStream::new(it.wire));
        let carriers = Carriers {
            streams: streams.collect(),
            near: None,
        };
        Wires::new(self.control, carriers)
    }
}

impl DataConnection {
    fn introduce(&mut self, session: u64, stream: u16) -> Result<(), Broken> {
        if self.done || !self.wire.is_connected()? {
            return Ok(());
        }
        let hello = Record::Hello {
            version: VERSION,
            stream,
            streams: 0,
            number: session,
            tail: 0,
        };
        match self.wire.write(&hello.encode())? {
            // The first bytes of a connection fit.
            Some(HEADER_BYTES) => self.done = true,
            Some(_) => return Err(Violation::Record.into()),
            None => {}
        }
        Ok(())
    }
}
