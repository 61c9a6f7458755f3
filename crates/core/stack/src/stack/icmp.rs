//! ICMP messages: passes errors on to the connections that they are about.

use netmem::FragList;
use nic::Origin;
use wire::{FourTuple, Instant, RxHeaders, protocol};

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
        let Some(quoted) = quoted.filter(|quoted| quoted.protocol == protocol::TCP) else {
            return self.network.drops.count(DropReason::IcmpIgnored);
        };
        // The quoted packet was sent by this stack: its source is the local address.
        let tuple = FourTuple {
            src_ip: quoted.dst,
            dst_ip: quoted.src,
            src_port: quoted.dst_port,
            dst_port: quoted.src_port,
        };
        if !self.connection_icmp(&tuple, tcp::SeqNum(quoted.seq), kind, now) {
            self.network.drops.count(DropReason::IcmpNoConnection);
        }
    }
}
