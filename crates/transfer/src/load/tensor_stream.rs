//! Tensors of a checkpoint in the order in which they come, with a bound on the memory for them.
//!
//! A thread loads them in windows: as many as fit into a quarter of the bound, one window after the other, over connections that stay open. So a
//! window is loaded while the program works with those before it. The next window begins when there is room for it.

mod budget;
mod settings;
mod windows;

use std::collections::VecDeque;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::{Arc, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use client::{LoadError, Remedy, Setting};
use devmem_tcp::Dmabuf;

use self::budget::Budget;
pub use self::budget::Share;
pub use self::settings::{Sharing, StreamSettings};
use self::windows::{Window, windows};
use super::loader::Loader;
use super::safetensors::Checkpoint;
use super::safetensors::selected::Destination;
use super::safetensors::selection::Selected;

/// A tensor that is there.
#[derive(Debug)]
#[non_exhaustive]
pub struct Arrived {
    /// What was selected.
    pub selected: Selected,
    /// The memory that it is in.
    pub memory: Dmabuf,
    /// The place of its first byte there.
    pub offset: usize,
    /// Counts the memory: when all clones of the tensors in it are dropped, it counts no more.
    pub share: Arc<Share>,
    /// Whether no further tensor of this memory comes.
    pub is_last: bool,
}

/// The next of a stream.
#[derive(Debug)]
pub enum Next {
    /// A tensor.
    Tensor(Arrived),
    /// None yet.
    NotYet,
    /// All have come.
    End,
}

/// Why a stream does not go on; `E` is an error of the caller's allocation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamFailure<E: fmt::Debug> {
    /// The load failed.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// There is no memory for the tensors.
    #[error("there is no memory for the tensors: {0:?}")]
    Memory(E),
    /// One tensor needs more than all memory that the stream may use.
    #[error("{name:?} needs {needed} bytes of memory, and the limit is {limit}")]
    TooLarge {
        /// Name of the tensor.
        name: String,
        /// The memory that it needs.
        needed: u64,
        /// The bound.
        limit: u64,
    },
    /// The program holds so many tensors that the next ones do not fit. Once it has dropped some, the stream goes on.
    #[error(
        "tensors that the program holds have {held} bytes, the next ones need {needed}, and the limit is {limit}"
    )]
    Held {
        /// Bytes of the tensors that are held.
        held: u64,
        /// Bytes of the next ones.
        needed: u64,
        /// The bound.
        limit: u64,
    },
}

impl<E: fmt::Debug> StreamFailure<E> {
    /// Returns what helps.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::Load(error) => error.remedy(),
            Self::Memory(_) => None,
            Self::TooLarge { .. } => {
                let remedy = "raise {}, or load a part of the tensor";
                Some(Remedy::Set(remedy, Setting::MemoryLimit))
            }
            Self::Held { .. } => Some(Remedy::Set(
                "drop tensors, or raise {}",
                Setting::MemoryLimit,
            )),
        }
    }
}

/// Tensors in the order in which they come. Dropping it ends the load; tensors that were taken stay.
#[derive(Debug)]
pub struct TensorStream<E: fmt::Debug> {
    channel: Arc<Channel<E>>,
    patience: Duration,
    total: u64,
    thread: Option<JoinHandle<()>>,
}

/// What has come and was not taken yet.
#[derive(Debug)]
struct Inbox<E: fmt::Debug> {
    queue: VecDeque<Arrived>,
    /// Bytes that are in place.
    bytes: u64,
    /// The outcome, until it was reported.
    outcome: Option<Result<(), StreamFailure<E>>>,
    is_over: bool,
}

/// Between the thread and the program.
struct Channel<E: fmt::Debug> {
    budget: Arc<Budget<Inbox<E>>>,
    /// Called when there may be something to take.
    ready: Box<dyn Fn() + Send + Sync>,
}

impl<E: fmt::Debug> fmt::Debug for Channel<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").finish_non_exhaustive()
    }
}

