//! The command line of `load`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{LinkArgs, NicArgs};
use tool::parse::OutputArgs;
use tool::size::Size;

/// Checksum of loaded bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ChecksumKind {
    /// CRC-32C, as object stores use it
    Crc32c,
    /// XXH3 of 64 bits, as `xxhsum -H3` computes it: the fastest on a CPU
    Xxh3,
}

/// Load a file or a block device from a stock HTTP or NBD server, or an NVMe/TCP subsystem, into device memory
///
/// The server needs no device memory: our stack connects from an address of a TAP interface, or with --if the kernel's stack
/// from one of a NIC that supports device memory. It requests the file in pieces over several connections, and the payload goes straight into device memory; only protocol headers go to host memory.
/// Most bytes arrive at their place, and the rest is moved there by a device copy. Where no TAP interface may be opened, and no option names a link, the kernel's sockets are used, and
/// the payload passes through host memory (--backend sockets). The tensors of a safetensors file, or of the shards that a
/// safetensors.index.json names, are aligned in one memory, and --json lists them. The command ends with statistics when the file is whole. If
/// a connection breaks, or the server is restarted, its pieces are requested again.
///
/// The bytes of https servers are decrypted by the CPU in host memory, and copied to their place from there. So https uses the kernel's sockets unless an option names
/// a link; over a link of ours no memory is bound for it.
#[derive(Debug, Args)]
#[command(after_long_help = LOAD_EXAMPLES)]
pub struct Load {
    /// http://HOST:PORT/PATH or https://HOST:PORT/PATH, with user@ before HOST if the server asks for a password (--password-file), s3://BUCKET/KEY, or
    /// nbd://HOST:PORT/EXPORT, or nvme://HOST:PORT/SUBNQN?nsid=N; the port is 80, 443, 10809 or 4420 if it is left out. nvme://HOST lists
    /// the subsystems of a host
    #[arg(value_name = "URL")]
    pub url: String,
    #[command(flatten)]
    pub link: LinkArgs,
    /// Where the bytes go: memory, one contiguous device memory of the kind of --memory; KIND, such memory of another kind than
    /// the one that is received into (anonymous, udmabuf, cuda:N, hip:N, vulkan:N); or FILE, also written memfd:FILE: the bytes
    /// are received into memory, and written from there
    #[arg(long, value_name = "memory|KIND|FILE", default_value = "memory")]
    pub to: PathBuf,
    /// Load only bytes A to B-1
    #[arg(long, value_name = "A-B")]
    pub range: Option<String>,
    /// Continue an earlier load to the same FILE, whose bytes so far are in FILE.part beside it. The file on the server must be the
    /// same
    #[arg(long)]
    pub resume: bool,
    /// Maximum number of simultaneous connections; fewer are used if more are not faster [default: 4, and 16 while the files of a
    /// checkpoint are opened]
    #[arg(long, value_name = "N")]
    pub connections: Option<u16>,
    /// Time limit, in seconds, in which a connection must deliver 4 KiB of payload, or complete its requests; raise it for a server
    /// that takes long to send its first byte
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub idle_limit: u32,
    /// Bytes of one request: 16M by default, 1M from an NVMe subsystem or an NBD server, whose first one is 4M
    #[arg(long, value_name = "SIZE")]
    pub piece: Option<Size>,
    /// Add a field to the HTTP requests; may be repeated. @FILE adds those of a file, one per line, and @- those of standard input:
    /// all users of the machine can see arguments (`ps`), so put "Authorization: Bearer TOKEN" in a file
    #[arg(long, value_name = "NAME: VALUE|@FILE")]
    pub header: Vec<String>,
    /// Send the password in the first line of a file, - for standard input, with the HTTP requests; the user is that of the URL, or of --user
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// User of the HTTP server, if the URL names none
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    #[command(flatten)]
    pub tls: TlsArgs,
    /// Refuse a load whose payload would pass through host memory: https, which the CPU decrypts there, and --backend sockets
    #[arg(long)]
    pub strict: bool,
    /// Compute a checksum of the loaded bytes at their place, CRC-32C unless --verify=xxh3. Without =xxh3, the checksum that the server sends, or that an
    /// S3-compatible store has, is compared: CRC-32C, CRC-64/NVME, CRC-32, SHA-256 or SHA-1, also one of the checksums of parts; of a checkpoint, those of all its files. An NVIDIA GPU computes
    /// the CRC-32C of its memory; for all others, and for other memory and files, the CPU reads all bytes back
    #[arg(
        long,
        value_name = "SUM",
        value_enum,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "crc32c"
    )]
    pub verify: Option<ChecksumKind>,
    #[command(flatten)]
    pub nic: NicArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// How https servers are verified, and how this client shows who it is.
