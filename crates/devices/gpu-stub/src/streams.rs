//! Streams, the work that waits in them, and events.
//!
// UNSAFETY: copies to and from addresses that the caller of a copy function names, as the real driver does, and accesses to words of the
// memory that functions work on.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::collections::VecDeque;
use std::ptr;
use std::sync::Arc;

use crate::machine::{ILLEGAL_ADDRESS, INVALID_HANDLE, KernelRange, Machine};
use crate::ptx::{Fault, Grid, Program, Width};

const NOT_READY: i32 = 600;

/// The function that copies, and moves no bytes either if the plan says so.
const COPIES: &str = "devmem_copy";

#[derive(Default)]
pub(crate) struct Stream {
    waiting: VecDeque<Work>,
    /// Numbers of works: submitted, and done.
    submitted: u64,
    done: u64,
}

#[derive(Default)]
pub(crate) struct Event {
    /// The stream and the number of its last work when the event was recorded.
    recorded: Option<(usize, u64)>,
    queries: u32,
}

/// What a stream does.
enum Work {
    /// A copy with addresses of bytes that can be accessed.
    Copy { to: usize, from: usize, len: usize },
    /// A function of device code.
    Kernel(Launch),
}

/// A function that was started.
pub(crate) struct Launch {
    pub(crate) program: Arc<Program>,
    pub(crate) grid: Grid,
    pub(crate) arguments: Vec<u64>,
}

impl Machine {
    /// Appends a copy to a stream. One from or to unregistered memory is done before the call returns.
    pub(crate) fn enqueue(
        &mut self,
        stream: usize,
        to: usize,
        from: usize,
        len: usize,
    ) -> Result<(), i32> {
        self.push(stream, Work::Copy { to, from, len })
    }

    /// Appends a function to a stream.
    pub(crate) fn enqueue_kernel(&mut self, stream: usize, launch: Launch) -> Result<(), i32> {
        self.push(stream, Work::Kernel(launch))
    }

    fn push(&mut self, stream: usize, work: Work) -> Result<(), i32> {
        let stream = self.streams.get_mut(&stream).ok_or(INVALID_HANDLE)?;
        stream.waiting.push_back(work);
        stream.submitted += 1;
        Ok(())
    }

    pub(crate) fn record(&mut self, event: usize, stream: usize) -> Result<(), i32> {
        let last = self.streams.get(&stream).ok_or(INVALID_HANDLE)?.submitted;
        let event = self.events.get_mut(&event).ok_or(INVALID_HANDLE)?;
        event.recorded = Some((stream, last));
        event.queries = 0;
        Ok(())
    }

    /// Counts a query; does the copies before the event if it has been queried often enough.
    pub(crate) fn query(&mut self, event: usize) -> Result<(), i32> {
        let polls = self.plan.polls;
        let event = self.events.get_mut(&event).ok_or(INVALID_HANDLE)?;
        event.queries += 1;
        let Some((stream, last)) = event.recorded else {
            return Ok(());
        };
        match event.queries > polls || self.streams[&stream].done >= last {
            true => self.run(stream, last),
            false => Err(NOT_READY),
        }
    }

    pub(crate) fn synchronize_event(&mut self, event: usize) -> Result<(), i32> {
        let event = self.events.get(&event).ok_or(INVALID_HANDLE)?;
        match event.recorded {
            Some((stream, last)) => self.run(stream, last),
            None => Ok(()),
        }
    }

    pub(crate) fn synchronize_stream(&mut self, stream: usize) -> Result<(), i32> {
        let last = self.streams.get(&stream).ok_or(INVALID_HANDLE)?.submitted;
        self.run(stream, last)
    }

    /// Does the works of a stream up to a number.
    fn run(&mut self, stream: usize, last: u64) -> Result<(), i32> {
        loop {
            let stream = self.streams.get_mut(&stream).ok_or(INVALID_HANDLE)?;
            if stream.done >= last {
                return Ok(());
            }
            let Some(work) = stream.waiting.pop_front() else {
                return Ok(());
            };
            stream.done += 1;
            match work {
                Work::Kernel(launch) if !self.plan.copies && launch.program.entry() == COPIES => {}
                Work::Kernel(launch) => self.execute(&launch)?,
                Work::Copy { .. } if !self.plan.copies => {}
                Work::Copy { to, from, len } => {
                    let from = ptr::with_exposed_provenance::<u8>(from);
                    let to = ptr::with_exposed_provenance_mut::<u8>(to);
                    // SAFETY: the caller of the driver keeps both sides until the copy is done, as with the real one.
                    unsafe { ptr::copy(from, to, len) };
                }
            }
        }
    }

    /// Runs a function. As with a GPU, the device is lost when it accesses what is not its memory.
    fn execute(&mut self, launch: &Launch) -> Result<(), i32> {
        // The ranges that were read and written last: most accesses are beside the one before of their kind.
        let (read, wrote) = Default::default();
        let access = |address: u64, width: Width, written: Option<u32>| {
            let len = match width {
                Width::Byte => 1,
                Width::Word => 4,
            };
            let found: &Cell<KernelRange> = if written.is_some() { &wrote } else { &read };
            if !found.get().has(address, len) {
                found.set(self.range_for_kernels(address).ok_or(Fault)?);
            }
            let bytes = found.get().bytes_at(address, len).ok_or(Fault)?;
            let word = ptr::with_exposed_provenance_mut::<u32>(bytes);
            let byte = word.cast::<u8>();
            match (width, written) {
                // SAFETY: an aligned word, or a byte, of device memory, which only copies and functions access, or of registered memory, which its owner
                // leaves alone until the function has ended.
                (Width::Word, None) => return Ok(unsafe { word.read() }),
                // SAFETY: as above.
                (Width::Word, Some(value)) => unsafe { word.write(value) },
                // SAFETY: as above.
                (Width::Byte, None) => return Ok(u32::from(unsafe { byte.read() })),
                // SAFETY: as above.
                (Width::Byte, Some(value)) => unsafe { byte.write(value as u8) },
            }
            Ok(0)
        };
        let ended = launch.program.run(launch.grid, &launch.arguments, access);
        ended.map_err(|Fault| {
            self.plan.lost = Some(0);
            self.submissions += 1;
            ILLEGAL_ADDRESS
        })
    }
}
