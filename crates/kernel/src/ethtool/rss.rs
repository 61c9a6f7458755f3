//! RSS: the indirection table that spreads flows over queues, and further tables (contexts) for flow rules.

use rustix::io::Errno as RawErrno;
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, IntoBytes};

use super::layout::RssHeader;
use super::requests::{Ethtool, EthtoolError, FLAG_OMIT_REPLY, HEADER_NAMES, about};
use crate::netlink::attr::{Attributes, VALUE_BYTES_MAX};
use crate::netlink::{Names, NetlinkError};
use crate::sys::ethtool::{RXFH_LEN, command};

/// The context of all packets that no rule steers.
pub const MAIN_CONTEXT: u32 = 0;

/// `ETHTOOL_MSG_RSS_GET` (6.3), `_SET`, `_CREATE_ACT`, `_DELETE_ACT` (6.17).
const GET: u8 = 38;
const SET: u8 = 48;
const CREATE: u8 = 49;
const DELETE: u8 = 50;
/// `ETHTOOL_A_RSS_*`.
const A_CONTEXT: u16 = 2;
const A_INDIR: u16 = 4;
const A_HKEY: u16 = 5;
const NAMES: Names = Names(&[
    (1, "header", HEADER_NAMES),
    (A_CONTEXT, "context", Names::NONE),
    (A_INDIR, "indir", Names::NONE),
    (A_HKEY, "hkey", Names::NONE),
]);
/// `ETH_RXFH_CONTEXT_ALLOC`: create a context.
const CONTEXT_ALLOC: u32 = u32::MAX;
/// `ETH_RSS_HASH_NO_CHANGE` and `RXH_XFRM_NO_CHANGE`.
const HASH_NO_CHANGE: u8 = 0;
const TRANSFORM_NO_CHANGE: u8 = 0xff;

/// One RSS context.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RssContext {
    /// Its number; 0 is [`MAIN_CONTEXT`].
    pub context: u32,
    /// The indirection table: a queue for each value of the hash's low bits. Empty if the driver has no table.
    pub table: Vec<u32>,
    /// The hash key.
    pub key: Vec<u8>,
}

impl RssContext {
    /// Parses a reply; `None` if it has no table.
    pub(crate) fn parse(reply: Attributes<'_>) -> Option<Self> {
        let key = reply.find(A_HKEY).map(|key| key.value.to_vec());
        Some(Self {
            context: reply.u32(A_CONTEXT).unwrap_or(MAIN_CONTEXT),
            table: reply.find(A_INDIR)?.u32_array(),
            key: key.unwrap_or_default(),
        })
    }

    /// Returns whether the table has an entry for `queue`.
    pub fn uses(&self, queue: u32) -> bool {
        self.table.contains(&queue)
    }
}

impl Ethtool {
    /// Reads the main table.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the driver has none.
    pub fn rss(&mut self) -> Result<RssContext, EthtoolError> {
        if self.socket.family().has(GET) {
            // The reply of a driver with a hash function and no table has no table.
            let parse = |reply: Attributes<'_>| RssContext::parse(reply).unwrap_or_default();
            return self.read("the RSS table", GET, NAMES, parse);
        }
        self.rss_by_ioctl(MAIN_CONTEXT)
    }

    /// Lists the contexts beside the main one.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` before Linux 6.12.
    pub fn rss_contexts(&mut self) -> Result<Vec<RssContext>, EthtoolError> {
        let what = format!("list the RSS contexts of {}", self.name);
        let request = about(self.socket.list(GET, NAMES), self.index, None);
        let all = self.socket.dump(&what, &request, RssContext::parse)?;
        let further = |c: &RssContext| c.context != MAIN_CONTEXT;
        Ok(all.into_iter().filter(further).collect())
    }

