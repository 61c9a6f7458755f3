//! Tests of a NIC that supports device memory, named in `DEVMEM_TEST_NIC` (by the lab). It must be up and have two RX queues
//! or more, and no other program may use it meanwhile. Its settings are restored.

use std::env;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

use devmem_linux::dmabuf::{CpuAccess, DmabufFd};
use devmem_linux::doctor::{Doctor, NicVerdict};
use devmem_linux::errors::CauseKind;
use devmem_linux::ethtool::{Ethtool, InstalledRule, Rings, RssContext};
use devmem_linux::netdev::{KernelRxQueueId, Netdev, QueueUser};
use devmem_linux::nic_setup::{Flow, NicSetup, QueueChoice, SetupRequest};
use devmem_linux::test_util::{GuestHas, skip_outside_guest};
use devmem_uapi::Errno;

const SIZE: usize = 8 << 20;

/// Returns the name of the NIC; prints the reason if the test is skipped.
fn nic(test: &str) -> Option<String> {
    let name = env::var("DEVMEM_TEST_NIC").ok();
    if name.is_none() {
        skip_outside_guest(test, GuestHas::Nic, "DEVMEM_TEST_NIC is not set");
    }
    name
}

fn memory() -> DmabufFd {
    DmabufFd::udmabuf(SIZE).expect("the lab has udmabuf")
}

/// All settings that a set-up changes.
fn settings(name: &str) -> (Rings, RssContext, Vec<InstalledRule>, Vec<RssContext>, bool) {
    let mut ethtool = Ethtool::by_name(name).unwrap();
    let ntuple = ethtool.feature(devmem_linux::ethtool::NTUPLE).unwrap();
    (
        ethtool.rings().unwrap(),
        ethtool.rss().unwrap(),
        ethtool.rules().unwrap(),
        ethtool.rss_contexts().unwrap_or_default(),
        ntuple.unwrap().active,
    )
}

fn request(name: &str) -> SetupRequest {
    let local: SocketAddr = "192.0.2.2:5201".parse().unwrap();
    SetupRequest {
        interface: name.to_owned(),
        queues: QueueChoice::Count(1),
        flows: vec![Flow::to(local)],
        leases: Vec::new(),
        state_folder: None,
    }
}

/// A single test, because there is only one NIC.
#[test]
fn a_nic_is_prepared_bound_and_restored() {
    const TEST: &str = "a_nic_is_prepared_bound_and_restored";
    let Some(name) = nic(TEST) else { return };
    let doctor = Doctor::examine(Some(&name)).unwrap();
    let verdict = doctor.nics[0].verdict;
    assert!(
        matches!(verdict, NicVerdict::Ready | NicVerdict::NeedsSetup),
        "{:?}",
        doctor.nics
    );
    let before = settings(&name);
    let memory = memory();
    let mut netdev = Netdev::by_name(&name).unwrap();

    if before.0.data_split != Some(devmem_linux::ethtool::DataSplit::Enabled) {
        let error = netdev
            .bind_rx(memory.as_fd(), &[KernelRxQueueId(1)])
            .unwrap_err();
        assert_eq!(
            (error.errno, error.cause.kind),
            (Errno::EINVAL, CauseKind::SplitOff)
        );
    }

    let mut setup = NicSetup::plan(&request(&name)).unwrap().apply().unwrap();
    assert_eq!(setup.verify().unwrap(), []);
    let queues = setup.queues().to_vec();
    let bound = netdev.bind_rx(memory.as_fd(), &queues).unwrap();
    let user = |netdev: &mut Netdev| {
        let all = netdev.rx_queues().unwrap();
        all.into_iter().find(|(id, _)| *id == queues[0]).unwrap().1
    };
    assert_eq!(user(&mut netdev), Some(QueueUser::Dmabuf(bound.id())));
    let pools = netdev.page_pools().unwrap();
    assert!(
        pools.iter().any(|p| p.dmabuf == Some(bound.id().0)),
        "{pools:?}"
    );

    let again = netdev.bind_rx(memory.as_fd(), &queues).unwrap_err();
    assert_eq!(
        (again.errno, again.cause.kind),
        (Errno::EEXIST, CauseKind::QueueTaken)
    );
    let past = [KernelRxQueueId(1 << 20)];
    let past = netdev.bind_rx(memory.as_fd(), &past).unwrap_err();
    assert_eq!(
        (past.errno, past.cause.kind),
        (Errno::EINVAL, CauseKind::BadQueue)
    );
    let no_dmabuf = std::fs::File::open("/dev/null").unwrap();
    let no_dmabuf = netdev.bind_rx(no_dmabuf.as_fd(), &queues).unwrap_err();
    assert_eq!(no_dmabuf.errno, Errno::EINVAL, "{no_dmabuf}");
    let tx = netdev.bind_tx(memory.as_fd()).unwrap();
    assert_ne!(tx.id(), bound.id());

    drop((bound, tx));
    assert_eq!(user(&mut netdev), None, "closing the socket unbinds");
    let report = setup.restore();
    assert!(report.is_exact(), "{report}");
    assert_eq!(settings(&name), before, "{report}");
}

#[test]
fn the_cpu_can_access_a_udmabuf() {
    const TEST: &str = "the_cpu_can_access_a_udmabuf";
    let memory = match DmabufFd::udmabuf(SIZE) {
        Ok(memory) => memory,
        Err(error) => return skip_outside_guest(TEST, GuestHas::Udmabuf, &error.to_string()),
    };
    let access = memory.cpu_view(CpuAccess::ReadWrite).unwrap();
    access.copy_in(SIZE - 4, b"last").unwrap();
    let mut out = [0; 4];
    access.copy_out(SIZE - 4, &mut out).unwrap();
    assert_eq!(&out, b"last");
    assert!(access.copy_in(SIZE - 3, b"last").is_err());
    access.end().unwrap();
    let imported = DmabufFd::import(memory.as_fd().try_clone_to_owned().unwrap()).unwrap();
    assert_eq!(imported.size(), SIZE);
}

/// Why the user-space NIC does not pass dma-bufs on to the other end of a wire, which shall read and not write: a memfd can be
/// opened again for reading.
#[test]
fn a_udmabuf_is_writable_and_cannot_be_opened_again_for_reading() {
    const TEST: &str = "a_udmabuf_is_writable_and_cannot_be_opened_again_for_reading";
    let memory = match DmabufFd::udmabuf(SIZE) {
        Ok(memory) => memory,
        Err(error) => return skip_outside_guest(TEST, GuestHas::Udmabuf, &error.to_string()),
    };
    let flags = rustix::fs::fcntl_getfl(&memory).unwrap();
    assert!(flags.contains(rustix::fs::OFlags::RDWR), "{flags:?}");
    let again = format!("/proc/self/fd/{}", memory.as_fd().as_raw_fd());
    let refused = std::fs::File::open(again).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::ENXIO.0));
}
