//! The memory that is bound for receiving, or has net_iovs that are still lent from an earlier binding.
//!
//! Each binding has its own list of free net_iovs. A second binding of the same memory would start with a list in which all
//! are free, and allocate what the first one has lent. So there is one binding at a time, and the next
//! one when the last net_iov of the previous one is home. There is one list per process, because memory may be bound on any
//! NIC; it is used when memory is bound, not per packet.
//!
//! Memory counts as the same if it is a clone of the `Dmabuf`, or another `Dmabuf` of the same file (device and inode
//! number, fstat(2)). Not detected: two dma-bufs of the same pages, which have different
//! inodes (two udmabufs of one memfd), and bindings of other processes.

use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use crate::dmabuf::Dmabuf;
use crate::memory::Memory;
use crate::net_iov::NiovSize;
use mapped::PerProcess;

/// Memory that is bound, or may still be lent. Lock order: after the locks of driver and stack; only the function of
/// [`RxClaim::lent_by`] is called while it is held.
static ENTRIES: PerProcess<Mutex<Vec<Arc<ClaimEntry>>>> = PerProcess::new();

/// The right of one binding to allocate the net_iovs of some memory. It is dropped when the queues have other memory; the
/// memory can be bound again when all lent net_iovs are home.
#[derive(Debug)]
#[must_use = "the memory is free to be bound again when this is dropped"]
pub struct RxClaim {
    entry: Arc<ClaimEntry>,
}

/// Memory cannot be bound for receiving: another binding uses it, or an earlier one has lent some of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InUse {
    /// The binding's queues: "rx queues 1, 2 of the NIC with address 10.77.0.2".
    pub holder: String,
    /// Why it is not free.
    pub reason: InUseReason,
}

/// Why memory is not free to be bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InUseReason {
    /// It is bound now.
    Bound,
    /// The binding has been dropped, but some of its net_iovs are not home: lent to the application, or in packets that no
    /// socket has delivered.
    Lent {
        /// Number of these net_iovs.
        net_iovs: usize,
        /// Size of each.
        niov_size: NiovSize,
    },
}

impl InUse {
    /// Returns what to do about it.
    pub const fn remedy(&self) -> &'static str {
        match self.reason {
            InUseReason::Bound => {
                "drop that binding first, bind other memory, or name all queues in one binding"
            }
            InUseReason::Lent { .. } => {
                "return the frags that were received there, and receive or close what its sockets have not delivered, or bind \
                 other memory"
            }
        }
    }
}

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { holder, reason } = self;
        match reason {
            InUseReason::Bound => {
                write!(f, "the memory is bound for receiving already, to {holder}")
            }
            InUseReason::Lent {
                net_iovs,
                niov_size,
            } => {
                let kib = net_iovs.saturating_mul(niov_size.bytes()) >> 10;
                let pieces = match net_iovs {
                    1 => "1 net_iov".to_owned(),
                    count => format!("{count} net_iovs of {niov_size}"),
                };
                write!(
                    f,
                    "{kib} KiB of the memory ({pieces}) are still lent from its earlier binding to {holder}"
                )
            }
        }
    }
}

impl std::error::Error for InUse {}

/// Counts net_iovs that are not home.
type CountLent = Box<dyn Fn() -> usize + Send + Sync>;

struct ClaimEntry {
    memory: Weak<Memory>,
    range: Range<usize>,
    niov_size: NiovSize,
    holder: String,
    is_bound: AtomicBool,
    /// Set when the binding is complete; before that, nothing is lent.
    count_lent: OnceLock<CountLent>,
}

