//! Packet sockets and the interfaces below them, on the real kernel.

use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use devmem_linux::packet::{Presence, presence};
use devmem_linux::tap::TapOptions;
use devmem_linux::test_util::in_netns;

#[test]
fn an_interface_is_not_gone_while_it_is_renamed() {
    in_netns(
        "packet::an_interface_is_not_gone_while_it_is_renamed",
        || {
            let tap = TapOptions::new("dm0").open().unwrap();
            let mut interface = tap.interface().unwrap();
            let index = interface.index();
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let renaming = AtomicBool::new(true);
            thread::scope(|scope| {
                scope.spawn(|| {
                    for name in ["dm1", "dm2"].into_iter().cycle().take(400) {
                        interface.rename(name).unwrap();
                    }
                    renaming.store(false, Ordering::Release);
                });
                while renaming.load(Ordering::Acquire) {
                    assert_eq!(presence(socket.as_fd(), index), Ok(Presence::Down));
                }
            });
            drop(tap);
            assert_eq!(presence(socket.as_fd(), index), Ok(Presence::Gone));
        },
    );
}
