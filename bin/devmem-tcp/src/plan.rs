//! What a run will do: the command line, judged. Nothing past this file sees unchecked text.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use netmem::NiovSize;
use nic::Impairment;

use crate::args::{self, DemoLink};
use crate::output::Failure;
use crate::pattern::RepeatingPattern;
use crate::size::Size;

/// Longest interface name: `IFNAMSIZ` less its NUL (linux include/uapi/linux/if.h).
const MAX_INTERFACE_NAME: usize = 15;
/// Smallest MTUs that every link must carry: RFC 791 3.2 and RFC 8200 5.
const MIN_MTU: [(bool, u16); 2] = [(false, 576), (true, 1280)];
/// The TAP driver's largest MTU is that of its largest packet less the Ethernet header (linux drivers/net/tun.c).
const MAX_MTU: u16 = 65_521;
/// Connections at once; each costs the sender a thread.
const MAX_CONNECTIONS: u16 = 1024;
/// Queues that can be bound.
const MAX_QUEUES: u16 = 64;
/// The least memory that a queue can work with: posted buffers for a super-packet, and as much again on the way.
const MIN_NIOVS_PER_QUEUE: usize = 8;
const MIN_BYTES_PER_QUEUE: usize = 256 << 10;

/// An address with the length of its network's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The address of a host.
    pub address: IpAddr,
    /// Leading bits that name its network.
    pub len: u8,
}

impl FromStr for Prefix {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let wrong = || {
            Failure::usage(format!("{text:?} is not an address with a prefix length"))
                .with_remedy("write it like 10.77.0.2/24 or fd77::2/64")
        };
        let (address, len) = text.split_once('/').ok_or_else(wrong)?;
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let len: u8 = len.parse().map_err(|_| wrong())?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        if len > longest || address.is_unspecified() || address.is_multicast() {
            return Err(wrong());
        }
        Ok(Self { address, len })
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

impl Prefix {
    /// Tells whether `other` is in the same network.
    fn contains(&self, other: IpAddr) -> bool {
        let shared = match (self.address, other) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            _ => return false,
        };
        shared >= u32::from(self.len)
    }
}

/// The NIC and its memory.
#[derive(Clone, Debug)]
pub struct NicPlan {
    /// Largest IP packet.
    pub mtu: u16,
    /// RX queues bound to device memory.
    pub queues: u16,
    /// Size of one net_iov.
    pub niov: NiovSize,
    /// Device memory to bind, in bytes.
    pub mem_bytes: usize,
    /// What is wrong with the link.
    pub impairment: Impairment,
    /// Payload bytes of every packet that stay in host memory.
    pub linear_bytes: usize,
}

impl NicPlan {
    fn new(args: &args::NicArgs, linear: u16, ipv6: bool) -> Result<Self, Failure> {
        let args::NicArgs {
            mtu,
            queues,
            niov,
            mem_size,
            impair,
        } = args;
        check_mtu(*mtu, ipv6)?;
        if !(1..=MAX_QUEUES).contains(queues) {
            return Err(Failure::usage(format!(
                "--queues {queues}: 1 to {MAX_QUEUES}"
            )));
        }
        let niov = to_usize("--niov", *niov)?;
        let niov =
            NiovSize::new(niov).map_err(|error| Failure::usage(format!("--niov: {error}")))?;
        let mem_bytes = to_usize("--mem-size", *mem_size)?;
        let least =
            usize::from(*queues) * (MIN_NIOVS_PER_QUEUE * niov.bytes()).max(MIN_BYTES_PER_QUEUE);
        if !mem_bytes.is_multiple_of(niov.bytes()) || mem_bytes < least {
            let size = Size(niov.bytes() as u64);
            return Err(Failure::usage(format!(
                "--mem-size {mem_size}: with net_iovs of {size} it must be a multiple of that, and for {queues} queues at least {}",
                Size(least as u64)
            )));
        }
        let impairment = parse_impairment(impair)?;
        Ok(Self {
            mtu: *mtu,
            queues: *queues,
            niov,
            mem_bytes,
            impairment,
            linear_bytes: usize::from(linear),
        })
    }
}

fn parse_impairment(text: &str) -> Result<Impairment, Failure> {
    text.parse().map_err(|error| {
        Failure::usage(format!("--impair: {error}"))
            .with_remedy("`devmem-tcp wire --help` has the list")
    })
}

fn check_mtu(mtu: u16, ipv6: bool) -> Result<(), Failure> {
    for (version_6, least) in MIN_MTU {
        if version_6 == ipv6 && !(least..=MAX_MTU).contains(&mtu) {
            let version = if ipv6 { "IPv6" } else { "IPv4" };
            return Err(Failure::usage(format!(
                "--mtu {mtu}: {least} to {MAX_MTU} for {version}"
            )));
        }
    }
    Ok(())
}

