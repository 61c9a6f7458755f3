//! The addresses that this machine has itself, and which no server can lend to its NIC.

use std::net::IpAddr;
use std::time::Duration;

use crate::open::own_addresses;

/// How long the list is believed: a flood of replies must not cost a look at all interfaces each.
const BELIEVED: Duration = Duration::from_secs(1);

/// The addresses of this network namespace.
pub(crate) struct OwnAddresses {
    /// They are looked up, except those of this interface, whose place the NIC takes; `None`: there are none.
    looked_up: Option<Option<String>>,
    list: Vec<IpAddr>,
    read_at: Option<Duration>,
}

impl OwnAddresses {
    /// Returns the addresses of all interfaces, except those of `replaced`, whose place the NIC takes.
    pub(crate) fn except(replaced: Option<String>) -> Self {
        Self {
            looked_up: Some(replaced),
            list: Vec::new(),
            read_at: None,
        }
    }

    /// Returns no addresses.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self {
            looked_up: None,
            list: Vec::new(),
            read_at: None,
        }
    }

    /// Returns the addresses; `now` is the time since an arbitrary begin.
    pub(super) fn list(&mut self, now: Duration) -> &[IpAddr] {
        let is_old = |at: Duration| now.saturating_sub(at) >= BELIEVED;
        if let Some(replaced) = &self.looked_up
            && self.read_at.is_none_or(is_old)
            // The NIC was opened after this had worked. If it fails, the kernel has no memory, and the last list is as good.
            && let Ok(addresses) = own_addresses()
        {
            let others = addresses
                .into_iter()
                .filter(|(interface, _)| Some(interface) != replaced.as_ref());
            self.list = others.map(|(_, ip)| ip).collect();
            self.read_at = Some(now);
        }
        &self.list
    }
}
