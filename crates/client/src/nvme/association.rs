//! An association of this host with one controller: its admin queue, which keeps it alive, and the I/O queues in use.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use devmem_tcp::{Netdev, RecvError, Stream};
use nvme::command::{self, ANY_CONTROLLER, Connect, ConnectData, Sqe};
use nvme::identify::{self, Controller, Namespace};
use nvme::pdu::{Digests, FromController, Parsed, parse_from_controller};
use nvme::property::{self, Capabilities, Phase};
use nvme::{DISCOVERY_NQN, Status};

use super::queue::Queue;
use super::refusal::refused;
use super::url::{Identity, NvmeUrl};
use crate::dial::{self, CancelCheck};
use crate::error::LoadError;
use crate::remedy::{Remedy, Setting};

/// Entries of an admin queue; fewer are not allowed (Base, "Connect").
const ADMIN_ENTRIES: u32 = 32;
/// Time without a sign of life after which a controller ends the association, and time between two of them.
const KEEP_ALIVE_MS: u32 = 60_000;
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);
/// Longest wait for the answer to one.
const KEEP_ALIVE_LIMIT: Duration = Duration::from_secs(30);
/// I/O queues that a controller is asked for.
const QUEUES: u16 = 128;
/// Time between two polls of the status of a controller.
const STATUS_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Longest wait for the end of a controller.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(1);
/// The bits of the result of Connect that demand authentication (Base, "Connect Response", AUTHREQ).
const AUTHENTICATION: u64 = 0xffff_0000;

/// An association.
#[derive(Debug)]
pub(super) struct Association {
    /// `None` when the association has ended.
    admin: Mutex<Option<Admin>>,
    has_ended: AtomicBool,
    /// I/O queues: whether each is in use.
    used_numbers: Mutex<Vec<bool>>,
    identity: Identity,
    controller_id: u16,
    capabilities: Capabilities,
    pub(super) controller: Controller,
}

/// The admin queue.
#[derive(Debug)]
struct Admin {
    queue: Queue,
    /// When the last sign of life was answered, or sent.
    since: Instant,
    /// The bytes of the answer so far, if one is awaited.
    awaited: Option<Vec<u8>>,
}

