//! ECN with the kernel at the other end: requests, acceptance, and the effect of marks on the windows of both.

use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;

use devmem_linux::socket::TcpInfo;
use devmem_linux::test_util::{in_netns, skip};
use devmem_tcp::{
    Dmabuf, Netdev, RxBatch, Stream,
    tcp::{Congestion, Ecn, TcpOptions},
};

use crate::peer::{Host, PATIENCE, V4, V6, check_all};
use crate::sender::{expected, receive_all};

/// Bits of `tcpi_options`: ECN was agreed on, and data came with an ECN codepoint.
const ECN_AND_SEEN: u8 = 8 | 16;

fn options(ecn: Ecn) -> TcpOptions {
    let mut options = TcpOptions::default();
    options.ecn = ecn;
    options
}

/// Sets this namespace's `net.ipv4.tcp_ecn`, which counts for IPv6, too.
fn set_kernel(tcp_ecn: &str) {
    std::fs::write("/proc/sys/net/ipv4/tcp_ecn", tcp_ecn).expect("a network of our own");
}

/// Receives `bytes` from the kernel, which must see marks. Returns a second handle of its end, which has sent all.
fn receive_marked(ours: &mut Stream, theirs: &TcpStream, bytes: usize) -> TcpStream {
    let mut back = theirs.try_clone().expect("a second handle");
    let kernel = std::thread::spawn(move || {
        back.write_all(&expected(0, bytes)).expect("all is read");
        back.shutdown(Shutdown::Write).expect("open");
        back
    });
    let memory = Dmabuf::anonymous(4096).expect("memory");
    assert_eq!(receive_all(ours, &memory), bytes);
    let back = kernel.join().expect("the peer");
    let kernels = TcpInfo::of(back.as_fd()).expect("a TCP socket");
    assert!(kernels.delivered_ce() > 0, "{kernels:?}");
    back
}

#[test]
fn marks_reduce_the_window_of_either_side_and_change_no_byte() {
    const BYTES: usize = 3_000_000;
    in_netns(
        "ecn::marks_reduce_the_window_of_either_side_and_change_no_byte",
        || {
            let impairment = "ce=2%,delay=1ms,seed=3".parse().expect("an impairment");
            for addresses in [V4, V6] {
                let (host, nic) = Host::with_nic(addresses, |builder| {
                    builder.impair(impairment).tcp(options(Ecn::Request))
                });
                let mut ours = host.connect(&nic);
                let theirs = host.accept();
                let back = receive_marked(&mut ours, &theirs, BYTES);
                let receiving = std::thread::spawn(move || check_all(theirs));
                nic.send(&mut ours, BYTES, 30_000);
                let info = ours.tcp_info().expect("open");
                assert!(info.ecn && info.ecn_seen, "{info:?}");
                assert!(info.ecn_reductions > 0 && info.delivered_ce > 0, "{info:?}");
                assert!(info.ce_received > 0, "{info:?}");
                let kernels = TcpInfo::of(back.as_fd()).expect("a TCP socket");
                assert_eq!(kernels.options() & ECN_AND_SEEN, ECN_AND_SEEN);
                ours.shutdown_write().expect("open");
                assert_eq!(receiving.join().expect("the receiver"), BYTES);
            }
        },
    );
}

#[test]
fn ecn_is_used_if_one_side_requests_and_the_other_accepts_it() {
    use devmem_tcp::tcp::Ecn::{Accept, Off, Request};
    in_netns(
        "ecn::ecn_is_used_if_one_side_requests_and_the_other_accepts_it",
        || {
            // The kernel's numbers: 0 never, 1 asks and grants, 2 grants.
            for (policy, kernel, we_ask, it_asks) in [
                (Request, "0", false, false),
                (Request, "1", true, true),
                (Request, "2", true, false),
                (Accept, "1", false, true),
                (Accept, "2", false, false),
                (Off, "1", false, false),
            ] {
                set_kernel(kernel);
                let (host, nic) = Host::with_nic(V4, |builder| builder.tcp(options(policy)));
                let ours = host.connect(&nic);
                let info = ours.tcp_info().expect("open");
                assert_eq!(info.ecn, we_ask, "{policy:?} to {kernel}");
                assert_eq!(
                    asked_by_kernel(&nic.netdev),
                    it_asks,
                    "{kernel} to {policy:?}"
                );
            }
        },
    );
}

