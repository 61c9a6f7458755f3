//! The part of the handshake that is AccECN's own (RFC 9768 3.1).

use wire::{AccEcn, Ecn};

use super::feedback::{Feedback, reflected};
use crate::config::EcnConfig;
use crate::ecn::agreed::{Agreed, came_with};
use crate::segment::Segment;

/// Repetitions of SYNs and SYN-ACKs with AccECN before it is assumed to be the cause of the losses (RFC 9768 3.1.4.1: one).
pub(crate) const RETRIES: u8 = 1;

/// Writes the codepoint of the peer's SYN into a SYN-ACK that accepts AccECN.
pub(crate) fn reflect<P>(syn_ack: &mut Segment<P>, agreed: &Agreed) {
    syn_ack.set_ace(reflected(agreed.peer_syn));
}

/// Completes `agreed` with the ACE field of a SYN-ACK that accepts AccECN (RFC 9768 3.1.1 table 2, 3.2.3.2).
pub(crate) fn answered(config: &EcnConfig, ace: u8, agreed: Agreed) -> Agreed {
    let distrusted = config.fallback && ace != 0b101 && came_with(ace) != Ecn::NotEct;
    Agreed {
        distrusted,
        syn_ack_marked: agreed.peer_syn == Ecn::Ce && !distrusted,
        ..agreed
    }
}

/// Returns the option of a SYN-ACK, which shows whether options get through.
pub(crate) fn first_option(agreed: &Agreed) -> AccEcn {
    Feedback::new(agreed.peer_syn).first_option()
}
