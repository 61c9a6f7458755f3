//! The sockets of a stack, their four-tuples and timers, and lists of sockets with work.
//!
//! A socket changes only through a [`SocketMut`], because a program may wait for its readiness: the guard's `Drop`
//! compares the readiness with what was reported last. No other module can access the table.

use std::net::{IpAddr, SocketAddr};
use std::ops::{Deref, DerefMut};

use tcp::StateKind;
use wire::{FourTuple, Instant};

use super::agenda::{Agenda, Mark, Marks};
use super::connection::{ConnectionSocket, Owner, acked_offset};
use super::demux::{AddrInUse, Demux};
use super::error::{AcceptError, BadSocket};
use super::id::SocketId;
use super::kind::{SocketKind, TimeWaitSocket};
use super::listener::Listener;
use super::readiness::{Pollable, Snapshot};
use super::table::SocketTable;
use crate::bind_addr::BindAddr;
use crate::ports::{EphemeralPorts, LocalPorts};
use crate::random::Secret;
use crate::tuple::four_tuple;

/// Consecutive timeouts after which nobody waits for the answer to an orphan.
const MAX_ORPHAN_TIMEOUTS: u8 = 2;

/// One slot of the table.
#[derive(Debug)]
struct Slot {
    kind: SocketKind,
    /// The last reported state.
    reported: Snapshot,
    marks: Marks,
}

/// Access to one socket. Its `Drop` turns a change of readiness into an event.
#[derive(Debug)]
pub(crate) struct SocketMut<'a, T: Pollable = SocketKind> {
    id: SocketId,
    target: &'a mut T,
    reported: &'a mut Snapshot,
    marks: &'a mut Marks,
    agenda: &'a mut Agenda,
}

/// Access to a connection.
pub(crate) type ConnectionMut<'a> = SocketMut<'a, ConnectionSocket>;

impl<T: Pollable> SocketMut<'_, T> {
    /// Returns the socket's id.
    pub(crate) fn id(&self) -> SocketId {
        self.id
    }

    /// Marks the socket.
    pub(crate) fn mark(&mut self, mark: Mark) {
        self.agenda.add(mark, self.id.slot(), self.marks);
    }

    /// Marks the socket if `is_marked`, or clears the mark.
    pub(crate) fn set_mark(&mut self, mark: Mark, is_marked: bool) {
        match is_marked {
            true => self.mark(mark),
            false => {
                self.agenda.clear(mark, self.marks);
            }
        }
    }

    /// Returns the deadline of the socket's timer.
    pub(crate) fn armed(&self) -> Option<Instant> {
        self.agenda.timers.key(self.id.slot())
    }

    /// Arms the socket's timer, or disarms it.
    pub(crate) fn arm(&mut self, deadline: Option<Instant>) {
        self.agenda.timers.set(self.id.slot(), deadline);
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
        if now != *self.reported {
            *self.reported = now;
            self.mark(Mark::Event);
        }
    }
}

/// Returns a guard of the socket in `slot`, as the type that `part` returns.
fn guard<'a, T: Pollable>(
    id: SocketId,
    slot: &'a mut Slot,
    agenda: &'a mut Agenda,
    part: impl FnOnce(&'a mut SocketKind) -> Option<&'a mut T>,
) -> Option<SocketMut<'a, T>> {
    let Slot {
        kind,
        reported,
        marks,
    } = slot;
    part(kind).map(|target| SocketMut {
        id,
        target,
        reported,
        marks,
        agenda,
    })
}

/// All sockets of a stack.
pub(crate) struct Sockets {
    table: SocketTable<Slot>,
    agenda: Agenda,
    /// The result of [`Sockets::take_events`]; its memory is reused.
    events: Vec<SocketId>,
    /// The four-tuples of connections, and the addresses of listeners.
    pub(crate) names: Demux,
    /// The ports that programs may use.
    pub(crate) local_ports: LocalPorts,
    pub(crate) ports: EphemeralPorts,
    /// Number of connections without a program.
    orphans: usize,
    max_orphans: usize,
}

