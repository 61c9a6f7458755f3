//! URLs of namespaces: `nvme://HOST[:PORT]/SUBNQN[?nsid=1][&hostnqn=NQN]`.

use std::fmt;
use std::str::FromStr;

use nvme::pdu::Digests;
use nvme::{DISCOVERY_NQN, MAX_NQN_BYTES, PORT};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::shown::shown;
use crate::url::{self as url_parts, UrlError, encoded_bytes};

/// Where nvme-cli keeps the name of this host and its identifier.
const HOST_NQN_FILE: &str = "/etc/nvme/hostnqn";
const HOST_ID_FILE: &str = "/etc/nvme/hostid";
/// What the name of a host without one begins with (Base, "NVMe Qualified Names").
const UUID_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:";
/// Characters of a NQN that a URL shows as they are.
const UNENCODED: &str = ":@,=";

/// An `nvme://` URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmeUrl {
    pub(super) host: String,
    pub(super) port: u16,
    /// Empty: all subsystems.
    pub(super) subsystem: String,
    pub(super) nsid: Option<u32>,
    pub(super) host_nqn: Option<String>,
    pub(super) digests: Digests,
    /// Flow control of submission queues is wanted.
    pub(super) has_flow_control: bool,
}

impl NvmeUrl {
    /// Returns the host: a name or an address.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the port, 4420 by default.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the name of the subsystem; empty if the URL names only a host, whose subsystems can be
    /// [listed](super::NvmeNamespace::list).
    pub fn subsystem(&self) -> &str {
        &self.subsystem
    }

    /// Returns the namespace, if the URL names one.
    pub fn nsid(&self) -> Option<u32> {
        self.nsid
    }

    /// Returns the URL from the slash behind the host on.
    pub fn encoded_path(&self) -> String {
        let mut text = format!("/{}", encoded_bytes(self.subsystem.as_bytes(), UNENCODED));
        let mut parameters = Vec::new();
        parameters.extend(self.nsid.map(|nsid| format!("nsid={nsid}")));
        let host_nqn = self.host_nqn.as_deref();
        parameters.extend(
            host_nqn.map(|nqn| format!("hostnqn={}", encoded_bytes(nqn.as_bytes(), UNENCODED))),
        );
        if self.digests.header {
            parameters.push("hdr-digest=1".to_owned());
        }
        if self.digests.data {
            parameters.push("data-digest=1".to_owned());
        }
        if self.has_flow_control {
            parameters.push("sq-flow=1".to_owned());
        }
        for (at, parameter) in parameters.iter().enumerate() {
            text.push(if at == 0 { '?' } else { '&' });
            text.push_str(parameter);
        }
        text
    }

    /// Returns the URL of a namespace of the subsystem.
    #[must_use]
    pub fn with_nsid(&self, nsid: u32) -> Self {
        Self {
            nsid: Some(nsid),
            ..self.clone()
        }
    }

    /// Returns the URL of a subsystem that the host names, at an address.
    pub(super) fn of_subsystem(&self, host: String, port: u16, subsystem: String) -> Self {
        Self {
            host,
            port,
            subsystem,
            ..self.clone()
        }
    }

    /// Returns the URL of the discovery service at a port of the host.
    pub(super) fn of_discovery(&self, port: u16) -> Self {
        self.of_subsystem(self.host.clone(), port, DISCOVERY_NQN.to_owned())
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), &'static str> {
        match name {
            "nsid" => {
                let nsid = value
                    .parse()
                    .ok()
                    .filter(|nsid| (1..u32::MAX).contains(nsid));
                self.nsid = Some(nsid.ok_or("nsid= is not the number of a namespace")?);
            }
            "hostnqn" => {
                let nqn = url_parts::decoded(value).filter(|nqn| is_nqn(nqn));
                self.host_nqn = Some(nqn.ok_or("hostnqn= is not an NVMe Qualified Name")?);
            }
            "hdr-digest" => self.digests.header = switch(value)?,
            "data-digest" => self.digests.data = switch(value)?,
            "sq-flow" => self.has_flow_control = switch(value)?,
            "tls" | "tls-key" | "keyring" => {
                return Err(
                    "TLS: the bytes of such a connection are encrypted until the CPU has decrypted them",
                );
            }
            "dhchap-secret" | "dhchap-ctrl-secret" => {
                return Err(
                    "in-band authentication is not supported: allow this host by its name (attr_allow_any_host, or allowed_hosts of nvmet)",
                );
            }
            _ => {
                return Err(
                    "a parameter other than nsid, hostnqn, hdr-digest, data-digest and sq-flow",
                );
            }
        }
        Ok(())
    }
}

/// Parses the value of a switch.
fn switch(value: &str) -> Result<bool, &'static str> {
    match value {
        "1" => Ok(true),
        "0" => Ok(false),
        _ => Err("a digest or sq-flow is 0 or 1"),
    }
}

/// Returns whether a text may be a name: it begins like one, and a controller can read it.
fn is_nqn(text: &str) -> bool {
    let is_whole = text.len() > "nqn.".len() && text.len() <= MAX_NQN_BYTES;
    text.starts_with("nqn.") && is_whole && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// What a controller is told about this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) nqn: String,
    pub(super) id: [u8; 16],
}

