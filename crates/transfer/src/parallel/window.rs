//! How many requests one connection has in flight.

/// Bytes that the requests in flight ask for, at least, unless a number of requests is set: as much as a Linux server's send buffer
/// takes (`tcp_wmem`), so that it has the next request while it answers one.
const IN_FLIGHT_BYTES: u64 = 4 << 20;
/// Most requests of that number, and least.
const REQUESTS: std::ops::RangeInclusive<usize> = 2..=64;

/// Limits of the requests in flight on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    most: usize,
    /// Bytes that those in flight ask for, from which on there are no others,
    bytes: u64,
    /// unless there are fewer than these.
    least: usize,
}

impl Window {
    /// As many requests as ask for enough bytes.
    pub(crate) const ENOUGH: Self = Self {
        most: *REQUESTS.end(),
        bytes: IN_FLIGHT_BYTES,
        least: *REQUESTS.start(),
    };

    /// Returns the window of so many requests, however long they are.
    pub(crate) fn of(requests: usize) -> Self {
        Self {
            most: requests,
            bytes: u64::MAX,
            least: requests,
        }
    }

    /// Returns the most requests.
    pub(crate) fn most(self) -> usize {
        self.most
    }

    /// Returns whether another request may be sent, if so many are in flight that ask for `bytes`.
    pub(crate) fn has_room(self, requests: usize, bytes: u64) -> bool {
        requests < self.most && (bytes < self.bytes || requests < self.least)
    }

    /// Returns whether others are sent then: a quarter of the window together, because a packet with one request costs as much as one
    /// with several.
    pub(crate) fn is_worth_a_packet(self, requests: usize, bytes: u64) -> bool {
        let has_many = bytes <= self.bytes - self.bytes / 4 || requests < self.least;
        requests <= self.most - self.most / 4 && has_many
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many requests for pieces of these lengths are sent before any is answered.
    fn sent(window: Window, lengths: impl IntoIterator<Item = u64>) -> usize {
        let (mut requests, mut bytes) = (0, 0);
        for len in lengths {
            if !window.has_room(requests, bytes) {
                break;
            }
            requests += 1;
            bytes += len;
        }
        requests
    }

    #[test]
    fn short_pieces_have_many_requests_in_flight_unless_a_number_is_set() {
        for (piece_bytes, requests) in [
            (16 << 20, 2),
            (2 << 20, 2),
            (1 << 20, 4),
            (64 << 10, 64),
            (4 << 10, 64),
        ] {
            let all = std::iter::repeat(piece_bytes);
            assert_eq!(sent(Window::ENOUGH, all.clone()), requests, "{piece_bytes}");
            assert_eq!(sent(Window::of(3), all), 3);
        }
        // A range that is shorter than a piece asks for few bytes.
        let mixed = [1 << 20, 64 << 10, 64 << 10, 16 << 20, 64 << 10];
        assert_eq!(sent(Window::ENOUGH, mixed), 4);
    }

    #[test]
    fn requests_are_sent_a_quarter_of_the_window_together() {
        let together = |window: Window, len: u64| {
            let in_flight = 0..=sent(window, std::iter::repeat(len));
            let most = in_flight
                .clone()
                .rfind(|&requests| window.is_worth_a_packet(requests, requests as u64 * len));
            most.map(|most| in_flight.end() - most)
        };
        let of = |requests| together(Window::of(requests), 1 << 20);
        assert_eq!([1, 2, 3].map(of), [Some(0); 3]);
        assert_eq!([4, 16, 64].map(of), [Some(1), Some(4), Some(16)]);
        let of_bytes = |len| together(Window::ENOUGH, len);
        assert_eq!(
            [4 << 10, 64 << 10, 1 << 20, 16 << 20].map(of_bytes),
            [Some(16), Some(16), Some(1), Some(1)]
        );
    }
}