impl Sockets {
    /// Returns an empty table for `limit` sockets, of which `max_orphans` may be orphaned.
    pub(crate) fn new(
        limit: usize,
        max_orphans: usize,
        local_ports: LocalPorts,
        secret: &Secret,
    ) -> Self {
        Self {
            table: SocketTable::new(limit),
            agenda: Agenda::default(),
            events: Vec::new(),
            names: Demux::new(secret.key("demux")),
            local_ports,
            ports: EphemeralPorts::new(
                secret.key("port offsets"),
                secret.key("port counters"),
                local_ports.to_choose(),
            ),
            orphans: 0,
            max_orphans,
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

    /// Returns the maximum number of sockets.
    pub(crate) fn limit(&self) -> usize {
        self.table.limit()
    }

    /// Returns a port for a connection from `local` to `remote` that no listener has, and no other connection to
    /// `remote`, and for which `owns` returns true of the connection's four-tuple.
    pub(crate) fn choose_port(
        &mut self,
        local: IpAddr,
        remote: SocketAddr,
        owns: impl Fn(&FourTuple) -> bool,
    ) -> Option<u16> {
        let Self { names, ports, .. } = self;
        ports.choose(local, remote, |port| {
            let local = SocketAddr::new(local, port);
            let tuple = four_tuple(local, remote);
            owns(&tuple) && names.is_free(&tuple) && !names.is_listened_on(&local.into())
        })
    }

    /// Returns the number of connections without a program.
    pub(crate) fn orphans(&self) -> usize {
        self.orphans
    }

    /// Returns whether a connection that no program holds waits for acknowledgements: of data, or of its FIN. One whose peer does not
    /// answer does not count.
    pub(crate) fn has_unacknowledged_orphan(&self) -> bool {
        let is_one = |it: &ConnectionSocket| {
            it.owner() == Owner::Nobody
                && it.conn.state() != StateKind::FinWait2
                && it.conn.retransmits() < MAX_ORPHAN_TIMEOUTS
        };
        let mut connections = self
            .table
            .iter()
            .filter_map(|(_, slot)| slot.kind.connection());
        connections.any(is_one)
    }

    /// Returns whether the maximum number of orphaned connections is reached.
    pub(crate) fn has_all_orphans(&self) -> bool {
        self.orphans >= self.max_orphans
    }

    /// Notes that the program has closed a connection, which finishes without it; the id becomes invalid.
    pub(crate) fn orphan(&mut self, id: SocketId) {
        let Ok(Some(mut connection)) = self.connection_mut(id) else {
            return;
        };
        connection.hand_to(Owner::Nobody);
        connection.set_mark(Mark::Event, false);
        drop(connection);
        self.orphans += 1;
        self.table.renew(id.slot());
    }

    /// Adds a connection. The caller has checked [`Sockets::is_full`], and that the four-tuple is free.
    pub(crate) fn insert_connection(&mut self, connection: ConnectionSocket) -> SocketId {
        let tuple = *connection.tuple();
        let id = self.insert(SocketKind::Connection(Box::new(connection)));
        let inserted = self.names.insert(tuple, id.slot());
        debug_assert!(inserted.is_ok(), "it was free");
        id
    }

    /// Adds a listener at `local`. The caller has checked [`Sockets::is_full`].
    pub(crate) fn insert_listener(
        &mut self,
        local: BindAddr,
        listener: Listener,
    ) -> Result<SocketId, AddrInUse> {
        self.names.listen(local, self.table.next_slot())?;
        Ok(self.insert(SocketKind::Listener(Box::new(listener))))
    }

    fn insert(&mut self, kind: SocketKind) -> SocketId {
        let id = self.table.insert(Slot {
            kind,
            reported: Snapshot::NONE,
            marks: Marks::default(),
        });
        drop(self.at_mut(id.slot()));
        // Only slots of closed sockets make a list longer than the table.
        for mark in Mark::LISTED {
            if self.agenda.listed(mark) > 2 * self.table.len() + 64 {
                self.compact(mark);
            }
        }
        id
    }

    /// Removes slots of closed sockets from a list.
    fn compact(&mut self, mark: Mark) {
        let mut listed = self.take(mark);
        listed.retain(|&slot| self.clear(mark, slot));
        for slot in listed {
            if let Some(Slot { marks, .. }) = self.table.at_mut(slot) {
                self.agenda.add(mark, slot, marks);
            }
        }
    }

    /// Returns the slots of the connections that `wanted` returns true for.
    pub(crate) fn connections(&self, wanted: impl Fn(&ConnectionSocket) -> bool) -> Vec<u32> {
        let found = self
            .table
            .iter()
            .filter(|(_, slot)| slot.kind.connection().is_some_and(&wanted));
        found.map(|(id, _)| id.slot()).collect()
    }

    /// Notes at each listener that the link has ended for good.
    pub(crate) fn end_listeners(&mut self, end: AcceptError, of: impl Fn(IpAddr) -> bool) {
        let is_one = |slot: &Slot| slot.kind.listener().is_some_and(|it| of(it.local.ip()));
        let found = self.table.iter().filter(|(_, slot)| is_one(slot));
        let listeners: Vec<u32> = found.map(|(id, _)| id.slot()).collect();
        for slot in listeners {
            if let Some(mut listener) = self.listener_at(slot) {
                listener.on_end(end);
            }
        }
    }

    /// Releases the four-tuple of a connection, and keeps the reason of its failure.
    pub(crate) fn forget_name(&mut self, slot: u32) {
        let Some(mut connection) = self.connection_at(slot) else {
            return;
        };
        let (tuple, was_named) = (*connection.tuple(), connection.forget_name());
        drop(connection);
        if was_named {
            self.names.remove(&tuple);
        }
    }

    /// Replaces a connection without a program, which has its four-tuple, by its TIME-WAIT state.
    pub(crate) fn keep_time_wait_only(&mut self, slot: u32, time_wait: TimeWaitSocket) {
        let Some(mut socket) = self.at_mut(slot) else {
            return;
        };
        socket.arm(Some(time_wait.state.deadline()));
        *socket = SocketKind::TimeWait(Box::new(time_wait));
        drop(socket);
        self.orphans -= 1;
    }

    /// Removes a socket with its four-tuple or address and its timer.
    pub(crate) fn remove(&mut self, slot: u32) -> Option<SocketKind> {
        let Slot { kind, marks, .. } = self.table.remove(slot)?;
        self.agenda.remove(slot, marks);
        match &kind {
            SocketKind::Connection(connection) => {
                if connection.is_named() {
                    self.names.remove(connection.tuple());
                }
                if connection.owner() == Owner::Nobody {
                    self.orphans -= 1;
                }
            }
            SocketKind::TimeWait(time_wait) => self.names.remove(&time_wait.tuple),
            SocketKind::Listener(listener) => self.names.unlisten(listener.local.port(), slot),
        }
        Some(kind)
    }

    /// Returns the earliest deadline of a timer.
    pub(crate) fn next_timer(&self) -> Option<Instant> {
        self.agenda.timers.first()
    }

    /// Disarms and returns the slot with the earliest deadline, if the deadline is not after `now`.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<u32> {
        self.agenda.timers.pop_until(now)
    }

    /// Returns the socket with this id.
    pub(crate) fn get(&self, id: SocketId) -> Result<&SocketKind, BadSocket> {
        self.table.get(id).map(|slot| &slot.kind)
    }

    /// Returns the connection with this id; `None` if the socket is not a connection.
    pub(crate) fn connection(&self, id: SocketId) -> Result<Option<&ConnectionSocket>, BadSocket> {
        Ok(self.get(id)?.connection())
    }

    /// Returns access to the listener with this id; `None` if the socket is not a listener.
    pub(crate) fn listener_mut(
        &mut self,
        id: SocketId,
    ) -> Result<Option<SocketMut<'_, Listener>>, BadSocket> {
        let slot = self.table.get_mut(id)?;
        Ok(guard(id, slot, &mut self.agenda, SocketKind::listener_mut))
    }

