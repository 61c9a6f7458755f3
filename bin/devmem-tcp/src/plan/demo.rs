//! A run of `demo`.

use std::path::PathBuf;

use devmem_tcp::tcp::{Congestion, TcpOptions};
use tool::parse::{OutputArgs, Prefix, to_usize};

use super::NicPlan;
use super::checks::check_connections;
use super::tcp::with_buffers;
use crate::args::{self, BufferArgs, DemoLink, DemoServer, Direction};
use tool::output::Failure;
use tool::size::Size;
use tool::watch;

/// Default of `--bytes`.
const BYTES: Size = Size(5 << 30);
const LOAD_BYTES: Size = Size(256 << 20);
/// Default of `--connections` with `--load`.
const LOAD_CONNECTIONS: u16 = 4;

/// A run of `demo`.
#[derive(Clone, Debug)]
pub struct DemoPlan {
    /// Load from a server, the named one or any stock one.
    pub load: Option<Option<DemoServer>>,
    /// Direction of the transfer.
    pub direction: Direction,
    /// Bytes to transfer, over all connections.
    pub bytes: u64,
    /// Number of simultaneous connections.
    pub connections: u16,
    /// Our address.
    pub ours: Prefix,
    /// The sender's address.
    pub peers: Prefix,
    /// The link.
    pub link: DemoLink,
    /// Bytes per send call.
    pub write_size: usize,
    /// Congestion control of the kernel sender.
    pub congestion: String,
    /// Options of our TCP.
    pub tcp: TcpOptions,
    /// File of the packet capture.
    pub capture: Option<PathBuf>,
    /// Show the transfer live on the terminal.
    pub watch: bool,
    /// The NIC.
    pub nic: NicPlan,
    /// How to print the report.
    pub form: OutputArgs,
}

impl DemoPlan {
    /// Validates the command line.
    ///
    /// # Errors
    ///
    /// A usage error that names the option.
    pub fn new(args: args::Demo) -> Result<Self, Failure> {
        let args::Demo {
            exchange: _,
            load,
            direction,
            bytes,
            connections,
            ipv6,
            link,
            write_size,
            congestion,
            capture,
            watch,
            buffers,
            nic,
            output,
        } = args;
        if watch {
            watch::check()?;
        }
        let (ours, peers): (Prefix, Prefix) = match ipv6 {
            true => ("fd77::2/64".parse()?, "fd77::1/64".parse()?),
            false => ("10.77.0.2/24".parse()?, "10.77.0.1/24".parse()?),
        };
        let write_size = check_write_size(write_size)?;
        if capture.is_some() && !matches!(direction, Direction::Rx | Direction::Tx) {
            return Err(Failure::usage(
                "--capture takes --direction rx or tx: one link, which the packets of loopback do not pass",
            ));
        }
        let (default_bytes, default_connections) = match load {
            Some(_) => (LOAD_BYTES, LOAD_CONNECTIONS),
            None => (BYTES, 1),
        };
        let bytes = bytes.unwrap_or(default_bytes);
        let connections = connections.unwrap_or(default_connections);
        if bytes.0 == 0 {
            return Err(Failure::usage("--bytes 0: must be at least 1"));
        }
        if load.is_some() && link == DemoLink::Wire {
            return Err(Failure::usage(
                "--load takes --link tap or packet: a server uses the kernel's TCP",
            ));
        }
        let tcp = our_tcp(&buffers, direction, &congestion)?;
        Ok(Self {
            load,
            direction,
            bytes: bytes.0,
            connections: check_connections(connections)?,
            ours,
            peers,
            link,
            write_size,
            congestion,
            tcp,
            capture,
            watch,
            nic: NicPlan::new(&nic, 0, ours.address, 1)?,
            form: output,
        })
    }
}

fn check_write_size(size: Size) -> Result<usize, Failure> {
    let bytes = to_usize("--write-size", size)?;
    match (1..=64 << 20).contains(&bytes) {
        true => Ok(bytes),
        false => Err(Failure::usage("--write-size: must be 1 byte to 64M")),
    }
}

/// Returns the options of our TCP; the congestion control is that of the sender, if our stack is the sender and has it.
fn our_tcp(
    buffers: &BufferArgs,
    direction: Direction,
    congestion: &str,
) -> Result<TcpOptions, Failure> {
    let mut tcp = with_buffers(buffers)?;
    tcp.congestion = match (direction, congestion) {
        (_, "reno") => Congestion::Reno,
        (Direction::Tx | Direction::Loopback, "bbr") => Congestion::Bbr,
        (Direction::Tx | Direction::Loopback, "dctcp") => Congestion::Dctcp,
        (_, "cubic") | (Direction::Rx | Direction::Both, _) => Congestion::Cubic,
        (Direction::Tx | Direction::Loopback, name) => {
            return Err(Failure::usage(format!(
                "--congestion {name}: our stack, which sends in this direction, has cubic, reno, bbr and dctcp"
            )));
        }
    };
    Ok(tcp)
}