impl Identity {
    /// Returns the identity of this machine: that of nvme-cli, or a random one. `nqn` is a name that the caller wants.
    pub(super) fn of_machine(nqn: Option<&str>) -> Self {
        let read = |path| std::fs::read_to_string(path).ok();
        let kept = read(HOST_ID_FILE).and_then(|text| uuid_of(text.trim()));
        let id = kept.unwrap_or_else(random_uuid);
        let name = nqn.map(str::to_owned).or_else(|| {
            let text = read(HOST_NQN_FILE)?.trim().to_owned();
            is_nqn(&text).then_some(text)
        });
        Self {
            nqn: name.unwrap_or_else(|| format!("{UUID_NQN}{}", text_of(&id))),
            id,
        }
    }
}

fn uuid_of(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let is_hex = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = is_hex.then(|| u128::from_str_radix(&digits, 16).ok())??;
    Some(number.to_be_bytes())
}

/// Returns a random UUID (RFC 9562 5.4).
fn random_uuid() -> [u8; 16] {
    let mut bytes = [0x5a; 16];
    // Without randomness hosts may have the same identifier, which matters to reservations only.
    let _ = getrandom(&mut bytes, GetRandomFlags::empty());
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

fn text_of(id: &[u8; 16]) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(*id));
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
    parts.join("-")
}

impl FromStr for NvmeUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let scheme = || UrlError::Scheme { text: shown(text) };
        url_parts::check_text(text)?;
        let (name, rest) = text.split_once("://").ok_or_else(scheme)?;
        if !name.eq_ignore_ascii_case("nvme") {
            return Err(scheme());
        }
        let bad = |problem| UrlError::Malformed {
            text: shown(text),
            problem,
        };
        let (rest, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        let (place, path) = rest.split_once('/').unwrap_or((rest, ""));
        let parts = url_parts::host_and_port(place, PORT);
        let (host, port) = parts.ok_or_else(|| bad("host and port"))?;
        let subsystem = url_parts::decoded(path).filter(|nqn| nqn.is_empty() || is_nqn(nqn));
        let subsystem = subsystem.ok_or_else(|| {
            bad("the path is not an NVMe Qualified Name (nqn.YYYY-MM.DOMAIN:NAME)")
        })?;
        let mut url = Self {
            host,
            port,
            subsystem,
            nsid: None,
            host_nqn: None,
            digests: Digests::default(),
            has_flow_control: false,
        };
        for parameter in parameters.split('&').filter(|it| !it.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            url.set(name, value).map_err(bad)?;
        }
        Ok(url)
    }
}

impl fmt::Display for NvmeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = match self.host.contains(':') {
            true => format!("[{}]", self.host),
            false => self.host.clone(),
        };
        let path = self.encoded_path();
        match self.port {
            PORT => write!(f, "nvme://{host}{path}"),
            port => write!(f, "nvme://{host}:{port}{path}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_port_subsystem_and_parameters_are_found_and_written_back() {
        for (text, again) in [
            ("nvme://host", "nvme://host/"),
            ("NVME://host:4420/", "nvme://host/"),
            (
                "nvme://[fd77::1]:99/nqn.2014-08.org.example:disk?nsid=7",
                "nvme://[fd77::1]:99/nqn.2014-08.org.example:disk?nsid=7",
            ),
            (
                "nvme://10.0.0.1/nqn.a:b%2Fc?data-digest=1&hostnqn=nqn.x&hdr-digest=1&sq-flow=1",
                "nvme://10.0.0.1/nqn.a:b%2Fc?hostnqn=nqn.x&hdr-digest=1&data-digest=1&sq-flow=1",
            ),
        ] {
            let url: NvmeUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), again);
            assert_eq!(again.parse::<NvmeUrl>().unwrap(), url);
        }
    }

    #[test]
    fn what_names_no_namespace_is_refused_with_a_cause() {
        let long = format!("nvme://h/nqn.{}", "x".repeat(MAX_NQN_BYTES));
        for (text, cause) in [
            ("http://host/nqn.x", "not an http URL"),
            ("nvme://", "host and port"),
            ("nvme://host:0/", "host and port"),
            ("nvme://host/disk", "NVMe Qualified Name"),
            ("nvme://host/nqn.%0a", "NVMe Qualified Name"),
            (&long, "NVMe Qualified Name"),
            ("nvme://h/nqn.x?nsid=0", "number of a namespace"),
            ("nvme://h/nqn.x?nsid=4294967295", "number of a namespace"),
            ("nvme://h/nqn.x?hostnqn=me", "hostnqn="),
            ("nvme://h/nqn.x?hdr-digest=yes", "0 or 1"),
            ("nvme://h/nqn.x?tls=1", "encrypted until"),
            ("nvme://h/nqn.x?dhchap-secret=DHHC-1:00:x", "authentication"),
            ("nvme://h/nqn.x?queues=4", "a parameter other than"),
        ] {
            let refused = text.parse::<NvmeUrl>().unwrap_err().to_string();
            assert!(refused.contains(cause), "{text}: {refused}");
        }
    }

    #[test]
    fn a_host_without_a_name_has_one_of_its_identifier() {
        let id = uuid_of("01234567-89ab-4def-8123-456789abcdef").unwrap();
        assert_eq!(text_of(&id), "01234567-89ab-4def-8123-456789abcdef");
        assert_eq!(uuid_of("nonsense"), None);
        let ours = Identity::of_machine(Some("nqn.x"));
        assert_eq!(ours.nqn, "nqn.x");
        assert!(is_nqn(&Identity::of_machine(None).nqn));
    }
}
