//! A run of `load`.

use std::net::IpAddr;
use std::ops::Range;
use std::path::PathBuf;

use transfer::load::{HttpRequest, NbdUrl, Url};

use super::link::users_alone;
use super::{KernelPlan, LinkPlan, NicPlan, check_connections};
use crate::args::{self, ChecksumKind};
use tool::output::Failure;
use tool::parse::OutputArgs;
use tool::size::Size;

/// Smallest `--piece`.
pub(super) const MIN_PIECE: Size = Size(4 << 10);
/// `--piece` of the demo.
const PIECE: Size = Size(16 << 20);

/// A run of `load`.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    /// The link.
    pub link: LinkPlan,
    /// The NIC, if it is ours.
    pub nic: NicPlan,
    /// Its memory and queues, if it is one of the kernel.
    pub kernel: KernelPlan,
    /// What is loaded.
    pub job: LoadJob,
    /// The checksum to compute.
    pub verify: Option<ChecksumKind>,
    /// How to print the report.
    pub form: OutputArgs,
}

/// What is loaded, and where it goes.
#[derive(Clone, Debug)]
pub struct LoadJob {
    /// What to request.
    pub origin: LoadOrigin,
    /// Where the bytes go.
    pub target: LoadTarget,
    /// The part of the file; `None` for all of it.
    pub range: Option<Range<u64>>,
    /// Number of simultaneous connections.
    pub connections: u16,
    /// Bytes of one request.
    pub piece_bytes: u64,
}

/// The server and what it has.
#[derive(Clone, Debug)]
pub enum LoadOrigin {
    /// A file of an HTTP server.
    Http(HttpRequest),
    /// An export of an NBD server.
    Nbd(NbdUrl),
}

impl LoadOrigin {
    pub fn protocol(&self) -> Protocol {
        match self {
            Self::Http(_) => Protocol::Http,
            Self::Nbd(_) => Protocol::Nbd,
        }
    }
}

/// The protocol of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http,
    Nbd,
}

impl Protocol {
    /// Returns a command that starts a server on `port`.
    pub fn server(self, port: u16) -> String {
        match self {
            Self::Http => format!("python3 -m http.server {port}"),
            Self::Nbd => {
                format!("qemu-nbd --persistent --shared 16 --format raw --port {port} FILE")
            }
        }
    }
}

/// Where loaded bytes go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadTarget {
    /// One contiguous device memory.
    Memory,
    /// A file.
    File(PathBuf),
}

impl LoadJob {
    /// Returns whether the URL is one of a checkpoint whose tensors are placed in memory.
    pub fn is_checkpoint(&self) -> bool {
        let LoadOrigin::Http(request) = &self.origin else {
            return false;
        };
        let name = request.url().file_name();
        let is_one = name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
        is_one && self.target == LoadTarget::Memory && self.range.is_none()
    }

    /// Returns the job of loading all that `url` names into memory.
    ///
    /// # Errors
    ///
    /// The URL is invalid.
    pub fn of_url(url: &str, connections: u16) -> Result<Self, Failure> {
        let origin = match url.starts_with("nbd") {
            true => LoadOrigin::Nbd(url.parse().map_err(Failure::usage)?),
            false => LoadOrigin::Http(HttpRequest::new(url.parse().map_err(Failure::usage)?)),
        };
        Ok(Self {
            origin,
            target: LoadTarget::Memory,
            range: None,
            connections,
            piece_bytes: PIECE.0,
        })
    }
}

