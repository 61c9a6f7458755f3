//! The sockets of a stack, and the lists of those with work: nothing changes a socket but through a [`SocketMut`].
//!
//! A program waits for readiness, so every change has to be compared with what was reported last. The guard's `Drop`
//! does that, and no other module can reach the table. So no call can forget it.

use std::ops::{Deref, DerefMut};

use super::error::BadSocket;
use super::listener::Listener;
use super::readiness::Readiness;
use super::table::{SocketId, SocketTable};
use super::{ConnectionSocket, SocketKind};

/// What a program waits for, at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) readiness: Readiness,
    /// Counts what ever came in for a reader: more of it is news to a program that waits for edges.
    pub(crate) arrivals: u64,
    /// Counts what was ever put into the error queue.
    pub(crate) error_arrivals: u64,
}

impl Snapshot {
    /// Of a new socket, and of one that is ready for nothing.
    pub(crate) const NONE: Self = Self {
        readiness: Readiness::NONE,
        arrivals: 0,
        error_arrivals: 0,
    };
}

/// What a [`SocketMut`] may give access to.
pub(crate) trait Pollable {
    /// Returns what a program may wait for; `None` if no program has the socket's number.
    fn snapshot(&self) -> Option<Snapshot>;
}

/// One slot of the table.
#[derive(Debug)]
struct Slot {
    kind: SocketKind,
    marks: Marks,
}

/// What the lists and the driver know of a socket.
#[derive(Debug)]
struct Marks {
    /// What was reported to the driver last.
    reported: Snapshot,
    /// Stands in the list of events.
    has_event: bool,
    /// Stands in the list of sockets with something to send.
    is_touched: bool,
    /// Stands in the list of connections that segments arrived for in this burst.
    has_arrivals: bool,
}

/// Sockets with work.
#[derive(Debug, Default)]
struct Lists {
    /// Those whose readiness changed.
    events: Vec<SocketId>,
    /// Slots of those that may have something to send.
    touched: Vec<u32>,
    /// Slots of connections that segments arrived for in this burst.
    arrivals: Vec<u32>,
    /// Slots of those with sends that the peer has acknowledged and the NIC still holds.
    draining: Vec<u32>,
}

/// Access to one socket. When it is dropped, a change of readiness becomes an event.
#[derive(Debug)]
pub(crate) struct SocketMut<'a, T: Pollable = SocketKind> {
    id: SocketId,
    target: &'a mut T,
    marks: &'a mut Marks,
    lists: &'a mut Lists,
}

/// Access to a connection.
pub(crate) type ConnectionMut<'a> = SocketMut<'a, ConnectionSocket>;

impl<T: Pollable> SocketMut<'_, T> {
    /// Returns the socket's id.
    pub(crate) fn id(&self) -> SocketId {
        self.id
    }

    /// Notes that the socket may have something to send.
    pub(crate) fn touch(&mut self) {
        if !std::mem::replace(&mut self.marks.is_touched, true) {
            self.lists.touched.push(self.id.slot());
        }
    }

    /// Notes that segments arrived in this burst.
    pub(crate) fn note_arrivals(&mut self) {
        if !std::mem::replace(&mut self.marks.has_arrivals, true) {
            self.lists.arrivals.push(self.id.slot());
        }
    }
}

impl ConnectionMut<'_> {
    /// Notes that the NIC still holds sends that the peer has acknowledged, if that is so.
    pub(crate) fn note_draining(&mut self) {
        if self.target.is_draining()
            && !std::mem::replace(&mut self.target.errors.is_draining, true)
        {
            self.lists.draining.push(self.id.slot());
        }
    }
}

impl<T: Pollable> Deref for SocketMut<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.target
    }
}

impl<T: Pollable> DerefMut for SocketMut<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.target
    }
}

impl<T: Pollable> Drop for SocketMut<'_, T> {
    fn drop(&mut self) {
        let Some(now) = self.target.snapshot() else {
            return;
        };
        if now != self.marks.reported {
            self.marks.reported = now;
            if !std::mem::replace(&mut self.marks.has_event, true) {
                self.lists.events.push(self.id);
            }
        }
    }
}

