//! The table from errno to cause.

use devmem_uapi::Errno;

use super::cause::{Cause, CauseKind, Facts, Operation};
use crate::drivers;
use crate::ethtool::DataSplit;
use crate::queue_id::{KernelRxQueueId, QueueUser};

/// Returns the cause of an errno of `operation` under `facts`.
pub fn cause(operation: Operation, errno: Errno, facts: &Facts) -> Cause {
    let known = match operation {
        Operation::BindRx => bind_rx(errno, facts),
        Operation::BindTx => bind_tx(errno, facts),
        Operation::Lease => lease(errno, facts),
        Operation::Recv => recv(errno),
        Operation::Send => send(errno, facts),
        Operation::Dontneed => dontneed(errno),
        Operation::Udmabuf => udmabuf(errno, facts),
        Operation::DmaHeap => dma_heap(errno, facts),
        Operation::Socket => socket(errno, facts),
    };
    known.or_else(|| anywhere(errno)).unwrap_or_else(|| {
        let words = facts.kernel.clone();
        Cause::new(
            CauseKind::Unknown,
            words.unwrap_or_else(|| errno.describe().to_owned()),
        )
    })
}

fn bind_rx(errno: Errno, facts: &Facts) -> Option<Cause> {
    let interface = interface(facts);
    let cause = match errno {
        Errno::EPERM | Errno::EACCES => Cause::new(
            CauseKind::NotPermitted,
            "needs CAP_NET_ADMIN in the user namespace that owns the network namespace",
        )
        .hint(
            "run as root or with the capability: setcap cap_net_admin+ep PROGRAM\n\
             before Linux 7.2 it must be the initial user namespace: a container cannot bind\n\
             or have a broker bind, which has the capability: `devmem-tcp broker --help`",
        ),
        Errno::ENODEV => Cause::new(CauseKind::NoDevice, format!("there is no {interface}")),
        Errno::EOPNOTSUPP if says(facts, "DMA device mismatch") => Cause::new(
            CauseKind::QueuesOfDifferentDevices,
            format!("{} use different DMA devices", queues(facts)),
        )
        .hint("bind the queues of each physical function separately"),
        Errno::EOPNOTSUPP if says(facts, "rx_page_size") => Cause::new(
            CauseKind::DriverCannot,
            format!("{interface} supports only net_iovs of one page"),
        )
        .hint("bind without a size: every driver supports one page; larger ones need mlx5_core or bnxt_en"),
        // Linux 7.3 looks for the DMA device of a leased queue at the netkit, and finds none at the NIC.
        Errno::EOPNOTSUPP if is_leased(facts) => queue_taken(errno, facts),
        Errno::EOPNOTSUPP => driver_cannot(facts, "bind device memory to RX queues"),
        // After the driver has restarted the queue, the kernel checks that a page pool uses the memory (linux
        // net/core/page_pool_user.c page_pool_check_memory_provider).
        Errno::ENODATA => driver_cannot(facts, "receive into device memory: it ignores the memory"),
        Errno::EEXIST | Errno::EBUSY => queue_taken(errno, facts),
        Errno::ERANGE if points_at(facts, NIOV_SIZE) => Cause::new(
            CauseKind::DmabufGeometry,
            "a net_iov must be a page or more",
        )
        .hint("`getconf PAGESIZE` prints the size of a page"),
        Errno::ERANGE => Cause::new(
            CauseKind::QueueFixed,
            format!("this driver cannot restart {}", queues(facts)),
        )
        .hint(
            "use a higher queue: queue 0 of a gVNIC cannot be restarted, all others can be bound",
        ),
        Errno::EINVAL => bind_rx_invalid(facts),
        _ => return bind(errno, facts),
    };
    Some(cause)
}

