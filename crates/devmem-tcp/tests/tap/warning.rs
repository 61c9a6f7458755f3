//! The address of the kernel's end: set with the link, or missed with a warning.

use std::io::Write;
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

use devmem_linux::test_util::in_netns;
use devmem_tcp::{Netdev, NetdevBuilder, RxBatch};

use crate::peer::PATIENCE;

/// Opens a NIC; returns it with its warnings.
fn opened(builder: NetdevBuilder) -> (Netdev, Vec<String>) {
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&warnings);
    let builder = builder.on_warning(move |text| heard.lock().unwrap().push(text.to_owned()));
    let nic = builder.address("10.77.0.2/24").unwrap().open().unwrap();
    let warnings = std::mem::take(&mut *warnings.lock().unwrap());
    (nic, warnings)
}

#[test]
fn an_address_after_the_name_makes_the_nic_reachable() {
    in_netns(
        "warning::an_address_after_the_name_makes_the_nic_reachable",
        || {
            let (nic, warnings) = opened(Netdev::builder("tap:dm0,10.77.0.1/24").unwrap());
            assert!(warnings.is_empty(), "{warnings:?}");
            let listener = nic.listen("10.77.0.2:5201").unwrap();
            listener.set_timeout(Some(PATIENCE));
            let connecting = std::thread::spawn(|| {
                TcpStream::connect("10.77.0.2:5201").and_then(|mut peer| peer.write_all(b"hello"))
            });
            let (mut stream, peer) = listener.accept().unwrap();
            assert_eq!(peer.ip().to_string(), "10.77.0.1");
            assert_eq!(stream.recv(&mut RxBatch::with_capacity(1)).unwrap(), 5);
            connecting.join().unwrap().unwrap();
        },
    );
}

#[test]
fn an_unreachable_tap_is_warned_of_with_the_address_to_add() {
    in_netns(
        "warning::an_unreachable_tap_is_warned_of_with_the_address_to_add",
        || {
            let (_nic, warnings) = opened(Netdev::builder("tap:dm1").unwrap());
            let [warning] = &warnings[..] else {
                panic!("{warnings:?}");
            };
            for words in [
                "TAP dm1 has no address",
                "\"tap:dm1,10.77.0.1/24\"",
                "ip address add 10.77.0.1/24 dev dm1",
            ] {
                assert!(warning.contains(words), "no {words:?} in: {warning}");
            }
        },
    );
}
