//! Plan of a run of `nic`.

use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;

use anyhow::Context;
use gve::{Faults, MAX_MTU, MAX_QUEUE_PAIRS, MIN_MTU};
use nic::Impairment;
use rustix::rand::{GetRandomFlags, getrandom};
use wire::MacAddr;

use tool::parse::{Prefix, check_interface_name, parse_impairment, parse_tap};

use crate::args;
use tool::output::Failure;

/// Maximum length of the path of a UNIX socket: `sun_path` minus the NUL (linux include/uapi/linux/un.h).
const MAX_SOCKET_PATH: usize = 107;

/// Plan of a run of `nic`: one emulated gVNIC.
#[derive(Clone, Debug)]
pub struct GvnicPlan {
    /// Socket to which the virtual machine connects.
    pub socket: PathBuf,
    /// Other end of the cable.
    pub wire: WirePort,
    /// Queue pairs.
    pub queues: u16,
    /// Hardware address of the guest.
    pub mac: MacAddr,
    /// Default MTU that the device announces.
    pub mtu: u16,
    /// Largest MTU that the guest may set; Linux starts with it.
    pub max_mtu: u16,
    /// Impairments of the cable.
    pub impairment: Impairment,
    /// Capture file.
    pub capture: Option<PathBuf>,
    /// Faults to inject.
    pub faults: Faults,
    /// Number of delivered frames after which a reset is requested from the driver, for tests.
    pub reset_every: Option<NonZeroU32>,
    /// End when the first virtual machine disconnects.
    pub once: bool,
    /// Read commands from standard input.
    pub control: bool,
    /// Print JSON.
    pub json: bool,
}

/// One end of a cable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WirePort {
    /// A TAP interface.
    Tap {
        /// The interface's name.
        name: String,
        /// Address to set on the interface.
        address: Option<Prefix>,
    },
    /// A packet socket on an Ethernet interface, only for a cable.
    Packet {
        /// The interface's name.
        name: String,
    },
    /// A UNIX socket to listen on for the other end.
    Listen(PathBuf),
    /// A UNIX socket of the other end to connect to.
    Connect(PathBuf),
}

impl fmt::Display for WirePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tap { name, address } => {
                write!(f, "tap:{name}")?;
                address.map_or(Ok(()), |address| write!(f, ",{address}"))
            }
            Self::Packet { name } => write!(f, "packet:{name}"),
            Self::Listen(path) => write!(f, "unix-listen:{}", path.display()),
            Self::Connect(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl GvnicPlan {
    /// Validates the command line.
    ///
    /// # Errors
    ///
    /// A usage error that names the option.
    pub fn new(args: args::NicArgs) -> Result<Self, Failure> {
        let args::NicArgs {
            socket,
            wire,
            queues,
            mac,
            mtu,
            max_mtu,
            impair,
            capture,
            linear,
            unsplit_every,
            reset_every,
            once,
            control,
            output,
        } = args;
        if !(1..=MAX_QUEUE_PAIRS).contains(&queues) {
            return Err(Failure::usage(format!(
                "--queues {queues}: 1 to {MAX_QUEUE_PAIRS} pairs"
            )));
        }
        let max_mtu = max_mtu.unwrap_or(mtu);
        if mtu < MIN_MTU || mtu > max_mtu || max_mtu > MAX_MTU {
            return Err(Failure::usage(format!(
                "--mtu {mtu} --max-mtu {max_mtu}: {MIN_MTU} to {MAX_MTU}, and the second at least the first"
            )));
        }
        Ok(Self {
            socket: check_path("--socket", socket)?,
            wire: parse_wire_of_nic(&wire)?,
            queues,
            mac: mac.as_deref().map_or_else(random_mac, parse_mac)?,
            mtu,
            max_mtu,
            impairment: parse_impairment(&impair)?,
            capture,
            faults: Faults {
                linear_bytes: linear,
                unsplit_every: NonZeroU32::new(unsplit_every),
                ..Faults::default()
            },
            reset_every: NonZeroU32::new(reset_every),
            once,
            control,
            json: output.json,
        })
    }
}

/// Parses the value of `option`: `tap:NAME[,ADDR/LEN]`, `packet:NAME`, `unix:PATH` or `unix-listen:PATH`.
pub(super) fn parse_wire(option: &str, text: &str) -> Result<WirePort, Failure> {
    if let Some(path) = text.strip_prefix("unix-listen:") {
        return Ok(WirePort::Listen(check_path(option, path.into())?));
    }
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(WirePort::Connect(check_path(option, path.into())?));
    }
    if let Some(name) = text.strip_prefix("packet:") {
        check_interface_name(option, name)?;
        let name = name.to_owned();
        return Ok(WirePort::Packet { name });
    }
    if !text.starts_with("tap:") {
        return Err(
            Failure::usage(format!("{option} {text:?} is not a wire")).with_remedy(
                "write tap:NAME, tap:NAME,ADDR/LEN, unix:PATH or unix-listen:PATH; `devmem-tcp wire` also has packet:NAME",
            ),
        );
    }
    let (tap, address) = match text.split_once(',') {
        Some((tap, address)) => (tap, Some(address)),
        None => (text, None),
    };
    Ok(WirePort::Tap {
        name: parse_tap(option, tap)?,
        address: address.map(str::parse).transpose()?,
    })
}

