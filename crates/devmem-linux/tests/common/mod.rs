//! What the tests against this machine's kernel share.

use devmem_linux::netlink::{GenericSocket, NetlinkSocket, Request};
use devmem_linux::test_util::skip;

const RTM_NEWLINK: u16 = 16;
const F_CREATE_EXCL: u16 = 0x400 | 0x200;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;

/// Makes a veth pair with `queues` queues each way at the end called `name`.
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
#[allow(dead_code, reason = "not every test file renames")]
pub fn rename(index: u32, name: &str) {
    let mut body = [0; 16];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    let request = Request::new(RTM_NEWLINK, 0, &body).text(IFLA_IFNAME, name);
    NetlinkSocket::route()
        .unwrap()
        .request("rename an interface", request, |_| {})
        .unwrap();
}

/// Tells whether this kernel can bind device memory at all, and says that `test` is skipped where it cannot.
#[allow(dead_code, reason = "not every test file asks")]
pub fn require_netdev(test: &str) -> bool {
    use devmem_uapi::netdev;
    let has = GenericSocket::open(netdev::FAMILY_NAME).map(|socket| {
        let family = socket.family();
        family.has(netdev::CMD_BIND_RX) && family.has(netdev::CMD_BIND_TX)
    });
    match has {
        Ok(true) => true,
        Ok(false) => {
            skip(
                test,
                "kernel",
                "the netdev family has no bind-rx or no bind-tx",
            );
            false
        }
        Err(error) => {
            skip(test, "kernel", &error.to_string());
            false
        }
    }
}
