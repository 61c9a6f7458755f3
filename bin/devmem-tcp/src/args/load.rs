//! The command line of `load`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{LinkArgs, NicArgs, OutputArgs};
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
/// Each received piece is moved to its place by one device copy. Where no TAP interface may be opened, and no option names a link, the kernel's sockets are used, and
/// the payload passes through host memory (--backend sockets). The tensors of a safetensors file, or of the shards that a
/// safetensors.index.json names, are aligned in one memory, and --json lists them. The command ends with statistics when the file is whole. If
/// a connection breaks, or the server is restarted, its pieces are requested again.
#[derive(Debug, Args)]
#[command(after_long_help = LOAD_EXAMPLES)]
pub struct Load {
    /// http://HOST:PORT/PATH, with user@ before HOST if the server asks for a password (--password-file), s3://BUCKET/KEY, or
    /// nbd://HOST:PORT/EXPORT, or nvme://HOST:PORT/SUBNQN?nsid=N; the port is 80, 10809 or 4420 if it is left out. nvme://HOST lists
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
    /// Compute a checksum of the loaded bytes at their place, CRC-32C unless --verify=xxh3; a CRC-32C is compared with the
    /// server's, if it sends one or, as an S3-compatible store, has one. An NVIDIA GPU computes the CRC-32C of its memory; XXH3 is one sequential chain, so the CPU
    /// reads all bytes back for it, as for a CRC-32C of other memory and of files
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

const LOAD_EXAMPLES: &str = "\
The proxy of the variables http_proxy and all_proxy is used, except for the hosts of no_proxy. s3:// uses the variables of
Amazon's tools: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL (http only), and their
files ~/.aws/credentials and ~/.aws/config with AWS_PROFILE.

Secrets: the arguments of a program, its URL among them, are visible in the list of processes. Keep secrets in files (--header @FILE,
--password-file) or in the environment: DEVMEM_HEADERS (fields, one per line), DEVMEM_USER and DEVMEM_PASSWORD. No
message or report shows a password, or the value of a query parameter that may be one. After a redirect to another host or port
only harmless fields are sent there: Accept, User-Agent, If-*.

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
  devmem-tcp load --backend kernel --if eth1 http://192.0.2.1/model.safetensors
      with the kernel's stack, on a NIC that supports device memory
  devmem-tcp load nbd://10.77.0.1/disk --range 0-1M --to start.img --verify
      the first MiB of an export of qemu-nbd, nbdkit or nbd-server, to a file
  devmem-tcp load 'nvme://10.77.0.1/nqn.2014-08.org.example:disk?nsid=1' --memory cuda:0
      a namespace of a remote SSD, over up to 4 I/O queues, into the memory of a GPU";
