//! A streamer: submissions in, one answer for each of their ranges out.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::c_int;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::code::Code;
use crate::local::LocalFile;
use crate::log;
use crate::object;
use crate::store::Store;
use crate::submission::{FileWanted, Place};

/// Threads, if RUNAI_STREAMER_CONCURRENCY does not say.
const THREADS: usize = 8;
const MAX_THREADS: usize = 256;
/// Bytes of a file that one task reads: fewer would cost as much for the calls, and more could not be shared by threads.
const TASK_BYTES: u64 = 4 << 20;

/// The answer for one range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) code: Code,
    pub(crate) submission: u64,
    pub(crate) file: u32,
    pub(crate) range: u32,
    /// Whether it is the last one of its submission.
    pub(crate) is_last: bool,
}

/// Names a file of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileNumber {
    pub(crate) submission: u64,
    pub(crate) file: u32,
}

/// A part of a range of a file.
struct Piece {
    file: Arc<LocalFile>,
    range: usize,
    bytes: Range<u64>,
}

/// Work for a thread.
enum Task {
    /// Short pieces together, in order: for each alone the way to another thread would cost more than the read.
    Local(Vec<Piece>),
    Object(FileNumber, FileWanted),
}

/// A streamer. Any thread may call it.
pub(crate) struct Streamer {
    line: Arc<Line>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Between the callers and the threads.
pub(crate) struct Line {
    state: Mutex<State>,
    /// Told when there is a task, an answer, or the end.
    changed: Condvar,
    store: Store,
}

#[derive(Default)]
struct State {
    tasks: VecDeque<Task>,
    answers: VecDeque<Answer>,
    /// Of each submission, the ranges that were not answered.
    left: HashMap<u64, u64>,
    last: u64,
    is_ended: bool,
    strategy: Option<Vec<u8>>,
}

impl Line {
    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a range.
    pub(crate) fn answer(&self, of: FileNumber, range: usize, code: Code) {
        let mut state = self.locked();
        let FileNumber { submission, file } = of;
        let Some(left) = state.left.get_mut(&submission) else {
            return;
        };
        *left -= 1;
        let is_last = *left == 0;
        if is_last {
            state.left.remove(&submission);
        }
        state.answers.push_back(Answer {
            code,
            submission,
            file,
            // Fits: the caller has counted them by such numbers.
            range: u32::try_from(range).unwrap_or(u32::MAX),
            is_last,
        });
        drop(state);
        self.changed.notify_all();
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.locked().is_ended
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// The body of a thread.
    fn work(&self) {
        loop {
            let mut state = self.locked();
            let task = loop {
                if state.is_ended {
                    return;
                }
                if let Some(task) = state.tasks.pop_front() {
                    break task;
                }
                let waited = self.changed.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
            };
            drop(state);
            match task {
                Task::Local(pieces) => {
                    for Piece { file, range, bytes } in pieces {
                        if let Some((of, code)) = file.read(range, bytes) {
                            self.answer(of, range, code);
                        }
                    }
                }
                Task::Object(of, wanted) => object::read(self, of, &wanted),
            }
        }
    }
}

impl Streamer {
    /// Starts a streamer. Its threads begin with the first submission.
    pub(crate) fn start() -> Self {
        Self {
            line: Arc::new(Line {
                state: Mutex::default(),
                changed: Condvar::new(),
                store: Store::default(),
            }),
            threads: Mutex::default(),
        }
    }

    /// Takes a submission, and returns its number. Each of its ranges will be answered.
    ///
    /// # Errors
    /// It names a store that is not supported, the streamer was ended, or no thread can be begun.
    pub(crate) fn submit(&self, files: Vec<FileWanted>) -> Result<u64, Code> {
        let places: Vec<_> = files
            .iter()
            .map(FileWanted::place)
            .collect::<Result<_, _>>()?;
        self.begin_threads()?;
        let ranges: u64 = files.iter().map(|file| file.ranges.len() as u64).sum();
        let mut state = self.line.locked();
        if state.is_ended {
            return Err(Code::Finished);
        }
        state.last += 1;
        let submission = state.last;
        if ranges > 0 {
            state.left.insert(submission, ranges);
        }
        let mut pieces = Vec::new();
        for ((file, wanted), place) in (0..).zip(files).zip(places) {
            let number = FileNumber { submission, file };
            match place {
                _ if wanted.ranges.is_empty() => {}
                Place::Object => state.tasks.push_back(Task::Object(number, wanted)),
                Place::File => {
                    let file = Arc::new(LocalFile::new(number, wanted));
                    pieces.extend(file.pieces(TASK_BYTES).map(|(range, bytes)| Piece {
                        file: Arc::clone(&file),
                        range,
                        bytes,
                    }));
                }
            }
        }
        state
            .tasks
            .extend(together(pieces).into_iter().map(Task::Local));
        drop(state);
        self.line.changed.notify_all();
        Ok(submission)
    }

