//! Every row of the table of causes, with facts and without.

use devmem_uapi::{DmabufId, Errno};

use super::*;
use crate::ethtool::DataSplit;
use crate::queue_id::{KernelRxQueueId, LeaseEnd, QueueUser};

fn facts() -> Facts {
    Facts {
        interface: Some("eth1".to_owned()),
        driver: Some("mlx5_core".to_owned()),
        queues: vec![KernelRxQueueId(15)],
        rx_queues: Some(16),
        data_split: Some(DataSplit::Enabled),
        hds_thresh: Some(0),
        ..Facts::default()
    }
}

fn kernel(words: &str) -> Facts {
    Facts {
        kernel: Some(words.to_owned()),
        ..facts()
    }
}

fn kind(operation: Operation, errno: Errno, facts: &Facts) -> CauseKind {
    cause(operation, errno, facts).kind
}

#[test]
fn every_refusal_of_bind_rx_has_its_cause() {
    use CauseKind as K;
    let pointed = |path: &str| Facts {
        attribute: Some(path.to_owned()),
        ..facts()
    };
    let taken = |user| Facts {
        taken: vec![(KernelRxQueueId(15), user)],
        ..facts()
    };
    let cases = [
        (Errno::EPERM, facts(), K::NotPermitted),
        (Errno::ENODEV, facts(), K::NoDevice),
        (Errno::EOPNOTSUPP, facts(), K::DriverCannot),
        (Errno::ENODATA, facts(), K::DriverCannot),
        (
            Errno::EOPNOTSUPP,
            kernel("DMA device mismatch between queue 1 and 2 (multi-PF device?)"),
            K::QueuesOfDifferentDevices,
        ),
        (Errno::EINVAL, pointed("queues.id"), K::BadQueue),
        (Errno::EINVAL, pointed("queues"), K::BadQueue),
        (
            Errno::EINVAL,
            kernel("tcp-data-split is disabled"),
            K::SplitOff,
        ),
        (
            Errno::EINVAL,
            kernel("hds-thresh is not zero"),
            K::HdsThreshold,
        ),
        (Errno::EINVAL, facts(), K::DmabufGeometry),
        (Errno::EBADF, facts(), K::NotADmabuf),
        (
            Errno::EEXIST,
            taken(QueueUser::Dmabuf(DmabufId(3))),
            K::QueueTaken,
        ),
        (Errno::EEXIST, facts(), K::QueueTaken),
        (
            Errno::EEXIST,
            kernel("unable to custom memory provider to device with XDP program attached"),
            K::XdpAttached,
        ),
        (Errno::EBUSY, taken(QueueUser::Xsk), K::QueueTaken),
        (Errno::EBUSY, taken(QueueUser::Lease(None)), K::QueueTaken),
        (Errno::ERANGE, facts(), K::QueueFixed),
        (Errno::ENOENT, facts(), K::KernelTooOld),
        (Errno::ENOMEM, facts(), K::NoResources),
    ];
    for (errno, facts, expected) in cases {
        assert_eq!(
            kind(Operation::BindRx, errno, &facts),
            expected,
            "{errno} {facts:?}"
        );
    }
}

#[test]
fn a_leased_queue_is_taken_whatever_the_errno() {
    let facts = Facts {
        taken: vec![(KernelRxQueueId(15), QueueUser::Lease(None))],
        ..kernel("Device doesn't support DMA")
    };
    for errno in [Errno::EBUSY, Errno::EOPNOTSUPP] {
        let cause = cause(Operation::BindRx, errno, &facts);
        assert_eq!(cause.kind, CauseKind::QueueTaken, "{cause}");
        assert!(cause.message.contains("a lease to"), "{cause}");
    }
}

