//! Applied settings of a receiver.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::error::Error;
use crate::restore::{Drift, RestoreReport};
use crate::{kernel, user};

/// Applied settings. Dropping it restores the previous ones, unless a binding needs them.
#[derive(Debug)]
pub(crate) enum Prepared {
    /// No other process can change such a NIC, and restoring cannot fail.
    User(user::Prepared),
    Kernel(Arc<kernel::Prepared>),
}

/// Segments from a peer are steered to the queues until it is dropped.
#[derive(Debug)]
pub(crate) enum Steered {
    User { _steered: user::Steered },
    Kernel { _steered: kernel::Steered },
}

impl Prepared {
    /// Returns the settings of an interface of the kernel, in the process that made them.
    fn of_kernel(&self) -> Option<&kernel::Prepared> {
        match self {
            Self::User(_) => None,
            Self::Kernel(prepared) => prepared.check().ok().map(|()| &**prepared),
        }
    }

    /// Steers what comes from `peer`, too.
    pub(crate) fn steer_from(&self, peer: SocketAddr) -> Result<Steered, Error> {
        Ok(match self {
            Self::User(prepared) => {
                let _steered = prepared.steer_from(peer)?;
                Steered::User { _steered }
            }
            Self::Kernel(prepared) => {
                prepared.check()?;
                let _steered = prepared.steer_from(peer)?;
                Steered::Kernel { _steered }
            }
        })
    }

    /// Returns the changes to an interface of the kernel, as commands.
    pub(crate) fn changes(&self) -> Vec<String> {
        self.of_kernel()
            .map(kernel::Prepared::changes)
            .unwrap_or_default()
    }

    /// Returns what an agent must have set where it cannot be seen.
    pub(crate) fn unseen(&self) -> Vec<String> {
        self.of_kernel()
            .map(kernel::Prepared::unseen)
            .unwrap_or_default()
    }

    /// Returns the settings that have changed since.
    pub(crate) fn drifts(&self) -> Vec<Drift> {
        self.of_kernel()
            .map(kernel::Prepared::drifts)
            .unwrap_or_default()
    }

    /// Restores the previous settings of an interface of the kernel and returns a report.
    pub(crate) fn restore(&self) -> RestoreReport {
        self.of_kernel()
            .map(kernel::Prepared::restore)
            .unwrap_or_default()
    }
}
