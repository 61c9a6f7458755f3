//! Which subsystems a host has, and which namespaces those have.

use std::net::IpAddr;

use devmem_tcp::{ErrorKind, Netdev};
use nvme::discovery::{self, MAX_RECORDS, RECORD_BYTES, Record};
use nvme::{DISCOVERY_PORT, PORT};

use super::association::Association;
use super::url::NvmeUrl;
use crate::cause::Cause;
use crate::dial::{self, CancelCheck};
use crate::error::LoadError;

/// A subsystem of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmeSubsystem {
    /// The URL that names it.
    pub url: NvmeUrl,
    /// Its active namespaces, or why they are not known.
    pub namespaces: Result<Vec<NvmeListed>, Cause>,
}

/// A namespace in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmeListed {
    /// Its number.
    pub nsid: u32,
    /// Its size in bytes; `None` if it is none that this host can use.
    pub bytes: Option<u64>,
    /// The size of a block in bytes, if it is one that this host can use.
    pub block_bytes: Option<u64>,
    /// Whether it refuses writes.
    pub is_read_only: bool,
}

/// Lists the subsystems of a host, or the one that the URL names.
pub(super) fn list(
    nic: &Netdev,
    url: &NvmeUrl,
    cancel_check: &mut CancelCheck<'_>,
) -> Result<Vec<NvmeSubsystem>, LoadError> {
    if !url.subsystem.is_empty() {
        let namespaces = Ok(namespaces(nic, url, cancel_check)?);
        let url = url.clone();
        return Ok(vec![NvmeSubsystem { url, namespaces }]);
    }
    let mut listed = Vec::new();
    for record in records(nic, url, cancel_check)? {
        let Some(url) = url_of(url, &record) else {
            continue;
        };
        let namespaces = match namespaces(nic, &url, cancel_check) {
            Err(LoadError::Cancelled) => return Err(LoadError::Cancelled),
            found => found.map_err(|error| Cause::new(error.to_string(), error.remedy())),
        };
        listed.push(NvmeSubsystem { url, namespaces });
    }
    Ok(listed)
}

/// Returns the records of the discovery log: from the port of the URL, or from that of discovery if nobody listens there.
fn records(
    nic: &Netdev,
    url: &NvmeUrl,
    cancel_check: &mut CancelCheck<'_>,
) -> Result<Vec<Record>, LoadError> {
    let found = records_at(nic, &url.of_discovery(url.port), cancel_check);
    if url.port != PORT || !found.as_ref().is_err_and(is_refusal) {
        return found;
    }
    match records_at(nic, &url.of_discovery(DISCOVERY_PORT), cancel_check) {
        // The port of the URL is the one to listen on.
        Err(error) if is_refusal(&error) => found,
        other => other,
    }
}

/// Returns whether nobody listens.
fn is_refusal(error: &LoadError) -> bool {
    matches!(error, LoadError::Connect { error, .. } if error.kind() == ErrorKind::ConnectionRefused)
}

fn records_at(
    nic: &Netdev,
    url: &NvmeUrl,
    cancel_check: &mut CancelCheck<'_>,
) -> Result<Vec<Record>, LoadError> {
    let addresses = dial::resolve(nic, &url.host, url.port, cancel_check)?;
    let association = Association::begin(nic, url, &addresses, cancel_check)?;
    let mut bytes = vec![0; RECORD_BYTES];
    association.discovery_log(url, 0, &mut bytes, cancel_check)?;
    let count = discovery::record_count(&bytes).unwrap_or(0);
    let mut records = Vec::new();
    for index in 1..=count.min(MAX_RECORDS) {
        let offset = index * RECORD_BYTES as u64;
        association.discovery_log(url, offset, &mut bytes, cancel_check)?;
        records.extend(Record::parse(&bytes));
    }
    Ok(records)
}

/// Returns the URL of a subsystem over TCP. A record without an address of its own is of the host that was asked.
fn url_of(asked: &NvmeUrl, record: &Record) -> Option<NvmeUrl> {
    if !record.is_tcp || !record.has_namespaces {
        return None;
    }
    let address: IpAddr = record.address.parse().ok()?;
    let host = match address.is_unspecified() {
        true => asked.host.clone(),
        false => address.to_string(),
    };
    let port = record.port.parse().ok().filter(|port| *port != 0)?;
    let url = asked.of_subsystem(host, port, record.subsystem_nqn.clone());
    // A name from the network: it must be one that can be written again.
    url.to_string().parse().ok()
}

fn namespaces(
    nic: &Netdev,
    url: &NvmeUrl,
    cancel_check: &mut CancelCheck<'_>,
) -> Result<Vec<NvmeListed>, LoadError> {
    let addresses = dial::resolve(nic, &url.host, url.port, cancel_check)?;
    let association = Association::begin(nic, url, &addresses, cancel_check)?;
    let active = association.namespaces(url, cancel_check)?;
    let mut listed = Vec::new();
    for nsid in active {
        let Some(namespace) = association.namespace(url, nsid, cancel_check)? else {
            // It was taken away meanwhile.
            continue;
        };
        listed.push(NvmeListed {
            nsid,
            bytes: namespace.bytes(),
            block_bytes: namespace.block_bytes(),
            is_read_only: namespace.is_read_only,
        });
    }
    Ok(listed)
}
