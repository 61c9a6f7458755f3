//! Identity of the process: a child by fork(2) has a copy of every value, and is another process.
//!
// UNSAFETY: the page that the kernel zeroes in a child is mapped and read here: a pointer from mmap becomes a static
// reference to one atomic. It is not used otherwise.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use once_cell::race::OnceBox;

/// A page that is zeroed in a child by fork(2) (MADV_WIPEONFORK, Linux 4.14). Null before its
/// first use; [`NO_PAGE`] if the kernel does not support it.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// Marks that the kernel does not support such a page: the process id is used instead, which costs a system call.
static NO_PAGE: AtomicU32 = AtomicU32::new(0);

/// The last number that this process or one of its ancestors has used. A child begins with that of its parent.
static LAST: AtomicU32 = AtomicU32::new(0);

const PAGE_BYTES: usize = 4096;

/// A process, as distinct from its ancestors by fork(2). The check takes two loads and no system call, so that every call
/// of a library can make it.
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

    /// Returns whether the value was created in this process; in a child by fork(2) it is a copy of the parent's.
    #[inline]
    pub fn is_current(self) -> bool {
        self == Self::current()
    }
}

/// The first check in a process: takes the number after those of its ancestors.
#[cold]
fn number(page: &AtomicU32) -> u32 {
    if ptr::eq(page, &raw const NO_PAGE) {
        return std::process::id();
    }
    // The number does not wrap in practice: that takes 2^32 forks in one line of descent. 0 would only be taken again.
    let next = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    let first = page.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
    // Set by this thread, or by another one before.
    first.err().unwrap_or(next)
}

#[inline]
fn page() -> &'static AtomicU32 {
    let page = PAGE.load(Ordering::Acquire);
    let page = if page.is_null() { make_page() } else { page };
    // SAFETY: (1) `PAGE` is null, or a value of `make_page`: `NO_PAGE`, or a mapping of a page that is aligned,
    // zeroed or written only as this atomic, and never unmapped; (2) null was replaced above.
    unsafe { &*page }
}

/// Maps the page, unless another thread has done so.
#[cold]
fn make_page() -> *mut AtomicU32 {
    let made = map_page().unwrap_or(ptr::from_ref(&NO_PAGE).cast_mut());
    let null = ptr::null_mut();
    match PAGE.compare_exchange(null, made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => made,
        // The page mapped here is leaked, at most once per thread that races here.
        Err(theirs) => theirs,
    }
}

fn map_page() -> Option<*mut AtomicU32> {
    if cfg!(miri) {
        // Miri supports neither this advice nor fork.
        return None;
    }
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: without MAP_FIXED, mmap uses free addresses and changes no other mapping.
    let page = unsafe { libc::mmap(ptr::null_mut(), PAGE_BYTES, prot, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the page was mapped just now and nothing else refers to it; the advice does not change its bytes.
    let advised = unsafe { libc::madvise(page, PAGE_BYTES, libc::MADV_WIPEONFORK) };
    (advised == 0).then_some(page.cast())
}

/// A value per process: a child by fork(2) gets a new one, because its copy of the parent's may be locked, or half changed,
/// by a thread that does not exist in the child. Never waits.
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

    /// Returns the value of this process, created by `make` at the first call. The search passes the values of the
    /// ancestors: one for each fork. If two threads create one at the same time, both get that of the first.
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

    /// Returns the value of this process, at the first call the default.
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
/// if it was ended by a signal, such as the alarm for a child that hangs. For tests only: a lock may be held for ever in the
/// child, by a thread that exists only in the parent (but not the locks of glibc's allocator and of the output).
#[cfg(any(test, feature = "test-util"))]
pub fn in_child(child: impl FnOnce() -> u8) -> Option<u8> {
    // SAFETY: the child runs `child` and ends by `_exit`. It may hang on a lock; memory that is half changed in the child
    // is guarded by a lock.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        // SAFETY: a system call that changes only the child's alarm.
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
