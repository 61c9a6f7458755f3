//! A run of `load`.

use std::net::IpAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use devmem_linux::tap;
use transfer::load::{
    HttpRequest, Origin, SecretError, TlsClient, TlsError, TlsOptions, password_of, read_secret,
};

use super::checks::check_connections;
use super::link::users_alone;
use super::{KernelPlan, LinkPlan, NicPlan};
use crate::args::{self, BackendChoice, ChecksumKind, TlsArgs};
use tool::memory::MemoryKind;
use tool::output::{Exit, Failure, note};
use tool::parse::OutputArgs;
use tool::size::Size;

/// The command.
const LOAD: &str = "load";
/// Smallest `--piece`.
const MIN_PIECE: Size = Size(4 << 10);

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
    /// Whether the kernel's sockets may be used where no TAP may be opened: no option names a link.
    pub may_use_sockets: bool,
    /// How to print the report.
    pub form: OutputArgs,
}

/// What is loaded, and where it goes.
#[derive(Clone, Debug)]
pub struct LoadJob {
    /// What to request.
    pub origin: Origin,
    /// Where the bytes go.
    pub target: LoadTarget,
    /// The part of the file; `None` for all of it.
    pub range: Option<Range<u64>>,
    /// Number of simultaneous connections; `None`: that of the loader.
    pub connections: Option<u16>,
    /// Bytes of one request; `None`: those of the loader.
    pub piece_bytes: Option<u64>,
    /// Time in which a connection must make progress.
    pub idle_limit: Duration,
    /// Go on where an earlier load has stopped.
    pub resume: bool,
    /// The server's checksum is wanted.
    pub compares: bool,
    /// Refuse payload that passes through host memory.
    pub strict: bool,
}

/// How long a connection may make no progress, unless the user says so.
const IDLE_LIMIT: Duration = Duration::from_secs(30);

/// Where loaded bytes go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadTarget {
    /// One contiguous device memory, of this kind; `None` for that of the bound memory.
    Memory(Option<MemoryKind>),
    /// A file.
    File(PathBuf),
}

impl LoadJob {
    /// Returns the request for a checkpoint whose tensors are placed in memory, if the URL is that of one.
    pub fn checkpoint(&self) -> Option<&HttpRequest> {
        let is_memory = matches!(self.target, LoadTarget::Memory(_));
        let is_whole = is_memory && self.range.is_none();
        self.origin.checkpoint().filter(|_| is_whole)
    }

    /// Returns the job of loading all that `url` names into memory.
    ///
    /// # Errors
    ///
    /// The URL is invalid.
    pub fn of_url(url: &str, connections: u16) -> Result<Self, Failure> {
        Ok(Self {
            origin: url.parse().map_err(usage)?,
            target: LoadTarget::Memory(None),
            range: None,
            connections: Some(connections),
            piece_bytes: None,
            idle_limit: IDLE_LIMIT,
            resume: false,
            compares: false,
            strict: false,
        })
    }
}

/// The link and the NIC of a load or a store.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) link: LinkPlan,
    pub(super) nic: NicPlan,
    pub(super) kernel: KernelPlan,
}

impl Client {
    pub(super) fn new(link: &args::LinkArgs, nic: &args::NicArgs) -> Result<Self, Failure> {
        let users_alone = users_alone(link, nic.mtu, &nic.impair, &[]);
        let kernel = KernelPlan::new(nic, users_alone)?;
        let link = LinkPlan::new(link)?;
        let nic = NicPlan::new(nic, 0, link.tap.ours.address, link.tap.shards)?;
        Ok(Self { link, nic, kernel })
    }
}

/// Returns the bytes of `--piece`.
pub(super) fn check_piece(piece: Size) -> Result<u64, Failure> {
    match piece < MIN_PIECE {
        true => Err(Failure::usage(format!(
            "--piece {piece}: at least {MIN_PIECE}"
        ))),
        false => Ok(piece.0),
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
            resume,
            connections,
            idle_limit,
            piece,
            header,
            password_file,
            user,
            tls,
            strict,
            verify,
            nic,
            output,
        } = args;
        let has_link = link.backend.is_some() || link.interface.is_some() || link.addr.is_some();
        let mut client = Client::new(&link, &nic)?;
        let may_use_sockets = !has_link && client.kernel.users_alone.is_none() && !strict;
        choose_sockets(&url, may_use_sockets, strict, &mut client.link)?;
        let Client { link, nic, kernel } = client;
        let piece_bytes = piece.map(check_piece).transpose()?;
        let job = LoadJob {
            origin: origin(
                &url,
                &Secrets {
                    header,
                    password_file,
                    user,
                    tls,
                },
                &link,
            )?,
            target: target(to)?,
            range: range.as_deref().map(parse_range).transpose()?,
            connections: connections.map(check_connections).transpose()?,
            piece_bytes,
            idle_limit: Duration::from_secs(idle_limit.into()),
            resume,
            compares: verify == Some(ChecksumKind::Crc32c),
            strict,
        };
        if resume && !matches!(job.target, LoadTarget::File(_)) {
            let text = "--resume: memory has nothing of an earlier load";
            return Err(Failure::usage(text).with_remedy("name a file: --to FILE"));
        }
        Ok(Self {
            link,
            nic,
            kernel,
            job,
            verify,
            may_use_sockets,
            form: output,
        })
    }
}

