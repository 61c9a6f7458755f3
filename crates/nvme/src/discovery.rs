//! The discovery log: which subsystems a host can connect to (Base, "Discovery Log Page").

use crate::{field_of, text_of};

/// Length of the header, and of each record.
pub const RECORD_BYTES: usize = 1024;
/// Most records that are read: more are a mistake, or an attack.
pub const MAX_RECORDS: u64 = 1000;

/// Types of transports: TCP.
const TRANSPORT_TCP: u8 = 3;
/// Types of subsystems: one with namespaces.
const SUBSYSTEM_NVME: u8 = 2;

/// Number of records, from the header of the log.
pub fn record_count(header: &[u8]) -> Option<u64> {
    let bytes = header.get(8..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

/// A subsystem that a discovery controller names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// It is reached over TCP.
    pub is_tcp: bool,
    /// It has namespaces; otherwise it refers to another discovery controller.
    pub has_namespaces: bool,
    /// Address, as text.
    pub address: String,
    /// Port, as text.
    pub port: String,
    /// Its name.
    pub subsystem_nqn: String,
}

impl Record {
    /// Parses a record; `None` if it is too short.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.first_chunk::<RECORD_BYTES>()?;
        Some(Self {
            is_tcp: bytes[0] == TRANSPORT_TCP,
            has_namespaces: bytes[2] == SUBSYSTEM_NVME,
            port: text_of(&bytes[32..64]),
            subsystem_nqn: text_of(&bytes[256..512]),
            address: text_of(&bytes[512..768]),
        })
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; RECORD_BYTES];
        bytes[0] = TRANSPORT_TCP;
        // Addresses of IPv4 or IPv6.
        bytes[1] = if self.address.contains(':') { 2 } else { 1 };
        bytes[2] = SUBSYSTEM_NVME;
        bytes[6..8].copy_from_slice(&crate::command::ANY_CONTROLLER.to_le_bytes());
        bytes[8..10].copy_from_slice(&32u16.to_le_bytes());
        bytes[32..64].copy_from_slice(&field_of::<32>(&self.port, b' '));
        bytes[256..512].copy_from_slice(&field_of::<256>(&self.subsystem_nqn, 0));
        bytes[512..768].copy_from_slice(&field_of::<256>(&self.address, b' '));
        bytes
    }
}

/// Returns a log of subsystems over TCP.
pub fn log(records: &[Record]) -> Vec<u8> {
    let mut bytes = vec![0; RECORD_BYTES];
    bytes[0] = 1;
    bytes[8..16].copy_from_slice(&(records.len() as u64).to_le_bytes());
    for record in records {
        bytes.extend(record.to_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_those_that_were_written() {
        let records = ["10.0.0.1", "fd77::1"].map(|address| Record {
            is_tcp: true,
            has_namespaces: true,
            address: address.to_owned(),
            port: "4420".to_owned(),
            subsystem_nqn: "nqn.2014-08.org.example:disk".to_owned(),
        });
        let bytes = log(&records);
        assert_eq!(record_count(&bytes), Some(2));
        for (record, bytes) in records
            .iter()
            .zip(bytes[RECORD_BYTES..].chunks(RECORD_BYTES))
        {
            assert_eq!(Record::parse(bytes).as_ref(), Some(record));
        }
        // TRTYPE, ADRFAM, SUBTYPE.
        assert_eq!(bytes[RECORD_BYTES..][..3], [3, 1, 2]);
        let mut other = bytes[RECORD_BYTES..][..RECORD_BYTES].to_vec();
        // RDMA, and the discovery subsystem itself.
        (other[0], other[2]) = (1, 3);
        let parsed = Record::parse(&other).unwrap();
        assert_eq!((parsed.is_tcp, parsed.has_namespaces), (false, false));
        assert_eq!(record_count(&bytes[..15]), None);
        assert_eq!(Record::parse(&bytes[..1023]), None);
    }
}
