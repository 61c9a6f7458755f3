//! A run of `send`.

use std::io::{self, IsTerminal};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use devmem_tcp::{Impairment, tcp::Ecn};

use super::LinkPlan;
use super::checks::check_period;
use super::host;
use super::link::users_alone;
use crate::args::{self, BackendChoice};
use tool::memory::{MemoryKind, PAGE_BYTES};
use tool::output::Failure;
use tool::parse::{OutputArgs, check_mtu, parse_impairment, to_usize};
use tool::size::Size;
use tool::watch;

/// A run of `send`.
#[derive(Clone, Debug)]
pub struct SendPlan {
    /// The backend and its link.
    pub link: LinkPlan,
    /// A given option that only our NIC supports, if any.
    pub users_alone: Option<&'static str>,
    /// Where to connect.
    pub to: SocketAddr,
    /// The source of the bytes.
    pub input: Input,
    /// Most bytes per send.
    pub chunk: usize,
    /// Device memory to bind, in bytes.
    pub mem_bytes: usize,
    /// Kind of that memory, if it was given.
    pub memory: Option<MemoryKind>,
    /// Largest IP packet.
    pub mtu: Option<u16>,
    /// Impairments of the link.
    pub impairment: Impairment,
    /// Whether ECN is negotiated.
    pub ecn: Ecn,
    /// File of the packet capture.
    pub capture: Option<PathBuf>,
    /// Show the transfer live on the terminal.
    pub watch: bool,
    /// How to print the report.
    pub form: OutputArgs,
}

/// The source of the bytes to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Standard input to its end.
    Stdin,
    /// A file.
    File(PathBuf),
    /// This number of bytes of the position pattern.
    Position(u64),
    /// This number of bytes of the repeating pattern with this period.
    Repeating(u64, u16),
}

/// Refuses a host that our NIC cannot reach.
fn check_reach(link: &LinkPlan, host: IpAddr) -> Result<(), Failure> {
    if link.backend != BackendChoice::User || link.tap.reaches(host) {
        return Ok(());
    }
    let ours = link.tap.ours;
    Err(
        Failure::usage(format!("{host} is not in the network {ours}"))
            .with_remedy("--gateway ADDR names the router to it"),
    )
}

impl SendPlan {
    /// Validates the command line.
    ///
    /// # Errors
    ///
    /// A usage error that names the option.
    pub fn new(args: args::Send) -> Result<Self, Failure> {
        let others = [("--ecn", args.ecn), ("--capture", args.capture.is_some())];
        let users_alone = users_alone(&args.link, args.mtu, &args.impair, &others);
        let args::Send {
            to,
            port,
            link,
            input_file,
            bytes,
            validate,
            chunk,
            mem_size,
            memory,
            mtu,
            impair,
            ecn,
            capture,
            watch,
            output,
        } = args;
        let link = LinkPlan::new(&link)?;
        let to = host::parse(&to, port, &link)?;
        check_reach(&link, to.ip())?;
        if let Some(mtu) = mtu {
            check_mtu(mtu, to.ip())?;
        }
        check_period(validate)?;
        let (chunk, mem_bytes) = check_ring(chunk, mem_size)?;
        let input = match (bytes, validate) {
            (Some(Size(bytes)), Some(period)) => Input::Repeating(bytes, period),
            (Some(Size(bytes)), None) => Input::Position(bytes),
            (None, _) => match input_file {
                Some(path) if path.to_str() != Some("-") => Input::File(path),
                _ => Input::Stdin,
            },
        };
        if watch {
            check_watch(&input)?;
        }
        Ok(Self {
            link,
            users_alone,
            to,
            input,
            chunk,
            mem_bytes,
            memory,
            mtu,
            impairment: parse_impairment(&impair)?,
            ecn: match ecn {
                true => Ecn::Request,
                false => Ecn::default(),
            },
            capture,
            watch,
            form: output,
        })
    }
}

/// Checks that the live view can be shown, and that the keys of the terminal are not the input, because the view takes them.
fn check_watch(input: &Input) -> Result<(), Failure> {
    watch::check()?;
    if *input == Input::Stdin && io::stdin().is_terminal() {
        return Err(Failure::usage(
            "--watch takes the keys of this terminal, so they cannot be the input",
        )
        .with_remedy("--input-file FILE or --bytes SIZE gives another input"));
    }
    Ok(())
}

/// Validates the sizes: at least one chunk must fit into the memory.
fn check_ring(chunk: Size, mem_size: Size) -> Result<(usize, usize), Failure> {
    let mem_bytes = to_usize("--mem-size", mem_size)?;
    if mem_bytes == 0 || !mem_bytes.is_multiple_of(PAGE_BYTES) {
        return Err(Failure::usage(format!(
            "--mem-size {mem_size}: a multiple of 4 KiB"
        )));
    }
    let bytes = to_usize("--chunk", chunk)?;
    if !(1..=mem_bytes).contains(&bytes) {
        return Err(Failure::usage(format!(
            "--chunk {chunk}: 1 byte to the {mem_size} of --mem-size"
        )));
    }
    Ok((bytes, mem_bytes))
}
