//! A namespace of a remote subsystem.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use devmem_tcp::Netdev;
use nvme::identify::Namespace;

use super::association::{Association, IoQueue};
use super::discovery::{self, NvmeSubsystem};
use super::limits::Limits;
use super::refusal::refused;
use super::url::NvmeUrl;
use crate::dial::{self, CancelCheck};
use crate::error::LoadError;
use crate::remedy::{Remedy, Setting};

/// Most blocks of one command (NVM Command Set, "Read", NLB).
const MAX_BLOCKS: u64 = 1 << 16;
/// Most bytes of one command: lengths in PDUs have 32 bits.
const MAX_BYTES: u64 = 1 << 30;

/// A namespace of a remote NVMe subsystem, as it was when it was opened. Cloning it is cheap.
///
/// The association with the controller goes on until the last clone is dropped; it is begun again when it has ended.
#[derive(Clone, Debug)]
pub struct NvmeNamespace {
    found: Arc<Found>,
}

#[derive(Debug)]
struct Found {
    url: NvmeUrl,
    addresses: Vec<SocketAddr>,
    nsid: u32,
    limits: Limits,
    size: u64,
    is_read_only: bool,
    current: Mutex<Option<Current>>,
}

/// The association, and the NIC whose connections it has.
#[derive(Debug)]
struct Current {
    nic: Netdev,
    association: Arc<Association>,
}

impl NvmeNamespace {
    /// Begins an association with a controller of the subsystem that the URL names, and asks for the size and the rules of its
    /// namespace: the one that the URL names, or the only active one.
    ///
    /// # Errors
    /// The host is not found or does not answer, or refuses; there is no such namespace, or several; its blocks have metadata.
    pub fn open(nic: &Netdev, url: NvmeUrl) -> Result<Self, LoadError> {
        Self::open_cancellable(nic, url, &mut dial::never_cancelled)
    }