impl<E: fmt::Debug + Send + 'static> TensorStream<E> {
    /// Begins to load what was `selected` of a checkpoint, which has each tensor once, into memory of `alloc`. `ready` is called, by the
    /// thread of the stream, when there is something to take.
    ///
    /// # Errors
    /// A tensor needs more than the bound; the process can begin no thread.
    pub fn start(
        loader: Loader,
        checkpoint: Arc<Checkpoint>,
        mut selected: Vec<Selected>,
        settings: StreamSettings,
        alloc: impl FnMut(usize) -> Result<Dmabuf, E> + Send + 'static,
        ready: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, StreamFailure<E>> {
        selected.sort_by_key(|it| it.tensor);
        let windows = windows(&selected, &settings);
        if let Some(window) = windows.iter().find(|it| it.bytes > settings.memory_limit) {
            let tensor = window
                .members()
                .next()
                .map(|member| &selected[member.number]);
            let tensor = tensor.and_then(|it| checkpoint.tensors().get(it.tensor));
            return Err(StreamFailure::TooLarge {
                name: tensor.map_or_else(String::new, |it| it.name.clone()),
                needed: window.bytes,
                limit: settings.memory_limit,
            });
        }
        let inbox = Inbox {
            queue: VecDeque::new(),
            bytes: 0,
            outcome: None,
            is_over: false,
        };
        let channel = Arc::new(Channel {
            budget: Budget::new(settings.memory_limit, inbox),
            ready: Box::new(ready),
        });
        let total = selected.iter().map(|it| it.bytes).sum();
        let feeder = Feeder {
            channel: Arc::clone(&channel),
            loader,
            checkpoint,
            selected,
            merge_gap: settings.merge_gap,
            alloc,
        };
        let thread = thread::Builder::new().name("devmem-tensors".to_owned());
        let thread = thread.spawn(move || feeder.run(&windows));
        Ok(Self {
            channel,
            patience: settings.patience,
            total,
            thread: Some(thread.map_err(LoadError::Wait)?),
        })
    }
}

impl<E: fmt::Debug> TensorStream<E> {
    /// Takes the next tensor, and waits for it up to `limit`.
    ///
    /// # Errors
    /// The load failed; [`StreamFailure::Held`], after which it goes on. An error of the load is returned once, and then the end.
    pub fn next(&mut self, limit: Duration) -> Result<Next, StreamFailure<E>> {
        let until = Instant::now() + limit;
        let mut state = self.channel.budget.locked();
        loop {
            if let Some(arrived) = state.it.queue.pop_front() {
                state.starved = None;
                return Ok(Next::Tensor(arrived));
            }
            if state.it.is_over {
                return match state.it.outcome.take() {
                    Some(Err(failure)) => Err(failure),
                    Some(Ok(())) | None => Ok(Next::End),
                };
            }
            let now = Instant::now();
            let mut longest = until.saturating_duration_since(now);
            if let Some(needed) = state.wanted {
                let since = *state.starved.get_or_insert(now);
                let left = self
                    .patience
                    .saturating_sub(now.saturating_duration_since(since));
                longest = longest.min(left);
                if left.is_zero() {
                    state.starved = None;
                    return Err(StreamFailure::Held {
                        held: state.held,
                        needed,
                        limit: self.channel.budget.limit,
                    });
                }
            }
            if now >= until {
                return Ok(Next::NotYet);
            }
            state = self.channel.budget.wait(state, longest);
        }
    }

    /// Returns how many bytes of the tensors are in place, and how many they have in all.
    pub fn progress(&self) -> (u64, u64) {
        (self.channel.budget.locked().it.bytes, self.total)
    }
}

impl<E: fmt::Debug> Drop for TensorStream<E> {
    fn drop(&mut self) {
        self.channel.budget.end();
        if let Some(thread) = self.thread.take() {
            // It looks at the end every 100 ms. A panic in it was reported by its hook.
            let _ = thread.join();
        }
    }
}