/// Parses the value of `--wire`.
fn parse_wire_of_nic(text: &str) -> Result<WirePort, Failure> {
    match parse_wire("--wire", text)? {
        WirePort::Packet { name } => Err(Failure::usage(format!(
            "--wire {text}: a packet socket is for the ends of `devmem-tcp wire`"
        ))
        .with_remedy(format!(
            "join both: --wire unix-listen:PATH here, and `devmem-tcp wire --a unix:PATH --b packet:{name}`"
        ))),
        wire => Ok(wire),
    }
}

fn check_path(option: &str, path: PathBuf) -> Result<PathBuf, Failure> {
    let len = path.as_os_str().len();
    match (1..=MAX_SOCKET_PATH).contains(&len) {
        true => Ok(path),
        false => Err(Failure::usage(format!(
            "{option}: a UNIX socket's path has 1 to {MAX_SOCKET_PATH} bytes, this one {len}"
        ))),
    }
}

fn parse_mac(text: &str) -> Result<MacAddr, Failure> {
    let mac = text.parse::<MacAddr>().ok();
    let station = mac.filter(|mac| !mac.is_multicast() && *mac != MacAddr::default());
    station.ok_or_else(|| {
        Failure::usage(format!("--mac {text:?} is not the address of a station"))
            .with_remedy("write it like 02:00:00:00:00:01, the first byte even")
    })
}

/// Returns a random locally administered unicast address (IEEE 802, 48.2).
fn random_mac() -> Result<MacAddr, Failure> {
    let mut bytes = [0; 5];
    // getrandom(2) returns all bytes of a request of at most 256.
    getrandom(&mut bytes, GetRandomFlags::empty()).context("getrandom")?;
    let [a, b, c, d, e] = bytes;
    Ok(MacAddr([0x02, a, b, c, d, e]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsed_wires_are_written_as_they_were() {
        for text in [
            "tap:dm0",
            "tap:dm0,10.77.0.1/24",
            "tap:dm0,fd77::1/64",
            "unix:/run/wire",
            "unix-listen:wire.sock",
            "packet:eth0.100",
        ] {
            assert_eq!(parse_wire("--wire", text).unwrap().to_string(), text);
        }
        for text in [
            "",
            "dm0",
            "tap:",
            "tap:a/b",
            "tap:dm0,",
            "tap:dm0,x",
            "unix:",
            "unix-listen:",
            "mem:x",
            "packet:",
        ] {
            assert!(parse_wire("--wire", text).is_err(), "{text:?}");
        }
        let refused = parse_wire_of_nic("packet:eth0").unwrap_err().to_string();
        assert!(
            refused.contains("wire --a unix:PATH --b packet:eth0"),
            "{refused}"
        );
        assert!(parse_wire_of_nic("tap:dm0").is_ok());
    }

    #[test]
    fn a_hardware_address_is_that_of_a_station() {
        assert!(parse_mac("02:00:00:00:00:01").is_ok());
        for text in [
            "",
            "x",
            "01:00:5e:00:00:01",
            "00:00:00:00:00:00",
            "ff:ff:ff:ff:ff:ff",
        ] {
            assert!(parse_mac(text).is_err(), "{text}");
        }
        let MacAddr([first, ..]) = random_mac().unwrap();
        assert_eq!(first, 2);
    }
}
