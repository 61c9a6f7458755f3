//! A run of `store`.

use std::path::PathBuf;

use transfer::store::{Durability, NbdUrl};

use super::load::{MIN_PIECE, check_host};
use super::{LinkPlan, NicPlan, check_connections};
use crate::args::{self, BackendChoice};
use tool::output::Failure;

/// A run of `store`.
#[derive(Clone, Debug)]
pub struct StorePlan {
    /// The link.
    pub link: LinkPlan,
    /// The NIC.
    pub nic: NicPlan,
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
    /// Print JSON.
    pub json: bool,
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
        if link.interface.is_some() || link.backend.is_some_and(|b| b != BackendChoice::User) {
            return Err(Failure::usage("store: only the user backend supports it"));
        }
        let link = LinkPlan::new(&link)?;
        let nic = NicPlan::new(&nic, 0, link.tap.ours.address)?;
        if piece < MIN_PIECE {
            return Err(Failure::usage(format!(
                "--piece {piece}: at least {MIN_PIECE}"
            )));
        }
        let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
        if !["nbd", "nbds"].contains(&scheme.to_ascii_lowercase().as_str()) {
            let text = format!("{url}: only NBD servers take bytes");
            return Err(Failure::usage(text).with_remedy("write nbd://HOST/EXPORT"));
        }
        let url: NbdUrl = url.parse().map_err(Failure::usage)?;
        let again = format!("nbd://HOST:{}/{}", url.port(), url.export());
        let command = format!("store {}", file.display());
        check_host(&command, url.host(), &again, &link)?;
        Ok(Self {
            link,
            nic,
            file,
            url,
            at: at.0,
            connections: check_connections(connections)?,
            piece_bytes: piece.0,
            durability: match fua {
                true => Durability::EachWrite,
                false => Durability::Flush,
            },
            verify,
            json: output.json,
        })
    }
}