/// What the thread has.
struct Feeder<E: fmt::Debug, A> {
    channel: Arc<Channel<E>>,
    loader: Loader,
    checkpoint: Arc<Checkpoint>,
    selected: Vec<Selected>,
    merge_gap: u64,
    alloc: A,
}

/// Tells the program that nothing more comes, in whatever way the thread ends.
struct EndOnDrop<'a, E: fmt::Debug>(&'a Channel<E>);

impl<E: fmt::Debug> Drop for EndOnDrop<'_, E> {
    fn drop(&mut self) {
        let mut state = self.0.budget.locked();
        state.it.is_over = true;
        let ended = || LoadError::Wait(std::io::Error::other("the thread that loads has ended"));
        state.it.outcome.get_or_insert_with(|| Err(ended().into()));
        self.0.notify(state);
    }
}

impl<E: fmt::Debug> Channel<E> {
    fn notify(&self, state: MutexGuard<'_, budget::State<Inbox<E>>>) {
        drop(state);
        self.budget.changed();
        (self.ready)();
    }
}

impl<E: fmt::Debug + Send + 'static, A: FnMut(usize) -> Result<Dmabuf, E>> Feeder<E, A> {
    fn run(mut self, windows: &[Window]) {
        let channel = Arc::clone(&self.channel);
        let _end = EndOnDrop(&channel);
        let outcome = windows.iter().try_for_each(|window| self.load(window));
        channel.budget.locked().it.outcome = Some(outcome);
    }

    /// Waits for room for a window, and loads it.
    fn load(&mut self, window: &Window) -> Result<(), StreamFailure<E>> {
        let cancelled = || LoadError::Cancelled;
        // The others are told first: the program may be waiting in a loop of its own, for what it can take.
        self.channel
            .budget
            .want(window.bytes, &*self.channel.ready)
            .ok_or_else(cancelled)?;
        let mut rooms = Vec::with_capacity(window.rooms.len());
        for room in &window.rooms {
            let share = Arc::new(Budget::share(&self.channel.budget, room.bytes));
            // Fits: it is at most the bound, and an allocation that is too large fails.
            let bytes = usize::try_from(room.bytes).unwrap_or(usize::MAX);
            let memory = (self.alloc)(bytes).map_err(StreamFailure::Memory)?;
            rooms.push((memory, share));
        }
        // Of each memory, the tensors that have not come.
        let mut left: Vec<_> = window.rooms.iter().map(|room| room.members.len()).collect();
        let places = window.rooms.iter().enumerate();
        let places = places.flat_map(|(at, room)| room.members.iter().map(move |it| (it, at)));
        let places: Vec<_> = places.collect();
        let destinations: Vec<_> = places
            .iter()
            .map(|(member, room)| Destination {
                selected: &self.selected[member.number],
                memory: &rooms[*room].0,
                offset: member.offset,
            })
            .collect();
        let (channel, selected) = (&self.channel, &self.selected);
        let before = channel.budget.locked().it.bytes;
        let whole: u64 = destinations.iter().map(|it| it.selected.bytes).sum();
        let mut landed = |number: usize| {
            let (member, room) = places[number];
            let (memory, share) = &rooms[room];
            left[room] -= 1;
            let mut state = channel.budget.locked();
            state.it.queue.push_back(Arrived {
                selected: selected[member.number].clone(),
                memory: memory.clone(),
                offset: member.offset,
                share: Arc::clone(share),
                is_last: left[room] == 0,
            });
            channel.notify(state);
        };
        let mut progress = |so_far: crate::parallel::Progress| {
            let mut state = channel.budget.locked();
            state.it.bytes = before + so_far.bytes.min(whole);
            match state.is_ended {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        let gap = self.merge_gap;
        self.checkpoint.load_selected(
            &self.loader,
            &destinations,
            gap,
            &mut landed,
            &mut progress,
        )?;
        channel.budget.locked().it.bytes = before + whole;
        Ok(())
    }
}
