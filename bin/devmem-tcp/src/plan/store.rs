//! A run of `store`.

use std::path::PathBuf;

use transfer::store::{Durability, NbdUrl};

use super::load::{Client, check_host, check_piece};
use super::{KernelPlan, LinkPlan, NicPlan, check_connections};
use crate::args;
use tool::output::Failure;
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
    /// The export.
    pub url: NbdUrl,
    /// First byte of the export.
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
        let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
        if !["nbd", "nbds"].contains(&scheme.to_ascii_lowercase().as_str()) {
            let text = format!("{url}: only NBD servers take bytes");
            return Err(Failure::usage(text).with_remedy("write nbd://HOST/EXPORT"));
        }
        let url: NbdUrl = url.parse().map_err(Failure::usage)?;
        let again = format!("nbd://HOST:{}/{}", url.port(), url.encoded_export());
        let command = format!("store {}", file.display());
        check_host(&command, url.host(), &again, &link)?;
        Ok(Self {
            link,
            nic,
            kernel,
            file,
            url,
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
