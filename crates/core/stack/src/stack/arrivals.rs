//! How many packets arrive together, which tells whether another one follows.
//!
//! To find out that the link is empty after a packet costs a system call on most links, a tenth of the time that the stack needs for a
//! short message and its answer. Where messages come one by one, the answer is known.
//!
//! An arrival is all packets between two looks that found the link empty, whichever polls have received them. If the last one was a
//! single packet, the next one is taken for a single packet, too. A caller that has looked in vain before each packet is right to
//! do so; if more packets wait behind one, the next poll finds them without an empty look between, counts them to the same arrival, and
//! the arrival after them is looked at to its end.

/// What is known of the arrivals.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// Packets since the link was last found empty.
    current: u32,
    /// Packets of the arrival before; 0: there was none.
    last: u32,
}

impl Arrivals {
    /// A packet was received. Returns whether it is likely that no other one waits behind it.
    pub(super) fn on_packet(&mut self) -> bool {
        self.current = self.current.saturating_add(1);
        self.current == 1 && self.last == 1
    }

    /// The link was found empty.
    pub(super) fn on_empty_link(&mut self) {
        if self.current > 0 {
            self.last = std::mem::take(&mut self.current);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what is expected behind each packet of arrivals of these lengths.
    fn expected(arrivals: &mut Arrivals, lengths: &[usize]) -> Vec<bool> {
        let mut all = Vec::new();
        for length in lengths {
            arrivals.on_empty_link();
            all.extend((0..*length).map(|_| arrivals.on_packet()));
            arrivals.on_empty_link();
        }
        all
    }

    #[test]
    fn a_packet_is_alone_if_the_one_before_it_was() {
        let mut arrivals = Arrivals::default();
        assert_eq!(expected(&mut arrivals, &[1, 1, 1]), [false, true, true]);
        let three = [true, false, false];
        assert_eq!(expected(&mut arrivals, &[3]), three);
        assert_eq!(expected(&mut arrivals, &[1, 1]), [false, true]);
    }
}
