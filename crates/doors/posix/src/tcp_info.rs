//! TCP_INFO as bytes (linux include/uapi/linux/tcp.h `struct tcp_info`).

use std::time::Duration;

use devmem_uapi::TcpiOptions;
use tcp::{Info, StateKind};
use wire::Instant;

/// Bytes of the structure up to and including the fields of AccECN, as Linux 6.18 has it.
pub const TCP_INFO_LEN: usize = 280;

/// The slow start threshold before the first loss (linux `TCP_INFINITE_SSTHRESH`).
const INFINITE_SSTHRESH: u32 = 0x7fff_ffff;

/// Returns the number of a state as a program sees it (linux include/net/tcp_states.h): in TIME-WAIT, its socket is closed.
pub const fn state_number(state: StateKind) -> u8 {
    match state {
        StateKind::Established => 1,
        StateKind::SynSent => 2,
        StateKind::SynReceived => 3,
        StateKind::FinWait1 => 4,
        StateKind::FinWait2 => 5,
        StateKind::TimeWait | StateKind::Closed => 7,
        StateKind::CloseWait => 8,
        StateKind::LastAck => 9,
        StateKind::Closing => 11,
    }
}

/// The number of a listener's state.
pub const LISTEN: u8 = 10;

/// Returns the facts as the kernel's structure; those that the stack does not keep are 0. Times since an event are counted up to `now`.
#[expect(
    clippy::too_many_lines,
    reason = "the fields of one kernel structure, in their order"
)]
pub fn to_bytes(info: &Info, now: Instant) -> Vec<u8> {
    let mut out = Writer(Vec::with_capacity(TCP_INFO_LEN));
    let scaling = info.snd_wscale > 0 || info.rcv_wscale > 0;
    let mut options = TcpiOptions::empty();
    options.set(TcpiOptions::TIMESTAMPS, info.timestamps);
    options.set(TcpiOptions::SACK, info.sack);
    options.set(TcpiOptions::WSCALE, scaling);
    options.set(TcpiOptions::ECN, info.ecn);
    options.set(TcpiOptions::ECN_SEEN, info.ecn_seen);
    options.set(TcpiOptions::SYN_DATA, info.syn_data_acked);
    out.bytes(&[
        state_number(info.state),
        info.ca_state as u8,
        info.retransmits,
        info.probes,
        info.backoff,
        options.bits(),
    ]);
    // The lowest bit of the second is delivery_rate_app_limited, which is not reported.
    out.bytes(&[
        info.snd_wscale & 15 | info.rcv_wscale << 4,
        (info.fast_open_client_fail as u8) << 1,
    ]);
    out.u32s([
        micros(info.rto),
        0,
        info.snd_mss.into(),
        info.rcv_mss.into(),
    ]);
    out.u32s([info.unacked, info.sacked, info.lost, info.retrans, 0]);
    let since = |then| u32::try_from(now.saturating_since(then).as_millis()).unwrap_or(u32::MAX);
    // last_ack_sent is not filled in by Linux either; last_ack_recv is not kept here.
    out.u32s([since(info.last_data_sent), 0, since(info.last_data_recv), 0]);
    // pmtu, rcv_ssthresh.
    out.u32s([0, info.rcv_space]);
    out.u32s([
        micros(info.rtt),
        micros(info.rttvar),
        info.snd_ssthresh.min(INFINITE_SSTHRESH),
        info.snd_cwnd,
    ]);
    // rcv_rtt is not reported.
    out.u32s([
        info.adv_mss.into(),
        info.reordering,
        0,
        info.rcv_space,
        capped(info.total_retrans),
    ]);
    out.u64s([
        info.pacing_rate,
        u64::MAX,
        info.bytes_acked,
        info.bytes_received,
    ]);
    out.u32s([capped(info.segs_out), capped(info.segs_in)]);
    out.u32s([capped(info.notsent_bytes), micros(info.min_rtt)]);
    out.u32s([capped(info.data_segs_in), capped(info.data_segs_out)]);
    let times = info.chrono.times(now);
    let wide = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    // delivery_rate is not reported.
    out.u64s([
        0,
        wide(times.busy),
        wide(times.peer_window),
        wide(times.send_buffer),
    ]);
    out.u32s([info.delivered, info.delivered_ce]);
    out.u64s([info.bytes_sent, info.bytes_retrans]);
    out.u32s([
        capped(info.dsack_dups),
        capped(info.reord_seen),
        capped(info.rcv_ooopack),
    ]);
    out.u32s([info.snd_wnd, info.rcv_wnd, 0]);
    // Timeouts (two numbers of 16 bits) and the time they took are not reported.
    out.u32s([0, 0, capped(info.ce_received)]);
    out.u32s([
        info.delivered_e1_bytes,
        info.delivered_e0_bytes,
        info.delivered_ce_bytes,
    ]);
    out.u32s([
        info.received_e1_bytes,
        info.received_e0_bytes,
        info.received_ce_bytes,
    ]);
    // The mode in the low bits; the state of AccECN's option and the reason of a failure are not reported.
    out.u32s([match (info.ecn, info.accecn) {
        (false, _) => 0,
        (true, false) => 1,
        (true, true) => 2,
    }]);
    out.0
}

