//! What a load says while it waits: to the program, which prints it or not.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Shortest wait that is said aloud.
const LONG_WAIT: Duration = Duration::from_secs(2);

/// Is told why a load waits, by any thread.
type Hear = dyn Fn(&str) + Send + Sync;

/// Hears of waits.
#[derive(Clone, Default)]
pub(crate) struct Notice(Option<Arc<Hear>>);

impl Notice {
    pub(crate) fn to(hear: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hear)))
    }

    /// Says that nothing happens for `wait` because of `cause`, if that is long.
    pub(crate) fn waits(&self, cause: &str, wait: Duration) {
        if let Some(hear) = &self.0
            && wait >= LONG_WAIT
        {
            let cause = cause.lines().next().unwrap_or_default();
            hear(&format!(
                "{cause}: the next attempt is in {:.0} s",
                wait.as_secs_f64()
            ));
        }
    }
}

impl fmt::Debug for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Notice").field(&self.0.is_some()).finish()
    }
}
