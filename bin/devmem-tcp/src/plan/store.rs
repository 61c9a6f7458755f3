//! A run of `store`.

use std::path::PathBuf;

use transfer::load::{Origin, shown};
use transfer::store::Durability;

use super::checks::check_connections;
use super::load::{Client, check_host, check_piece, url_at_host};
use super::{KernelPlan, LinkPlan, NicPlan};
use crate::args;
use tool::output::{Exit, Failure};
use tool::parse::OutputArgs;

/// A run of `store`.
#[derive(Clone, Debug)]
pub struct StorePlan {
    /// The link.
    pub link: LinkPlan,
    /// The NIC, if it is ours.
    pub nic: NicPlan,
    /// Its memory and queues, if it is one of the kernel.
    pub kernel: KernelPlan,
    /// The file.
    pub file: PathBuf,
    /// The export or the namespace.
    pub sink: Origin,
    /// First byte of it.
    pub at: u64,
    /// Number of simultaneous connections.
    pub connections: u16,
    /// Bytes of one request.
    pub piece_bytes: u64,
    /// When the bytes are on the server's storage.
    pub durability: Durability,
    /// Whether to load the bytes back.
    pub verify: bool,
    /// How to print the report.
    pub form: OutputArgs,
}

impl StorePlan {
    /// Validates the command line.
    ///
    /// # Errors
    ///
    /// A usage error that names the option.
    pub fn new(args: args::Store) -> Result<Self, Failure> {
        let args::Store {
            file,
            url,
            link,
            at,
            connections,
            piece,
            fua,
            verify,
            nic,
            output,
        } = args;
        let Client { link, nic, kernel } = Client::new(&link, &nic)?;
        let piece_bytes = check_piece(piece)?;
        let sink = sink(&url)?;
        let again = url_at_host(&sink).unwrap_or(url);
        let command = format!("store {}", file.display());
        check_host(&command, sink.host(), &again, &link)?;
        Ok(Self {
            link,
            nic,
            kernel,
            file,
            sink,
            at: at.0,
            connections: check_connections(connections)?,
            piece_bytes,
            durability: match fua {
                true => Durability::EachWrite,
                false => Durability::Flush,
            },
            verify,
            form: output,
        })
    }
}

/// Parses a URL that takes bytes.
fn sink(url: &str) -> Result<Origin, Failure> {
    match url.parse() {
        Ok(sink @ (Origin::Nbd(_) | Origin::Nvme(_))) => Ok(sink),
        Err(error) if url.starts_with("nbd") || url.starts_with("nvme") => {
            Err(Failure::from(error).ending_with(Exit::Usage))
        }
        _ => {
            let url = shown(url);
            let text = format!("{url}: only NBD servers and NVMe subsystems take bytes");
            let remedy = "write nbd://HOST/EXPORT or nvme://HOST/SUBNQN";
            Err(Failure::usage(text).with_remedy(remedy))
        }
    }
}