/// Lets the kernel connect to us and send; returns whether ECN is used.
fn asked_by_kernel(netdev: &Netdev) -> bool {
    let listener = netdev.listen("10.77.0.2:7000").expect("a free port");
    let address: SocketAddr = "10.77.0.2:7000".parse().expect("an address");
    let kernel = std::thread::spawn(move || {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.write_all(&expected(0, 1000)).expect("open");
        let info = TcpInfo::of(stream.as_fd()).expect("a TCP socket");
        (stream, info.options() & 8 != 0)
    });
    let (mut ours, _) = listener.accept().expect("a connection");
    ours.set_timeout(Some(PATIENCE));
    let mut batch = RxBatch::with_capacity(4);
    assert!(ours.recv(&mut batch).expect("alive") > 0);
    let (_stream, theirs) = kernel.join().expect("the peer");
    let info = ours.tcp_info().expect("open");
    assert_eq!((info.ecn, info.ecn_seen), (theirs, theirs));
    theirs
}

fn dctcp() -> TcpOptions {
    let mut options = TcpOptions::default();
    options.congestion = Congestion::Dctcp;
    options
}

#[test]
fn dctcp_and_linux_dctcp_agree_and_answer_marks_by_their_share() {
    const TEST: &str = "ecn::dctcp_and_linux_dctcp_agree_and_answer_marks_by_their_share";
    const BYTES: usize = 3_000_000;
    in_netns(TEST, || {
        let chosen = std::fs::write("/proc/sys/net/ipv4/tcp_congestion_control", "dctcp");
        if let Err(error) = chosen {
            return skip(TEST, "dctcp", &format!("the kernel's DCTCP: {error}"));
        }
        let impairment = "ce=2%,delay=1ms,seed=3".parse().expect("an impairment");
        let (host, nic) = Host::with_nic(V4, |builder| builder.impair(impairment).tcp(dctcp()));
        let mut ours = host.connect(&nic);
        let theirs = host.accept();
        let _back = receive_marked(&mut ours, &theirs, BYTES);
        let receiving = std::thread::spawn(move || check_all(theirs));
        nic.send(&mut ours, BYTES, 30_000);
        let info = ours.tcp_info().expect("open");
        assert!(info.ecn && info.ecn_reductions > 0, "{info:?}");
        // The echo ends with the mark, and not with CWR: of a hundred packets, a few are reported.
        let sent = info.delivered.max(1);
        assert!(info.delivered_ce * 5 < sent, "{info:?}");
        ours.shutdown_write().expect("open");
        assert_eq!(receiving.join().expect("the receiver"), BYTES);
    });
}

#[test]
fn dctcp_is_reno_where_the_kernel_has_another() {
    in_netns("ecn::dctcp_is_reno_where_the_kernel_has_another", || {
        std::fs::write("/proc/sys/net/ipv4/tcp_congestion_control", "reno").expect("our network");
        set_kernel("1");
        let (host, nic) = Host::with_nic(V4, |builder| builder.tcp(dctcp()));
        let mut ours = host.connect(&nic);
        let theirs = host.accept();
        assert!(!ours.tcp_info().expect("open").ecn);
        let receiving = std::thread::spawn(move || check_all(theirs));
        nic.send(&mut ours, 300_000, 30_000);
        ours.shutdown_write().expect("open");
        assert_eq!(receiving.join().expect("the receiver"), 300_000);
        // A request by RFC 3168 is accepted.
        assert!(asked_by_kernel(&nic.netdev));
    });
}
