//! Packet sockets on the real kernel.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::read;

use super::*;
use crate::test_util::in_netns;

/// Our station.
const OURS: [u8; 6] = [2, 0, 0x10, 0x20, 0x30, 0x40];
/// A station in the network.
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 9];
const BROADCAST: [u8; 6] = [0xff; 6];
/// Time limit of what should happen at once.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of the virtio-net header before each frame.
const VNET_LEN: usize = 10;
/// An EtherType for experiments (IEEE 802), which the kernel does not send by itself.
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

fn open(interface: &str, station: Station) -> OwnedFd {
    let interface = interface.to_owned();
    let options = PacketOptions { interface, station };
    options.open().unwrap().into_parts().0
}

fn own(interface: &str) -> OwnedFd {
    let (mac, multicast) = (OURS, Vec::new());
    open(interface, Station::Own { mac, multicast })
}

fn send(socket: &OwnedFd, to: [u8; 6], content: &[u8; 46]) {
    let packet = [&[0; VNET_LEN][..], &to, &OTHER, &ETHERTYPE, content].concat();
    assert_eq!(rustix::io::write(socket, &packet), Ok(packet.len()));
}

/// Returns the destination and the first content byte of the next frame of [`send`]; `None` if none arrives within `limit`.
fn receive(socket: &OwnedFd, limit: Duration) -> Option<([u8; 6], u8)> {
    let limit = Timespec::try_from(limit).unwrap();
    let mut packet = [0; 2048];
    loop {
        let Ok(len) = read(socket, &mut packet) else {
            let mut fds = [PollFd::new(socket, PollFlags::IN)];
            if poll(&mut fds, Some(&limit)) == Ok(0) {
                return None;
            }
            continue;
        };
        if let Some([to @ .., _, _, _, _, _, _, 0x88, 0xb5, content]) =
            packet[..len].get(VNET_LEN..VNET_LEN + 15)
        {
            return Some((to.try_into().unwrap(), *content));
        }
    }
}

/// A veth pair that is up.
fn veth() -> [Interface; 2] {
    let (near, far) = Interface::create_veth_pair("near", "far").unwrap();
    [near, far].map(|mut end| {
        end.quiet_ipv6();
        end.set_up().unwrap();
        end
    })
}

#[test]
fn an_interface_without_a_filter_for_our_address_is_promiscuous_as_long_as_the_socket_is_open() {
    let test = "packet::tests::an_interface_without_a_filter_for_our_address_is_promiscuous_as_long_as_the_socket_is_open";
    in_netns(test, || {
        let [_near, mut far] = veth();
        // A bridge passes frames to its own address to this machine, and those to unknown addresses to its ports.
        let mut bridge = Interface::create_bridge("bridge").unwrap();
        bridge.quiet_ipv6();
        bridge.set_up().unwrap();
        far.join_bridge(&bridge).unwrap();
        let peer = open("near", Station::Cable);
        let before = bridge.promiscuity().unwrap();

        let ours = own("bridge");
        assert!(bridge.promiscuity().unwrap() > before);
        // The bridge notices a little later that its port is up, and forwards nothing before.
        let frame = (0..1000).find_map(|_| {
            send(&peer, OURS, &[1; 46]);
            receive(&ours, Duration::from_millis(30))
        });
        assert_eq!(frame, Some((OURS, 1)));
        drop(ours);
        assert_eq!(bridge.promiscuity().unwrap(), before);
    });
}

#[test]
fn frames_that_this_machine_sends_are_not_received() {
    let test = "packet::tests::frames_that_this_machine_sends_are_not_received";
    in_netns(test, || {
        let _pair = veth();
        let [peer, host] = ["near", "far"].map(|name| open(name, Station::Cable));
        let ours = own("far");
        for to in [OURS, BROADCAST] {
            send(&host, to, &[1; 46]);
            send(&peer, to, &[2; 46]);
        }
        for to in [OURS, BROADCAST] {
            assert_eq!(receive(&ours, PATIENCE), Some((to, 2)));
        }
    });
}