    /// As [`open`](Self::open), unless `cancel_check` cancels it: called at least every 100 ms.
    ///
    /// # Errors
    /// Those of [`open`](Self::open); [`LoadError::Cancelled`].
    pub fn open_cancellable(
        nic: &Netdev,
        url: NvmeUrl,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<Self, LoadError> {
        if url.subsystem.is_empty() {
            let problem = "the URL names no subsystem".to_owned();
            let remedy = Remedy::Set("{} lists those of a host", Setting::Subsystems);
            return Err(refused(&url.host, problem, remedy));
        }
        let addresses = dial::resolve(nic, &url.host, url.port, cancel_check)?;
        let association = Association::begin(nic, &url, &addresses, cancel_check)?;
        let nsid = match url.nsid {
            Some(nsid) => nsid,
            None => only_one(&url, &association.namespaces(&url, cancel_check)?)?,
        };
        let namespace = association
            .namespace(&url, nsid, cancel_check)?
            .ok_or_else(|| {
                let problem = format!("namespace {nsid} does not exist, or is not active");
                let remedy = "name one of the active namespaces with nsid=";
                refused(&url.host, problem, remedy)
            })?;
        let (limits, size) = judge(&url, nsid, &association, &namespace)?;
        let found = Arc::new(Found {
            url,
            addresses,
            nsid,
            limits,
            size,
            is_read_only: namespace.is_read_only,
            current: Mutex::new(Some(Current {
                nic: nic.clone(),
                association: Arc::new(association),
            })),
        });
        Ok(Self { found })
    }

    /// Lists the subsystems that the host of `url` names, or the one that `url` names, with their namespaces.
    ///
    /// # Errors
    /// The host is not found or does not answer, or refuses.
    pub fn list(
        nic: &Netdev,
        url: &NvmeUrl,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<Vec<NvmeSubsystem>, LoadError> {
        discovery::list(nic, url, cancel_check)
    }

    /// Returns the number of bytes.
    pub fn size(&self) -> u64 {
        self.found.size
    }

    /// Returns the size of a block: every range must start and end at a multiple of it.
    #[inline]
    pub fn block_bytes(&self) -> u64 {
        self.found.limits.block_bytes()
    }

    /// Returns the longest transfer of one command.
    #[inline]
    pub fn max_bytes(&self) -> u64 {
        self.found.limits.max_bytes
    }

    /// Returns the number of the namespace in its subsystem.
    pub fn nsid(&self) -> u32 {
        self.found.nsid
    }

    /// Returns the URL.
    pub fn url(&self) -> &NvmeUrl {
        &self.found.url
    }

    /// Returns the addresses of the host, in the order in which they are tried.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.found.addresses
    }

    /// Returns whether the namespace refuses writes.
    pub fn is_read_only(&self) -> bool {
        self.found.is_read_only
    }

    /// Returns the rules for its commands.
    #[inline]
    pub fn limits(&self) -> &Limits {
        &self.found.limits
    }

    /// Sends a sign of life to the controller when one is due.
    #[inline]
    pub fn keep_alive(&self, now: Instant) {
        let current = self.found.current.lock();
        let current = current.unwrap_or_else(PoisonError::into_inner);
        if let Some(current) = &*current {
            current.association.keep_alive(now);
        }
    }

    /// Connects an I/O queue for up to `window` commands in flight.
    pub fn dial(
        &self,
        nic: &Netdev,
        window: usize,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<IoQueue, LoadError> {
        let Found { url, addresses, .. } = &*self.found;
        let association = self.association(nic, cancel_check)?;
        association.connect(nic, url, addresses, window, cancel_check)
    }

    /// Returns the association, or begins another one if it has ended.
    fn association(
        &self,
        nic: &Netdev,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<Arc<Association>, LoadError> {
        let Found {
            url,
            addresses,
            nsid,
            limits,
            size,
            ..
        } = &*self.found;
        let current = self.found.current.lock();
        let mut current = current.unwrap_or_else(PoisonError::into_inner);
        let usable = |it: &&Current| it.nic.is_same(nic) && it.association.is_alive();
        if let Some(usable) = current.as_ref().filter(usable) {
            return Ok(Arc::clone(&usable.association));
        }
        *current = None;
        let association = Association::begin(nic, url, addresses, cancel_check)?;
        let namespace = association.namespace(url, *nsid, cancel_check)?;
        let namespace = namespace.ok_or_else(|| {
            let problem = format!("namespace {nsid} has vanished since it was opened");
            refused(&url.host, problem, "enable it there, and start again")
        })?;
        let (now, now_size) = judge(url, *nsid, &association, &namespace)?;
        if now.block_log2 != limits.block_log2
            || now_size != *size
            || now.max_bytes < limits.max_bytes
        {
            let problem = match now_size == *size {
                true => "its block or its longest transfer is not that of before".to_owned(),
                false => format!("it had {size} bytes and has {now_size}"),
            };
            let url = url.to_string();
            return Err(LoadError::Changed { url, problem });
        }
        let association = Arc::new(association);
        *current = Some(Current {
            nic: nic.clone(),
            association: Arc::clone(&association),
        });
        Ok(association)
    }
}

/// Returns the only active namespace.
fn only_one(url: &NvmeUrl, active: &[u32]) -> Result<u32, LoadError> {
    match active {
        [only] => Ok(*only),
        [] => Err(refused(
            &url.host,
            format!("{} has no active namespace", url.subsystem),
            "enable one there, or allow this host to see it",
        )),
        several => {
            let shown: Vec<_> = several.iter().take(8).map(u32::to_string).collect();
            Err(refused(
                &url.host,
                format!(
                    "{} has {} namespaces: {}",
                    url.subsystem,
                    several.len(),
                    shown.join(", ")
                ),
                "name one of them with nsid=",
            ))
        }
    }
}

/// Checks that this host can use a namespace; returns its rules and its size.
fn judge(
    url: &NvmeUrl,
    nsid: u32,
    association: &Association,
    namespace: &Namespace,
) -> Result<(Limits, u64), LoadError> {
    let refuse = |problem: String, remedy: &'static str| Err(refused(&url.host, problem, remedy));
    if namespace.metadata_bytes > 0 || namespace.is_protected {
        return refuse(
            format!(
                "namespace {nsid} has {} bytes of metadata with each block, or protection information",
                namespace.metadata_bytes
            ),
            "format it without metadata: this host transfers plain blocks only",
        );
    }
    let (Some(block), Some(size)) = (namespace.block_bytes(), namespace.bytes()) else {
        return refuse(
            format!(
                "namespace {nsid} has blocks of 2^{} bytes",
                namespace.block_log2
            ),
            "format it with blocks of 512 or 4096 bytes",
        );
    };
    if association.queues() == 0 {
        return refuse(
            "the controller grants no I/O queue".to_owned(),
            "other hosts may have all of them; end one of those",
        );
    }
    let longest = association
        .transfer_bytes()
        .min(MAX_BLOCKS * block)
        .min(MAX_BYTES);
    let limits = Limits {
        nsid,
        block_log2: namespace.block_log2,
        // A page has whole blocks, unless the block is longer.
        max_bytes: (longest / block * block).max(block),
        capsule_bytes: association.controller.capsule_data_bytes(),
        writes_zeroes: association.controller.writes_zeroes,
        deallocates: association.controller.deallocates,
        queues: association.queues(),
    };
    Ok((limits, size))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::atomic::Ordering;
    use std::thread;
    use std::time::Duration;

    use nvme_target::{Disk, Subsystem, Target};

    use super::*;

    const NQN: &str = "nqn.2014-08.org.example:disk";
    /// Far longer than an answer takes.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn a_sign_of_life_is_sent_when_it_is_due_and_its_answer_is_awaited() {
        let disk = Arc::new(Disk::in_memory(vec![7; 1 << 20], 9));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = Target::start(listener, Subsystem::new(NQN, vec![disk])).unwrap();
        let nic = Netdev::kernel_to("127.0.0.1".parse().unwrap()).expect("loopback");
        let url = format!("nvme://127.0.0.1:{}/{NQN}", target.port());
        let namespace = NvmeNamespace::open(&nic, url.parse().unwrap()).expect("it opens");
        let signs = || target.counts().keep_alives.load(Ordering::Relaxed);
        let association = {
            let current = namespace.found.current.lock().unwrap();
            Arc::clone(&current.as_ref().unwrap().association)
        };
        let until = |what: &dyn Fn() -> bool| {
            let start = Instant::now();
            while !what() {
                assert!(start.elapsed() < PATIENCE);
                thread::sleep(Duration::from_millis(1));
            }
        };
        let opened = Instant::now();
        let at = |seconds| opened + Duration::from_secs(seconds);
        namespace.keep_alive(opened);
        assert!(!association.awaits_answer(), "it is not due");
        for round in 1..=2 {
            namespace.keep_alive(at(20 * round));
            until(&|| signs() == round);
            until(&|| {
                namespace.keep_alive(at(20 * round));
                !association.awaits_answer()
            });
            assert!(association.is_alive());
        }
        // Nobody answers any more.
        target.crash();
        until(&|| {
            namespace.keep_alive(at(60));
            !association.is_alive()
        });
    }
}