/// Distinguishes the `EINVAL`s of bind-rx by the attribute that the kernel names, by its message, and last by the
/// settings of the NIC.
fn bind_rx_invalid(facts: &Facts) -> Cause {
    let interface = interface(facts);
    let pointed = facts.attribute.as_deref().unwrap_or("");
    let past_the_end = facts
        .rx_queues
        .and_then(|count| facts.queues.iter().find(|queue| queue.0 >= count));
    if facts.queues.is_empty()
        || pointed.starts_with("queues")
        || says(facts, "queue id")
        || past_the_end.is_some()
    {
        return bad_queue(facts, past_the_end);
    }
    if let Some(cause) = niov_size_invalid(facts).or_else(|| pieces_invalid(facts)) {
        return cause;
    }
    let split = says(facts, "tcp-data-split");
    let threshold = says(facts, "hds-thresh");
    if split || (!threshold && facts.data_split.is_some_and(|s| s != DataSplit::Enabled)) {
        return Cause::new(CauseKind::SplitOff, "tcp-data-split is disabled").hint(format!(
            "the NIC must split headers from payload before device memory can be bound:\n\
             ethtool -G {interface} tcp-data-split on hds-thresh 0"
        ));
    }
    if threshold || facts.hds_thresh.is_some_and(|thresh| thresh != 0) {
        let thresh = facts
            .hds_thresh
            .map_or_else(String::new, |t| format!(" {t}"));
        return Cause::new(
            CauseKind::HdsThreshold,
            format!("hds-thresh{thresh} leaves small packets without header split"),
        )
        .hint(format!("ethtool -G {interface} hds-thresh 0"));
    }
    Cause::new(
        CauseKind::DmabufGeometry,
        "the descriptor is not a dma-buf, or its pieces are not multiples of the page size",
    )
    .hint("make the dma-buf's offset and size multiples of the page size")
}

/// Attribute of a binding with the size of its net_iovs (Linux 7.3).
const NIOV_SIZE: &str = "rx-page-size";

/// Why the requested size of net_iovs is refused, if it is.
fn niov_size_invalid(facts: &Facts) -> Option<Cause> {
    let of_size = points_at(facts, NIOV_SIZE) || says(facts, NIOV_SIZE);
    of_size.then(|| match says(facts, "power of 2") {
        true => Cause::new(
            CauseKind::DmabufGeometry,
            "the size of a net_iov must be a power of two",
        ),
        // An attribute that the kernel does not know.
        false => Cause::new(
            CauseKind::KernelTooOld,
            "this kernel supports only net_iovs of one page: other sizes need Linux 7.3",
        )
        .hint("bind without a size"),
    })
}

/// What the exporters give, for a dma-buf whose pieces do not fit net_iovs.
const PIECES: &str = "each piece of a dma-buf must begin and end at a multiple of the net_iov size: a udmabuf of ordinary pages has \
     pieces of a page, one of huge pages (sysctl vm.nr_hugepages=512) of 2 MiB; the dma-heap `system` gives any mixture of 4 KiB, \
     64 KiB and 1 MiB, a CMA heap one piece, a GPU the pages of its driver\n\
     take a size that divides them all, or bind without a size";

/// Why the pieces of the dma-buf are refused, if the kernel says that they are: in the words of Linux 7.3 about one piece, or of earlier
/// ones about pages. The kernel cuts those of 7.3 off at 79 bytes, in the size of the net_iovs or ahead of it.
fn pieces_invalid(facts: &Facts) -> Option<Cause> {
    let words = facts.kernel.as_deref()?;
    let message = match words.split_once("dmabuf sg entry (") {
        Some((_, piece)) => {
            let piece = piece.split(')').next().unwrap_or(piece);
            format!("a piece of the dma-buf ({piece}) does not fit net_iovs of this size")
        }
        None if words.contains("PAGE_SIZE aligned") => {
            format!("the pieces of the dma-buf do not fit net_iovs of this size: {words}")
        }
        None => return None,
    };
    Some(Cause::new(CauseKind::DmabufGeometry, message).hint(PIECES))
}