impl RxClaim {
    /// Takes all of `memory` for a binding with net_iovs of `niov_size`; `holder` describes the binding in errors of others.
    ///
    /// # Errors
    ///
    /// [`InUse`]: some of it is bound, or lent.
    pub fn take(memory: &Dmabuf, niov_size: NiovSize, holder: String) -> Result<Self, InUse> {
        let memory = memory.memory();
        let range = 0..memory.size();
        let entries = ENTRIES.get();
        // Consistent between any two operations, so poisoning by a panic can be ignored.
        let mut entries = entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|entry| entry.in_use().is_some());
        let conflict = entries.iter().find(|entry| entry.covers(memory, &range));
        if let Some((entry, reason)) = conflict.and_then(|entry| Some((entry, entry.in_use()?))) {
            return Err(InUse {
                holder: entry.holder.clone(),
                reason,
            });
        }
        let entry = Arc::new(ClaimEntry {
            memory: Arc::downgrade(memory),
            range,
            niov_size,
            holder,
            is_bound: AtomicBool::new(true),
            count_lent: OnceLock::new(),
        });
        entries.push(Arc::clone(&entry));
        Ok(Self { entry })
    }

    /// Returns whether some of `memory` is bound for receiving now.
    pub fn is_bound(memory: &Dmabuf) -> bool {
        let range = 0..memory.size();
        let entries = ENTRIES.get();
        let entries = entries.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bound = entries
            .iter()
            .filter(|entry| entry.is_bound.load(Ordering::Acquire));
        bound.any(|entry| entry.covers(memory.memory(), &range))
    }

    /// Sets the function that counts the net_iovs of the binding that are not home. It is called after the claim was
    /// dropped, when the memory is to be bound again, and must not bind memory itself. Only the first call has an effect.
    pub fn lent_by(&self, count: impl Fn() -> usize + Send + Sync + 'static) {
        let _ = self.entry.count_lent.set(Box::new(count));
    }
}

impl Drop for RxClaim {
    fn drop(&mut self) {
        // Release: a thread that finds the memory free sees all earlier accesses.
        self.entry.is_bound.store(false, Ordering::Release);
    }
}

impl ClaimEntry {
    /// Returns why the memory is not free, if it is not.
    fn in_use(&self) -> Option<InUseReason> {
        if self.is_bound.load(Ordering::Acquire) {
            return Some(InUseReason::Bound);
        }
        if self.memory.strong_count() == 0 {
            return None;
        }
        let net_iovs = self.count_lent.get().map_or(0, |count| count());
        let niov_size = self.niov_size;
        (net_iovs > 0).then_some(InUseReason::Lent {
            net_iovs,
            niov_size,
        })
    }

    /// Returns whether `range` of `memory` overlaps the memory of this entry.
    fn covers(&self, memory: &Arc<Memory>, range: &Range<usize>) -> bool {
        let overlap = self.range.start < range.end && range.start < self.range.end;
        overlap
            && self
                .memory
                .upgrade()
                .is_some_and(|ours| Arc::ptr_eq(&ours, memory) || share_a_file(&ours, memory))
    }
}

impl fmt::Debug for ClaimEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClaimEntry")
            .field("holder", &self.holder)
            .field("is_bound", &self.is_bound)
            .finish_non_exhaustive()
    }
}

/// Returns whether two memories are mappings of the same file. Each is mapped from the file's beginning on, so that the
/// same range is the same bytes.
fn share_a_file(one: &Memory, other: &Memory) -> bool {
    let others: Vec<_> = other.files().filter_map(identity).collect();
    one.files()
        .filter_map(identity)
        .any(|file| others.contains(&file))
}