fn to_usize(option: &str, size: Size) -> Result<usize, Failure> {
    usize::try_from(size.0).map_err(|_| {
        Failure::usage(format!(
            "{option} {size}: more than this machine can address"
        ))
    })
}

fn check_connections(connections: u16) -> Result<u16, Failure> {
    if (1..=MAX_CONNECTIONS).contains(&connections) {
        Ok(connections)
    } else {
        Err(Failure::usage(format!(
            "--connections {connections}: 1 to {MAX_CONNECTIONS}"
        )))
    }
}

/// Reads `tap:NAME`.
fn parse_tap(option: &str, text: &str) -> Result<String, Failure> {
    let name = text.strip_prefix("tap:").filter(|name| {
        (1..=MAX_INTERFACE_NAME).contains(&name.len())
            && !name.contains(|c: char| c == '/' || c == ':' || c == '%' || c.is_whitespace())
    });
    name.map(str::to_owned).ok_or_else(|| {
        Failure::usage(format!("{option} {text:?} is not a link"))
            .with_remedy("write tap:NAME, the interface's name of at most 15 bytes")
    })
}

/// A run of `demo`.
#[derive(Clone, Debug)]
pub struct DemoPlan {
    /// Bytes over all connections.
    pub bytes: u64,
    /// Connections at once.
    pub connections: u16,
    /// Our address.
    pub ours: Prefix,
    /// The sender's address.
    pub peers: Prefix,
    /// What to run over.
    pub link: DemoLink,
    /// Bytes of each send call.
    pub write_size: usize,
    /// Congestion control of the kernel sender.
    pub congestion: String,
    /// The NIC.
    pub nic: NicPlan,
    /// Print JSON.
    pub json: bool,
}

impl DemoPlan {
    /// Judges the command line.
    ///
    /// # Errors
    ///
    /// A usage error that names the option.
    pub fn new(args: args::Demo) -> Result<Self, Failure> {
        let args::Demo {
            bytes,
            connections,
            ipv6,
            link,
            write_size,
            congestion,
            nic,
            output,
        } = args;
        let (ours, peers, len): (IpAddr, IpAddr, u8) = if ipv6 {
            let network = |host| Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, host);
            (network(2).into(), network(1).into(), 64)
        } else {
            (
                Ipv4Addr::new(10, 77, 0, 2).into(),
                Ipv4Addr::new(10, 77, 0, 1).into(),
                24,
            )
        };
        let write_size = to_usize("--write-size", write_size)?;
        if !(1..=64 << 20).contains(&write_size) {
            return Err(Failure::usage("--write-size: 1 byte to 64M"));
        }
        if bytes.0 == 0 {
            return Err(Failure::usage("--bytes 0: there is nothing to show"));
        }
        Ok(Self {
            bytes: bytes.0,
            connections: check_connections(connections)?,
            ours: Prefix { address: ours, len },
            peers: Prefix {
                address: peers,
                len,
            },
            link,
            write_size,
            congestion,
            nic: NicPlan::new(&nic, 0, ipv6)?,
            json: output.json,
        })
    }
}

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

/// Two ends of a link must be able to talk.
fn check_pair(ours: Prefix, peers: Prefix) -> Result<(), Failure> {
    if ours.address == peers.address {
        return Err(Failure::usage(format!(
            "both ends have the address {}",
            ours.address
        )));
    }
    if !ours.contains(peers.address) || !peers.contains(ours.address) {
        return Err(Failure::usage(format!(
            "{ours} and {peers} are not in the same network"
        )));
    }
    Ok(())
}

fn check_period(validate: Option<u16>) -> Result<(), Failure> {
    let periods = RepeatingPattern::PERIODS;
    match validate {
        Some(n) if !periods.contains(&n) => Err(Failure::usage(format!(
            "--validate {n}: {} to {}, the length of the pattern",
            periods.start(),
            periods.end()
        ))),
        _ => Ok(()),
    }
}

/// A run of `wire`.
#[derive(Clone, Debug)]
pub struct WirePlan {
    /// The ends.
    pub ends: [WireEnd; 2],
    /// Largest IP packet.
    pub mtu: u16,
    /// What is wrong with the cable.
    pub impairment: Impairment,
    /// When to end by itself.
    pub limit: Option<Duration>,
    /// Print JSON.
    pub json: bool,
}

/// One end of a wire.
#[derive(Clone, Debug)]
pub struct WireEnd {
    /// The TAP interface's name.
    pub tap: String,
    /// Its network namespace.
    pub netns: Option<String>,
    /// The address to give the kernel's end.
    pub address: Option<Prefix>,
}