fn bad_queue(facts: &Facts, past_the_end: Option<&KernelRxQueueId>) -> Cause {
    let interface = interface(facts);
    if facts.queues.is_empty() {
        return Cause::new(CauseKind::BadQueue, "no RX queue was given");
    }
    let last = facts.rx_queues.and_then(|count| count.checked_sub(1));
    let cause = match past_the_end {
        Some(queue) => Cause::new(
            CauseKind::BadQueue,
            format!("{interface} has no RX queue {queue}"),
        ),
        None => Cause::new(
            CauseKind::BadQueue,
            format!("{} of {interface} is not accepted", queues(facts)),
        ),
    };
    match last {
        Some(last) => cause.hint(format!(
            "the RX queues are 0 to {last}; `ethtool -L {interface}` changes their number"
        )),
        None => cause,
    }
}

/// Returns whether one of the requested queues is leased to another netdev.
fn is_leased(facts: &Facts) -> bool {
    let mut users = facts.taken.iter().map(|(_, user)| user);
    users.any(|user| matches!(user, QueueUser::Lease(_)))
}

fn queue_taken(errno: Errno, facts: &Facts) -> Cause {
    let interface = interface(facts);
    if let Some((queue, user)) = facts.taken.first() {
        let hint = match user {
            QueueUser::Dmabuf(_) => {
                "another process, or this one, has bound it: the queue is free when that binding is closed"
            }
            QueueUser::IoUring => "the queue is free when the io_uring is closed",
            QueueUser::Xsk => "the queue is free when the AF_XDP socket is closed",
            QueueUser::Lease(_) => {
                "only that netdev can bind memory to it, in its network namespace; the queue is free when the netdev is removed"
            }
        };
        return Cause::new(
            CauseKind::QueueTaken,
            format!("queue {queue} of {interface} is used by {user}"),
        )
        .hint(hint);
    }
    let xdp = facts.xdp == Some(true) || says(facts, "XDP program");
    if xdp && errno == Errno::EEXIST {
        return Cause::new(
            CauseKind::XdpAttached,
            format!("an XDP program is attached to {interface}"),
        )
        .hint(format!("ip link set {interface} xdp off"));
    }
    Cause::new(
        CauseKind::QueueTaken,
        format!("{} of {interface} is in use already", queues(facts)),
    )
}

fn bind_tx(errno: Errno, facts: &Facts) -> Option<Cause> {
    let cause = match errno {
        Errno::EPERM | Errno::EACCES => Cause::new(
            CauseKind::NotPermitted,
            "binding for sending needs no privilege; a security module forbids it",
        ),
        Errno::ENODEV => Cause::new(
            CauseKind::NoDevice,
            format!("there is no {}", interface(facts)),
        ),
        Errno::EOPNOTSUPP => driver_cannot(facts, "send from device memory"),
        Errno::EINVAL => Cause::new(
            CauseKind::DmabufGeometry,
            "the descriptor is not a dma-buf, or its size or pieces are not whole pages",
        )
        .hint("make the dma-buf's offset and size multiples of the page size"),
        _ => return bind(errno, facts),
    };
    Some(cause)
}

fn lease(errno: Errno, facts: &Facts) -> Option<Cause> {
    let interface = interface(facts);
    let netkit = facts.other_interface.as_deref().unwrap_or("the netkit");
    let words = facts.kernel.as_deref();
    let cause = match errno {
        Errno::EPERM | Errno::EACCES => Cause::new(
            CauseKind::NotPermitted,
            "needs CAP_NET_ADMIN in the initial user namespace",
        )
        .hint("the agent of the node makes the lease, not the pod: run it as root of the machine"),
        Errno::ENODEV => Cause::new(
            CauseKind::NoDevice,
            format!("{interface} or {netkit} does not exist"),
        ),
        Errno::EBUSY | Errno::EEXIST => queue_taken(errno, facts),
        Errno::ERANGE => bad_queue(facts, facts.queues.first()),
        Errno::EOPNOTSUPP if says(facts, "different devices") => Cause::new(
            CauseKind::QueuesOfDifferentDevices,
            format!("{netkit} has queues of another NIC already"),
        )
        .hint("one netkit takes queues of one NIC: make another netkit"),
        Errno::EOPNOTSUPP if words.is_none() => Cause::new(
            CauseKind::KernelTooOld,
            "this kernel cannot lease queues: it needs Linux 7.1, and 7.2 to bind device memory to them",
        ),
        // The netkit's answer: the primary end has no queues to lease, and there are as many as it was made with.
        _ if says(facts, "unable to create") => Cause::new(
            CauseKind::BadQueue,
            format!("{netkit} has no room for one more queue"),
        )
        .hint("lease to the peer of a netkit that was made with one RX queue more than are leased (numrxqueues)"),
        Errno::EOPNOTSUPP | Errno::EINVAL => driver_cannot(facts, "lease a queue"),
        _ => return bind(errno, facts),
    };
    Some(cause)
}

