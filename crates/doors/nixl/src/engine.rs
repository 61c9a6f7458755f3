//! What the C interface calls: an agent behind a lock, and the thread that makes progress while the program does something else.
//!
//! Calls that ask for something (`check`, `notifications`) make progress themselves: each polls the network once, and returns. A program that
//! does so in a loop keeps the lock and the caches to itself: the thread stays away for as long as such calls come, since two threads that
//! wake each other for every packet are slower than one, and take the processor that the peer needs. Only while nobody calls, the thread
//! waits for the network.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::agent::Agent;
use crate::inbox::Notification;
use crate::settings::Settings;
use crate::status::{Failure, Status};
use crate::transfer::Transfer;
use crate::wire::Network;

/// For so long after a call that made progress, the thread leaves progress to calls.
const CALL_ACTIVITY_WINDOW: Duration = Duration::from_micros(200);

/// For so long after the last byte the thread looks for more, before it waits for the network: the answer to a short message comes in less
/// time than a processor takes to wake up.
const SPIN: Duration = Duration::from_micros(50);

/// A pause of the thread while it looks that is longer than this was somebody else's turn on the processor.
const LONGEST_OWN_PAUSE: Duration = Duration::from_micros(300);

/// For so long after that, the thread waits at once: on a busy machine, who has used up its share of a processor waits for the others, and
/// who sleeps is woken before them.
const CROWDED: Duration = Duration::from_millis(100);

/// Calls of `check` in a row that found nothing to do, each at once after the one before, from which on a call waits for the network: the
/// program does nothing else, and the processor is better used by the peer. The end of a short transfer comes in less time than a sleep takes.
const FRUITLESS: u32 = 16;
const FRUITLESS_SHORT: u32 = 100;
const SHORT_BYTES: u64 = 64 << 10;
const AT_ONCE: Duration = Duration::from_micros(10);
const PAUSE: Duration = Duration::from_micros(50);

/// Longest wait of the thread: bounds how late a peer that does not answer is noticed.
const LONGEST_WAIT: Duration = Duration::from_millis(250);

/// How long closing waits until peers have been told what was promised to be told.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_PAUSE: Duration = Duration::from_millis(10);

/// All engines of the process, to show what they have moved.
static ENGINES: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// What the thread and the calls share.
#[derive(Debug)]
struct Shared {
    agent: Mutex<Agent>,
    network: Arc<dyn Network>,
    is_closing: AtomicBool,
    begun: Instant,
    /// When a call made progress last, in nanoseconds since `begun`.
    called: AtomicU64,
    /// Calls of `check` in a row that found nothing to do.
    fruitless: AtomicU32,
    process: u32,
}

/// An engine.
#[derive(Debug)]
pub(crate) struct Engine {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What makes progress besides calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Calls,
    Thread,
}

impl Engine {
    pub(crate) fn open(
        name: &str,
        settings: Settings,
        progress: Progress,
    ) -> Result<Self, Failure> {
        let agent = Agent::new(name, settings)?;
        let shared = Arc::new(Shared {
            network: Arc::clone(agent.network()),
            agent: Mutex::new(agent),
            is_closing: AtomicBool::new(false),
            begun: Instant::now(),
            called: AtomicU64::new(0),
            fruitless: AtomicU32::new(0),
            process: std::process::id(),
        });
        let thread = match progress {
            Progress::Calls => None,
            Progress::Thread => {
                let shared = Arc::clone(&shared);
                let spawned = std::thread::Builder::new()
                    .name("devmem-nixl".to_owned())
                    .spawn(move || shared.run());
                Some(spawned.map_err(|error| Failure::system("pthread_create", error))?)
            }
        };
        let mut engines = ENGINES.lock().unwrap_or_else(PoisonError::into_inner);
        engines.retain(|engine| engine.strong_count() > 0);
        engines.push(Arc::downgrade(&shared));
        Ok(Self { shared, thread })
    }

    /// Calls with the agent.
    pub(crate) fn with<T>(
        &self,
        call: impl FnOnce(&mut Agent) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.shared.check_process()?;
        call(&mut self.shared.agent())
    }

