//! The command line of `store`.

use std::path::PathBuf;

use clap::Args;

use super::{LinkArgs, NicArgs};
use tool::parse::OutputArgs;
use tool::size::Size;

/// Store a file in an export of a stock NBD server or a namespace of an NVMe/TCP subsystem, from device memory
///
/// The server needs no device memory: our stack connects from an address of a TAP interface, or with --if the kernel's stack
/// from one of a NIC that supports device memory. The bytes of the file are
/// written to chunks of device memory and sent from there without a copy, one request for each piece, with several requests in
/// flight on several connections; a chunk is filled again when the server has acknowledged its piece and the send is complete.
/// Pieces of zeros are not sent, if the server can write zeros by itself. The command ends with statistics when the server has
/// written all bytes to its storage. If a connection breaks, or the server is restarted, what it may have lost is written again.
#[derive(Debug, Args)]
#[command(after_long_help = STORE_EXAMPLES)]
pub struct Store {
    /// The file, or block device, whose bytes are stored
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// nbd://HOST:PORT/EXPORT, or nvme://HOST:PORT/SUBNQN?nsid=N; the port is 10809 or 4420 if it is left out
    #[arg(value_name = "URL")]
    pub url: String,
    #[command(flatten)]
    pub link: LinkArgs,
    /// First byte of the export to write, a multiple of its block
    #[arg(long, value_name = "SIZE", default_value = "0")]
    pub at: Size,
    /// Number of simultaneous connections; one if the server does not promise that all see the same data
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub connections: u16,
    /// Bytes of one request, rounded to the server's block sizes, and size of a chunk of device memory
    #[arg(long, value_name = "SIZE", default_value = "1M")]
    pub piece: Size,
    /// Have the server acknowledge each write only when it is on storage, instead of a flush at the end (FUA)
    #[arg(long)]
    pub fua: bool,
    /// Load the bytes back into device memory, and compare their CRC-32C, which an NVIDIA GPU computes of its memory, with that
    /// of the file
    #[arg(long)]
    pub verify: bool,
    #[command(flatten)]
    pub nic: NicArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

const STORE_EXAMPLES: &str = "\
Half of --mem-size is for chunks; the other half is bound for receiving replies and the bytes of --verify. The server must accept
4 KiB of payload, or answer a request, within 30 seconds; otherwise the connection is closed and opened again, at most 8 times in a row.

Examples:
  devmem-tcp store --peer-addr 10.77.0.1/24 disk.img nbd://10.77.0.1/disk --verify
      to a server on this host: `qemu-nbd --persistent --shared 16 --format raw --export-name disk target.img` there
  devmem-tcp store --gateway 10.77.0.1 disk.img nbd://storage.example/disk --connections 8 --json
      to another network, through the kernel's end of the TAP as router
  devmem-tcp store --peer-addr 10.77.0.1/24 boot.img nbd://10.77.0.1/disk --at 1M --fua
      to the second MiB of the export and what follows, each write on storage when it is acknowledged
  devmem-tcp store --peer-addr 10.77.0.1/24 disk.img 'nvme://10.77.0.1/nqn.2014-08.org.example:disk?nsid=1' --verify
      in a namespace of a remote SSD";
