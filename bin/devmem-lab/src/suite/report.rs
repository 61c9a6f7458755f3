//! What a guest prints on its standard output while its rows run.

use std::io::Write;
use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};

use crate::verdict::Verdict;

/// Address of our stack, in the network of the guest's only NIC.
pub const FAR_ADDRESS: [u8; 4] = [10, 77, 0, 9];
/// Port of our stack when it receives.
pub const FAR_PORT: u16 = 5201;
/// Period of the pattern that it verifies, as for `devmem-tcp recv -v`.
pub const PERIOD: u16 = 7;

/// Report of a row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RowReport {
    /// Its name.
    pub row: String,
    /// Its result.
    pub verdict: Verdict,
    /// Observations, the error, or the reason why it was skipped.
    pub detail: String,
    /// Duration in seconds.
    pub seconds: f64,
    /// Rate in 10^6 bytes per second, if measured.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mb_per_s: Option<f64>,
}

/// One line that a guest prints.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Line {
    /// A request to start a program at the other end of the wire.
    FarEndRequest { far_end: FarEndRequest },
    /// The report of a row that has ended.
    Row(RowReport),
}

/// A program that the guest may request the host to start at the other end of its wire. The guest is not trusted: it
/// chooses one of these, and the host chooses the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum FarEndRequest {
    /// Our stack sends a pattern to the guest.
    Send {
        /// The guest's port.
        port: NonZeroU16,
    },
    /// Our stack receives on [`FAR_PORT`] and checks the pattern of [`PERIOD`].
    Receive,
    /// Our stack loads the first namespace of the guest's NVMe target into a file.
    LoadNamespace,
    /// It stores that file in the second one.
    StoreNamespace,
}

/// Requests a program at the other end of the wire: prints a line of JSON, `{"far_end": REQUEST}`.
///
/// # Errors
///
/// The line cannot be written.
pub fn ask_for(request: FarEndRequest) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    serde_json::to_writer(&mut stdout, &Line::FarEndRequest { far_end: request })?;
    writeln!(stdout)?;
    Ok(())
}