/// Returns the device and inode numbers of a file.
fn identity(file: BorrowedFd<'_>) -> Option<(u64, u64)> {
    let stat = rustix::fs::fstat(file).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::fd::{AsFd, OwnedFd};
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::device::{CpuAccess, Exporter};

    const NIOV: NiovSize = NiovSize::MIN;

    fn take(memory: &Dmabuf, holder: &str) -> Result<RxClaim, InUse> {
        RxClaim::take(memory, NIOV, holder.to_owned())
    }

    fn memory() -> Dmabuf {
        Dmabuf::anonymous(8 * 4096).unwrap()
    }

    /// An exporter over a file that is also mapped elsewhere.
    struct File(OwnedFd, usize);

    impl Exporter for File {
        fn size(&self) -> usize {
            self.1
        }
        fn as_fd(&self) -> Option<BorrowedFd<'_>> {
            Some(self.0.as_fd())
        }
        fn begin_cpu_access(&self, _: CpuAccess) -> io::Result<()> {
            Ok(())
        }
        fn end_cpu_access(&self, _: CpuAccess) -> io::Result<()> {
            Ok(())
        }
    }

    /// Maps the file of `memory` a second time.
    fn imported(memory: &Dmabuf) -> Dmabuf {
        let file = memory.as_fd().unwrap().try_clone_to_owned().unwrap();
        Dmabuf::exported(Arc::new(File(file, memory.size()))).unwrap()
    }

    #[test]
    fn memory_and_its_clones_have_one_claim_at_a_time() {
        let [memory, other] = [(); 2].map(|()| memory());
        let claim = take(&memory, "here").unwrap();
        let refused = take(&memory.clone(), "there").unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the memory is bound for receiving already, to here"
        );
        assert!(refused.remedy().starts_with("drop that binding first"));
        let _other = take(&other, "there").unwrap();
        drop(claim);
        let _again = take(&memory, "there").unwrap();
    }

    #[test]
    fn memory_cannot_be_claimed_until_all_lent_net_iovs_are_home() {
        let memory = memory();
        let lent = Arc::new(AtomicUsize::new(4));
        let claim = take(&memory, "here").unwrap();
        let count = Arc::clone(&lent);
        claim.lent_by(move || count.load(Ordering::Relaxed));
        drop(claim);
        let refused = take(&memory, "there").unwrap_err();
        assert_eq!(
            refused.reason,
            InUseReason::Lent {
                net_iovs: 4,
                niov_size: NIOV
            }
        );
        let text = refused.to_string();
        assert!(
            text.starts_with("16 KiB of the memory (4 net_iovs of 4 KiB) are still lent"),
            "{text}"
        );
        lent.store(0, Ordering::Relaxed);
        let _again = take(&memory, "there").unwrap();
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memory files")]
    fn the_same_file_mapped_twice_is_the_same_memory() {
        let first = Dmabuf::memfd(8 * 4096).unwrap();
        let (second, third) = (imported(&first), imported(&first));
        let claim = take(&first, "here").unwrap();
        assert_eq!(
            take(&second, "there").unwrap_err().reason,
            InUseReason::Bound
        );
        drop(claim);
        let _claim = take(&second, "there").unwrap();
        assert_eq!(take(&third, "here").unwrap_err().reason, InUseReason::Bound);
        let _different = take(&Dmabuf::memfd(8 * 4096).unwrap(), "here").unwrap();
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memory files")]
    fn a_claim_covers_the_memory_file_and_its_dmabuf() {
        let first = Dmabuf::memfd(8 * 4096).unwrap();
        let before = imported(&first);
        let dmabuf = Dmabuf::memfd(8 * 4096).unwrap();
        let file = dmabuf.as_fd().unwrap().try_clone_to_owned().unwrap();
        let made: Result<_, io::Error> = first.export_with(|_, size| {
            let exporter: Arc<dyn Exporter> = Arc::new(File(file, size));
            Ok(exporter)
        });
        assert!(made.unwrap().is_some());
        let after = imported(&first);
        let _claim = take(&first, "here").unwrap();
        assert!(take(&before, "there").is_err(), "the memory file");
        assert!(take(&after, "there").is_err(), "the dma-buf");
    }

    #[test]
    fn a_claim_keeps_no_memory() {
        let memory = memory();
        let observer = memory.observer();
        let claim = take(&memory, "here").unwrap();
        claim.lent_by(|| 1);
        drop(memory);
        assert!(observer.is_freed());
        drop(claim);
    }

    #[test]
    fn of_two_threads_that_claim_at_once_one_gets_the_claim() {
        let memory = memory();
        for _ in 0..200 {
            let start = std::sync::Barrier::new(2);
            let claims = std::thread::scope(|scope| {
                let claim = || {
                    start.wait();
                    take(&memory, "here")
                };
                let (one, two) = (scope.spawn(claim), scope.spawn(claim));
                [one.join().unwrap(), two.join().unwrap()]
            });
            assert_eq!(claims.iter().filter(|claim| claim.is_ok()).count(), 1);
        }
    }
}
