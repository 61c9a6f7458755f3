//! Which process this is: a child by fork(2) has a copy of every value, and is another process.
//!
// UNSAFETY: the page that the kernel zeroes in a child is mapped and read here: a pointer from mmap becomes a reference
// to one atomic, for ever. Nothing else is done with it.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use once_cell::race::OnceBox;

/// A page of which the kernel gives a child by fork(2) a zeroed one (MADV_WIPEONFORK, Linux 4.14). Null before its
/// first use; [`NO_PAGE`] where there can be none.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// Stands for the page where the kernel refuses one: then the process id tells, at the price of a system call.
static NO_PAGE: AtomicU32 = AtomicU32::new(0);

/// The last number that this process or one of its ancestors took. A child begins with its parent's.
static LAST: AtomicU32 = AtomicU32::new(0);

const PAGE_BYTES: usize = 4096;

/// A process, told apart from its ancestors by fork(2). Two loads and no system call, so that each call of a library can
/// ask.
///
/// A child of clone(2) that shares the memory is the same process, as is one of vfork(2) until it executes a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process(u32);

impl Process {
    /// Returns this process.
    #[inline]
    pub fn current() -> Self {
        let page = page();
        match page.load(Ordering::Relaxed) {
            0 => Self(number(page)),
            number => Self(number),
        }
    }

    /// Returns whether the value was made in this process; in a child by fork(2) it is a copy of the parent's.
    #[inline]
    pub fn is_current(self) -> bool {
        self == Self::current()
    }
}

/// The first question in a process: takes the number after those of its ancestors.
#[cold]
fn number(page: &AtomicU32) -> u32 {
    if ptr::eq(page, &raw const NO_PAGE) {
        return std::process::id();
    }
    // As many forks in one line of descent as there are numbers do not happen; 0 would only be asked for again.
    let next = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    let first = page.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
    // Another thread was faster, or this one.
    first.err().unwrap_or(next)
}

#[inline]
fn page() -> &'static AtomicU32 {
    let page = PAGE.load(Ordering::Acquire);
    let page = if page.is_null() { make_page() } else { page };
    // SAFETY: (1) `PAGE` holds null, or what `make_page` put there: `NO_PAGE`, or a mapping of a page that is aligned,
    // zeroed or written as this atomic alone, and never unmapped; (2) null was replaced above.
    unsafe { &*page }
}

/// Maps the page, or finds that another thread has.
#[cold]
fn make_page() -> *mut AtomicU32 {
    let made = map_page().unwrap_or(ptr::from_ref(&NO_PAGE).cast_mut());
    let null = ptr::null_mut();
    match PAGE.compare_exchange(null, made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => made,
        // The page mapped here stays: it is never used, and this happens once.
        Err(theirs) => theirs,
    }
}

fn map_page() -> Option<*mut AtomicU32> {
    if cfg!(miri) {
        // Miri knows no such advice, and no fork.
        return None;
    }
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: without MAP_FIXED, mmap takes free addresses and disturbs nothing.
    let page = unsafe { libc::mmap(ptr::null_mut(), PAGE_BYTES, prot, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the page was mapped just now and nobody else knows of it; the advice keeps its bytes.
    let advised = unsafe { libc::madvise(page, PAGE_BYTES, libc::MADV_WIPEONFORK) };
    (advised == 0).then_some(page.cast())
}

/// A value for each process: a child by fork(2) begins with a new one, and the parent's stays as the fork found it,
/// locked or half changed by a thread that the child does not have. Never waits.
#[derive(Debug)]
pub struct PerProcess<T> {
    first: OnceBox<OfProcess<T>>,
}

#[derive(Debug)]
struct OfProcess<T> {
    process: Process,
    value: T,
    /// That of a child.
    next: OnceBox<OfProcess<T>>,
}

impl<T> PerProcess<T> {
    /// Returns a value that no process has used yet.
    pub const fn new() -> Self {
        Self {
            first: OnceBox::new(),
        }
    }

    /// Returns this process's value, made by `make` when it is first asked for. Those of its ancestors are passed on the
    /// way: one for each fork. Of two threads that make one at the same time, both get that of the first.
    pub fn get_or_init(&self, make: impl Fn() -> T) -> &T {
        let process = Process::current();
        let mut at = &self.first;
        loop {
            let found = at.get_or_init(|| {
                Box::new(OfProcess {
                    process,
                    value: make(),
                    next: OnceBox::new(),
                })
            });
            if found.process == process {
                return &found.value;
            }
            at = &found.next;
        }
    }

    /// Returns this process's value, the default when it is first asked for.
    pub fn get(&self) -> &T
    where
        T: Default,
    {
        self.get_or_init(T::default)
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Runs `child` in a child by fork(2), which ends without destructors or exit handlers, and returns its exit code; `None`
/// after a signal, such as that of the alarm that ends a child which hangs. For tests: a child may find a lock held by a
/// thread that it does not have, glibc's allocator excepted, and that of the output.
#[cfg(any(test, feature = "test-util"))]
pub fn in_child(child: impl FnOnce() -> u8) -> Option<u8> {
    // SAFETY: the child runs `child`, which may hang on a lock but finds no memory that a lock does not guard half
    // changed, and ends by `_exit`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        // SAFETY: a system call that changes nothing but the child's own alarm.
        unsafe { libc::alarm(60) };
        let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(101);
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(code.into()) };
    }
    let mut status = 0;
    // SAFETY: the child is ours, and `status` is an int.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(waited, pid);
    // An exit status has 8 bits.
    libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no fork")]
    fn a_child_and_its_child_are_processes_of_their_own() {
        let parent = Process::current();
        assert!(parent.is_current());
        let code = in_child(|| {
            let child = Process::current();
            let apart = child != parent && !parent.is_current() && child.is_current();
            let grandchild = in_child(|| {
                let me = Process::current();
                u8::from(me != child && me != parent && me.is_current())
            });
            u8::from(apart) * 2 + grandchild.unwrap_or(100)
        });
        assert_eq!(code, Some(3));
        assert!(parent.is_current());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no fork")]
    fn a_child_has_a_value_of_its_own_even_if_the_parents_is_locked() {
        static VALUES: PerProcess<Mutex<u32>> = PerProcess::new();
        let mut ours = VALUES.get().lock().unwrap();
        *ours = 7;
        let code = in_child(|| {
            let mut theirs = VALUES.get().lock().unwrap();
            *theirs += 1;
            u8::try_from(*theirs).unwrap()
        });
        assert_eq!((code, *ours), (Some(1), 7));
    }
}
