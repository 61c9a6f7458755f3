//! ICMP messages: passes errors on to the connections that they are about.

use netmem::FragList;
use nic::Origin;
use wire::{Instant, RxHeaders};

use super::Stack;
use crate::drops::DropReason;
use crate::icmp::{IcmpContext, IcmpError};

impl Stack {
    /// Handles an ICMP message.
    pub(crate) fn receive_icmp(
        &mut self,
        headers: &RxHeaders,
        payload: &FragList,
        origin: Origin,
        now: Instant,
    ) {
        let cx = IcmpContext {
            nic: &mut self.nic,
            network: &mut self.network,
            send_pools: &mut self.memory.send_pools,
            origin,
            now,
        };
        if let Some(error) = self.icmp.receive(cx, headers, payload) {
            self.on_icmp_error(error, now);
        }
    }

    /// Passes an error on to the connection of the packet that it quotes.
    fn on_icmp_error(&mut self, error: IcmpError, now: Instant) {
        if !self.icmp.error_limit.allow(now) {
            return self.network.drops.count(DropReason::IcmpRateLimited);
        }
        let IcmpError { kind, quoted } = error;
        // The quoted packet was sent by this stack.
        let connection = quoted.and_then(|quoted| Some((quoted.answers()?, quoted.seq)));
        let Some((tuple, seq)) = connection else {
            return self.network.drops.count(DropReason::IcmpIgnored);
        };
        if !self.connection_icmp(&tuple, tcp::SeqNum(seq), kind, now) {
            self.network.drops.count(DropReason::IcmpNoConnection);
        }
    }
}
