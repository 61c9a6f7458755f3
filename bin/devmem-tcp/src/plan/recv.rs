//! A run of `recv`.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::{NicPlan, Prefix, check_connections, check_pair, check_period, parse_tap};
use crate::args;
use crate::output::Failure;

/// A run of `recv`.
#[derive(Clone, Debug)]
pub struct RecvPlan {
    /// The TAP interface's name.
    pub tap: String,
    /// Our address.
    pub ours: Prefix,
    /// The address to give the kernel's end.
    pub peers: Option<Prefix>,
    /// Where to listen.
    pub local: SocketAddr,
    /// Connections at once.
    pub connections: u16,
    /// Go on after those have ended.
    pub keep_listening: bool,
    /// The pattern to check.
    pub validate: Option<u16>,
    /// Where the payload goes.
    pub output: Option<Destination>,
    /// Frags to hold on to.
    pub keep_tokens: usize,
    /// Where packets go.
    pub capture: Option<PathBuf>,
    /// The NIC.
    pub nic: NicPlan,
    /// Print JSON.
    pub json: bool,
}

/// Where payload is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// `-`
    Stdout,
    /// Anything else.
    File(PathBuf),
}

impl RecvPlan {
    /// Judges the command line.
    ///
    /// # Errors
    ///
    /// A usage error that names the option.
    pub fn new(args: args::Recv) -> Result<Self, Failure> {
        let args::Recv {
            link,
            addr,
            peer_addr,
            listen: _,
            port,
            connections,
            keep_listening,
            validate,
            output_file,
            keep_tokens,
            linear,
            capture,
            nic,
            output,
        } = args;
        let ours: Prefix = addr.parse()?;
        let peers = peer_addr.as_deref().map(str::parse::<Prefix>).transpose()?;
        if let Some(peers) = peers {
            check_pair(ours, peers)?;
        }
        if port == 0 {
            return Err(Failure::usage("--port 0: the sender must know the port"));
        }
        let connections = check_connections(connections)?;
        check_period(validate)?;
        let destination = output_file.map(|path| match path.to_str() {
            Some("-") => Destination::Stdout,
            _ => Destination::File(path),
        });
        if destination.is_some() && (connections > 1 || keep_listening) {
            return Err(Failure::usage(
                "--output-file takes one connection: several would mix",
            ));
        }
        if destination == Some(Destination::Stdout) && output.json {
            return Err(Failure::usage(
                "--output-file - and --json both want stdout",
            ));
        }
        Ok(Self {
            tap: parse_tap("--link", &link)?,
            local: SocketAddr::new(ours.address, port),
            ours,
            peers,
            connections,
            keep_listening,
            validate,
            output: destination,
            keep_tokens,
            capture,
            nic: NicPlan::new(&nic, linear, ours.address.is_ipv6())?,
            json: output.json,
        })
    }
}
