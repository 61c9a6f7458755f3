//! A thread that closes what NCCL has no call for: attempts to connect that it has stopped asking about and, in versions without contexts,
//! devices that nothing uses any more. It exists while there are such attempts or devices.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two looks. What looks find without a call of NCCL is abandoned after [`Config::patience`](crate::config::Config) of them.
/// They are counted, not measured: a process that was stopped for a while has abandoned nothing.
const TICK: Duration = Duration::from_secs(1);

static WATCH: Mutex<Watch> = Mutex::new(Watch {
    thread: None,
    is_running: false,
    is_wanted: false,
    is_stopped: false,
});

/// Notified when the library is unloaded.
static STOPPED: Condvar = Condvar::new();

/// The process that has started the thread; 0: none.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Closes what is abandoned, and returns whether anything is left that may be abandoned later.
type CloseAbandoned = fn() -> bool;

static CLOSE_ABANDONED: OnceLock<CloseAbandoned> = OnceLock::new();

struct Watch {
    /// Of a thread that runs, or has ended. It is joined before the library is unmapped.
    thread: Option<JoinHandle<()>>,
    is_running: bool,
    /// There is something to look at that the thread may not have seen.
    is_wanted: bool,
    is_stopped: bool,
}

fn watch() -> MutexGuard<'static, Watch> {
    WATCH.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether this is a child of fork(2) of the process with the thread. The thread does not exist here, but may have held locks;
/// and all connections belong to the parent.
pub(crate) fn is_forked() -> bool {
    ![0, std::process::id()].contains(&PROCESS.load(Ordering::Relaxed))
}

/// Sets what the thread calls, before anything can start it. Later calls change nothing.
pub(crate) fn init(close_abandoned: CloseAbandoned) {
    CLOSE_ABANDONED.get_or_init(|| close_abandoned);
}

/// Starts the thread, unless it runs.
pub(crate) fn start() {
    let Some(close_abandoned) = CLOSE_ABANDONED.get().copied().filter(|_| !is_forked()) else {
        return;
    };
    let mut watch = watch();
    watch.is_wanted = true;
    if watch.is_running || watch.is_stopped {
        return;
    }
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    if let Some(ended) = watch.thread.take() {
        // An error is a panic of the thread, which has been printed already.
        let _ = ended.join();
    }
    let thread = std::thread::Builder::new().name("devmem-watch".to_owned());
    // Without a thread, what is abandoned stays until the next call that starts it.
    watch.thread = thread.spawn(move || run(close_abandoned)).ok();
    watch.is_running = watch.thread.is_some();
}

fn run(close_abandoned: CloseAbandoned) {
    loop {
        let has_more = close_abandoned();
        let mut watch = watch();
        let is_wanted = std::mem::take(&mut watch.is_wanted);
        if watch.is_stopped || !(has_more || is_wanted) {
            watch.is_running = false;
            return;
        }
        let goes_on = |watch: &mut Watch| !watch.is_stopped;
        let waited = STOPPED.wait_timeout_while(watch, TICK, goes_on);
        drop(waited);
    }
}

/// Ends the thread and waits for its end, when the library is unloaded.
pub(crate) fn stop() {
    let mut watch = watch();
    watch.is_stopped = true;
    let thread = watch.thread.take();
    drop(watch);
    STOPPED.notify_all();
    if let Some(thread) = thread {
        // As in `start`.
        let _ = thread.join();
    }
}