#[test]
fn a_piece_that_fits_no_net_iov_is_named_although_the_kernel_cuts_its_words_off() {
    for len in [4096_u64, 1 << 20, 64 << 20, 1 << 40] {
        let piece = format!("(addr=0x000000003cf67000, len={len})");
        let mut words = format!("dmabuf sg entry {piece} not aligned to niov size 16384");
        // linux include/linux/netlink.h NETLINK_MAX_FMTMSG_LEN, with the final zero.
        words.truncate(79);
        let cause = cause(Operation::BindRx, Errno::EINVAL, &kernel(&words));
        assert_eq!(cause.kind, CauseKind::DmabufGeometry, "{words}");
        assert!(cause.message.contains(&piece), "{cause}");
    }
}

#[test]
fn refusals_of_a_net_iov_size_are_told_apart() {
    use CauseKind as K;
    let pointed = |words: Option<&str>| Facts {
        kernel: words.map(str::to_owned),
        attribute: Some("rx-page-size".to_owned()),
        // Off, as when nothing was set up: the kernel looks at the size first.
        data_split: Some(DataSplit::Disabled),
        ..facts()
    };
    let old = "dma-buf SG length must be PAGE_SIZE aligned";
    let new = "dmabuf sg entry (addr=0x1000, len=4096) not aligned to niov size 16384";
    let off = |words: &str| Facts {
        data_split: Some(DataSplit::Disabled),
        ..kernel(words)
    };
    let cases = [
        // Linux before 7.3 does not know the attribute.
        (
            Errno::EINVAL,
            pointed(Some("Unknown attribute type")),
            K::KernelTooOld,
        ),
        (Errno::EINVAL, pointed(None), K::KernelTooOld),
        (
            Errno::EINVAL,
            kernel("rx-page-size must be a power of 2"),
            K::DmabufGeometry,
        ),
        (
            Errno::ERANGE,
            pointed(Some("integer out of range")),
            K::DmabufGeometry,
        ),
        (
            Errno::EOPNOTSUPP,
            kernel("device does not support: rx_page_size"),
            K::DriverCannot,
        ),
        (Errno::EINVAL, off(old), K::DmabufGeometry),
        (Errno::EINVAL, off(new), K::DmabufGeometry),
    ];
    for (errno, facts, expected) in cases {
        let cause = cause(Operation::BindRx, errno, &facts);
        assert_eq!(cause.kind, expected, "{errno} {facts:?}: {cause}");
    }
    let cause = cause(Operation::BindRx, Errno::EINVAL, &kernel(new));
    assert!(cause.message.contains("addr=0x1000, len=4096"), "{cause}");
    let hint = cause.hint.unwrap();
    assert!(
        hint.contains("2 MiB") && hint.contains("a size that divides"),
        "{hint}"
    );
}

#[test]
fn every_refusal_of_a_lease_has_its_cause() {
    use CauseKind as K;
    let leased = LeaseEnd {
        ifindex: 8,
        queue: KernelRxQueueId(1),
        netns: Some(0),
    };
    let taken = Facts {
        taken: vec![(KernelRxQueueId(15), QueueUser::Lease(Some(leased)))],
        ..kernel("Lease device queue is already leased")
    };
    let cases = [
        (Errno::EPERM, facts(), K::NotPermitted),
        (Errno::ENODEV, facts(), K::NoDevice),
        (Errno::EOPNOTSUPP, facts(), K::KernelTooOld),
        (
            Errno::EOPNOTSUPP,
            kernel("Leasing multiple queues from different devices not supported"),
            K::QueuesOfDifferentDevices,
        ),
        (
            Errno::EOPNOTSUPP,
            kernel("Device is unable to create a new queue"),
            K::BadQueue,
        ),
        (
            Errno::EINVAL,
            kernel("Lease device does not support queue management operations"),
            K::DriverCannot,
        ),
        (Errno::ERANGE, facts(), K::BadQueue),
        (Errno::EBUSY, taken.clone(), K::QueueTaken),
        (
            Errno::EBUSY,
            kernel("Lease device queue in use by memory provider"),
            K::QueueTaken,
        ),
    ];
    for (errno, facts, expected) in cases {
        let cause = cause(Operation::Lease, errno, &facts);
        assert_eq!(cause.kind, expected, "{errno} {facts:?}: {cause}");
    }
    let cause = cause(Operation::Lease, Errno::EBUSY, &taken);
    assert_eq!(
        cause.message,
        "queue 15 of eth1 is used by a lease to queue 1 of interface 8 in network namespace 0"
    );
}