    /// Sets the table of a context. The number of entries cannot change.
    ///
    /// # Errors
    ///
    /// `EINVAL` for another number of entries, an empty table, or a queue that does not exist.
    pub fn set_rss_table(&mut self, context: u32, table: &[u32]) -> Result<(), EthtoolError> {
        self.refuse_empty(table)?;
        let refused = match self.netlink_rss(SET, context, table) {
            Ok(_) => return Ok(()),
            Err(error) if error.errno == RawErrno::OPNOTSUPP => error,
            Err(error) => return Err(error.into()),
        };
        let by_ioctl = self.set_rss_by_ioctl("set the RSS table of", context, table);
        by_ioctl
            .map(|_context| ())
            .map_err(|error| self.first_refusal(SET, refused, error))
    }

    /// Resets the main table to the driver's default, which spreads flows over all queues.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the driver has no table.
    pub fn reset_rss_table(&mut self) -> Result<(), EthtoolError> {
        // A table without entries means the default (linux net/ethtool/ioctl.c ethtool_set_rxfh).
        self.set_rss_by_ioctl("reset the RSS table of", MAIN_CONTEXT, &[])
            .map(|_context| ())
    }

    /// Creates a context for flow rules and returns its number.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the driver has no contexts.
    pub fn create_rss_context(&mut self, table: &[u32]) -> Result<u32, EthtoolError> {
        self.refuse_empty(table)?;
        let refused = match self.netlink_rss(CREATE, CONTEXT_ALLOC, table) {
            Ok(Some(context)) => return Ok(context),
            Ok(None) => {
                let what = format!("create an RSS context of {}", self.name);
                return Err(NetlinkError::new(&what, RawErrno::BADMSG).into());
            }
            Err(error) if error.errno == RawErrno::OPNOTSUPP => error,
            Err(error) => return Err(error.into()),
        };
        self.set_rss_by_ioctl("create an RSS context of", CONTEXT_ALLOC, table)
            .map_err(|error| self.first_refusal(CREATE, refused, error))
    }

    /// Deletes a context that [`create_rss_context`](Self::create_rss_context) made.
    ///
    /// # Errors
    ///
    /// `ENOENT` if there is none, `EBUSY` while a rule uses it.
    pub fn delete_rss_context(&mut self, context: u32) -> Result<(), EthtoolError> {
        let refused = match self.netlink_rss(DELETE, context, &[]) {
            Ok(_) => return Ok(()),
            Err(error) if error.errno == RawErrno::OPNOTSUPP => error,
            Err(error) => return Err(error.into()),
        };
        let by_ioctl = self.set_rss_by_ioctl("delete an RSS context of", context, &[]);
        by_ioctl
            .map(|_context| ())
            .map_err(|error| self.first_refusal(DELETE, refused, error))
    }

    /// Returns the error to report if a change failed by netlink and by ioctl: the netlink error, which has the kernel's
    /// message, or the ioctl error if the kernel does not have the netlink command.
    fn first_refusal(
        &self,
        command: u8,
        by_netlink: NetlinkError,
        by_ioctl: EthtoolError,
    ) -> EthtoolError {
        match self.socket.family().has(command) {
            true => by_netlink.into(),
            false => by_ioctl,
        }
    }

    /// Refuses an empty table, because the kernel would take it as a request to reset or delete.
    fn refuse_empty(&self, table: &[u32]) -> Result<(), EthtoolError> {
        match table {
            [] => {
                let what = format!("set an empty RSS table of {}", self.name);
                Err(NetlinkError::new(&what, RawErrno::INVAL).into())
            }
            _ => Ok(()),
        }
    }

    /// Changes a context over netlink: `EOPNOTSUPP` if this kernel supports that only by ioctl. Returns the
    /// context of the reply.
    fn netlink_rss(
        &mut self,
        command: u8,
        context: u32,
        table: &[u32],
    ) -> Result<Option<u32>, NetlinkError> {
        let what = format!("change the RSS contexts of {}", self.name);
        // A table from a state file or an ioctl can be too long for a netlink message.
        let too_long = size_of_val(table) > VALUE_BYTES_MAX;
        if too_long || !self.socket.family().has(command) {
            return Err(NetlinkError::new(&what, RawErrno::OPNOTSUPP));
        }
        // The number of a new context is in the reply.
        let flags = (command != CREATE).then_some(FLAG_OMIT_REPLY);
        let number = ![CONTEXT_ALLOC, MAIN_CONTEXT].contains(&context);
        let request = about(self.socket.command(command, NAMES), self.index, flags)
            .with(number.then_some(context), |r, context| {
                r.u32(A_CONTEXT, context)
            })
            .with((command != DELETE).then_some(table), |r, table| {
                r.attribute(A_INDIR, table.as_bytes())
            });
        self.socket
            .request(&what, request, |reply| reply.u32(A_CONTEXT))
    }

