//! Telling the NIC where payload belongs, before its header has come.
//!
//! A session that knows the order of its requests foretells the payload behind the next header. The NIC is told its place, too; the
//! header goes to the last bytes of that place. If other bytes come than were foretold, the place has bytes of others, perhaps
//! several headers and payloads: they are moved to host memory, all that have arrived, before anything is written there.

use devmem_tcp::RecvError;

use super::{Direct, broken, to_usize};
use crate::load::error::LoadError;
use crate::load::landing::Landing;
use crate::load::session::{Fault, Foretold, Next, Session};

/// Bytes that are moved away at a time.
const MOVED_BYTES: usize = 256 << 10;

/// Payload whose place the NIC was told before its header has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Named {
    /// Offset of its first byte in the source.
    at: u64,
    len: u64,
    /// Bytes of the connection before it.
    before: u64,
}

impl Direct {
    /// Tells the NIC where the next payload belongs, and where the one that is likely to follow it.
    ///
    /// # Errors
    /// Other payload came than was foretold, and it cannot be moved away.
    pub(super) fn name_places(
        &mut self,
        session: &dyn Session,
        landing: &Landing<'_>,
    ) -> Result<(), Fault> {
        if !self.moved.is_empty() {
            return Ok(());
        }
        match session.next() {
            Next::Payload { at, len } if !self.direct.contains(&at) => {
                let next = self.named(Foretold { gap: 0, at, len });
                if let Some(named) = self.foretold.take()
                    && named != next
                {
                    return self.move_away(named, landing);
                }
                self.direct = at..at.saturating_add(len.min(landing.room(at)));
                self.place_payload(at, len, session, landing);
                Ok(())
            }
            Next::Header(_) => self.place_foretold(session, landing),
            _ => Ok(()),
        }
    }

    fn named(&self, foretold: Foretold) -> Named {
        let Foretold { gap, at, len } = foretold;
        Named {
            at,
            len,
            before: self.taken.saturating_add(gap as u64),
        }
    }

    /// Names the place of `len` bytes of payload that come next, and that of those behind them.
    fn place_payload(&mut self, at: u64, len: u64, session: &dyn Session, landing: &Landing<'_>) {
        let Some((target, places, covered)) = landing.target(at, len) else {
            return;
        };
        self.direct.end = at.saturating_add(covered);
        let foretold = session.foretold().filter(|_| covered == len);
        if let Some(foretold) = foretold
            && let Some((other, behind)) = landing.foretold_places(foretold)
            && other.memory().is_same(target.memory())
        {
            let both = [&places[..], &behind].concat();
            if self.stream.place_next(target, &both).is_ok() {
                let gap = foretold.gap.saturating_add(to_usize(len));
                self.foretold = Some(self.named(Foretold { gap, ..foretold }));
                return;
            }
        }
        // Without it, what was received is copied.
        let _ = self.stream.place_next(target, &places);
    }

    /// Names the place of the payload behind a header that has not come.
    fn place_foretold(
        &mut self,
        session: &dyn Session,
        landing: &Landing<'_>,
    ) -> Result<(), Fault> {
        let foretold = session.foretold();
        let named = foretold.map(|foretold| self.named(foretold));
        if self.foretold.is_some() && self.foretold == named {
            return Ok(());
        }
        if let Some(other) = self.foretold.take() {
            return self.move_away(other, landing);
        }
        if let Some(foretold) = foretold
            && let Some((target, places)) = landing.foretold_places(foretold)
            && self.stream.place_next(target, &places).is_ok()
        {
            self.foretold = named;
        }
        Ok(())
    }

    /// Ends the placing, and moves what has arrived in the place of `named` to host memory: it is none of these bytes.
    fn move_away(&mut self, named: Named, landing: &Landing<'_>) -> Result<(), Fault> {
        self.mispredicted += 1;
        self.direct = 0..0;
        if let Some(target) = landing.any_target() {
            // It fails only if the stream has ended, and then nothing is placed any more.
            let _ = self.stream.place_next(target, &[]);
        }
        // Bytes behind the place are not in it.
        let end = named.before.saturating_add(named.len);
        let mut left = to_usize(end.saturating_sub(self.taken));
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
