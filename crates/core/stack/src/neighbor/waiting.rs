//! Packets that wait for the hardware address of their next hop.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use crate::random::KeyedState;

/// Packets of one class in order of arrival. The number per neighbour and the total are bounded; a new packet replaces
/// the oldest.
#[derive(Debug)]
pub(super) struct Waiting<P> {
    /// With their numbers, which increase.
    packets: VecDeque<(u64, IpAddr, P)>,
    /// Numbers of the packets for each neighbour, in order.
    of: HashMap<IpAddr, Vec<u64>, KeyedState>,
    next: u64,
    per_neighbor: usize,
    in_all: usize,
}

impl<P> Waiting<P> {
    pub(super) fn new(hash: KeyedState, per_neighbor: usize, in_all: usize) -> Self {
        Self {
            packets: VecDeque::new(),
            of: HashMap::with_hasher(hash),
            next: 0,
            per_neighbor,
            in_all,
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.packets.len()
    }

    pub(super) fn has(&self, ip: IpAddr) -> bool {
        self.of.contains_key(&ip)
    }

    /// Keeps `packet`; returns the packet that was removed for it: the oldest for `ip`, or the oldest of all.
    pub(super) fn push(&mut self, ip: IpAddr, packet: P) -> Option<(IpAddr, P)> {
        let of_this = self.of.get(&ip).map_or(0, Vec::len);
        let gave_way = if of_this >= self.per_neighbor {
            self.of.get(&ip).and_then(|of| of.first().copied())
        } else if self.packets.len() >= self.in_all {
            self.packets.front().map(|(number, ..)| *number)
        } else {
            None
        };
        let gave_way = gave_way.and_then(|number| self.remove(number));
        self.packets.push_back((self.next, ip, packet));
        self.of.entry(ip).or_default().push(self.next);
        self.next += 1;
        gave_way
    }

    /// Takes the packets for `ip`, oldest first.
    pub(super) fn take(&mut self, ip: IpAddr, out: &mut Vec<P>) {
        for number in self.of.remove(&ip).unwrap_or_default() {
            out.extend(self.take_one(number).map(|(_, packet)| packet));
        }
    }

    /// Takes all packets, oldest first.
    pub(super) fn take_all(&mut self, out: &mut Vec<P>) {
        self.of.clear();
        out.extend(self.packets.drain(..).map(|(.., packet)| packet));
    }

    fn take_one(&mut self, number: u64) -> Option<(IpAddr, P)> {
        let found = self.packets.binary_search_by_key(&number, |it| it.0);
        let (_, ip, packet) = self.packets.remove(found.ok()?)?;
        Some((ip, packet))
    }

    fn remove(&mut self, number: u64) -> Option<(IpAddr, P)> {
        let (ip, packet) = self.take_one(number)?;
        if let Some(of) = self.of.get_mut(&ip) {
            of.retain(|&other| other != number);
            if of.is_empty() {
                self.of.remove(&ip);
            }
        }
        Some((ip, packet))
    }
}