/// Causes common to both bindings.
fn bind(errno: Errno, facts: &Facts) -> Option<Cause> {
    match errno {
        Errno::EBADF => Some(Cause::new(
            CauseKind::NotADmabuf,
            "the descriptor is not an open dma-buf",
        )),
        Errno::ENOENT if facts.kernel.is_none() => Some(
            Cause::new(
                CauseKind::KernelTooOld,
                "this kernel has no netdev family in generic netlink",
            )
            .hint("device memory needs Linux 6.12 or later with CONFIG_NET_DEVMEM"),
        ),
        _ => None,
    }
}

fn driver_cannot(facts: &Facts, what: &str) -> Cause {
    let interface = interface(facts);
    let message = match (&facts.driver, &facts.kernel) {
        (Some(driver), Some(words)) => {
            format!("the driver of {interface} ({driver}) cannot {what}: {words}")
        }
        (Some(driver), None) => format!("the driver of {interface} ({driver}) cannot {what}"),
        (None, Some(words)) => format!("{interface} cannot {what}: {words}"),
        (None, None) => format!("{interface} cannot {what}"),
    };
    Cause::new(CauseKind::DriverCannot, message).hint(format!(
        "drivers that support it: {}\n\
         this kernel must be built with CONFIG_NET_DEVMEM; or use the user-space backend",
        drivers::supported_list()
    ))
}

fn recv(errno: Errno) -> Option<Cause> {
    let cause = match errno {
        Errno::EFAULT => Cause::new(
            CauseKind::ReadWithoutFlag,
            "device memory was read without MSG_SOCK_DEVMEM, or a buffer address is invalid",
        )
        .hint("receive with MSG_SOCK_DEVMEM; the data is still queued"),
        Errno::ENODEV => Cause::new(
            CauseKind::OtherProvider,
            "the next packet has payload that is neither all in host memory nor in a bound dma-buf",
        )
        .hint(
            "if the payload is in memory of io_uring: steer the flow to the queue that the dma-buf is bound to\n\
             if the kernel has merged payload in host and in device memory into one packet: ethtool -K INTERFACE gro off",
        ),
        Errno(ETOOSMALL) | Errno::ENOBUFS => Cause::new(
            CauseKind::ControlTooSmall,
            "the control buffer has no room for one message",
        ),
        _ => return None,
    };
    Some(cause)
}

/// `ETOOSMALL`, an internal errno of the kernel (linux include/linux/errno.h) that recvmsg returns.
const ETOOSMALL: i32 = 525;