/// Parses `--to`. A file whose name is that of a kind of memory can be written as ./NAME.
fn target(to: PathBuf) -> Result<LoadTarget, Failure> {
    let Some(text) = to.to_str() else {
        return Ok(LoadTarget::File(to));
    };
    if let Some(name) = text.strip_prefix("memfd:") {
        return match name {
            "" => Err(Failure::usage("--to memfd: names no file").with_remedy("write memfd:FILE")),
            name => Ok(LoadTarget::File(name.into())),
        };
    }
    let kind = text.split(':').next().unwrap_or_default();
    match text {
        "memory" => Ok(LoadTarget::Memory(None)),
        // One that cannot be parsed is a mistake, not a file.
        text if MemoryKind::NAMES.contains(&kind) => match text.parse() {
            Ok(kind) => Ok(LoadTarget::Memory(Some(kind))),
            Err(error) => Err(Failure::usage(format!("--to {text}: {error}"))),
        },
        _ => Ok(LoadTarget::File(to)),
    }
}

/// Chooses the kernel's sockets for https, and for servers on the loopback interface that no TAP reaches, if they may be used. With `--strict` they and https are refused.
fn choose_sockets(
    url: &str,
    may_use_sockets: bool,
    strict: bool,
    link: &mut LinkPlan,
) -> Result<(), Failure> {
    // One that is no URL is refused later.
    let named = url.parse::<Origin>().ok();
    let is_encrypted = named.as_ref().is_some_and(Origin::is_encrypted);
    let is_near = named.is_some_and(|origin| is_loopback(origin.host()));
    if may_use_sockets && (is_encrypted || is_near && !tap::may_create()) {
        link.backend = BackendChoice::Sockets;
    }
    match strict {
        true => check_strict(is_encrypted, link),
        false => Ok(()),
    }
}

/// Refuses a load whose payload would pass through host memory.
fn check_strict(is_encrypted: bool, link: &LinkPlan) -> Result<(), Failure> {
    match (is_encrypted, link.backend) {
        (true, _) => Err(strict_https()),
        (false, BackendChoice::Sockets) => {
            let text = "--strict: --backend sockets receives into host memory";
            Err(Failure::usage(text).with_remedy("name a link: --link or --if"))
        }
        (false, _) => Ok(()),
    }
}

/// Returns the failure of `--strict` for https.
pub fn strict_https() -> Failure {
    let text = "--strict: https: the CPU decrypts the bytes in host memory, and copies them to their place";
    Failure::usage(text).with_remedy(
        "load over http from a server inside your network, or from a proxy beside this machine that ends TLS",
    )
}

/// What the server needs to see, and how it is verified.
#[derive(Debug)]
struct Secrets {
    header: Vec<String>,
    password_file: Option<PathBuf>,
    user: Option<String>,
    tls: TlsArgs,
}

fn origin(text: &str, secrets: &Secrets, link: &LinkPlan) -> Result<Origin, Failure> {
    let origin: Origin = text.parse().map_err(usage)?;
    let again = match &origin {
        Origin::Http(object) if text.starts_with("s3:") => {
            let (scheme, port) = (scheme(object), object.url().port());
            format!("{text} with AWS_ENDPOINT_URL={scheme}://HOST:{port}")
        }
        Origin::Http(file) => format!(
            "{}://HOST:{}{}",
            scheme(file),
            file.url().port(),
            file.url().shown_target()
        ),
        other => url_at_host(other).unwrap_or_else(|| text.to_owned()),
    };
    check_host(LOAD, origin.host(), &again, link)?;
    match origin {
        Origin::Http(request) => {
            let is_object = text.starts_with("s3:");
            secrets.add_to(request, is_object).map(Origin::Http)
        }
        other if !secrets.header.is_empty() => {
            let text = format!("--header: {} has no such fields", protocol(&other));
            Err(Failure::usage(text))
        }
        other if secrets.has_password() => {
            let text = format!(
                "--password-file and --user: {} has no passwords",
                protocol(&other)
            );
            Err(Failure::usage(text))
        }
        other if secrets.has_tls() => {
            let text = format!(
                "--cacert, --cert and --insecure: {} has no TLS here",
                protocol(&other)
            );
            Err(Failure::usage(text))
        }
        other => Ok(other),
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

fn scheme(request: &HttpRequest) -> &'static str {
    match request.url().is_https() {
        true => "https",
        false => "http",
    }
}

/// Returns the URL of blocks with `HOST` for the host; `None` for a URL of another kind.
pub(super) fn url_at_host(origin: &Origin) -> Option<String> {
    match origin {
        Origin::Nbd(url) => Some(format!(
            "nbd://HOST:{}/{}",
            url.port(),
            url.encoded_export()
        )),
        Origin::Nvme(url) => Some(format!("nvme://HOST:{}{}", url.port(), url.encoded_path())),
        _ => None,
    }
}

/// Returns the name of a protocol of blocks.
fn protocol(origin: &Origin) -> &'static str {
    match origin {
        Origin::Nvme(_) => "NVMe",
        _ => "NBD",
    }
}