/// Returns a guard of the part of a slot that `part` picks.
fn guard<'a, T: Pollable>(
    (id, slot): (SocketId, &'a mut Slot),
    lists: &'a mut Lists,
    part: impl FnOnce(&'a mut SocketKind) -> Option<&'a mut T>,
) -> Option<SocketMut<'a, T>> {
    let Slot { kind, marks } = slot;
    part(kind).map(|target| SocketMut {
        id,
        target,
        marks,
        lists,
    })
}

fn connection(kind: &mut SocketKind) -> Option<&mut ConnectionSocket> {
    match kind {
        SocketKind::Connection(connection) => Some(connection),
        SocketKind::Listener(_) | SocketKind::TimeWait(_) => None,
    }
}

fn listener(kind: &mut SocketKind) -> Option<&mut Listener> {
    match kind {
        SocketKind::Listener(listener) => Some(listener),
        SocketKind::Connection(_) | SocketKind::TimeWait(_) => None,
    }
}

/// All sockets of a stack.
#[derive(Debug)]
pub(crate) struct Sockets {
    table: SocketTable<Slot>,
    lists: Lists,
}

impl Sockets {
    /// Returns no sockets, with room for `limit`.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            table: SocketTable::new(limit),
            lists: Lists::default(),
        }
    }

    /// Returns how many sockets there are.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns whether no more fit.
    pub(crate) fn is_full(&self) -> bool {
        self.table.is_full()
    }

    /// Returns how many there may be.
    pub(crate) fn limit(&self) -> usize {
        self.table.limit()
    }

    /// Returns the slot that the next [`Sockets::insert`] fills.
    pub(crate) fn next_slot(&self) -> u32 {
        self.table.next_slot()
    }

    /// Adds a socket; the caller asked [`Sockets::is_full`] before.
    pub(crate) fn insert(&mut self, kind: SocketKind) -> SocketId {
        let id = self.table.insert(Slot {
            kind,
            marks: Marks {
                reported: Snapshot::NONE,
                has_event: false,
                is_touched: false,
                has_arrivals: false,
            },
        });
        drop(self.at_mut(id.slot()));
        // Each open socket is in the list once at most. Those closed meanwhile are forgotten here, or a program that
        // never asks for events would collect them.
        let Self { table, lists } = self;
        if lists.events.len() > 2 * table.len() + 64 {
            lists.events.retain(|&id| table.get(id).is_ok());
        }
        id
    }

    /// Makes the id of the socket in `slot` void; the socket stays.
    pub(crate) fn renew(&mut self, slot: u32) {
        self.table.renew(slot);
    }

    /// Takes a socket out.
    pub(crate) fn remove(&mut self, slot: u32) -> Option<SocketKind> {
        self.table.remove(slot).map(|slot| slot.kind)
    }

    /// Returns the socket with this id.
    pub(crate) fn get(&self, id: SocketId) -> Result<&SocketKind, BadSocket> {
        self.table.get(id).map(|slot| &slot.kind)
    }

    /// Returns the socket in `slot`.
    pub(crate) fn at(&self, slot: u32) -> Option<&SocketKind> {
        self.table.at(slot).map(|slot| &slot.kind)
    }

    /// Returns access to the socket with this id.
    pub(crate) fn get_mut(&mut self, id: SocketId) -> Result<SocketMut<'_>, BadSocket> {
        let slot = self.table.get_mut(id)?;
        guard((id, slot), &mut self.lists, Some).ok_or(BadSocket(id))
    }

    /// Returns access to the connection with this id; `None` if the socket is none.
    pub(crate) fn connection_mut(
        &mut self,
        id: SocketId,
    ) -> Result<Option<ConnectionMut<'_>>, BadSocket> {
        let slot = self.table.get_mut(id)?;
        Ok(guard((id, slot), &mut self.lists, connection))
    }

    /// Returns access to the socket in `slot`.
    pub(crate) fn at_mut(&mut self, slot: u32) -> Option<SocketMut<'_>> {
        guard(self.table.entry_mut(slot)?, &mut self.lists, Some)
    }

    /// Returns access to the connection in `slot`, if it is one.
    pub(crate) fn connection_at(&mut self, slot: u32) -> Option<ConnectionMut<'_>> {
        guard(self.table.entry_mut(slot)?, &mut self.lists, connection)
    }

    /// Returns access to the listener in `slot`, if it is one.
    pub(crate) fn listener_at(&mut self, slot: u32) -> Option<SocketMut<'_, Listener>> {
        guard(self.table.entry_mut(slot)?, &mut self.lists, listener)
    }

    /// Returns whether [`Sockets::take_events`] has any.
    pub(crate) fn has_events(&self) -> bool {
        !self.lists.events.is_empty()
    }

    /// Takes the sockets whose readiness changed since they were last taken.
    pub(crate) fn take_events(&mut self) -> impl Iterator<Item = SocketId> + '_ {
        for id in &self.lists.events {
            if let Ok(slot) = self.table.get_mut(*id) {
                slot.marks.has_event = false;
            }
        }
        self.lists.events.drain(..)
    }

    /// Returns whether a socket may have something to send.
    pub(crate) fn any_touched(&self) -> bool {
        !self.lists.touched.is_empty()
    }

    /// Returns whether segments arrived for a connection that has not answered since.
    pub(crate) fn any_arrivals(&self) -> bool {
        !self.lists.arrivals.is_empty()
    }

    /// Takes the list of sockets that may have something to send.
    pub(crate) fn take_touched(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.lists.touched)
    }

    /// Takes the mark of a socket from [`Sockets::take_touched`]; returns whether it is still there.
    pub(crate) fn untouch(&mut self, slot: u32) -> bool {
        let slot = self.table.at_mut(slot);
        slot.map(|slot| slot.marks.is_touched = false).is_some()
    }

    /// Gives the empty list of [`Sockets::take_touched`] back for its memory.
    pub(crate) fn reuse_touched(&mut self, mut batch: Vec<u32>) {
        batch.append(&mut self.lists.touched);
        self.lists.touched = batch;
    }

    /// Takes the list of connections that segments arrived for.
    pub(crate) fn take_arrivals(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.lists.arrivals)
    }

    /// Takes the mark of a connection from [`Sockets::take_arrivals`]; returns whether it had one.
    pub(crate) fn take_arrival_mark(&mut self, slot: u32) -> bool {
        let slot = self.table.at_mut(slot);
        slot.is_some_and(|slot| std::mem::take(&mut slot.marks.has_arrivals))
    }

    /// Puts connections back in front of the list of those that segments arrived for.
    pub(crate) fn put_back_arrivals(&mut self, mut batch: Vec<u32>) {
        for &slot in &batch {
            if let Some(slot) = self.table.at_mut(slot) {
                slot.marks.has_arrivals = true;
            }
        }
        batch.append(&mut self.lists.arrivals);
        self.lists.arrivals = batch;
    }

    /// Looks whether the NIC has let go of sends that the peer has acknowledged; returns whether any are over now.
    pub(crate) fn drain_sends(&mut self) -> bool {
        let mut any = false;
        let mut draining = std::mem::take(&mut self.lists.draining);
        draining.retain(|&slot| {
            let connection = self.connection_at(slot);
            let Some(mut connection) = connection.filter(|socket| socket.errors.is_draining) else {
                return false;
            };
            let acked = connection.acked_offset();
            any |= connection.errors.collect(acked);
            let is_draining = connection.is_draining();
            connection.errors.is_draining = is_draining;
            is_draining
        });
        // Nothing is added while the list is gone through; the allocation is kept.
        self.lists.draining = draining;
        any
    }

    /// Returns the first socket that a change was forgotten of: what was reported is not what a program would be told.
    #[cfg(debug_assertions)]
    pub(crate) fn unreported(&self) -> Option<(SocketId, Snapshot, Snapshot)> {
        self.table.iter().find_map(|(id, slot)| {
            let now = slot.kind.snapshot()?;
            (now != slot.marks.reported).then_some((id, slot.marks.reported, now))
        })
    }
}

#[cfg(test)]
mod tests;
