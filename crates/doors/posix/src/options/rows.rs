//! All options, and the calls that set and read them.

mod fast_open;
mod ip;
mod socket;
mod tcp_level;

use devmem_uapi::{Errno, sockopt};

use super::row::{Row, View};
use super::values::int;
use super::{Effect, Options};
use crate::abi::SOL_TCP;
use crate::sockaddr::Family;

/// Returns the rows of all options.
pub(super) fn all() -> impl Iterator<Item = &'static Row> {
    [socket::ROWS, tcp_level::ROWS, fast_open::ROWS, ip::ROWS]
        .into_iter()
        .flatten()
}

/// Returns the row of an option that sockets of `family` have.
fn find(family: Family, name: (i32, i32)) -> Option<&'static Row> {
    let has_level = name.0 != sockopt::SOL_IPV6 || family == Family::V6;
    all().find(|row| has_level && row.name() == name)
}

impl Options {
    /// Sets an option from its bytes.
    ///
    /// # Errors
    /// As setsockopt(2): ENOPROTOOPT for an unknown option, EINVAL for an invalid value.
    pub(crate) fn set(
        &mut self,
        family: Family,
        name: (i32, i32),
        value: &[u8],
    ) -> Result<Effect, Errno> {
        let Some(row) = find(family, name).filter(|row| row.is_settable()) else {
            if name.0 == SOL_TCP {
                // The length is checked before the name (linux `do_tcp_setsockopt`).
                int(value)?;
            }
            return Err(Errno::ENOPROTOOPT);
        };
        row.set(self, value)
    }

    /// Returns the bytes of an option that depends only on the values set.
    ///
    /// # Errors
    /// ENOPROTOOPT for an unknown option.
    pub(crate) fn get(
        &self,
        family: Family,
        name: (i32, i32),
        base: &tcp::Config,
    ) -> Result<Vec<u8>, Errno> {
        let row = find(family, name).ok_or(Errno::ENOPROTOOPT)?;
        row.get(View {
            options: self,
            family,
            base,
        })
    }
}