#[test]
fn a_refusal_without_a_message_is_explained_from_the_settings() {
    let with = |split, thresh| Facts {
        data_split: Some(split),
        hds_thresh: Some(thresh),
        ..facts()
    };
    let bind = |facts: &Facts| kind(Operation::BindRx, Errno::EINVAL, facts);
    assert_eq!(bind(&with(DataSplit::Disabled, 0)), CauseKind::SplitOff);
    assert_eq!(bind(&with(DataSplit::Unknown, 0)), CauseKind::SplitOff);
    assert_eq!(
        bind(&with(DataSplit::Enabled, 256)),
        CauseKind::HdsThreshold
    );
    let no_queue = Facts {
        queues: Vec::new(),
        ..facts()
    };
    assert_eq!(bind(&no_queue), CauseKind::BadQueue);
    let past_the_end = Facts {
        rx_queues: Some(8),
        ..facts()
    };
    let cause = cause(Operation::BindRx, Errno::EINVAL, &past_the_end);
    assert_eq!(cause.message, "eth1 has no RX queue 15");
    assert!(cause.hint.unwrap().contains("0 to 7"));
}

#[test]
fn header_split_off_comes_with_the_command_that_switches_it_on() {
    let cause = cause(
        Operation::BindRx,
        Errno::EINVAL,
        &kernel("tcp-data-split is disabled"),
    );
    assert_eq!(cause.message, "tcp-data-split is disabled");
    let hint = cause.hint.unwrap();
    assert!(
        hint.ends_with("ethtool -G eth1 tcp-data-split on hds-thresh 0"),
        "{hint}"
    );
}

#[test]
fn a_taken_queue_names_its_user() {
    let facts = Facts {
        taken: vec![(KernelRxQueueId(15), QueueUser::Dmabuf(DmabufId(3)))],
        ..facts()
    };
    let cause = cause(Operation::BindRx, Errno::EEXIST, &facts);
    assert_eq!(cause.message, "queue 15 of eth1 is used by dma-buf 3");
}

#[test]
fn an_unsupported_driver_is_named_with_the_supported_ones() {
    let facts = Facts {
        driver: Some("veth".to_owned()),
        ..facts()
    };
    for operation in [Operation::BindRx, Operation::BindTx] {
        let cause = cause(operation, Errno::EOPNOTSUPP, &facts);
        assert!(cause.message.contains("(veth)"), "{cause}");
        assert!(cause.hint.unwrap().contains("mlx5_core"));
    }
}

#[test]
fn refusals_of_sending_and_receiving_have_a_cause() {
    use CauseKind as K;
    let cases = [
        (Operation::BindTx, Errno::EOPNOTSUPP, K::DriverCannot),
        (Operation::BindTx, Errno::EINVAL, K::DmabufGeometry),
        (Operation::BindTx, Errno::EBADF, K::NotADmabuf),
        (Operation::Send, Errno::EINVAL, K::SendNotPrepared),
        (Operation::Send, Errno::ENODEV, K::RouteElsewhere),
        (Operation::Send, Errno::EHOSTUNREACH, K::NoRoute),
        (Operation::Send, Errno::EFAULT, K::BeyondDmabuf),
        (Operation::Send, Errno::EMSGSIZE, K::TooManyPieces),
        (Operation::Send, Errno::ENOBUFS, K::TooManyCompletions),
        (Operation::Send, Errno::EPIPE, K::ConnectionLost),
        (Operation::Send, Errno::EAGAIN, K::WouldBlock),
        (Operation::Recv, Errno::EFAULT, K::ReadWithoutFlag),
        (Operation::Recv, Errno::ENODEV, K::OtherProvider),
        (Operation::Recv, Errno(525), K::ControlTooSmall),
        (Operation::Recv, Errno::EAGAIN, K::WouldBlock),
        (Operation::Recv, Errno::ECONNRESET, K::ConnectionLost),
        (Operation::Dontneed, Errno::EBADF, K::NotTcp),
        (Operation::Dontneed, Errno::EINVAL, K::TooManyTokens),
        (Operation::Dontneed, Errno::ENOPROTOOPT, K::KernelTooOld),
    ];
    for (operation, errno, expected) in cases {
        assert_eq!(
            kind(operation, errno, &facts()),
            expected,
            "{operation} {errno}"
        );
    }
}

