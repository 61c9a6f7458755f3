//! Telling the NIC where payload belongs, before its header has come.
//!
//! A session that knows the order of its requests predicts the payload of several of them, and the NIC is told all of their places
//! (`plan.rs`). If other bytes come than were predicted, the places have bytes of others, perhaps several headers and payloads: they
//! are moved to host memory, all that have arrived, before anything is written there.

use client::LoadError;
use devmem_tcp::RecvError;

use super::plan::AHEAD;
use super::{Direct, broken, to_usize};
use crate::load::landing::Landing;
use crate::load::session::{Fault, Next, Predicted, Session};

/// Planned bytes from which on a plan waits for new requests: those of a poll that comes late, which receives eight times as much as
/// others.
const ENOUGH_BYTES: u64 = 4 << 20;
/// The same of a plan of short payload, which waits although there are new requests: what two polls receive. Each header that was not read when
/// it is continued takes the place of payload, whose bytes take the place of later payload.
const FEW_BYTES: u64 = 1 << 20;
/// Fewer bytes than these are short payload.
const SHORT_BYTES: u64 = 256 << 10;
/// Bytes that are moved away at a time.
const MOVED_BYTES: usize = 256 << 10;

impl Direct {
    /// Tells the NIC where the next payload belongs, and where that belongs which is likely to follow it.
    ///
    /// # Errors
    /// Other payload came than was predicted, and it cannot be moved away.
    pub(super) fn name_places(
        &mut self,
        session: &dyn Session,
        landing: &Landing<'_>,
    ) -> Result<(), Fault> {
        if !self.moved.is_empty() {
            return Ok(());
        }
        let next = session.next();
        let current = match next {
            Next::Payload { at, len } => Some(Predicted { gap: 0, at, len }),
            Next::Header(_) | Next::Text(_) => None,
            Next::Nothing | Next::Zeros { .. } | Next::Skip(_) => return Ok(()),
        };
        self.plan.forget(self.taken);
        if !self.plan.fits(self.taken, next) {
            if self.plan.is_predicted() {
                return self.move_away(landing);
            }
            self.plan.clear(self.taken);
        }
        self.continue_plan(current, session, landing)
    }

    /// Plans the bytes from those of `current` on, or from the next header on, and tells the NIC.
    fn continue_plan(
        &mut self,
        current: Option<Predicted>,
        session: &dyn Session,
        landing: &Landing<'_>,
    ) -> Result<(), Fault> {
        let first = current.or_else(|| session.predicted(1).first().copied());
        let Some(Predicted { at, len, .. }) = first else {
            return Ok(());
        };
        // With short payload there is nothing to plan, and every header comes here.
        let is_idle = self.plan.is_empty() && !Landing::is_worth_telling(len);
        let ends = |payload: Predicted| {
            let end = self.taken.saturating_add(payload.len);
            self.plan.payload_ends(end)
        };
        let outstanding = session.outstanding();
        let has_new = outstanding > self.planned;
        self.planned = outstanding.min(self.planned);
        let has_all = self.plans_all && !self.plan.is_empty();
        let is_enough = match len < SHORT_BYTES {
            true => has_all && !has_new || self.plan.has(FEW_BYTES, self.taken),
            false => !has_new && (has_all || self.plan.has(ENOUGH_BYTES, self.taken)),
        };
        if is_idle || is_enough && current.is_none_or(ends) {
            return Ok(());
        }
        self.planned = outstanding;
        let Some(target) = landing.target_at(at) else {
            return Ok(());
        };
        let mut upcoming: Vec<_> = current.into_iter().collect();
        upcoming.extend(session.predicted(AHEAD));
        let (plan, agrees) = self.plan.continued(self.taken, &upcoming, |at, len| {
            let (other, places) = landing.target(at, len)?;
            other.memory().is_same(target.memory()).then_some(places)
        });
        let before_last = before_last(self.taken, &upcoming);
        self.plans_all = upcoming.len() >= outstanding && plan.end() > before_last;
        if plan == self.plan {
            return Ok(());
        }
        match self.stream.place_next(target, &plan.places(self.taken)) {
            Ok(()) => self.plan = plan,
            Err(_) if !agrees => return self.move_away(landing),
            // Without it, what was received is copied.
            Err(_) => {}
        }
        Ok(())
    }

    /// Ends the placing, and moves what has arrived in the places of the plan to host memory: other bytes were predicted.
    fn move_away(&mut self, landing: &Landing<'_>) -> Result<(), Fault> {
        self.mispredicted += 1;
        // Bytes behind the plan are not in its places.
        let mut left = to_usize(self.plan.end().saturating_sub(self.taken));
        self.plan.clear(self.taken);
        if let Some(target) = landing.any_target() {
            // It fails only if the stream has ended, and then nothing is placed any more.
            let _ = self.stream.place_next(target, &[]);
        }
        while left > 0 {
            let received = match self.receive_bytes(left.min(MOVED_BYTES)) {
                // The end is seen again.
                Ok(0) | Err(RecvError::WouldBlock | RecvError::TimedOut { .. }) => return Ok(()),
                Ok(received) => received,
                Err(error) => return Err(broken(error)),
            };
            self.text.resize(received, 0);
            let copied = self.batch.copy_to(&mut self.text);
            copied.map_err(LoadError::Gather)?;
            self.release()?;
            self.moved.extend(&self.text);
            left = left.saturating_sub(received);
        }
        Ok(())
    }
}

/// Returns the position of the last payload in the stream, if the next byte is at position `taken`.
fn before_last(taken: u64, upcoming: &[Predicted]) -> u64 {
    let mut bytes = taken;
    let mut start = taken;
    for Predicted { gap, len, .. } in upcoming {
        start = bytes.saturating_add(*gap as u64);
        bytes = start.saturating_add(*len);
    }
    start
}
