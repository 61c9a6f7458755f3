//! Where the next bytes of a connection go, as far as their order can be predicted.
//!
//! Headers between payload go to the last bytes of payload that comes later, which nobody needs yet. If that payload is planned before they
//! were read, its bytes that belong there go to payload that comes later still, and are copied to their place when they have come.

use std::collections::VecDeque;
use std::ops::Range;

use crate::load::session::{Next, Predicted};

/// Most ranges of payload that are planned: those of the commands that are usually in flight.
pub(super) const AHEAD: usize = 64;

/// The place of each of the next bytes of a connection, up to an end. The NIC was told them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// One behind the other.
    parts: VecDeque<Part>,
    /// Position in the stream of the connection of the byte behind the last part.
    end: u64,
}

/// Bytes that are of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    /// Position of the first one in the stream.
    start: u64,
    kind: Kind,
    /// Ranges of the target.
    places: Vec<Range<usize>>,
    /// Those among them that belong to other payload.
    borrowed: Vec<Range<usize>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Headers,
    /// Payload, with the offset of its first byte in the source.
    Payload {
        at: u64,
        /// Its header has not come.
        is_predicted: bool,
    },
}

impl Part {
    fn end(&self) -> u64 {
        self.start.saturating_add(total(&self.places))
    }
}

impl Plan {
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Returns the position behind the last byte.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Forgets all bytes; the next one is at position `taken`.
    pub(super) fn clear(&mut self, taken: u64) {
        self.parts.clear();
        self.end = taken;
    }

    /// Returns whether so many bytes are planned from position `taken` on.
    pub(super) fn has(&self, bytes: u64, taken: u64) -> bool {
        self.end.saturating_sub(taken) >= bytes
    }

    /// Forgets the bytes before position `taken`.
    pub(super) fn forget(&mut self, taken: u64) {
        while self.parts.front().is_some_and(|part| part.end() <= taken) {
            self.parts.pop_front();
        }
        if self.parts.is_empty() {
            self.end = taken;
        }
    }

    /// Returns whether what comes next, at position `taken`, is what was planned there, if anything was.
    pub(super) fn fits(&self, taken: u64, next: Next) -> bool {
        match (self.parts.front().map(|part| (part.start, part.kind)), next) {
            (None, _) | (Some((_, Kind::Headers)), Next::Header(_) | Next::Text(_)) => true,
            (Some((start, Kind::Payload { at, .. })), Next::Payload { at: now, .. }) => {
                at.saturating_add(taken.saturating_sub(start)) == now
            }
            _ => false,
        }
    }

    /// Returns whether the payload that comes next ends at this position, as far as it is planned.
    pub(super) fn payload_ends(&self, position: u64) -> bool {
        let mut headers = self.parts.iter().filter(|part| part.kind == Kind::Headers);
        match headers.next() {
            Some(headers) => headers.start == position,
            None => self.end <= position,
        }
    }

    /// Returns whether it has bytes whose header has not come, or had not when they were planned.
    pub(super) fn is_predicted(&self) -> bool {
        self.parts.iter().any(|part| match part.kind {
            Kind::Headers => true,
            Kind::Payload { is_predicted, .. } => is_predicted,
        })
    }

    /// Returns the places of the bytes from position `taken` on.
    pub(super) fn places(&self, taken: u64) -> Vec<Range<usize>> {
        let first = self.parts.front().map_or(taken, |part| part.start);
        let places = self.parts.iter().flat_map(|part| part.places.clone());
        behind(places, taken.saturating_sub(first))
    }

    /// Returns the plan for what is `upcoming` from position `taken` on, and whether it agrees with this one as far as that goes.
    /// `places_of` returns the places of the first bytes of payload in the target, from an offset in the source on and up to a
    /// length; `None` if they are in another memory, or too few.
    pub(super) fn continued(
        &self,
        taken: u64,
        upcoming: &[Predicted],
        places_of: impl Fn(u64, u64) -> Option<Vec<Range<usize>>>,
    ) -> (Self, bool) {
        let (mut plan, mut agrees) = (self.clone(), true);
        let mut position = taken;
        for (index, next) in upcoming.iter().enumerate() {
            let before = position;
            let start = before.saturating_add(next.gap as u64);
            position = start.saturating_add(next.len);
            if plan.end > before && !plan.agrees_with(before, next) {
                plan.truncate(before);
                agrees = false;
            }
            if plan.end >= position {
                continue;
            }
            let later = &upcoming[index + 1..];
            if plan.add(before, next, later, &places_of).is_none() {
                break;
            }
        }
        (plan, agrees)
    }