#[test]
fn a_route_through_another_interface_names_both_interfaces() {
    let facts = Facts {
        other_interface: Some("eth0".to_owned()),
        ..facts()
    };
    let cause = cause(Operation::Send, Errno::ENODEV, &facts);
    assert_eq!(cause.message, "the route uses eth0, the binding is on eth1");
}

#[test]
fn the_limit_of_udmabuf_is_named_with_the_command_that_raises_it() {
    let facts = Facts {
        bytes: Some(256 << 20),
        bytes_max: Some(64 << 20),
        ..Facts::default()
    };
    let cause = cause(Operation::Udmabuf, Errno::EINVAL, &facts);
    assert_eq!(cause.kind, CauseKind::ExporterLimit);
    assert_eq!(
        cause.message,
        "256 MiB are more than udmabuf's size_limit_mb of 64"
    );
    assert_eq!(
        cause.hint.as_deref(),
        Some("echo 256 > /sys/module/udmabuf/parameters/size_limit_mb")
    );
    let within = Facts {
        bytes: Some(1 << 20),
        bytes_max: Some(64 << 20),
        ..Facts::default()
    };
    let geometry = kind(Operation::Udmabuf, Errno::EINVAL, &within);
    assert_eq!(geometry, CauseKind::DmabufGeometry);
}

#[test]
fn refusals_of_exporters_have_a_cause() {
    use CauseKind as K;
    for operation in [Operation::Udmabuf, Operation::DmaHeap] {
        let cases = [
            (Errno::ENOENT, K::NoExporter),
            (Errno::EACCES, K::NotPermitted),
            (Errno::EMFILE, K::NoResources),
        ];
        for (errno, expected) in cases {
            let facts = Facts::default();
            assert_eq!(
                kind(operation, errno, &facts),
                expected,
                "{operation} {errno}"
            );
        }
    }
    let facts = Facts::default();
    assert_eq!(
        kind(Operation::Udmabuf, Errno::ENOMEM, &facts),
        K::NoResources
    );
    assert_eq!(
        kind(Operation::DmaHeap, Errno::ENOMEM, &facts),
        K::ExporterLimit
    );
}

#[test]
fn any_errno_without_facts_has_a_cause_with_a_message() {
    let operations = [
        Operation::BindRx,
        Operation::BindTx,
        Operation::Lease,
        Operation::Recv,
        Operation::Send,
        Operation::Dontneed,
        Operation::Udmabuf,
        Operation::DmaHeap,
    ];
    for operation in operations {
        for errno in (0..600).map(Errno) {
            let cause = cause(operation, errno, &Facts::default());
            assert!(!cause.message.is_empty(), "{operation} {errno}");
            assert!(!cause.message.contains("  "), "{}", cause.message);
        }
    }
    let unknown = cause(Operation::BindRx, Errno::EIO, &kernel("the NIC is on fire"));
    assert_eq!(unknown.kind, CauseKind::Unknown);
    assert_eq!(unknown.message, "the NIC is on fire");
}