/// Refuses the loopback interface, with the command that reaches this host through the TAP: `command`, and the URL `again`
/// with the right host.
pub(super) fn check_host(
    command: &str,
    host: &str,
    again: &str,
    link: &LinkPlan,
) -> Result<(), Failure> {
    if !is_loopback(host) || link.backend == BackendChoice::Sockets {
        return Ok(());
    }
    if let Some(name) = &link.interface {
        let text = format!("{host} is the kernel's loopback interface, and not behind {name}");
        return Err(Failure::usage(text).with_remedy(format!("name a host that {name} reaches")));
    }
    let theirs = link.tap.peers.unwrap_or_else(|| link.tap.ours.neighbour());
    let text = format!("{host} is the kernel's loopback interface");
    let url = again.replacen("HOST", &theirs.address.to_string(), 1);
    let by_sockets = match command {
        LOAD => {
            "; --backend sockets reaches it without a TAP, and payload passes through host memory then"
        }
        _ => "",
    };
    Err(Failure::usage(text).with_remedy(format!(
        "to reach this host through the TAP: devmem-tcp {command} --peer-addr {theirs} {url}{by_sockets}"
    )))
}

impl Secrets {
    fn has_password(&self) -> bool {
        self.password_file.is_some() || self.user.is_some()
    }

    fn has_tls(&self) -> bool {
        let TlsArgs {
            cacert,
            cert,
            key,
            insecure,
        } = &self.tls;
        cacert.is_some() || cert.is_some() || key.is_some() || *insecure
    }

    /// Adds the fields and the password to a request, those of the environment, its proxy, and how its server is verified.
    fn add_to(&self, request: HttpRequest, is_object: bool) -> Result<HttpRequest, Failure> {
        let request = match self.has_tls() {
            true => request.tls(tls_client(&self.tls)?),
            false => request,
        };
        if is_object && self.has_password() {
            let text = "--password-file and --user: requests of s3:// are signed with keys";
            let remedy = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE";
            return Err(Failure::usage(text).with_remedy(remedy));
        }
        let mut request = request;
        for field in &self.header {
            request = with_header(request, field)?;
        }
        if let Some(file) = &self.password_file {
            let text = read_secret(file).map_err(of_option("--password-file"))?;
            let added = request.with_password(self.user.as_deref(), password_of(&text));
            request = added.map_err(of_option("--password-file"))?;
        } else if self.user.is_some() && std::env::var_os("DEVMEM_PASSWORD").is_none() {
            let remedy = "name its file: --password-file FILE, or set DEVMEM_PASSWORD";
            return Err(Failure::usage("--user: there is no password").with_remedy(remedy));
        }
        let request = request.secrets_from_env(self.user.as_deref());
        let proxied = request
            .map_err(of_option("the environment"))?
            .proxy_from_env();
        proxied.map_err(|error| usage(error).within("the proxy of the environment"))
    }
}

/// Reads the files of TLS. Says so if servers are not verified.
fn tls_client(args: &TlsArgs) -> Result<TlsClient, Failure> {
    let mut options = TlsOptions::new();
    if let Some(file) = &args.cacert {
        options = options.authorities(file);
    }
    if let Some(certificate) = &args.cert {
        options = options.identity(certificate, args.key.as_ref().unwrap_or(certificate));
    }
    if args.insecure {
        note(
            "warning: --insecure: https servers are NOT verified; whoever is on the way can read the requests and send other bytes",
        );
        options = options.without_verification();
    }
    options.client().map_err(|error| {
        let exit = match error {
            TlsError::Read { .. } | TlsError::NoAuthorities { .. } => Exit::Failed,
            _ => Exit::Usage,
        };
        Failure::from(error).ending_with(exit)
    })
}

/// Adds the field of a `--header`, or those of the file that it names.
fn with_header(request: HttpRequest, header: &str) -> Result<HttpRequest, Failure> {
    if let Some(file) = header.strip_prefix('@') {
        let text = read_secret(Path::new(file)).map_err(of_option("--header"))?;
        return request
            .fields_of(&text, file)
            .map_err(of_option("--header"));
    }
    let (name, value) = header.split_once(':').ok_or_else(|| {
        Failure::usage("--header: there is no colon").with_remedy("write \"NAME: VALUE\", or @FILE")
    })?;
    let added = request.field(name.trim(), value.trim());
    added.map_err(|error| usage(error).within("--header"))
}

/// Returns the failure of an option that names a secret.
fn of_option(option: &str) -> impl FnOnce(SecretError) -> Failure {
    move |error| {
        let exit = match error {
            SecretError::Read { .. } => Exit::Failed,
            _ => Exit::Usage,
        };
        Failure::from(error).within(option).ending_with(exit)
    }
}

/// Returns the failure of a URL, a proxy or a field of the command line.
fn usage(error: impl Into<anyhow::Error>) -> Failure {
    Failure::from(error).ending_with(Exit::Usage)
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
