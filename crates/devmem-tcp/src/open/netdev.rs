//! Opening a user-space NIC on a link.

use nic::Impairment;

use super::{NetdevBuilder, open_pair};
use crate::error::Error;
use crate::link::LinkSpec;
use crate::netdev::Netdev;

impl Netdev {
    /// Opens a user-space NIC on `link`, a [`LinkSpec`] or its text (`tap:NAME`, `packet:NAME`, `macvtap:NAME`, `unix:PATH`,
    /// `unix-listen:PATH` or `mem:NAME`, with or without options), with the address `address` (`10.77.0.2/24`, or `auto` as for [`NetdevBuilder::address`]). [`Netdev::builder`] has more options.
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
    pub fn user(
        link: impl TryInto<LinkSpec, Error: Into<Error>>,
        address: &str,
    ) -> Result<Self, Error> {
        Self::builder(link)?.address(address)?.open()
    }

    /// Returns a builder for a user-space NIC on `link`, a [`LinkSpec`] or its text. What the options of the link say can be said by
    /// methods of the builder, too.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if the text cannot be parsed.
    pub fn builder(
        link: impl TryInto<LinkSpec, Error: Into<Error>>,
    ) -> Result<NetdevBuilder, Error> {
        link.try_into().map(NetdevBuilder::new).map_err(Into::into)
    }

    /// Opens two user-space NICs, 10.77.0.1 and 10.77.0.2 (also fd77::1 and fd77::2), joined by an in-memory wire with the
    /// given impairments. They run in virtual time: no call waits for real time, and the same seed repeats the same run.
    ///
    /// # Errors
    /// Memory or file descriptors for the queues cannot be allocated.
    pub fn pair(impairment: Impairment) -> Result<(Self, Self), Error> {
        open_pair(impairment)
    }
}