    /// Sets a table by ioctl and returns the context's number.
    fn set_rss_by_ioctl(
        &mut self,
        verb: &str,
        context: u32,
        table: &[u32],
    ) -> Result<u32, EthtoolError> {
        let mut header = RssHeader::new(command::SET_RSS, context);
        header.table_entries = u32::try_from(table.len()).unwrap_or(u32::MAX);
        header.hash_function = HASH_NO_CHANGE;
        header.input_transform = TRANSFORM_NO_CHANGE;
        let mut buffer = [header.as_bytes(), table.as_bytes()].concat();
        self.ioctl(verb, &mut buffer)?;
        let (header, _) =
            RssHeader::read_from_prefix(&buffer).expect("the buffer starts with a header");
        Ok(header.context)
    }

    fn rss_by_ioctl(&mut self, context: u32) -> Result<RssContext, EthtoolError> {
        const VERB: &str = "read the RSS table of";
        // The first call reads the sizes, the second the table and the key.
        let mut sizes = RssHeader::new(command::GET_RSS, context);
        self.ioctl(VERB, sizes.as_mut_bytes())?;
        let (entries, key_len) = (sizes.table_entries, sizes.key_len);
        let mut header = RssHeader::new(command::GET_RSS, context);
        header.table_entries = entries;
        header.key_len = key_len;
        let table_len = usize::try_from(entries)
            .unwrap_or(usize::MAX)
            .saturating_mul(4);
        let key_len = usize::try_from(key_len).unwrap_or(usize::MAX);
        /// More than the table and key of any NIC; larger lengths are treated as invalid.
        const LIMIT: usize = 1 << 20;
        let mut buffer = header.as_bytes().to_vec();
        buffer.resize(RXFH_LEN + table_len.min(LIMIT) + key_len.min(LIMIT), 0);
        self.ioctl(VERB, &mut buffer)?;
        let (table, key) = buffer[RXFH_LEN..].split_at(table_len.min(LIMIT));
        let (words, _) = table.as_chunks::<4>();
        Ok(RssContext {
            context,
            table: words.iter().map(|w| u32::from_ne_bytes(*w)).collect(),
            key: key.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Request;

    const A_HFUNC: u16 = 3;

    #[test]
    fn a_table_that_is_too_long_for_a_message_is_refused() {
        let mut lo = Ethtool::by_name("lo").expect("every network namespace has lo");
        // 65,536 bytes: one more than the length field of an attribute can express.
        let table = vec![0; 1 << 14];
        assert!(lo.set_rss_table(MAIN_CONTEXT, &table).is_err());
        assert!(lo.create_rss_context(&table).is_err());
    }

    #[test]
    fn a_table_and_its_key_are_read() {
        let table: Vec<u8> = [0u32, 1, 2, 0]
            .iter()
            .flat_map(|q| q.to_ne_bytes())
            .collect();
        let reply = Request::new(0, 0, &[])
            .u32(A_CONTEXT, 5)
            .u32(A_HFUNC, 1)
            .attribute(A_INDIR, &table)
            .attribute(A_HKEY, &[9; 40]);
        let rss = RssContext::parse(reply.reply()).unwrap();
        assert_eq!(rss.context, 5);
        assert_eq!(rss.table, [0, 1, 2, 0]);
        assert_eq!(rss.key, [9; 40]);
        assert!(rss.uses(2) && !rss.uses(3));
    }
}