impl WirePlan {
    /// Judges the command line.
    ///
    /// # Errors
    ///
    /// A usage error that names the option.
    pub fn new(args: args::Wire) -> Result<Self, Failure> {
        let args::Wire {
            a,
            b,
            a_netns,
            b_netns,
            a_addr,
            b_addr,
            mtu,
            impair,
            seconds,
            output,
        } = args;
        let address = |text: Option<String>| text.as_deref().map(str::parse).transpose();
        let a = WireEnd {
            tap: parse_tap("--a", &a)?,
            netns: a_netns,
            address: address(a_addr)?,
        };
        let b = WireEnd {
            tap: parse_tap("--b", &b)?,
            netns: b_netns,
            address: address(b_addr)?,
        };
        if a.tap == b.tap && a.netns == b.netns {
            return Err(Failure::usage(format!(
                "--a and --b are the same interface, {}",
                a.tap
            )));
        }
        let ipv6 = [&a, &b]
            .iter()
            .any(|end| end.address.is_some_and(|p| p.address.is_ipv6()));
        check_mtu(mtu, ipv6)?;
        Ok(Self {
            ends: [a, b],
            mtu,
            impairment: parse_impairment(&impair)?,
            limit: seconds.map(Duration::from_secs),
            json: output.json,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn recv(line: &str) -> Result<RecvPlan, String> {
        let words = ["devmem-tcp", "recv"]
            .into_iter()
            .chain(line.split_whitespace());
        match Cli::try_parse_from(words).unwrap().command {
            Command::Recv(args) => RecvPlan::new(args).map_err(|failure| failure.to_string()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_defaults_are_a_valid_plan() {
        let plan = recv("").unwrap();
        assert_eq!(
            (plan.tap.as_str(), plan.local.to_string().as_str()),
            ("dm0", "10.77.0.2:5201")
        );
        assert_eq!(
            (plan.nic.niov.bytes(), plan.nic.mem_bytes),
            (65536, 256 << 20)
        );
    }

    #[test]
    fn an_option_that_makes_no_sense_is_named_in_the_error() {
        let cases = [
            ("--link eth0", "--link \"eth0\" is not a link"),
            ("--link tap:", "--link \"tap:\" is not a link"),
            ("--link tap:sixteen-bytes-xx", "is not a link"),
            ("--addr 10.77.0.2", "is not an address with a prefix length"),
            (
                "--addr 10.77.0.2/33",
                "is not an address with a prefix length",
            ),
            (
                "--addr 224.0.0.1/24",
                "is not an address with a prefix length",
            ),
            ("--peer-addr 10.78.0.1/24", "are not in the same network"),
            ("--peer-addr fd77::1/64", "are not in the same network"),
            (
                "--peer-addr 10.77.0.2/24",
                "both ends have the address 10.77.0.2",
            ),
            ("--mtu 500", "--mtu 500: 576 to 65521 for IPv4"),
            (
                "--addr fd77::2/64 --mtu 1000",
                "--mtu 1000: 1280 to 65521 for IPv6",
            ),
            ("--queues 0", "--queues 0: 1 to 64"),
            ("--niov 5000", "--niov: "),
            ("--niov 4M", "--niov: "),
            (
                "--mem-size 100000",
                "--mem-size 97.66 KiB: with net_iovs of 64 KiB",
            ),
            ("--mem-size 64K", "and for 1 queues at least 512 KiB"),
            ("--impair loss=200%", "--impair: "),
            ("--connections 0", "--connections 0: 1 to 1024"),
            ("--port 0", "--port 0"),
            ("-v 1", "--validate 1: 2 to 256"),
            ("-v 257", "--validate 257: 2 to 256"),
            ("-o x -k", "--output-file takes one connection"),
            ("-o x --connections 2", "--output-file takes one connection"),
            ("-o - --json", "both want stdout"),
        ];
        for (line, text) in cases {
            let error = recv(line).expect_err(line);
            assert!(error.contains(text), "{line}: {error}");
        }
    }

    #[test]
    fn a_wire_has_two_different_ends() {
        let wire = |line: &str| {
            let words = ["devmem-tcp", "wire"]
                .into_iter()
                .chain(line.split_whitespace());
            match Cli::try_parse_from(words).unwrap().command {
                Command::Wire(args) => WirePlan::new(args).map_err(|failure| failure.to_string()),
                other => panic!("{other:?}"),
            }
        };
        assert!(wire("--a tap:x --b tap:y").is_ok());
        assert!(wire("--a tap:x --b tap:x --b-netns other").is_ok());
        assert!(
            wire("--a tap:x --b tap:x")
                .unwrap_err()
                .contains("the same interface, x")
        );
        assert!(
            wire("--a tap:x --b eth0")
                .unwrap_err()
                .contains("--b \"eth0\" is not a link")
        );
    }

    #[test]
    fn prefixes_know_their_network() {
        let prefix: Prefix = "10.77.0.2/24".parse().unwrap();
        assert!(prefix.contains("10.77.0.255".parse().unwrap()));
        assert!(!prefix.contains("10.77.1.1".parse().unwrap()));
        assert!(
            "fd77::2/0"
                .parse::<Prefix>()
                .unwrap()
                .contains("::1".parse().unwrap())
        );
    }
}
