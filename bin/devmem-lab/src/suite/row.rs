//! What a row is: a name and a function, which returns what it has seen.

use std::fmt;
use std::process::Command;

use anyhow::Context as _;

use super::traffic::{Network, Rate};

/// Result of a row that passed.
#[derive(Debug, Default)]
pub struct PassedRow {
    /// Observations as text.
    pub detail: String,
    /// Rate, if measured.
    pub rate: Option<Rate>,
}

impl From<String> for PassedRow {
    fn from(detail: String) -> Self {
        Self { detail, rate: None }
    }
}

impl From<Rate> for PassedRow {
    fn from(rate: Rate) -> Self {
        Self {
            detail: format!("{} MB correct", rate.bytes / 1_000_000),
            rate: Some(rate),
        }
    }
}

/// Error of a row that is skipped because the guest's kernel does not have the tested function; the reason.
#[derive(Debug)]
pub struct Skip(pub String);

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skip {}

/// Environment of a row.
#[derive(Debug)]
pub struct Context {
    /// Both network namespaces, if the guest has two NICs.
    pub network: Option<Network>,
    /// Bytes of a large stream; small streams are a fraction of it.
    pub bytes: u64,
    /// Number of this guest, 0 or 1, if there are two.
    pub guest: u8,
}

impl Context {
    /// Returns both network namespaces.
    ///
    /// # Errors
    ///
    /// The guest has only one NIC.
    pub fn network(&self) -> anyhow::Result<&Network> {
        self.network.as_ref().context("this guest has one NIC")
    }

    /// Returns the bytes of a small stream, which only shows that streams work.
    pub fn few(&self) -> u64 {
        (self.bytes / 8).max(1 << 20)
    }
}

/// A row: name and function.
pub type Row = (&'static str, fn(&Context) -> anyhow::Result<PassedRow>);

/// Runs a program of the guest and returns its output.
///
/// # Errors
///
/// The program failed; the error has its output.
pub fn program(words: &[&str]) -> anyhow::Result<String> {
    let (name, arguments) = words.split_first().expect("a command has a name");
    let output = Command::new(name).args(arguments).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(
        output.status.success(),
        "{}: {}: {}",
        words.join(" "),
        output.status,
        said.trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
