//! The kernel backend on this machine's kernel, without a NIC that could do it: every refusal names its cause and what
//! mends it, and memory of the kernel's exporters serves.

#[path = "kernel/in_place.rs"]
mod in_place;
#[path = "kernel/queued.rs"]
mod queued;

use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use devmem_linux::broker::Broker;
use devmem_linux::netif::Interface;
use devmem_linux::test_util::{GuestHas, in_netns, skip_outside_guest};
use devmem_tcp::{
    BindError, ConnectOptions, Dmabuf, EarlyCookie, EarlyData, Errno, Error, ErrorKind, Frag,
    Netdev, Placement, RecvError, Remedy, RxBatch, RxQueueId,
    memory::{CpuAccess, Exporter},
};

const SIZE: usize = 1 << 20;

/// Says that it is a dma-buf, and is a memory file: enough for what is refused before the kernel looks.
struct Pretended(OwnedFd);

impl Exporter for Pretended {
    fn size(&self) -> usize {
        SIZE
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

fn pretended() -> Dmabuf {
    let file = Dmabuf::memfd(SIZE).unwrap();
    let fd = file.as_fd().unwrap().try_clone_to_owned().unwrap();
    Dmabuf::exported(Arc::new(Pretended(fd))).unwrap()
}

/// Whether this process may bind, and whether its kernel knows what that is; says so where not.
fn can_try_to_bind(test: &str) -> bool {
    let uid_map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let initial = uid_map.split_whitespace().eq(["0", "0", "4294967295"]);
    if !initial || !rustix::process::geteuid().is_root() {
        skip_outside_guest(
            test,
            GuestHas::Kernel,
            "needs root of the initial user namespace",
        );
        return false;
    }
    let family = devmem_linux::netlink::GenericSocket::open(devmem_uapi::netdev::FAMILY_NAME);
    let knows = family.is_ok_and(|socket| socket.family().has(devmem_uapi::netdev::CMD_BIND_TX));
    if !knows {
        skip_outside_guest(
            test,
            GuestHas::Kernel,
            "this kernel has no bind-rx or no bind-tx",
        );
    }
    knows
}

#[test]
fn an_interface_that_is_not_there_is_named() {
    let error = Netdev::kernel("nosuch0").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
    let text = format!("{error:?}");
    assert!(
        text.starts_with("there is no interface nosuch0: "),
        "{text}"
    );
    assert!(text.contains("ip link"), "{text}");
}

#[test]
fn an_interface_has_its_name_and_its_addresses() {
    let lo = Netdev::kernel("lo").unwrap();
    assert_eq!(lo.interface(), Some("lo"));
    assert!(lo.addresses().iter().all(|address| address.is_loopback()));
    assert_eq!(lo.drops(), [], "a loopback drops nothing");
}

#[test]
fn the_interface_of_a_route_is_found() {
    let to_itself = Netdev::kernel_to(Ipv4Addr::LOCALHOST.into()).unwrap();
    assert_eq!(to_itself.interface(), Some("lo"));
}

#[test]
fn an_address_without_a_route_is_an_error() {
    in_netns("an_address_without_a_route_is_an_error", || {
        let error = Netdev::kernel_to(Ipv4Addr::new(192, 0, 2, 1).into()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NetworkUnreachable);
        let text = format!("{error:?}");
        assert!(
            text.starts_with("there is no route to 192.0.2.1: ")
                && text.ends_with("`ip route get 192.0.2.1` asks for the same one"),
            "{text}"
        );
    });
}

#[test]
fn bind_rx_on_the_loopback_is_refused_with_the_drivers_that_can() {
    const TEST: &str = "bind_rx_on_the_loopback_is_refused_with_the_drivers_that_can";
    if !can_try_to_bind(TEST) {
        return;
    }
    let lo = Netdev::kernel("lo").unwrap();
    let error = lo.bind_rx(&pretended(), &[RxQueueId(0)]).unwrap_err();
    assert_eq!(error.errno(), Errno::EOPNOTSUPP, "{error}");
    let BindError::Failed(facts) = &error else {
        panic!("{error:?}");
    };
    assert_eq!(
        (facts.interface(), facts.queue()),
        (Some("lo"), Some(RxQueueId(0)))
    );
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let text = format!("{error:?}");
    let mut lines = text.lines();
    let first = lines.next().unwrap();
    assert!(
        first.starts_with("bind-rx on lo queue 0 refused: EOPNOTSUPP: "),
        "{text}"
    );
    assert!(lines.all(|hint| hint.starts_with("  ")), "{text}");
    assert!(text.contains("gve"), "{text}");
}

#[test]
fn bind_without_queues_is_einval_on_both_backends() {
    const TEST: &str = "bind_without_queues_is_einval_on_both_backends";
    let user = Netdev::user("mem:no-queues", "10.77.0.2/24").unwrap();
    let memory = pretended();
    let refused = user.bind_rx(&memory, &[]).unwrap_err();
    assert_eq!(refused.errno(), Errno::EINVAL, "{refused}");
    if !can_try_to_bind(TEST) {
        return;
    }
    let lo = Netdev::kernel("lo").unwrap();
    let refused = lo.bind_rx(&memory, &[]).unwrap_err();
    assert_eq!(refused.errno(), Errno::EINVAL, "{refused}");
}

#[test]
fn bind_on_an_interface_that_went_away_is_enodev() {
    const TEST: &str = "bind_on_an_interface_that_went_away_is_enodev";
    if !can_try_to_bind(TEST) {
        return;
    }
    in_netns(TEST, || {
        let (veth, _peer) = Interface::create_veth_pair("v0", "v1").unwrap();
        let nic = Netdev::kernel("v0").unwrap();
        let memory = pretended();
        let refused = nic.bind_rx(&memory, &[RxQueueId(0)]).unwrap_err();
        assert_eq!(refused.errno(), Errno::EOPNOTSUPP, "{refused}");
        let refused = nic.bind_tx(&memory).unwrap_err();
        assert_eq!(refused.errno(), Errno::EOPNOTSUPP, "{refused}");
        assert!(format!("{refused:?}").contains("(veth)"), "{refused}");
        veth.delete().unwrap();
        let refused = nic.bind_rx(&memory, &[RxQueueId(0)]).unwrap_err();
        assert_eq!(refused.errno(), Errno::ENODEV, "{refused}");
        let refused = nic.bind_tx(&memory).unwrap_err();
        assert_eq!(refused.errno(), Errno::ENODEV, "{refused}");
        assert!(
            format!("{refused:?}").contains("there is no v0"),
            "{refused}"
        );
    });
}

#[test]
fn bind_rx_without_privilege_says_which() {
    const TEST: &str = "bind_rx_without_privilege_says_which";
    if !can_try_to_bind(TEST) {
        return;
    }
    // Another user: the capabilities go with the identity. Of this thread only, which ends with it.
    let refused = std::thread::spawn(|| {
        let lo = Netdev::kernel("lo").unwrap();
        let memory = pretended();
        let nobody = rustix::process::Uid::from_raw(65534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        lo.bind_rx(&memory, &[RxQueueId(0)]).unwrap_err()
    });
    let refused = refused.join().unwrap();
    assert_eq!(refused.errno(), Errno::EPERM, "{refused}");
    assert!(
        format!("{refused:?}").contains("CAP_NET_ADMIN"),
        "{refused}"
    );
}

#[test]
fn a_broker_that_is_not_there_is_named_when_memory_is_bound() {
    let nic = Netdev::brokered("lo", "/nonexistent/broker").unwrap();
    let error = Error::from(nic.bind_rx(&pretended(), &[RxQueueId(0)]).unwrap_err());
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let reason = error.reason();
    assert!(
        reason.starts_with("no broker answers at /nonexistent/broker: "),
        "{reason}"
    );
    let remedy = error.remedy().map(|remedy| remedy.to_string());
    assert!(remedy.is_some_and(|text| text.contains("devmem-tcp broker")));
}

#[test]
fn a_refusal_through_a_broker_has_its_errno_and_leaves_the_memory_free() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let uid = rustix::process::geteuid().as_raw();
    let grant = format!("uid={uid}:lo:0").parse().unwrap();
    let broker = Broker::listen(&path, vec![grant]).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let must_stop = Arc::clone(&stop);
    let serving = thread::spawn(move || broker.serve(|_| {}, || must_stop.load(Ordering::Relaxed)));
    let nic = Netdev::brokered("lo", &path).unwrap();
    let memory = pretended();
    let bind = |queue| {
        let refused = nic.bind_rx(&memory, &[RxQueueId(queue)]).unwrap_err();
        assert!(matches!(refused, BindError::Failed(_)), "{refused}");
        Error::from(refused)
    };
    // Twice: the first refusal has not taken the memory.
    let [by_kernel, again, by_broker] = [bind(0), bind(0), bind(1)];
    stop.store(true, Ordering::Relaxed);
    serving.join().unwrap().unwrap();
    assert!(
        by_kernel
            .reason()
            .contains("refused: bind-rx on lo queue 0 refused: "),
        "{by_kernel}"
    );
    assert_eq!(by_kernel.errno(), again.errno());
    assert_eq!(by_kernel.interface(), Some("lo"));
    assert_eq!(by_broker.kind(), ErrorKind::PermissionDenied, "{by_broker}");
}

#[test]
fn anonymous_memory_is_not_a_dma_buf_and_the_error_names_the_alternatives() {
    let lo = Netdev::kernel("lo").unwrap();
    let memory = Dmabuf::anonymous(SIZE).unwrap();
    let error = lo.bind_rx(&memory, &[RxQueueId(1)]).unwrap_err();
    assert_eq!(error.remedy(), Some(Remedy::ExportableMemory), "{error:?}");
    assert_eq!(error.errno(), Errno::EINVAL);
    assert!(
        format!("{error:?}").contains("devmem_tcp::memory::udmabuf"),
        "{error}"
    );
    let error = lo.bind_tx(&memory).unwrap_err();
    assert_eq!(error.remedy(), Some(Remedy::ExportableMemory), "{error:?}");
}

#[test]
fn a_memory_file_becomes_a_udmabuf_or_the_error_says_how_it_could() {
    const TEST: &str = "a_memory_file_becomes_a_udmabuf_or_the_error_says_how_it_could";
    let lo = Netdev::kernel("lo").unwrap();
    let memory = Dmabuf::memfd(SIZE).unwrap();
    let error = lo.bind_tx(&memory).unwrap_err();
    match memory.exporter() {
        None => {
            assert!(format!("{error:?}").contains("/dev/udmabuf"), "{error}");
            skip_outside_guest(TEST, GuestHas::Udmabuf, &format!("{error:?}"));
        }
        Some(_) => {
            assert_eq!(error.errno(), Errno::EOPNOTSUPP, "{error}");
            // One memory still, and its owner's copies are announced from now on.
            assert!(memory.exporter().is_some());
            memory.copy_in(SIZE - 4, b"last").unwrap();
            assert_eq!(memory.slice(SIZE - 4..SIZE).to_vec(), b"last");
        }
    }
}

/// Memory of an exporter, if the machine has it.
fn made(test: &str, memory: Result<Dmabuf, Error>) -> Option<Dmabuf> {
    match memory {
        Ok(memory) => Some(memory),
        Err(error) => {
            assert!(error.remedy().is_some(), "without remedy: {error}");
            skip_outside_guest(test, GuestHas::Udmabuf, &format!("{error:?}"));
            None
        }
    }
}

#[test]
fn memory_of_the_kernels_exporters_serves_the_user_space_stack() {
    const TEST: &str = "memory_of_the_kernels_exporters_serves_the_user_space_stack";
    for (number, memory) in [
        devmem_tcp::memory::udmabuf(4 << 20),
        devmem_tcp::memory::dma_heap("system", 4 << 20),
    ]
    .into_iter()
    .enumerate()
    {
        let Some(memory) = made(TEST, memory) else {
            continue;
        };
        let wire = format!("mem:exported-{number}");
        let a = Netdev::user(&wire, "10.77.0.1/24").unwrap();
        let b = Netdev::user(&wire, "10.77.0.2/24").unwrap();
        let setup = b.plan_receive("10.77.0.2:5201".parse().unwrap());
        let setup = setup.apply().unwrap();
        let bound = b.bind_rx(&memory, setup.queues()).unwrap();
        let listener = b.listen("10.77.0.2:5201").unwrap();
        let mut sender = a.connect("10.77.0.2:5201").unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        sender.write_all(b"into a dma-buf").unwrap();
        let mut batch = RxBatch::with_capacity(4);
        assert_eq!(receiver.recv(&mut batch).unwrap(), 14);
        let Some(Frag::Device { range, .. }) = batch.iter().next() else {
            panic!("{batch:?}");
        };
        assert_eq!(memory.slice(range).to_vec(), b"into a dma-buf");
        let imported = memory.as_fd().unwrap().try_clone_to_owned().unwrap();
        assert_eq!(
            devmem_tcp::memory::import(imported).unwrap().size(),
            memory.size()
        );
        drop((batch, receiver, sender, listener));
        let count = bound.unbind().net_iovs();
        assert_eq!(count.home, count.total);
    }
}

#[test]
fn a_descriptor_that_is_not_a_dma_buf_is_not_imported() {
    let file = std::fs::File::open("/dev/null").unwrap();
    let error = devmem_tcp::memory::import(file.into()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}

#[test]
fn an_unsupported_nic_is_refused_with_the_missing_features() {
    const TEST: &str = "an_unsupported_nic_is_refused_with_the_missing_features";
    in_netns(TEST, || {
        let _pair = Interface::create_veth_pair("v0", "v1").unwrap();
        let nic = Netdev::kernel("v0").unwrap();
        let plan = nic.plan_receive("192.0.2.2:5201".parse().unwrap());
        let error = plan.commands().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
        let text = format!("{error:?}");
        assert!(text.starts_with("v0 (veth) cannot be prepared: "), "{text}");
        assert!(text.contains("devmem-tcp doctor"), "{text}");
        let error = plan.apply().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    });
}

#[test]
fn strict_placement_without_a_binding_says_that_there_is_none() {
    let lo = Netdev::kernel("lo").unwrap();
    let listener = lo.listen("127.0.0.1:0").unwrap();
    let mut sender = lo.connect(listener.local_addr().unwrap()).unwrap();
    let (mut receiver, _) = listener.accept().unwrap();
    sender.write_all(b"astray").unwrap();
    receiver.set_placement(Placement::Strict);
    let error = receiver.recv(&mut RxBatch::with_capacity(4)).unwrap_err();
    let RecvError::Misplaced {
        bytes: 6,
        cause: Some(cause),
    } = &error
    else {
        panic!("{error:?}");
    };
    assert_eq!((cause.interface.as_str(), cause.dmabuf), ("lo", None));
    assert_eq!(
        error.to_string(),
        "recv on lo: 6 bytes arrived in host memory, not in device memory: this program has bound no device memory to lo"
    );
    assert_eq!(cause.remedy, Remedy::BindBeforeConnecting);
}

#[test]
fn the_kernel_counts_what_its_interface_sends() {
    let lo = Netdev::kernel("lo").unwrap();
    assert_eq!(lo.tx_stats(), None);
    assert!(lo.queue_stats().iter().all(|queue| queue.pool.is_none()));
}

#[test]
fn connect_with_data_uses_fast_open_of_the_kernel() {
    const TEST: &str = "connect_with_data_uses_fast_open_of_the_kernel";
    in_netns(TEST, || {
        let modes = |modes| std::fs::write("/proc/sys/net/ipv4/tcp_fastopen", modes);
        if modes("0").is_err() {
            return skip_outside_guest(
                TEST,
                GuestHas::Kernel,
                "net.ipv4.tcp_fastopen cannot be changed",
            );
        }
        Interface::by_name("lo").unwrap().set_up().unwrap();
        let lo = Netdev::kernel("lo").unwrap();
        let listener = lo.listen("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let options = ConnectOptions::new().timeout(Duration::from_secs(60));
        let sent: Vec<u8> = (0..3000).map(|at| at as u8).collect();
        let remedy = "sysctl -w net.ipv4.tcp_fastopen=3";
        let refused = lo.connect_with_data(address, &options, EarlyData::Host(&sent));
        let refused = refused.map(drop).unwrap_err();
        assert_eq!(refused.errno(), Errno::EOPNOTSUPP, "{refused}");
        assert!(format!("{refused:?}").contains(remedy), "{refused}");
        let refused = listener.set_fast_open(8).unwrap_err();
        assert!(format!("{refused:?}").contains(remedy), "{refused}");
        modes("3").unwrap();
        listener.set_fast_open(8).unwrap();
        for is_known in [false, true] {
            let data = EarlyData::Host(&sent);
            let (stream, id) = lo.connect_with_data(address, &options, data).unwrap();
            assert_eq!(id.bytes(), 3000);
            let (mut receiver, _) = listener.accept().unwrap();
            let mut received = vec![0; 3000];
            receiver.read_exact(&mut received).unwrap();
            assert_eq!(received, sent);
            assert_eq!(stream.tcp_info().unwrap().syn_data_acked, is_known);
            assert!(stream.completions().is_complete(id).unwrap());
        }
        // A kernel that knows no peer: without cookies the first SYN has payload, too.
        let listener = lo.listen("[::1]:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_fast_open(8).unwrap();
        listener.set_early_cookie(EarlyCookie::NotNeeded).unwrap();
        let options = options.early_cookie(EarlyCookie::NotNeeded);
        let data = EarlyData::Host(&sent);
        let (stream, _) = lo.connect_with_data(address, &options, data).unwrap();
        assert!(stream.tcp_info().unwrap().syn_data_acked);
    });
}
