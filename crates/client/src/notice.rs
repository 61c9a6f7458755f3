//! What a load says aloud: to the program, which prints it or not.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::cause::Cause;

/// Shortest wait that a notice reports.
const LONG_WAIT: Duration = Duration::from_secs(2);

/// Takes the text of a notice, on any thread.
type NoticeHandler = dyn Fn(&str) + Send + Sync;

/// Hears of waits and of what is worth a warning.
#[derive(Clone, Default)]
pub struct Notice {
    hear: Option<Arc<NoticeHandler>>,
    has_told_of_plain: Arc<AtomicBool>,
}

impl Notice {
    /// Says everything to `hear`.
    pub fn to(hear: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self {
            hear: Some(Arc::new(hear)),
            ..Self::default()
        }
    }

    /// Says that nothing happens for `wait` because of `cause`, if that is long.
    pub fn waits(&self, cause: &Cause, wait: Duration) {
        if let Some(hear) = &self.hear
            && wait >= LONG_WAIT
        {
            hear(&format!(
                "{cause}: the next attempt is in {:.0} s",
                wait.as_secs_f64()
            ));
        }
    }

    /// Says that an https URL redirects to plain HTTP, once: a checkpoint has many files.
    pub(crate) fn is_plain(&self, from: &str, to: &str) {
        if let Some(hear) = &self.hear
            && !self.has_told_of_plain.swap(true, Ordering::Relaxed)
        {
            hear(&format!(
                "warning: {from} redirects to {to}: the bytes are neither encrypted nor verified on their way"
            ));
        }
    }
}

impl fmt::Debug for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Notice").field(&self.hear.is_some()).finish()
    }
}
