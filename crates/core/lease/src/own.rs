//! The addresses that this machine has itself, and which no server can lend to its NIC.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

/// How long the list is used: a flood of replies must not cost a look at all interfaces each.
const LIST_LIFETIME: Duration = Duration::from_secs(1);

/// The addresses of this network namespace, without those whose place the NIC takes.
pub struct OwnAddresses {
    look_up: Box<dyn FnMut() -> Option<Vec<IpAddr>> + Send>,
    list: Vec<IpAddr>,
    read_at: Option<Duration>,
}

impl OwnAddresses {
    /// Returns the addresses that `look_up` finds, which is asked once a second at most. Where it finds none (`None`), those that it
    /// found last are as good.
    pub fn new(look_up: impl FnMut() -> Option<Vec<IpAddr>> + Send + 'static) -> Self {
        Self {
            look_up: Box::new(look_up),
            list: Vec::new(),
            read_at: None,
        }
    }

    /// Returns the addresses; `now` is the time since an arbitrary begin.
    pub(crate) fn list(&mut self, now: Duration) -> &[IpAddr] {
        let is_old = |at: Duration| now.saturating_sub(at) >= LIST_LIFETIME;
        if self.read_at.is_none_or(is_old)
            && let Some(list) = (self.look_up)()
        {
            self.list = list;
            self.read_at = Some(now);
        }
        &self.list
    }
}

impl fmt::Debug for OwnAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.list).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_read_once_a_second_and_the_last_one_stays() {
        let mut reads = [Some(1), Some(2), None].into_iter();
        let host = |last: u8| IpAddr::from([10, 0, 0, last]);
        let mut own = OwnAddresses::new(move || Some(vec![host(reads.next()??)]));
        let millis = Duration::from_millis;
        let seen = [0, 999, 1000, 2000].map(|at| own.list(millis(at)).to_vec());
        assert_eq!(seen, [1, 1, 2, 2].map(|last| vec![host(last)]));
    }
}
