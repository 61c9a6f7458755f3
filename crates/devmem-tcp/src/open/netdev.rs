//! Opening a user-space NIC by the text of its link.

use nic::Impairment;

use super::{NetdevBuilder, pair};
use crate::error::Error;
use crate::netdev::Netdev;

/// The option of a UNIX wire with which the other end may read the send queues.
const SHARE_SEND: &str = "share=send";

/// Splits a link from the options that follow it after a comma, if there are any. A path may contain commas, so that a UNIX wire has
/// an option only if the text ends as one.
fn split_options(text: &str) -> Option<(&str, &str)> {
    let is_one_of = |kinds: &[&str]| kinds.iter().any(|kind| text.starts_with(kind));
    if is_one_of(&["unix:", "unix-listen:"]) {
        let last = text.rsplit_once(',');
        return last.filter(|(_, option)| *option == SHARE_SEND);
    }
    let first = text.split_once(',');
    first.filter(|_| is_one_of(&["tap:", "packet:", "macvtap:"]))
}

impl Netdev {
    /// Opens a user-space NIC on `link` (`tap:NAME`, `packet:NAME`, `macvtap:NAME`, `unix:PATH`,
    /// `unix-listen:PATH` or `mem:NAME`) with the
    /// address `address` (`10.77.0.2/24`, or `auto` as for [`NetdevBuilder::address`]). [`Netdev::builder`] has more options.
    ///
    /// The other end of a TAP is the kernel of this host, which needs an address in the same network; without one no program
    /// can reach the NIC. `tap:NAME,ADDRESS/LENGTH` sets it:
    ///
    /// ```no_run
    /// use devmem_tcp::Netdev;
    ///
    /// let nic = Netdev::user("tap:dm0,10.77.0.1/24", "10.77.0.2/24")?;   // the kernel has 10.77.0.1
    /// let listener = nic.listen("10.77.0.2:5201")?;                      // reached by: nc -N 10.77.0.2 5201
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if a text cannot be parsed; otherwise the reason why the link cannot
    /// be opened.
    pub fn user(link: &str, address: &str) -> Result<Self, Error> {
        Self::builder(link)?.address(address)?.open()
    }

    /// Returns a builder for a user-space NIC on `link`, which is a [`LinkSpec`](crate::LinkSpec). After `tap:NAME`,
    /// `packet:NAME` and `macvtap:NAME`, options may follow, each after a comma: `mac=02:00:00:00:00:02` as for [`NetdevBuilder::mac`],
    /// `ports=5201-5210` as for [`NetdevBuilder::share_ports`], `mode=private` as for
    /// [`NetdevBuilder::macvtap_mode`], and for a TAP addresses of the kernel's end as for [`NetdevBuilder::peer_address`]. After
    /// `unix:PATH` and `unix-listen:PATH` `,share=send` may follow, as [`NetdevBuilder::share_send_memory`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if the text cannot be parsed.
    pub fn builder(link: &str) -> Result<NetdevBuilder, Error> {
        let Some((link, options)) = split_options(link) else {
            return Ok(NetdevBuilder::new(link.parse()?));
        };
        let builder = NetdevBuilder::new(link.parse()?);
        options
            .split(',')
            .try_fold(builder, NetdevBuilder::link_option)
    }

    /// Opens two user-space NICs, 10.77.0.1 and 10.77.0.2 (also fd77::1 and fd77::2), joined by an in-memory wire with the
    /// given impairments. They run in virtual time: no call waits for real time, and the same seed repeats the same run.
    ///
    /// # Errors
    /// Memory or file descriptors for the queues cannot be allocated.
    pub fn pair(impairment: Impairment) -> Result<(Self, Self), Error> {
        pair(impairment)
    }
}