    /// Waits for the next answer, for ever without a limit.
    ///
    /// # Errors
    /// [`Code::TimedOut`], or [`Code::Finished`] if the streamer was ended.
    pub(crate) fn next_answer(&self, limit: Option<Duration>) -> Result<Answer, Code> {
        let until = limit.map(|limit| Instant::now() + limit);
        let mut state = self.line.locked();
        loop {
            if let Some(answer) = state.answers.pop_front() {
                return Ok(answer);
            }
            if state.is_ended {
                return Err(Code::Finished);
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            state = match left {
                Some(Duration::ZERO) => return Err(Code::TimedOut),
                Some(left) => {
                    let waited = self.line.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let waited = self.line.changed.wait(state);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }

    /// Returns whether answers are to come, or wait to be taken.
    pub(crate) fn is_busy(&self) -> bool {
        let state = self.line.locked();
        !state.left.is_empty() || !state.answers.is_empty()
    }

    /// Sets what the stores ask for, once.
    ///
    /// # Errors
    /// [`Code::CredentialsDiffer`].
    pub(crate) fn set_credentials(&self, given: BTreeMap<String, String>) -> Result<(), Code> {
        self.line.store.set(given)
    }

    /// Notes how files are to be read, once. There is one way.
    ///
    /// # Errors
    /// [`Code::StrategyDiffers`].
    pub(crate) fn set_strategy(&self, name: &[u8]) -> Result<(), Code> {
        let mut state = self.line.locked();
        match &state.strategy {
            Some(other) if other != name => Err(Code::StrategyDiffers),
            _ => {
                state.strategy = Some(name.to_vec());
                Ok(())
            }
        }
    }

    /// Ends it: no memory of a caller is touched any more when this returns.
    pub(crate) fn end(&self) {
        let mut state = self.line.locked();
        state.is_ended = true;
        state.tasks.clear();
        drop(state);
        self.line.changed.notify_all();
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            // A panic was reported by its hook.
            let _ = thread.join();
        }
    }

    fn begin_threads(&self) -> Result<(), Code> {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = if threads.is_empty() { concurrency() } else { 0 };
        for _ in 0..wanted {
            let line = Arc::clone(&self.line);
            let thread = thread::Builder::new().name("devmem-streamer".to_owned());
            match thread.spawn(move || line.work()) {
                Ok(thread) => threads.push(thread),
                // Fewer will do.
                Err(_) if !threads.is_empty() => break,
                Err(error) => {
                    log::failure("begin a thread", &error);
                    return Err(Code::Unknown);
                }
            }
        }
        Ok(())
    }
}

/// Puts pieces together that have at most `TASK_BYTES`; each has no more.
fn together(pieces: Vec<Piece>) -> Vec<Vec<Piece>> {
    let (mut tasks, mut bytes) = (Vec::<Vec<Piece>>::new(), 0);
    for piece in pieces {
        let len = piece.bytes.end - piece.bytes.start;
        match tasks.last_mut() {
            Some(task) if bytes + len <= TASK_BYTES => {
                bytes += len;
                task.push(piece);
            }
            _ => {
                bytes = len;
                tasks.push(vec![piece]);
            }
        }
    }
    tasks
}

/// Returns the number of threads: that of the environment.
fn concurrency() -> usize {
    let set = std::env::var("RUNAI_STREAMER_CONCURRENCY").ok();
    let set = set.and_then(|text| text.parse::<c_int>().ok());
    let set = set.and_then(|number| usize::try_from(number).ok());
    set.filter(|number| *number > 0)
        .unwrap_or(THREADS)
        .min(MAX_THREADS)
}