impl Association {
    /// Begins an association with a controller of the subsystem.
    ///
    /// # Errors
    /// Nobody listens; the controller refuses, or does not become ready.
    pub(super) fn begin(
        nic: &Netdev,
        url: &NvmeUrl,
        addresses: &[SocketAddr],
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<Self, LoadError> {
        let mut queue = Queue::open(nic, addresses, &url.host, url.digests, cancel_check)?;
        let identity = Identity::of_machine(url.host_nqn.as_deref());
        let is_discovery = url.subsystem == DISCOVERY_NQN;
        let connect = Connect {
            queue: 0,
            entries: ADMIN_ENTRIES,
            without_flow_control: false,
            keep_alive_ms: match is_discovery {
                true => 0,
                false => KEEP_ALIVE_MS,
            },
        };
        let data = connect_data(&identity, ANY_CONTROLLER, &url.subsystem);
        let connected = queue.command(Sqe::connect(connect), &data, &mut [], cancel_check)?;
        let result = connected.map_err(|status| of_connect(url, status))?;
        if result & AUTHENTICATION != 0 {
            return Err(of_connect(url, Status::AUTHENTICATION_REQUIRED));
        }
        let capabilities = enable(&mut queue, url, cancel_check)?;
        let mut page = vec![0; identify::PAGE_BYTES];
        let sqe = Sqe::identify(command::CNS_CONTROLLER, 0);
        let identified = queue.command(sqe, &[], &mut page, cancel_check)?;
        identified.map_err(|status| of_command(url, "Identify Controller", status))?;
        let controller = Controller::parse(&page);
        let controller = controller.ok_or_else(|| queue.invalid("a page that is too short"))?;
        let granted = match is_discovery {
            true => 0,
            false => {
                let result = queue.command(Sqe::set_queues(QUEUES), &[], &mut [], cancel_check)?;
                let result =
                    result.map_err(|status| of_command(url, "Set Features (queues)", status))?;
                command::granted_queues(result).min(QUEUES)
            }
        };
        Ok(Self {
            admin: Mutex::new(Some(Admin {
                queue,
                since: Instant::now(),
                awaited: None,
            })),
            has_ended: AtomicBool::new(false),
            used_numbers: Mutex::new(vec![false; granted.into()]),
            identity,
            // The low 16 bits.
            controller_id: result as u16,
            capabilities,
            controller,
        })
    }

    /// Returns the number of I/O queues.
    pub(super) fn queues(&self) -> usize {
        lock(&self.used_numbers).len()
    }

    /// Returns the longest transfer of a command.
    pub(super) fn transfer_bytes(&self) -> u64 {
        self.controller.transfer_bytes(self.capabilities.page_bytes)
    }

    /// Returns the active namespaces.
    pub(super) fn namespaces(
        &self,
        url: &NvmeUrl,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<Vec<u32>, LoadError> {
        let mut page = vec![0; identify::PAGE_BYTES];
        let sqe = Sqe::identify(command::CNS_ACTIVE, 0);
        let listed = self.command(url, sqe, &mut page, cancel_check)?;
        listed.map_err(|status| of_command(url, "Identify Active Namespaces", status))?;
        Ok(identify::active_namespaces(&page))
    }

    /// Returns what a namespace is; `None` if there is none of this number, or it is not active.
    pub(super) fn namespace(
        &self,
        url: &NvmeUrl,
        nsid: u32,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<Option<Namespace>, LoadError> {
        let mut page = vec![0; identify::PAGE_BYTES];
        let sqe = Sqe::identify(command::CNS_NAMESPACE, nsid);
        match self.command(url, sqe, &mut page, cancel_check)? {
            Ok(()) => {
                let namespace = Namespace::parse(&page).ok_or_else(|| ended(url))?;
                // The page of one that is not active is zero (Base, "Identify Namespace").
                Ok(Some(namespace).filter(|it| it.blocks > 0))
            }
            Err(status) if status.is(Status::INVALID_NAMESPACE) => Ok(None),
            Err(status) => Err(of_command(url, "Identify Namespace", status)),
        }
    }

    /// Reads `out.len()` bytes of the discovery log.
    pub(super) fn discovery_log(
        &self,
        url: &NvmeUrl,
        offset: u64,
        out: &mut [u8],
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<(), LoadError> {
        // A record is 1024 bytes.
        let len = u32::try_from(out.len()).unwrap_or(u32::MAX);
        let sqe = Sqe::discovery_log(offset, len);
        let read = self.command(url, sqe, out, cancel_check)?;
        read.map_err(|status| of_command(url, "Get Log Page (discovery)", status))
    }

    /// Has the controller fill `out`.
    fn command(
        &self,
        url: &NvmeUrl,
        sqe: Sqe,
        out: &mut [u8],
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<Result<(), Status>, LoadError> {
        let mut admin = lock(&self.admin);
        let admin = admin.as_mut().ok_or_else(|| ended(url))?;
        let result = admin.queue.command(sqe, &[], out, cancel_check)?;
        Ok(result.map(drop))
    }

    /// Returns whether the association goes on, as far as this host knows.
    pub(super) fn is_alive(&self) -> bool {
        let mut admin = lock(&self.admin);
        let Some(admin) = admin.as_mut().filter(|_| !self.has_ended()) else {
            return false;
        };
        let stream = &mut admin.queue.stream;
        stream.set_nonblocking(true);
        let peeked = stream.peek(&mut [0]);
        stream.set_timeout(Some(dial::SLICE));
        // Between two commands a controller sends the answer to a sign of life, or nothing.
        matches!(
            peeked,
            Err(RecvError::WouldBlock | RecvError::TimedOut { .. }) | Ok(1..)
        )
    }

    #[inline]
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Ends the association without a word: one of its queues is lost.
    pub(super) fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        *lock(&self.admin) = None;
    }

    /// Sends a sign of life when one is due, and takes the answer to the last one.
    #[inline]
    pub(super) fn keep_alive(&self, now: Instant) {
        let mut admin = lock(&self.admin);
        let is_lost = match admin.as_mut() {
            Some(admin) => admin.keep_alive(now).is_err(),
            None => return,
        };
        if is_lost {
            *admin = None;
            drop(admin);
            self.end();
        }
    }

    /// Returns whether the answer to a sign of life is awaited.
    #[cfg(test)]
    pub(super) fn awaits_answer(&self) -> bool {
        let admin = lock(&self.admin);
        admin.as_ref().is_some_and(|admin| admin.awaited.is_some())
    }

    /// Connects an I/O queue for up to `wanted` commands in flight.
    ///
    /// # Errors
    /// The connection breaks, or the controller refuses.
    pub(super) fn connect(
        self: &Arc<Self>,
        nic: &Netdev,
        url: &NvmeUrl,
        addresses: &[SocketAddr],
        wanted: usize,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<IoQueue, LoadError> {
        let membership = Membership::take(self)
            .ok_or_else(|| broken(url, "all of its I/O queues are in use"))?;
        let mut most = self.capabilities.queue_entries;
        if self.controller.max_commands > 0 {
            most = most.min(u32::from(self.controller.max_commands) + 1);
        }
        let entries = u32::try_from(wanted).unwrap_or(u32::MAX).saturating_add(1);
        let entries = entries.min(most).max(2);
        let mut without_flow_control = !url.has_flow_control;
        loop {
            let mut queue = Queue::open(nic, addresses, &url.host, url.digests, cancel_check)?;
            let connect = Connect {
                queue: membership.queue,
                entries,
                without_flow_control,
                keep_alive_ms: 0,
            };
            let data = connect_data(&self.identity, self.controller_id, &url.subsystem);
            match queue.command(Sqe::connect(connect), &data, &mut [], cancel_check)? {
                Ok(_) => {
                    return Ok(IoQueue {
                        stream: queue.stream,
                        digests: queue.digests,
                        most_data: queue.most_data,
                        // One entry stays free: a full queue and an empty one look alike.
                        depth: (entries - 1) as usize,
                        membership,
                    });
                }
                // It may not know queues without flow control.
                Err(status) if without_flow_control && status.is(Status::CONNECT_INVALID) => {
                    without_flow_control = false;
                }
                Err(status) => {
                    // Another association may be accepted.
                    self.end();
                    return Err(queue.broken(format!("Connect of an I/O queue: {status}")));
                }
            }
        }
    }
}

impl Drop for Association {
    /// Shuts the controller down, unless the association has ended.
    fn drop(&mut self) {
        let admin = self.admin.get_mut().unwrap_or_else(PoisonError::into_inner);
        let Some(admin) = admin.as_mut().filter(|admin| admin.awaited.is_none()) else {
            return;
        };
        admin.queue.set_limit(SHUTDOWN_LIMIT);
        let start = Instant::now();
        let mut cancel_check = dial::never_cancelled;
        let set = Sqe::property_set(property::CC, property::shutdown(self.capabilities));
        let mut answered = admin.queue.command(set, &[], &mut [], &mut cancel_check);
        while let Ok(Ok(_)) = answered
            && start.elapsed() < SHUTDOWN_LIMIT
        {
            let get = Sqe::property_get(property::CSTS, false);
            answered = admin.queue.command(get, &[], &mut [], &mut cancel_check);
            if let Ok(Ok(csts)) = answered
                && Phase::of(csts as u32) == Phase::ShutDown
            {
                break;
            }
            std::thread::sleep(STATUS_POLL_INTERVAL);
        }
    }
}

impl Admin {
    #[inline]
    fn keep_alive(&mut self, now: Instant) -> Result<(), LoadError> {
        let waited = now.saturating_duration_since(self.since);
        let Some(mut text) = self.awaited.take() else {
            if waited >= KEEP_ALIVE_EVERY {
                self.queue.issue(Sqe::keep_alive(), &[])?;
                (self.since, self.awaited) = (now, Some(Vec::new()));
            }
            return Ok(());
        };
        self.queue.stream.set_nonblocking(true);
        let read = self.read_answer(&mut text);
        self.queue.stream.set_timeout(Some(dial::SLICE));
        match read? {
            Some(FromController::Response(cqe)) if cqe.status().is_success() => {
                self.since = now;
                Ok(())
            }
            Some(_) => Err(self.queue.broken("a wrong answer to Keep Alive")),
            None if waited >= KEEP_ALIVE_LIMIT => Err(self.queue.broken("no answer to Keep Alive")),
            None => {
                self.awaited = Some(text);
                Ok(())
            }
        }
    }

    /// Reads what is there of an answer.
    fn read_answer(&mut self, text: &mut Vec<u8>) -> Result<Option<FromController>, LoadError> {
        loop {
            match parse_from_controller(text, self.queue.digests) {
                Ok(Parsed::Whole(pdu)) => return Ok(Some(pdu)),
                Ok(Parsed::More(more)) => {
                    let before = text.len();
                    text.resize(before + more, 0);
                    let read = self.queue.read_some(&mut text[before..])?;
                    text.truncate(before + read);
                    if read == 0 {
                        return Ok(None);
                    }
                }
                Err(error) => return Err(self.queue.invalid(error.problem)),
            }
        }
    }
}

/// A connected I/O queue.
#[derive(Debug)]
pub struct IoQueue {
    /// Its connection.
    pub stream: Stream,
    /// The digests that were negotiated.
    pub digests: Digests,
    /// Most bytes of data in one PDU to the controller.
    pub most_data: u32,
    /// Most commands in flight.
    pub depth: usize,
    /// Its place in the association.
    pub membership: Membership,
}

/// The membership of one I/O queue in an association. Dropping it frees the number of the queue.
#[derive(Debug)]
pub struct Membership {
    association: Option<Arc<Association>>,
    queue: u16,
}

impl Membership {
    fn take(association: &Arc<Association>) -> Option<Self> {
        let mut used_numbers = lock(&association.used_numbers);
        let index = used_numbers.iter().position(|is_used| !is_used)?;
        used_numbers[index] = true;
        Some(Self {
            association: Some(Arc::clone(association)),
            // The first I/O queue is 1, and there are at most as many as were asked for.
            queue: u16::try_from(index + 1).ok()?,
        })
    }

    /// A queue of no association, for what feeds a session.
    #[cfg(any(test, feature = "test-util"))]
    pub fn of_nobody() -> Self {
        Self {
            association: None,
            queue: 1,
        }
    }

    /// Ends the association: the queue is lost with commands in flight.
    pub fn end_association(&self) {
        if let Some(association) = &self.association {
            association.end();
        }
    }

    /// Returns whether another queue was lost, and with it the association.
    #[inline]
    pub fn has_ended(&self) -> bool {
        let association = self.association.as_ref();
        association.is_some_and(|association| association.has_ended())
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if let Some(association) = &self.association
            && let Some(index) = usize::from(self.queue).checked_sub(1)
        {
            lock(&association.used_numbers)[index] = false;
        }
    }
}

/// Enables the controller, and waits until it is ready.
fn enable(
    queue: &mut Queue,
    url: &NvmeUrl,
    cancel_check: &mut CancelCheck<'_>,
) -> Result<Capabilities, LoadError> {
    let get = Sqe::property_get(property::CAP, true);
    let cap = queue.command(get, &[], &mut [], cancel_check)?;
    let cap = cap.map_err(|status| of_command(url, "Property Get (CAP)", status))?;
    let capabilities = Capabilities::of(cap);
    let set = Sqe::property_set(property::CC, property::enabled(capabilities));
    let answered = queue.command(set, &[], &mut [], cancel_check)?;
    answered.map_err(|status| of_command(url, "Property Set (CC)", status))?;
    let start = Instant::now();
    let limit = Duration::from_millis(capabilities.ready_ms.max(500));
    loop {
        let get = Sqe::property_get(property::CSTS, false);
        let csts = queue.command(get, &[], &mut [], cancel_check)?;
        let csts = csts.map_err(|status| of_command(url, "Property Get (CSTS)", status))?;
        // A property of 4 bytes.
        match Phase::of(csts as u32) {
            Phase::Ready => return Ok(capabilities),
            Phase::Failed => {
                return Err(queue.broken("the controller has a fatal error (CSTS.CFS)"));
            }
            Phase::Starting | Phase::ShutDown if start.elapsed() < limit => {
                dial::pause(STATUS_POLL_INTERVAL, cancel_check)?
            }
            Phase::Starting | Phase::ShutDown => {
                return Err(
                    queue.broken("the controller does not become ready in its time (CAP.TO)")
                );
            }
        }
    }
}

fn connect_data(identity: &Identity, controller_id: u16, subsystem: &str) -> Vec<u8> {
    let data = ConnectData {
        host_id: identity.id,
        controller_id,
        subsystem_nqn: subsystem.to_owned(),
        host_nqn: identity.nqn.clone(),
    };
    data.to_bytes()
}

/// Returns the error of a Connect that was refused.
fn of_connect(url: &NvmeUrl, status: Status) -> LoadError {
    let problem = format!("Connect to {}: {status}", url.subsystem);
    let remedy = match status {
        it if it.is(Status::AUTHENTICATION_REQUIRED) => {
            "in-band authentication is not supported: allow this host by its name, without a key"
        }
        it if it.is(Status::CONNECT_HOST) => {
            "allow this host there (attr_allow_any_host, or allowed_hosts), or name another one with hostnqn="
        }
        it if it.is(Status::CONNECT_INVALID) => {
            return refused(
                &url.host,
                problem,
                Remedy::Set(
                    "check the name of the subsystem: {} lists those of a host",
                    Setting::Subsystems,
                ),
            );
        }
        _ => "the log of the controller may say more",
    };
    refused(&url.host, problem, remedy)
}

fn of_command(url: &NvmeUrl, what: &str, status: Status) -> LoadError {
    refused(
        &url.host,
        format!("{what}: {status}"),
        "the log of the controller may say more",
    )
}

fn ended(url: &NvmeUrl) -> LoadError {
    broken(url, "the association with the controller has ended")
}

fn broken(url: &NvmeUrl, problem: &str) -> LoadError {
    LoadError::Broken {
        host: url.host.clone(),
        problem: problem.into(),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each is valid at any time, so a panic of another thread does not matter.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