    pub(crate) fn post(
        &self,
        transfer: &Arc<Transfer>,
        notification: Option<Vec<u8>>,
    ) -> Result<Status, Failure> {
        self.shared.check_process()?;
        let mut agent = self.shared.agent();
        let status = agent.post(transfer, notification)?;
        self.hand_over(agent);
        Ok(status)
    }

    pub(crate) fn notify(&self, peer: &str, message: &[u8]) -> Result<(), Failure> {
        self.shared.check_process()?;
        let mut agent = self.shared.agent();
        agent.notify(peer, message)?;
        self.hand_over(agent);
        Ok(())
    }

    pub(crate) fn connect(&self, peer: &str) -> Result<(), Failure> {
        self.shared.check_process()?;
        let mut agent = self.shared.agent();
        agent.connect(peer)?;
        self.hand_over(agent);
        Ok(())
    }

    /// Ends a transfer that the program does not wait for.
    pub(crate) fn cancel(&self, transfer: &Arc<Transfer>) -> Result<(), Failure> {
        self.with(|agent| {
            agent.cancel(transfer);
            Ok(())
        })
    }

    /// Returns how far a transfer is. Makes progress, unless another thread does.
    pub(crate) fn check(&self, transfer: &Transfer) -> Result<Status, Failure> {
        if transfer.status() != Status::InProgress {
            return Ok(transfer.status());
        }
        self.shared.check_process()?;
        let agent = match self.shared.agent.try_lock() {
            Ok(agent) => Some(agent),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        let Some(mut agent) = agent else {
            return Ok(transfer.status());
        };
        let worked = agent.turn();
        drop(agent);
        self.shared.on_check(worked, transfer.bytes());
        Ok(transfer.status())
    }

    pub(crate) fn notifications(&self) -> Result<VecDeque<Notification>, Failure> {
        self.shared.check_process()?;
        let taken = self.shared.agent().notifications();
        self.shared.note_call();
        Ok(taken)
    }

    /// After a call that does not come again: wakes the thread, if there is more to do that no socket tells of.
    fn hand_over(&self, agent: MutexGuard<'_, Agent>) {
        let has_more = agent.can_go_on();
        drop(agent);
        if has_more && self.thread.is_some() {
            self.shared.network.wake();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.shared.check_process().is_err() {
            // A child of fork(2): the connections are the parent's. Only descriptors are closed, with the process.
            std::mem::forget(Arc::clone(&self.shared));
            std::mem::forget(self.thread.take());
            return;
        }
        self.shared.is_closing.store(true, Ordering::Release);
        self.shared.network.wake();
        if let Some(thread) = self.thread.take() {
            // An error is a panic of the thread, which was printed.
            let _ = thread.join();
        }
        self.shared.linger();
    }
}

impl Shared {
    fn agent(&self) -> MutexGuard<'_, Agent> {
        self.agent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In a child of fork(2) neither the thread nor whoever holds the lock exists, and the connections belong to the parent.
    fn check_process(&self) -> Result<(), Failure> {
        match std::process::id() == self.process {
            true => Ok(()),
            false => Err(Failure::new(
                Status::NotAllowed,
                "the agent was made before fork(2), and belongs to the parent; make agents after fork, or start processes by spawn",
            )),
        }
    }

    /// Ends a call that waits for a transfer: lets others use the processor if such calls find nothing again and again.
    fn on_check(&self, worked: bool, bytes: u64) {
        let is_at_once = self.since_call() < AT_ONCE;
        self.note_call();
        if worked || !is_at_once {
            self.fruitless.store(0, Ordering::Relaxed);
            return;
        }
        let most = match bytes {
            ..=SHORT_BYTES => FRUITLESS_SHORT,
            _ => FRUITLESS,
        };
        if self.fruitless.fetch_add(1, Ordering::Relaxed) >= most {
            self.network.pause(PAUSE);
            self.note_call();
        }
    }

    fn note_call(&self) {
        let now = self.begun.elapsed().as_nanos();
        self.called
            .store(u64::try_from(now).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Returns the time since a call made progress. It is long if none has.
    fn since_call(&self) -> Duration {
        match self.called.load(Ordering::Relaxed) {
            0 => Duration::MAX,
            called => self
                .begun
                .elapsed()
                .saturating_sub(Duration::from_nanos(called)),
        }
    }

    fn run(&self) {
        let mut idle = Idle::default();
        while !self.is_closing.load(Ordering::Acquire) {
            if self.since_call() < CALL_ACTIVITY_WINDOW {
                std::thread::sleep(CALL_ACTIVITY_WINDOW);
                continue;
            }
            if self.agent().turn() {
                idle.since = None;
            } else if idle.is_over(Instant::now()) {
                self.network.wait(LONGEST_WAIT);
                idle.looked = None;
            }
        }
    }

    /// Sends what was taken from the program and not sent, for a bounded time.
    fn linger(&self) {
        let until = Instant::now() + LINGER;
        let mut agent = self.agent();
        while agent.has_unsent() && Instant::now() < until {
            if !agent.turn() {
                self.network.pause(LINGER_PAUSE);
            }
        }
    }
}

/// Turns of the thread that found nothing to do.
#[derive(Debug, Default)]
struct Idle {
    /// The first one.
    since: Option<Instant>,
    /// The last one, unless the thread has waited since.
    looked: Option<Instant>,
    /// Until then the thread does not look for long.
    crowded_until: Option<Instant>,
}

impl Idle {
    /// Notes such a turn. Returns whether the thread is to wait for the network.
    fn is_over(&mut self, now: Instant) -> bool {
        let looked = self.looked.replace(now);
        let since = *self.since.get_or_insert(now);
        if since != now && looked.is_some_and(|looked| now - looked > LONGEST_OWN_PAUSE) {
            self.crowded_until = Some(now + CROWDED);
        }
        let is_crowded = self.crowded_until.is_some_and(|until| now < until);
        is_crowded || now - since > SPIN
    }
}

/// Returns a line of JSON for each engine of this process: its agent, the way, and what was moved and copied.
pub(crate) fn paths() -> String {
    let engines = ENGINES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut out = String::new();
    for shared in engines.iter().filter_map(Weak::upgrade) {
        let agent = shared.agent();
        let counts = agent.counts();
        let (pool, home) = agent
            .network()
            .net_iovs()
            .map_or((0, 0), |count| (count.total, count.home));
        out.push_str(&format!(
            "{{\"agent\":{},\"way\":{},\"copies\":{},\"sent_bytes\":{},\"received_bytes\":{},\"inline_bytes\":{},\"unix_bytes\":{},\"own_bytes\":{},\"device_bytes\":{},\"staged_bytes\":{},\"pool_net_iovs\":{pool},\"pool_home\":{home}}}\n",
            json_text(agent.name()),
            json_text(&agent.way().to_string()),
            agent.network().copies(),
            counts.sent,
            counts.received,
            counts.inline,
            counts.near,
            counts.own,
            counts.by_nic,
            counts.staged
        ));
    }
    out
}

fn json_text(text: &str) -> String {
    let mut out = String::from('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            letter if letter.is_control() => out.push_str(&format!("\\u{:04x}", letter as u32)),
            letter => out.push(letter),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_looks_for_a_while_and_on_a_busy_machine_not_at_all() {
        let micros = Duration::from_micros;
        let (mut idle, begun) = (Idle::default(), Instant::now());
        for at in [0, 20, 50] {
            assert!(!idle.is_over(begun + micros(at)), "{at}");
        }
        assert!(idle.is_over(begun + micros(51)));
        // After a wait and more work, it looks again; but not after somebody else has had the processor.
        (idle.since, idle.looked) = (None, None);
        assert!(!idle.is_over(begun + micros(1000)));
        assert!(idle.is_over(begun + micros(1000) + LONGEST_OWN_PAUSE + micros(1)));
        idle.since = None;
        assert!(idle.is_over(begun + micros(2000)));
        idle.since = None;
        assert!(!idle.is_over(begun + micros(2000) + CROWDED));
    }

    #[test]
    fn names_in_json_are_escaped() {
        assert_eq!(json_text("a\"b\\c\n"), "\"a\\\"b\\\\c\\u000a\"");
    }
}
