//! The table of sockets by id.

use slab::Slab;

use super::error::BadSocket;
use super::id::SocketId;

/// Slots of sockets, each with its generation.
#[derive(Debug)]
pub(crate) struct SocketTable<S> {
    slots: Slab<(u32, S)>,
    /// Generation of the next socket; it wraps around after 2^32 sockets.
    next_generation: u32,
    limit: usize,
}

impl<S> SocketTable<S> {
    /// Returns an empty table for at most `limit` sockets.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            slots: Slab::new(),
            next_generation: 0,
            limit,
        }
    }

    /// Returns the number of sockets.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether there is no room for another socket.
    pub(crate) fn is_full(&self) -> bool {
        self.slots.len() >= self.limit
    }

    /// Returns the maximum number of sockets.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the slot that the next [`SocketTable::insert`] will use.
    pub(crate) fn next_slot(&self) -> u32 {
        self.slots.vacant_key() as u32
    }

    /// Adds a socket. The caller has checked [`SocketTable::is_full`].
    pub(crate) fn insert(&mut self, socket: S) -> SocketId {
        let generation = self.next_generation;
        self.next_generation = generation.wrapping_add(1);
        let slot = self.slots.insert((generation, socket)) as u32;
        SocketId { slot, generation }
    }

    /// Makes the id of the socket in `slot` invalid; the socket stays.
    pub(crate) fn renew(&mut self, slot: u32) {
        let generation = self.next_generation;
        if let Some((old, _)) = self.slots.get_mut(slot as usize) {
            *old = generation;
            self.next_generation = generation.wrapping_add(1);
        }
    }

    /// Removes a socket.
    pub(crate) fn remove(&mut self, slot: u32) -> Option<S> {
        self.slots
            .try_remove(slot as usize)
            .map(|(_, socket)| socket)
    }

    /// Returns the socket with this id.
    pub(crate) fn get(&self, id: SocketId) -> Result<&S, BadSocket> {
        match self.slots.get(id.slot as usize) {
            Some((generation, socket)) if *generation == id.generation => Ok(socket),
            _ => Err(BadSocket(id)),
        }
    }

    /// Returns the socket with this id.
    pub(crate) fn get_mut(&mut self, id: SocketId) -> Result<&mut S, BadSocket> {
        match self.slots.get_mut(id.slot as usize) {
            Some((generation, socket)) if *generation == id.generation => Ok(socket),
            _ => Err(BadSocket(id)),
        }
    }

    /// Returns the id of the socket in `slot`.
    pub(crate) fn id(&self, slot: u32) -> Option<SocketId> {
        let &(generation, _) = self.slots.get(slot as usize)?;
        Some(SocketId { slot, generation })
    }

    /// Returns the socket in `slot`.
    pub(crate) fn at(&self, slot: u32) -> Option<&S> {
        self.slots.get(slot as usize).map(|(_, socket)| socket)
    }

    /// Returns the socket in `slot`.
    pub(crate) fn at_mut(&mut self, slot: u32) -> Option<&mut S> {
        self.slots.get_mut(slot as usize).map(|(_, socket)| socket)
    }

    /// Returns the socket in `slot` with its id.
    pub(crate) fn entry_mut(&mut self, slot: u32) -> Option<(SocketId, &mut S)> {
        let (generation, socket) = self.slots.get_mut(slot as usize)?;
        let generation = *generation;
        Some((SocketId { slot, generation }, socket))
    }

    /// Returns all sockets with their ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SocketId, &S)> {
        self.slots.iter().map(|(slot, (generation, socket))| {
            let (slot, generation) = (slot as u32, *generation);
            (SocketId { slot, generation }, socket)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_id_is_refused_although_its_slot_is_in_use() {
        let mut table = SocketTable::new(2);
        let old = table.insert("old");
        assert_eq!(table.remove(old.slot()), Some("old"));
        let new = table.insert("new");
        assert_eq!(old.slot(), new.slot());
        assert_eq!(table.get(old), Err(BadSocket(old)));
        assert_eq!(table.get_mut(old), Err(BadSocket(old)));
        assert_eq!(table.get(new), Ok(&"new"));
        assert_eq!(table.entry_mut(new.slot()), Some((new, &mut "new")));
    }

    #[test]
    fn the_next_slot_is_known_before_it_is_filled() {
        let mut table = SocketTable::new(2);
        let slot = table.next_slot();
        assert_eq!(table.insert(1).slot(), slot);
        assert!(!table.is_full());
        let second = table.insert(2);
        assert!(table.is_full());
        table.renew(second.slot());
        assert_eq!(table.get(second), Err(BadSocket(second)));
        assert_eq!(table.at(second.slot()), Some(&2));
        assert_eq!(table.remove(9), None);
    }
}
