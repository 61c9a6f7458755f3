//! The demo's second process when we receive: an ordinary kernel TCP sender.

use std::net::TcpStream;
use std::thread;

use anyhow::Context;
use devmem_linux::cpu;

use crate::args::DemoSender;
use tool::output::Failure;
use tool::sender::{Share, pattern_of, send, shares};

/// Sends the pattern over kernel sockets.
///
/// # Errors
///
/// Connecting, setting options or sending failed.
pub fn run(args: &DemoSender) -> Result<(), Failure> {
    if let Some(cpu) = args.cpu {
        cpu::pin_current_thread(cpu).with_context(|| format!("pin to processor {cpu}"))?;
    }
    let shares = shares(args.bytes, args.connections, args.write_size);
    thread::scope(|scope| {
        let senders: Vec<_> = shares
            .map(|share| scope.spawn(move || send_one(args, share)))
            .collect();
        senders
            .into_iter()
            .try_for_each(|sender| sender.join().expect("a sender does not panic"))
    })
}

fn send_one(args: &DemoSender, share: Share) -> Result<(), Failure> {
    let to = args.to;
    let stream = TcpStream::connect(to).with_context(|| format!("connect to {to}"))?;
    cpu::set_congestion_control(&stream, &args.congestion)
        .with_context(|| format!("congestion control {}", args.congestion))?;
    let port = stream.local_addr().context("read the local port")?.port();
    send(&stream, pattern_of(port), share).with_context(|| format!("send to {to}"))?;
    Ok(())
}