fn send(errno: Errno, facts: &Facts) -> Option<Cause> {
    let bound = interface(facts);
    let cause = match errno {
        Errno::EINVAL => Cause::new(
            CauseKind::SendNotPrepared,
            "no such binding for sending, or zero-copy is not switched on",
        )
        .hint("bind with bind-tx (an RX binding cannot send), set SO_ZEROCOPY, send with MSG_ZEROCOPY"),
        Errno::ENODEV => {
            let message = match &facts.other_interface {
                Some(other) => format!("the route uses {other}, the binding is on {bound}"),
                None => format!("the route uses another interface than the binding's, {bound}"),
            };
            Cause::new(CauseKind::RouteElsewhere, message).hint(format!(
                "bind the socket to {bound} (SO_BINDTODEVICE), or bind the memory to the interface of the route"
            ))
        }
        Errno::EHOSTUNREACH | Errno::ENETUNREACH => {
            Cause::new(CauseKind::NoRoute, "there is no route to the peer")
                .hint(format!("the binding is on {bound}: `ip route get PEER oif {bound}`"))
        }
        Errno::EFAULT => Cause::new(
            CauseKind::BeyondDmabuf,
            "a range lies beyond the end of the dma-buf",
        ),
        Errno::EMSGSIZE => Cause::new(
            CauseKind::TooManyPieces,
            format!("more than {} ranges in one send", devmem_uapi::UIO_MAXIOV),
        ),
        Errno::ENOBUFS => Cause::new(
            CauseKind::TooManyCompletions,
            "too many sends with unread completions",
        )
        .hint("read completions, or raise the limit: sysctl net.core.optmem_max=1048576"),
        _ => return None,
    };
    Some(cause)
}

fn socket(errno: Errno, facts: &Facts) -> Option<Cause> {
    let interface = interface(facts);
    match errno {
        Errno::ENODEV => Some(Cause::new(
            CauseKind::NoDevice,
            format!("there is no {interface}"),
        )),
        Errno::ENETUNREACH | Errno::EHOSTUNREACH => Some(
            Cause::new(CauseKind::NoRoute, "there is no route to the peer")
                .hint(format!("`ip route get PEER oif {interface}` says more")),
        ),
        Errno::EACCES | Errno::EPERM => Some(Cause::new(
            CauseKind::NotPermitted,
            "not permitted: a port below 1024, a broadcast address, or a rule of a packet filter",
        )),
        _ => None,
    }
}

fn dontneed(errno: Errno) -> Option<Cause> {
    let cause = match errno {
        Errno::EBADF => Cause::new(CauseKind::NotTcp, "the socket is not a TCP socket"),
        Errno::EINVAL => Cause::new(
            CauseKind::TooManyTokens,
            format!(
                "more than {} ranges in one call",
                devmem_uapi::MAX_DONTNEED_TOKENS
            ),
        ),
        Errno::ENOPROTOOPT => kernel_without_devmem(),
        _ => return None,
    };
    Some(cause)
}

fn kernel_without_devmem() -> Cause {
    Cause::new(
        CauseKind::KernelTooOld,
        "this kernel does not support device memory TCP",
    )
    .hint("it needs Linux 6.12 or later with CONFIG_NET_DEVMEM")
}

/// File with udmabuf's size limit.
const UDMABUF_SIZE_LIMIT: &str = "/sys/module/udmabuf/parameters/size_limit_mb";

fn udmabuf(errno: Errno, facts: &Facts) -> Option<Cause> {
    let cause = match errno {
        Errno::ENOENT | Errno::ENXIO => {
            Cause::new(CauseKind::NoExporter, "there is no /dev/udmabuf")
                .hint("modprobe udmabuf; the kernel must be built with CONFIG_UDMABUF")
        }
        Errno::EACCES | Errno::EPERM => Cause::new(
            CauseKind::NotPermitted,
            "this user has no permission to open /dev/udmabuf",
        )
        .hint("run as root or as a member of group kvm, or: chmod 666 /dev/udmabuf"),
        Errno::EINVAL => udmabuf_invalid(facts),
        Errno::EMFILE | Errno::ENFILE => Cause::new(
            CauseKind::NoResources,
            "the process has no free file descriptor",
        )
        .hint("raise the limit: ulimit -n 65536"),
        Errno::ENOMEM => Cause::new(CauseKind::NoResources, "not enough memory to pin the pages")
            .hint(
                "request less, or free some memory; pinned pages count against the cgroup's limit",
            ),
        _ => return None,
    };
    Some(cause)
}