struct Writer(Vec<u8>);

impl Writer {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn u32s<const N: usize>(&mut self, numbers: [u32; N]) {
        numbers
            .iter()
            .for_each(|number| self.bytes(&number.to_ne_bytes()));
    }

    fn u64s<const N: usize>(&mut self, numbers: [u64; N]) {
        numbers
            .iter()
            .for_each(|number| self.bytes(&number.to_ne_bytes()));
    }
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

fn capped(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn u32_at(bytes: &[u8], at: usize) -> u32 {
        u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    #[test]
    fn fields_have_the_offsets_of_the_kernels_structure() {
        let mut info = Info::default();
        info.state = StateKind::Established;
        info.snd_wscale = 8;
        info.rcv_wscale = 7;
        info.rto = Duration::from_millis(200);
        info.snd_cwnd = 10;
        (info.snd_ssthresh, info.adv_mss) = (u32::MAX, 1460);
        info.bytes_acked = 1000;
        info.segs_in = 3;
        info.rcv_wnd = 65_535;
        (info.ecn, info.ecn_seen) = (true, true);
        (info.delivered, info.delivered_ce) = (21, 20);
        (info.accecn, info.delivered_ce_bytes, info.received_ce_bytes) = (true, 4, 7);
        let bytes = to_bytes(&info, Instant::ZERO);
        assert_eq!(bytes.len(), TCP_INFO_LEN);
        assert_eq!((bytes[0], bytes[6]), (1, 0x78));
        assert_eq!(u32_at(&bytes, 8), 200_000);
        assert_eq!(u32_at(&bytes, 76), 0x7fff_ffff, "tcpi_snd_ssthresh");
        assert_eq!(u32_at(&bytes, 80), 10, "tcpi_snd_cwnd");
        assert_eq!(u32_at(&bytes, 84), 1460, "tcpi_advmss");
        assert_eq!(u32_at(&bytes, 120), 1000, "tcpi_bytes_acked");
        assert_eq!(u32_at(&bytes, 140), 3, "tcpi_segs_in");
        assert_eq!(u32_at(&bytes, 192), 21, "tcpi_delivered");
        assert_eq!(u32_at(&bytes, 196), 20, "tcpi_delivered_ce");
        assert_eq!(u32_at(&bytes, 232), 65_535, "tcpi_rcv_wnd");
        assert_eq!(u32_at(&bytes, 260), 4, "tcpi_delivered_ce_bytes");
        assert_eq!(u32_at(&bytes, 272), 7, "tcpi_received_ce_bytes");
        assert_eq!(
            (bytes[5] & 24, u32_at(&bytes, 276)),
            (24, 2),
            "ECN, seen, AccECN"
        );
    }
}