#[derive(Debug, Args)]
pub struct TlsArgs {
    /// Verify https servers by the authorities in a PEM file, instead of those of the system (which SSL_CERT_FILE and SSL_CERT_DIR replace, too)
    #[arg(long, value_name = "FILE")]
    pub cacert: Option<PathBuf>,
    /// Certificate of this client, for https servers that ask for one: a PEM file, with those of its issuers behind it
    #[arg(long, value_name = "FILE")]
    pub cert: Option<PathBuf>,
    /// Private key of --cert, a PEM file without a passphrase [default: the file of --cert]
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// Accept any certificate of an https server. Whoever is on the way can then read the requests and their secrets, and send other bytes
    #[arg(long, conflicts_with = "cacert")]
    pub insecure: bool,
}

const LOAD_EXAMPLES: &str = "\
The proxy of the variables http_proxy, for https https_proxy, and all_proxy is used, except for the hosts of no_proxy. s3:// uses the variables of
Amazon's tools: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL (http or https; without it, Amazon's by https), and their
files ~/.aws/credentials and ~/.aws/config with AWS_PROFILE.

Secrets: the arguments of a program, its URL among them, are visible in the list of processes. Keep secrets in files (--header @FILE,
--password-file) or in the environment: DEVMEM_HEADERS (fields, one per line), DEVMEM_USER and DEVMEM_PASSWORD. No
message or report shows a password, or the value of a query parameter that may be one. After a redirect to another host or port, or between http and https,
only harmless fields are sent there (Accept, User-Agent, If-*), and no certificate of this client is shown. A redirect from https to http is followed with a warning.

A connection must deliver 4 KiB of payload, or complete its requests, within 30 seconds (--idle-limit); otherwise it is closed and
opened again, at most 8 times in a row. Only payload counts, not headers. What has arrived of a piece is kept.

Parameters of nvme:// URLs: nsid, unless there is one namespace; hostnqn, the name of this host; hdr-digest=1 and data-digest=1 turn on
CRC-32C digests; sq-flow=1 keeps the flow control of submission queues, for controllers that cannot do without.

A load to FILE writes FILE.part beside it, and renames it when all bytes have arrived and the checksum of --verify is right: an earlier
FILE stays until then. FILE.part.state records what has arrived, for --resume.

Examples:
  devmem-tcp load --peer-addr 10.77.0.1/24 http://10.77.0.1:8000/model.safetensors
      from a server on this host: `python3 -m http.server` there serves a folder
  devmem-tcp load --gateway 10.77.0.1 http://weights.example/model.safetensors --connections 16 --json
      from another network, through the kernel's end of the TAP as router
  devmem-tcp load --peer-addr 10.77.0.1/24 http://10.77.0.1/model.safetensors --memory cuda:0
      into the memory of a GPU, received there
  devmem-tcp load --peer-addr 10.77.0.1/24 http://10.77.0.1/model.safetensors --to cuda:0
      into the memory of a GPU, received in host memory and copied once more
  AWS_ENDPOINT_URL=http://10.77.0.1:9000 devmem-tcp load s3://models/model.safetensors
      an object of an S3-compatible store, signed with the keys of the environment
  devmem-tcp load --backend sockets http://192.0.2.1/model.safetensors --to model.safetensors --resume
      with the kernel's sockets, which need no privileges, to a file, where an earlier load has stopped
  devmem-tcp load https://hub.example/model.safetensors
      with the kernel's sockets, verified by the certificates of the system
  devmem-tcp load https://10.77.0.1:8443/model.safetensors --cacert lab-ca.pem --cert me.pem --key me.key
      from a server that a private authority has signed, and that asks for a certificate
  devmem-tcp load --backend kernel --if eth1 http://192.0.2.1/model.safetensors
      with the kernel's stack, on a NIC that supports device memory
  devmem-tcp load nbd://10.77.0.1/disk --range 0-1M --to start.img --verify
      the first MiB of an export of qemu-nbd, nbdkit or nbd-server, to a file
  devmem-tcp load 'nvme://10.77.0.1/nqn.2014-08.org.example:disk?nsid=1' --memory cuda:0
      a namespace of a remote SSD, over up to 4 I/O queues, into the memory of a GPU";
