//! What a broker tells of its clients.

use std::fmt;
use std::time::{Duration, Instant};

use devmem_uapi::text::Printable;
use serde::Serialize;

use super::grant::Client;
use super::message::Refusal;
use crate::netdev::KernelRxQueueId;

/// Most refusals that are reported in [`PERIOD`]: a client that asks in a loop must not fill a disk.
const MAX_REPORTED_PER_PERIOD: u32 = 10;
const PERIOD: Duration = Duration::from_secs(1);

/// The end of a client's request. The field names are those of the tool's JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    /// The client.
    pub client: Client,
    /// What became of the request.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Requests without a binding before this one that were not reported, because there were too many.
    pub suppressed: u64,
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// The client has a binding.
    Bound {
        /// The interface.
        interface: String,
        /// Its queues.
        queues: Vec<KernelRxQueueId>,
        /// The kernel's number of the binding.
        id: u32,
    },
    /// The request was refused, by the broker or by the kernel.
    Refused {
        /// The errno.
        errno: i32,
        /// The reason.
        reason: String,
    },
    /// The client has left, or the connection failed.
    Left {
        /// How.
        reason: String,
    },
}

impl From<Refusal> for Outcome {
    fn from(refusal: Refusal) -> Self {
        Self::Refused {
            errno: refusal.errno.0,
            reason: refusal.reason,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            client,
            outcome,
            suppressed,
        } = self;
        write!(f, "{client}: ")?;
        match outcome {
            Outcome::Bound {
                interface,
                queues,
                id,
            } => {
                let queues: Vec<_> = queues.iter().map(|queue| queue.0.to_string()).collect();
                let queues = queues.join(", ");
                write!(f, "bound queue {queues} of {interface}: dma-buf {id}")?;
            }
            Outcome::Refused { reason, .. } => write!(f, "refused: {}", Printable(reason))?,
            Outcome::Left { reason } => write!(f, "nothing bound: {}", Printable(reason))?,
        }
        match suppressed {
            0 => Ok(()),
            suppressed => write!(f, " (after {suppressed} more without a binding)"),
        }
    }
}

/// Limits how many refusals are reported.
#[derive(Debug, Default)]
pub(super) struct Quota {
    /// Beginning of the current period.
    since: Option<Instant>,
    reported: u32,
    suppressed: u64,
}

impl Quota {
    /// Returns whether to report an outcome, and how many before it were not reported. Bindings are always reported: each needs a free queue.
    pub(super) fn admit(&mut self, outcome: &Outcome) -> Option<u64> {
        self.admit_at(Instant::now(), outcome)
    }

    fn admit_at(&mut self, now: Instant, outcome: &Outcome) -> Option<u64> {
        if self
            .since
            .is_none_or(|since| now.saturating_duration_since(since) >= PERIOD)
        {
            (self.since, self.reported) = (Some(now), 0);
        }
        let is_reported =
            matches!(outcome, Outcome::Bound { .. }) || self.reported < MAX_REPORTED_PER_PERIOD;
        if !is_reported {
            self.suppressed = self.suppressed.saturating_add(1);
            return None;
        }
        self.reported = self.reported.saturating_add(1);
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_beyond_the_quota_are_counted_and_bindings_always_reported() {
        let refused = Outcome::Left {
            reason: String::new(),
        };
        let bound = Outcome::Bound {
            interface: "dm0".to_owned(),
            queues: vec![KernelRxQueueId(1)],
            id: 2,
        };
        let start = Instant::now();
        let mut quota = Quota::default();
        for _ in 0..MAX_REPORTED_PER_PERIOD {
            assert_eq!(quota.admit_at(start, &refused), Some(0));
        }
        for _ in 0..3 {
            assert_eq!(quota.admit_at(start, &refused), None);
        }
        assert_eq!(quota.admit_at(start, &bound), Some(3));
        assert_eq!(quota.admit_at(start, &refused), None);
        assert_eq!(quota.admit_at(start + PERIOD, &refused), Some(1));
    }

    #[test]
    fn an_event_is_one_line_whatever_the_client_said() {
        let client = Client {
            pid: 7,
            uid: 1000,
            gid: 100,
        };
        let event = |outcome, suppressed| Event {
            client,
            outcome,
            suppressed,
        };
        let bound = Outcome::Bound {
            interface: "dm0".to_owned(),
            queues: vec![KernelRxQueueId(1), KernelRxQueueId(2)],
            id: 3,
        };
        assert_eq!(
            event(bound.clone(), 0).to_string(),
            "process 7 (uid 1000, gid 100): bound queue 1, 2 of dm0: dma-buf 3"
        );
        let refused = Outcome::Refused {
            errno: 1,
            reason: "a\n\x1b[31m".to_owned(),
        };
        let text = event(refused, 2).to_string();
        assert!(!text.contains(['\n', '\x1b']), "{text:?}");
        assert!(text.ends_with("(after 2 more without a binding)"), "{text}");
        let json = serde_json::to_value(event(bound, 0)).unwrap();
        assert_eq!(json["outcome"], "bound");
        assert_eq!(json["client"]["uid"], 1000);
        assert_eq!(json["queues"], serde_json::json!([1, 2]));
    }
}