    /// Returns whether the planned bytes from position `before` on are those of a gap and of payload.
    fn agrees_with(&self, before: u64, next: &Predicted) -> bool {
        let start = before.saturating_add(next.gap as u64);
        let end = start.saturating_add(next.len);
        // Not all parts are looked at for each of the payloads.
        let first = self.parts.partition_point(|part| part.end() <= before);
        let behind = self.parts.range(first..);
        let mut touched = behind.take_while(|part| part.start < end);
        touched.all(|part| match part.kind {
            Kind::Headers => part.start <= before && part.end() == start,
            Kind::Payload { at, .. } if part.start >= start => {
                at == next.at.saturating_add(part.start - start)
            }
            // What comes next, of which some bytes have come.
            Kind::Payload { at, .. } => {
                next.gap == 0 && at.saturating_add(start - part.start) == next.at
            }
        })
    }

    /// Forgets the bytes from a position on.
    fn truncate(&mut self, position: u64) {
        while self.parts.back().is_some_and(|part| part.start >= position) {
            self.parts.pop_back();
        }
        if let Some(last) = self.parts.back_mut() {
            let kept = position.saturating_sub(last.start);
            last.places = first_bytes(&last.places, kept);
        }
        self.end = self.end.min(position);
    }

    /// Plans a gap and the payload behind it. Returns `None` if nothing can be planned behind them.
    fn add(
        &mut self,
        before: u64,
        next: &Predicted,
        later: &[Predicted],
        places_of: &impl Fn(u64, u64) -> Option<Vec<Range<usize>>>,
    ) -> Option<()> {
        let Predicted { gap, at, len } = *next;
        let start = before.saturating_add(gap as u64);
        let places = places_of(at, len)?;
        let is_whole = total(&places) == len;
        let planned = self.end.saturating_sub(start);
        if planned == 0 && gap > 0 {
            let mut candidates = later.iter().rev().chain([next]);
            let room = candidates.find_map(|it| self.room_in(it, gap, &[], places_of))?;
            self.push(Part {
                start: before,
                kind: Kind::Headers,
                places: vec![room.clone()],
                borrowed: vec![room],
            });
        }
        let mut part = Part {
            start: start.saturating_add(planned),
            kind: Kind::Payload {
                at: at.saturating_add(planned),
                is_predicted: gap > 0,
            },
            places: Vec::new(),
            borrowed: Vec::new(),
        };
        let goes_on = behind(places, planned)
            .into_iter()
            .try_for_each(|place| self.place_around(&mut part, place, later, places_of));
        if !part.places.is_empty() {
            self.push(part);
        }
        goes_on.filter(|()| is_whole)
    }

    fn push(&mut self, part: Part) {
        self.end = part.end();
        self.parts.push_back(part);
    }

    /// Adds a place to a part. Bytes of it that other parts have borrowed are replaced by room in `later` payload. Returns `None` if there is
    /// none.
    fn place_around(
        &self,
        part: &mut Part,
        mut place: Range<usize>,
        later: &[Predicted],
        places_of: &impl Fn(u64, u64) -> Option<Vec<Range<usize>>>,
    ) -> Option<()> {
        while !place.is_empty() {
            let Some(used) = self.first_borrowed(&place) else {
                part.places.push(place);
                return Some(());
            };
            if used.start > place.start {
                part.places.push(place.start..used.start);
                place.start = used.start;
            }
            let len = used.end.min(place.end) - place.start;
            let mut candidates = later.iter().rev();
            let room =
                candidates.find_map(|it| self.room_in(it, len, &part.borrowed, places_of))?;
            part.places.push(room.clone());
            part.borrowed.push(room);
            place.start += len;
        }
        Some(())
    }

