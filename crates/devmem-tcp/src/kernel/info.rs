//! `TCP_INFO` of the kernel, converted to the type of the library.

use std::time::Duration;

use devmem_linux::socket::TcpInfo as KernelInfo;
use devmem_uapi::TcpiOptions;

use super::socket::Socket;
use crate::tcp_info::{TcpInfo, TcpState};

impl Socket {
    /// Returns the state and measurements of the connection; fields that the kernel does not report are 0.
    pub(crate) fn tcp_info(&self) -> Option<TcpInfo> {
        let kernel = KernelInfo::of(self.fd()).ok()?;
        let options = TcpiOptions::from_bits_retain(kernel.options());
        let micros = |value: u32| Duration::from_micros(value.into());
        let mss = |value: u32| u16::try_from(value).unwrap_or(u16::MAX);
        Some(TcpInfo {
            state: state(kernel.state()),
            timestamps: options.contains(TcpiOptions::TIMESTAMPS),
            sack: options.contains(TcpiOptions::SACK),
            ecn: options.contains(TcpiOptions::ECN),
            ecn_seen: options.contains(TcpiOptions::ECN_SEEN),
            snd_wscale: kernel.snd_wscale(),
            rcv_wscale: kernel.rcv_wscale(),
            rto: micros(kernel.rto()),
            snd_mss: mss(kernel.snd_mss()),
            rcv_mss: mss(kernel.rcv_mss()),
            unacked: kernel.unacked(),
            sacked: kernel.sacked(),
            lost: kernel.lost(),
            retrans: kernel.retrans(),
            rtt: micros(kernel.rtt()),
            rttvar: micros(kernel.rttvar()),
            min_rtt: micros(kernel.min_rtt()),
            snd_ssthresh: kernel.snd_ssthresh(),
            snd_cwnd: kernel.snd_cwnd(),
            snd_wnd: kernel.snd_wnd(),
            rcv_wnd: kernel.rcv_wnd(),
            rcv_space: kernel.rcv_space(),
            total_retrans: kernel.total_retrans().into(),
            retransmits: kernel.retransmits(),
            total_rto: kernel.total_rto().into(),
            probes: kernel.probes(),
            pacing_rate: kernel.pacing_rate(),
            delivered: kernel.delivered(),
            delivered_ce: kernel.delivered_ce(),
            bytes_acked: kernel.bytes_acked(),
            bytes_received: kernel.bytes_received(),
            bytes_sent: kernel.bytes_sent(),
            bytes_retrans: kernel.bytes_retrans(),
            notsent_bytes: kernel.notsent_bytes().into(),
            segs_out: kernel.segs_out().into(),
            segs_in: kernel.segs_in().into(),
            data_segs_out: kernel.data_segs_out().into(),
            data_segs_in: kernel.data_segs_in().into(),
            dsack_dups: kernel.dsack_dups().into(),
            reord_seen: kernel.reord_seen().into(),
            rcv_ooopack: kernel.rcv_ooopack().into(),
            syn_data_acked: options.contains(TcpiOptions::SYN_DATA),
            ..TcpInfo::default()
        })
    }
}

/// States by their numbers (linux include/net/tcp_states.h).
fn state(number: u8) -> TcpState {
    match number {
        1 => TcpState::Established,
        2 => TcpState::SynSent,
        3 | 12 => TcpState::SynReceived,
        4 => TcpState::FinWait1,
        5 => TcpState::FinWait2,
        6 => TcpState::TimeWait,
        8 => TcpState::CloseWait,
        9 => TcpState::LastAck,
        11 => TcpState::Closing,
        _ => TcpState::Closed,
    }
}