impl LoadPlan {
    /// Validates the command line.
    ///
    /// # Errors
    ///
    /// A usage error that names the option.
    pub fn new(args: args::Load) -> Result<Self, Failure> {
        let args::Load {
            url,
            link,
            to,
            range,
            connections,
            piece,
            header,
            verify,
            nic,
            output,
        } = args;
        let users_alone = users_alone(&link, nic.mtu, &nic.impair, &[]);
        let kernel = KernelPlan::new(&nic, users_alone)?;
        let link = LinkPlan::new(&link)?;
        let nic = NicPlan::new(&nic, 0, link.tap.ours.address)?;
        if piece < MIN_PIECE {
            return Err(Failure::usage(format!(
                "--piece {piece}: at least {MIN_PIECE}"
            )));
        }
        let job = LoadJob {
            origin: origin(&url, &header, &link)?,
            target: match to.to_str() {
                Some("memory") => LoadTarget::Memory,
                _ => LoadTarget::File(to),
            },
            range: range.as_deref().map(parse_range).transpose()?,
            connections: check_connections(connections)?,
            piece_bytes: piece.0,
        };
        Ok(Self {
            link,
            nic,
            kernel,
            job,
            verify,
            form: output,
        })
    }
}

fn origin(text: &str, fields: &[String], link: &LinkPlan) -> Result<LoadOrigin, Failure> {
    if text.starts_with("s3:") {
        let object = HttpRequest::s3_object(text).map_err(Failure::usage)?;
        let port = object.url().port();
        let again = format!("{text} with AWS_ENDPOINT_URL=http://HOST:{port}");
        check_host("load", object.url().host(), &again, link)?;
        return with_fields(object, fields).map(LoadOrigin::Http);
    }
    if !text.starts_with("nbd") {
        let url: Url = text.parse().map_err(Failure::usage)?;
        let again = format!("http://HOST:{}{}", url.port(), url.target());
        check_host("load", url.host(), &again, link)?;
        return with_fields(HttpRequest::new(url), fields).map(LoadOrigin::Http);
    }
    let url: NbdUrl = text.parse().map_err(Failure::usage)?;
    if !fields.is_empty() {
        return Err(Failure::usage("--header: NBD has no such fields"));
    }
    let again = format!("nbd://HOST:{}/{}", url.port(), url.export());
    check_host("load", url.host(), &again, link)?;
    Ok(LoadOrigin::Nbd(url))
}

/// Refuses the loopback interface, with the command that reaches this host through the TAP: `command`, and the URL `again`
/// with the right host.
pub(super) fn check_host(
    command: &str,
    host: &str,
    again: &str,
    link: &LinkPlan,
) -> Result<(), Failure> {
    let is_loopback = |ip: IpAddr| ip.is_loopback();
    if host != "localhost" && !host.parse().is_ok_and(is_loopback) {
        return Ok(());
    }
    if let Some(name) = &link.interface {
        let text = format!("{host} is the kernel's loopback interface, and not behind {name}");
        return Err(Failure::usage(text).with_remedy(format!("name a host that {name} reaches")));
    }
    let theirs = link.tap.peers.unwrap_or_else(|| link.tap.ours.neighbour());
    let text = format!("{host} is the kernel's loopback interface");
    let url = again.replacen("HOST", &theirs.address.to_string(), 1);
    Err(Failure::usage(text).with_remedy(format!(
        "to reach this host through the TAP: devmem-tcp {command} --peer-addr {theirs} {url}"
    )))
}

/// Adds the fields, and the proxy of the environment.
fn with_fields(mut request: HttpRequest, fields: &[String]) -> Result<HttpRequest, Failure> {
    for field in fields {
        let (name, value) = field.split_once(':').ok_or_else(|| {
            Failure::usage("--header: there is no colon").with_remedy("write \"NAME: VALUE\"")
        })?;
        let added = request.field(name.trim(), value.trim());
        request = added.map_err(|error| Failure::usage(format!("--header: {error}")))?;
    }
    let proxied = request.proxy_from_env();
    proxied.map_err(|error| Failure::usage(format!("the proxy of the environment: {error}")))
}

/// Parses `A-B`.
fn parse_range(text: &str) -> Result<Range<u64>, Failure> {
    let range = text.split_once('-').and_then(|(start, end)| {
        let (start, end): (Size, Size) = (start.parse().ok()?, end.parse().ok()?);
        (start < end).then_some(start.0..end.0)
    });
    range.ok_or_else(|| {
        Failure::usage(format!("--range {text}: not a range"))
            .with_remedy("write the first byte and the one after the last: 0-1M")
    })
}