fn udmabuf_invalid(facts: &Facts) -> Cause {
    let too_large = match (facts.bytes, facts.bytes_max) {
        (Some(bytes), Some(max)) if bytes > max => Some((bytes, max)),
        _ => None,
    };
    if let Some((bytes, max)) = too_large {
        let needed_mb = bytes.div_ceil(1 << 20);
        return Cause::new(
            CauseKind::ExporterLimit,
            format!(
                "{} MiB are more than udmabuf's size_limit_mb of {}",
                needed_mb,
                max >> 20
            ),
        )
        .hint(format!("echo {needed_mb} > {UDMABUF_SIZE_LIMIT}"));
    }
    Cause::new(
        CauseKind::DmabufGeometry,
        "the memfd is not sealed against shrinking, or offset or size are not multiples of the page size",
    )
    .hint(format!(
        "or the size is over the limit: see {UDMABUF_SIZE_LIMIT} (64 MiB by default)"
    ))
}

fn dma_heap(errno: Errno, facts: &Facts) -> Option<Cause> {
    let cause = match errno {
        Errno::ENOENT | Errno::ENXIO => Cause::new(
            CauseKind::NoExporter,
            "/dev/dma_heap has no heap of this name",
        )
        .hint("the kernel must be built with CONFIG_DMABUF_HEAPS and CONFIG_DMABUF_HEAPS_SYSTEM"),
        Errno::EACCES | Errno::EPERM => Cause::new(
            CauseKind::NotPermitted,
            "this user has no permission to open the heap",
        )
        .hint("run as root, or give the user access to the file in /dev/dma_heap"),
        Errno::EINVAL => Cause::new(
            CauseKind::ExporterLimit,
            match facts.bytes {
                Some(0) => "an allocation of 0 bytes".to_owned(),
                Some(bytes) => format!("the heap refuses a size of {bytes} bytes"),
                None => "the heap refuses this size".to_owned(),
            },
        ),
        Errno::ENOMEM => Cause::new(
            CauseKind::ExporterLimit,
            "the heap does not have enough memory (the system heap gives at most half of the machine's)",
        ),
        Errno::EMFILE | Errno::ENFILE => Cause::new(
            CauseKind::NoResources,
            "the process has no free file descriptor",
        )
        .hint("raise the limit: ulimit -n 65536"),
        _ => return None,
    };
    Some(cause)
}

/// Causes common to all operations.
fn anywhere(errno: Errno) -> Option<Cause> {
    let cause = match errno {
        Errno::EAGAIN | Errno::EINPROGRESS => {
            Cause::new(CauseKind::WouldBlock, "the call would have to wait")
        }
        Errno::ENOMEM => Cause::new(CauseKind::NoResources, "out of memory"),
        Errno::EMFILE | Errno::ENFILE => Cause::new(
            CauseKind::NoResources,
            "the process has no free file descriptor",
        ),
        Errno::ECONNRESET | Errno::EPIPE | Errno::ETIMEDOUT | Errno::ENOTCONN => {
            Cause::new(CauseKind::ConnectionLost, errno.describe())
        }
        Errno::ENOPROTOOPT => kernel_without_devmem(),
        _ => return None,
    };
    Some(cause)
}

fn points_at(facts: &Facts, attribute: &str) -> bool {
    facts.attribute.as_deref() == Some(attribute)
}

fn says(facts: &Facts, words: &str) -> bool {
    facts.kernel.as_deref().is_some_and(|k| k.contains(words))
}

fn interface(facts: &Facts) -> &str {
    facts.interface.as_deref().unwrap_or("that interface")
}

fn queues(facts: &Facts) -> String {
    match &facts.queues[..] {
        [] => "the queue".to_owned(),
        [queue] => format!("queue {queue}"),
        several => {
            let several = several.iter().map(KernelRxQueueId::to_string);
            format!("queues {}", several.collect::<Vec<_>>().join(", "))
        }
    }
}
