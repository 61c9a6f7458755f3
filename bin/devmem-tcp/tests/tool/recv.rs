//! `devmem-tcp recv` with kernel sockets as peers. Each test has a separate network namespace.

mod ends;
mod lines;
mod links;
mod payload;

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{
    LIMIT, Running, assert_all_right, assert_everything_home, assert_nothing_dropped, comments,
    connect, hang_up, recv_addr, repeating, run, start, start_recv,
};
use devmem_linux::macvtap::{self, MacvtapMode, MacvtapOptions};
use devmem_linux::netif::Interface;
use devmem_linux::netns::{self, NetNs};
use devmem_linux::test_util::{in_netns, skip, wait_or_kill};
use rustix::process::{Signal, kill_process};
use tool::stock;

/// Sends `bytes` over a kernel socket and ends the stream.
#[track_caller]
fn send(to: SocketAddr, bytes: &[u8]) {
    let mut stream = connect(to);
    stream.write_all(bytes).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    read_to_end(&mut stream);
}

/// Waits until the peer has ended the stream.
fn read_to_end(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty(), "the receiver sends nothing");
}

fn signal(running: &Running, signal: Signal) {
    kill_process(running.pid(), signal).unwrap();
}

/// Returns whether `command` can be run; if not, prints that the test is skipped.
fn has(test: &str, command: &str) -> bool {
    // It is not run: to dnsmasq, -h is no question but an option, and a server would stay behind.
    let is_here = stock::path_of(command).is_some();
    if !is_here {
        skip(test, command, &format!("there is no {command} here"));
    }
    is_here
}