    /// Returns the first bytes of a place that are borrowed, side by side as one range: the NIC takes few ranges for a packet.
    fn first_borrowed(&self, place: &Range<usize>) -> Option<Range<usize>> {
        let in_place = self.borrowed().filter(|used| meet(used, place));
        let mut in_place: Vec<_> = in_place.cloned().collect();
        in_place.sort_unstable_by_key(|used| used.start);
        let mut in_place = in_place.into_iter();
        let mut first = in_place.next()?;
        for used in in_place {
            if used.start > first.end {
                break;
            }
            first.end = used.end;
        }
        Some(first)
    }

    /// Returns the places that belong to other payload.
    fn borrowed(&self) -> impl Iterator<Item = &Range<usize>> {
        self.parts.iter().flat_map(|part| &part.borrowed)
    }

    /// Returns room for `len` bytes in the last range of payload, before all that is borrowed there, or is in `others`.
    fn room_in(
        &self,
        payload: &Predicted,
        len: usize,
        others: &[Range<usize>],
        places_of: &impl Fn(u64, u64) -> Option<Vec<Range<usize>>>,
    ) -> Option<Range<usize>> {
        let places = places_of(payload.at, payload.len)?;
        let last = places.last()?;
        let used = self.borrowed().chain(others);
        let used = used.filter(|used| meet(used, last));
        let end = used.map(|used| used.start).min().unwrap_or(last.end);
        let start = end.checked_sub(len).filter(|start| *start > last.start)?;
        Some(start..end)
    }
}

