//! The number of connections of a row.

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Number of connections of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    /// Those that the sender sends on, as fast as each accepts.
    pub busy: usize,
    /// Those that stay silent.
    pub idle: usize,
}

impl Connections {
    /// Allows this process to have a descriptor for each connection.
    pub fn raise_fd_limit(self) -> Result<()> {
        const OTHERS: u64 = 100;
        let limit = getrlimit(Resource::Nofile);
        let wanted = u64::try_from(self.all())? + OTHERS;
        if limit.current.is_none_or(|most| most >= wanted) {
            return Ok(());
        }
        let raised = Rlimit {
            current: Some(wanted),
            maximum: limit.maximum,
        };
        setrlimit(Resource::Nofile, raised).with_context(|| {
            format!(
                "allow {wanted} descriptors; raise the limit of this shell: ulimit -Hn {wanted}"
            )
        })
    }

    /// Returns the number of all.
    pub fn all(self) -> usize {
        self.busy + self.idle
    }
}