    /// Returns the socket in `slot`.
    pub(crate) fn at(&self, slot: u32) -> Option<&SocketKind> {
        self.table.at(slot).map(|slot| &slot.kind)
    }

    /// Returns access to the socket with this id.
    pub(crate) fn get_mut(&mut self, id: SocketId) -> Result<SocketMut<'_>, BadSocket> {
        let slot = self.table.get_mut(id)?;
        guard(id, slot, &mut self.agenda, Some).ok_or(BadSocket(id))
    }

    /// Returns access to the connection with this id; `None` if the socket is not a connection.
    pub(crate) fn connection_mut(
        &mut self,
        id: SocketId,
    ) -> Result<Option<ConnectionMut<'_>>, BadSocket> {
        let slot = self.table.get_mut(id)?;
        Ok(guard(
            id,
            slot,
            &mut self.agenda,
            SocketKind::connection_mut,
        ))
    }

    /// Returns access to the socket in `slot`.
    pub(crate) fn at_mut(&mut self, slot: u32) -> Option<SocketMut<'_>> {
        let (id, slot) = self.table.entry_mut(slot)?;
        guard(id, slot, &mut self.agenda, Some)
    }

    /// Returns access to the connection in `slot`, if it is one.
    pub(crate) fn connection_at(&mut self, slot: u32) -> Option<ConnectionMut<'_>> {
        let (id, slot) = self.table.entry_mut(slot)?;
        guard(id, slot, &mut self.agenda, SocketKind::connection_mut)
    }

    /// Returns access to the listener in `slot`, if it is one.
    pub(crate) fn listener_at(&mut self, slot: u32) -> Option<SocketMut<'_, Listener>> {
        let (id, slot) = self.table.entry_mut(slot)?;
        guard(id, slot, &mut self.agenda, SocketKind::listener_mut)
    }

    /// Returns the sockets whose readiness has changed since the last call.
    pub(crate) fn take_events(&mut self) -> impl Iterator<Item = SocketId> + '_ {
        self.events.clear();
        let mut changed = self.take(Mark::Event);
        for slot in changed.drain(..) {
            if self.clear(Mark::Event, slot) {
                self.events.extend(self.table.id(slot));
            }
        }
        self.reuse(Mark::Event, changed);
        self.events.drain(..)
    }

    /// Returns whether any socket has this mark.
    pub(crate) fn any(&self, mark: Mark) -> bool {
        self.agenda.any(mark)
    }

    /// Takes the list of the sockets with a mark, which is cleared for one after another with [`Sockets::clear`].
    pub(crate) fn take(&mut self, mark: Mark) -> Vec<u32> {
        self.agenda.take(mark)
    }

    /// Gives the list of [`Sockets::take`] back, to reuse its memory.
    pub(crate) fn reuse(&mut self, mark: Mark, taken: Vec<u32>) {
        self.agenda.reuse(mark, taken);
    }

    /// Clears a mark; returns whether the socket in `slot` had it.
    pub(crate) fn clear(&mut self, mark: Mark, slot: u32) -> bool {
        let slot = self.table.at_mut(slot);
        slot.is_some_and(|slot| self.agenda.clear(mark, &mut slot.marks))
    }

    /// Marks a connection with [`Mark::HeldAck`], if it has an ACK that leaves when the link is empty.
    pub(crate) fn hold_ack(&mut self, slot: u32) {
        let Some(Slot { kind, marks, .. }) = self.table.at_mut(slot) else {
            return;
        };
        if kind
            .connection()
            .is_some_and(|it| it.conn.has_ack_for_link())
        {
            self.agenda.add(Mark::HeldAck, slot, marks);
        }
    }

    /// Marks the connections with [`Mark::HeldAck`] with [`Mark::Arrivals`] instead: each is served once, also one that has received
    /// segments since.
    pub(crate) fn release_held_acks(&mut self) {
        let mut held = self.take(Mark::HeldAck);
        for slot in held.drain(..) {
            if let Some(Slot { marks, .. }) = self.table.at_mut(slot)
                && self.agenda.clear(Mark::HeldAck, marks)
            {
                self.agenda.add(Mark::Arrivals, slot, marks);
            }
        }
        self.reuse(Mark::HeldAck, held);
    }

    /// Collects acknowledged sends that the NIC has finished; returns whether there were any.
    pub(crate) fn drain_sends(&mut self) -> bool {
        let mut any = false;
        let mut draining = self.take(Mark::Draining);
        for slot in draining.drain(..) {
            if self.clear(Mark::Draining, slot)
                && let Some(mut connection) = self.connection_at(slot)
            {
                let ConnectionSocket { conn, writer, .. } = &mut *connection;
                any |= writer.errors.collect(acked_offset(conn));
                let is_draining = writer.is_draining(conn);
                connection.set_mark(Mark::Draining, is_draining);
            }
        }
        self.reuse(Mark::Draining, draining);
        any
    }

    /// Returns the first socket with a state that differs from the reported one, with both states.
    #[cfg(any(test, debug_assertions))]
    pub(crate) fn unreported(&self) -> Option<(SocketId, Snapshot, Snapshot)> {
        self.table.iter().find_map(|(id, slot)| {
            let now = slot.kind.snapshot()?;
            (now != slot.reported).then_some((id, slot.reported, now))
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