fn meet(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

fn total(places: &[Range<usize>]) -> u64 {
    places.iter().map(|place| place.len() as u64).sum()
}

/// Returns the places without their first `skip` bytes.
fn behind(places: impl IntoIterator<Item = Range<usize>>, skip: u64) -> Vec<Range<usize>> {
    let mut skip = usize::try_from(skip).unwrap_or(usize::MAX);
    let rest = places.into_iter().map(|place| {
        let passed = skip.min(place.len());
        skip -= passed;
        place.start + passed..place.end
    });
    rest.filter(|place| !place.is_empty()).collect()
}

/// Returns the places of the first `len` bytes.
fn first_bytes(places: &[Range<usize>], len: u64) -> Vec<Range<usize>> {
    let mut len = usize::try_from(len).unwrap_or(usize::MAX);
    let first = places.iter().map(|place| {
        let kept = len.min(place.len());
        len -= kept;
        place.start..place.start + kept
    });
    first.filter(|place| !place.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// The source is at the beginning of the target.
    #[expect(clippy::unnecessary_wraps, reason = "as a landing answers")]
    fn places_of(at: u64, len: u64) -> Option<Vec<Range<usize>>> {
        let at = at as usize;
        Some(vec![at..at + len as usize])
    }

    /// Commands of 1 MiB from `first` to `last`, behind headers of 24 bytes.
    fn commands(first: u64, last: u64) -> Vec<Predicted> {
        let command = |number| Predicted {
            gap: 24,
            at: number * MIB,
            len: MIB,
        };
        (first..last).map(command).collect()
    }

    /// Checks the places: each byte has one, and payload that is not in its own is short. The stream has commands of 1 MiB in their order.
    fn check(plan: &Plan, taken: u64) {
        let mut position = taken;
        let mut used: Vec<Range<usize>> = Vec::new();
        let mut elsewhere = 0;
        for place in plan.places(taken) {
            let is_twice = used.iter().any(|it| meet(it, &place));
            assert!(!is_twice, "{place:?} is named twice");
            let in_command = position % (MIB + 24);
            if in_command >= 24 {
                let at = position / (MIB + 24) * MIB + in_command - 24;
                if place.start as u64 != at {
                    assert!(place.len() < 2048, "payload at {position}");
                    elsewhere += place.len();
                }
            }
            position += place.len() as u64;
            used.push(place);
        }
        assert_eq!(position, plan.end());
        assert!(elsewhere < 8192, "{elsewhere} bytes are copied");
    }

    #[test]
    fn all_commands_in_flight_are_planned_whatever_was_read_and_each_byte_has_one_place() {
        let (count, window) = (40, 8);
        // How many commands are read before others are requested.
        for batch in [1, 2, 8] {
            let mut plan = Plan::default();
            for number in 0..count {
                let start = number * (MIB + 24);
                let last = count.min((number / batch) * batch + window);
                plan.forget(start);
                assert!(plan.fits(start, Next::Header(24)));
                let (now, agrees) = plan.continued(start, &commands(number, last), places_of);
                assert!(agrees);
                check(&now, start);
                // Up to the end of the last one, which has the headers.
                let least = last * (MIB + 24) - 1024;
                assert!(now.end() >= least, "{number}: {} of {least}", now.end());
                plan = now;
                let payload = Next::Payload {
                    at: number * MIB,
                    len: MIB,
                };
                plan.forget(start + 24);
                assert!(plan.fits(start + 24, payload), "{number}");
                let mut upcoming = commands(number, last);
                upcoming[0].gap = 0;
                let (now, agrees) = plan.continued(start + 24, &upcoming, places_of);
                assert!(agrees && now.end() >= start + 24 + MIB, "{number}");
                check(&now, start + 24);
                plan = now;
            }
            assert_eq!(plan.end(), count * (MIB + 24), "also the last command");
        }
    }

    #[test]
    fn the_header_of_the_last_command_goes_to_its_own_end_until_it_was_read() {
        let plan = Plan::default();
        let (plan, _) = plan.continued(0, &commands(7, 8), places_of);
        let (start, end) = (7 << 20, 8 << 20);
        assert_eq!(plan.places(0), [end - 24..end, start..end - 24]);
        let current = [Predicted {
            gap: 0,
            at: 7 * MIB,
            len: MIB,
        }];
        let mut plan = plan;
        plan.forget(24);
        let (plan, agrees) = plan.continued(24, &current, places_of);
        assert!(agrees);
        assert_eq!(plan.places(24), [start..end - 24, end - 24..end]);
    }

    #[test]
    fn other_bytes_than_planned_do_not_fit() {
        let (mut plan, _) = Plan::default().continued(0, &commands(0, 8), places_of);
        assert!(plan.is_predicted());
        let payload = |at| Next::Payload { at, len: MIB };
        assert!(!plan.fits(0, payload(0)), "a header comes first");
        plan.forget(24);
        assert!(plan.fits(24, payload(0)) && !plan.fits(24, payload(MIB)));
        assert!(plan.fits(124, payload(100)) && !plan.fits(124, payload(0)));
        assert!(!plan.fits(24, Next::Header(24)));
        plan.clear(24);
        assert!(plan.fits(24, payload(MIB)) && plan.is_empty());
    }

    #[test]
    fn a_plan_ends_where_what_is_predicted_changes() {
        let (plan, _) = Plan::default().continued(0, &commands(0, 8), places_of);
        let mut later = commands(0, 8);
        // A response comes with each of them.
        later[1].gap = 48;
        let (changed, agrees) = plan.continued(0, &later, places_of);
        assert!(!agrees);
        let same = MIB + 24;
        assert_eq!(changed.places(0)[..2], plan.places(0)[..2]);
        assert!(changed.end() > same && !changed.agrees_with(same, &commands(1, 2)[0]));
        // In two parts.
        let mut parts = commands(0, 8);
        parts[0].len = MIB / 2;
        parts.insert(
            1,
            Predicted {
                gap: 24,
                at: MIB / 2,
                len: MIB / 2,
            },
        );
        let mut begun = plan.clone();
        begun.forget(24);
        assert!(begun.payload_ends(24 + MIB) && !begun.payload_ends(24 + MIB / 2));
        let (changed, agrees) = plan.continued(0, &parts, places_of);
        assert!(!agrees);
        assert_eq!(changed.places(0)[1], 0..1 << 19);
    }

    #[test]
    fn what_is_in_no_target_ends_a_plan() {
        let one = |at: u64, len| places_of(at, len).filter(|_| at < MIB);
        let (plan, _) = Plan::default().continued(0, &commands(0, 8), one);
        assert_eq!(plan.end(), MIB, "one command, without its end");
        let (plan, _) = Plan::default().continued(5, &commands(1, 8), one);
        assert!(plan.is_empty());
        // The first half of a range, because the rest is in another memory.
        let half = |at: u64, len: u64| places_of(at, len / 2);
        let current = [Predicted {
            gap: 0,
            at: 0,
            len: MIB,
        }];
        let (plan, _) = Plan::default().continued(0, &current, half);
        assert_eq!(plan.places(0), [0..1 << 19]);
        assert!(!plan.is_predicted());
        let (again, agrees) = plan.continued(0, &current, half);
        assert!(agrees && again == plan);
    }
}
