//! Code shared by the tests of this machine's kernel.

use devmem_linux::netlink::{GenericSocket, NetlinkSocket, Request};
use devmem_linux::probe;
use devmem_linux::test_util::{GuestHas, in_netns, skip_outside_guest};

const RTM_NEWLINK: u16 = 16;
const F_CREATE_EXCL: u16 = 0x400 | 0x200;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;

/// Creates a veth pair; the end `name` has `queues` RX queues and as many TX queues.
pub fn veth_pair(name: &str, peer: &str, queues: u32) {
    let mut peer_info = vec![0; 16];
    let len = u16::try_from(4 + peer.len() + 1).unwrap();
    peer_info.extend_from_slice(&len.to_ne_bytes());
    peer_info.extend_from_slice(&IFLA_IFNAME.to_ne_bytes());
    peer_info.extend_from_slice(peer.as_bytes());
    peer_info.resize(peer_info.len().next_multiple_of(4) + 4, 0);
    peer_info.truncate(16 + 4 + peer.len() + 1);
    let request = Request::new(RTM_NEWLINK, F_CREATE_EXCL, &[0; 16])
        .text(IFLA_IFNAME, name)
        .u32(IFLA_NUM_TX_QUEUES, queues)
        .u32(IFLA_NUM_RX_QUEUES, queues)
        .nested(IFLA_LINKINFO, |info| {
            info.text(IFLA_INFO_KIND, "veth")
                .nested(IFLA_INFO_DATA, |data| {
                    data.attribute(VETH_INFO_PEER, &peer_info)
                })
        });
    NetlinkSocket::route()
        .unwrap()
        .request("make a veth pair", request, |_| {})
        .unwrap();
}

/// Renames an interface; one that is up can be renamed since Linux 6.2.
pub fn rename(index: u32, name: &str) {
    let mut body = [0; 16];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    let request = Request::new(RTM_NEWLINK, 0, &body).text(IFLA_IFNAME, name);
    NetlinkSocket::route()
        .unwrap()
        .request("rename an interface", request, |_| {})
        .unwrap();
}

/// Runs `body` in a new network namespace if the kernel supports device memory; otherwise prints `SKIP` with the reason, or
/// fails if `DEVMEM_REQUIRE` contains `kernel`.
pub fn in_kernel(test: &str, body: impl FnOnce()) {
    if let Some(reason) = missing() {
        return skip_outside_guest(test, GuestHas::Kernel, &reason);
    }
    in_netns(test, body);
}

/// As [`in_kernel`], for tests that need root of the initial user namespace: before Linux 7.2 bind-rx does.
pub fn in_kernel_as_root(test: &str, body: impl FnOnce()) {
    let uid_map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let initial = uid_map.split_whitespace().eq(["0", "0", "4294967295"]);
    if !initial || !rustix::process::geteuid().is_root() {
        return skip_outside_guest(
            test,
            GuestHas::Kernel,
            "needs root of the initial user namespace",
        );
    }
    in_kernel(test, body);
}

fn missing() -> Option<String> {
    use devmem_uapi::netdev;
    if let Some(reason) = probe::tap_in_namespace().reason() {
        return Some(reason.to_owned());
    }
    match GenericSocket::open(netdev::FAMILY_NAME) {
        Err(error) => Some(error.to_string()),
        Ok(socket) => {
            let commands = [netdev::CMD_BIND_RX, netdev::CMD_BIND_TX];
            let has_all = commands.iter().all(|c| socket.family().has(*c));
            (!has_all).then(|| "the netdev family lacks bind-rx or bind-tx".to_owned())
        }
    }
}
