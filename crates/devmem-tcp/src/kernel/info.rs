//! `TCP_INFO` of the kernel, converted to the type of the library.

use std::os::fd::AsFd;
use std::time::Duration;

use devmem_linux::socket::TcpInfo as KernelInfo;

use super::socket::Socket;
use crate::tcp_info::{TcpInfo, TcpState};

/// Bits of `tcpi_options` (linux include/uapi/linux/tcp.h `TCPI_OPT_*`).
const OPT_TIMESTAMPS: u8 = 1;
const OPT_SACK: u8 = 2;
const OPT_ECN: u8 = 8;
const OPT_ECN_SEEN: u8 = 16;

impl Socket {
    /// Returns the state and measurements of the connection; fields that the kernel does not report are 0.
    pub(crate) fn tcp_info(&self) -> Option<TcpInfo> {
        let kernel = KernelInfo::of(self.fd.as_fd()).ok()?;
        let micros = |value: u32| Duration::from_micros(value.into());
        let mss = |value: u32| u16::try_from(value).unwrap_or(u16::MAX);
        let mut info = TcpInfo::default();
        info.state = state(kernel.state());
        info.timestamps = kernel.options() & OPT_TIMESTAMPS != 0;
        info.sack = kernel.options() & OPT_SACK != 0;
        info.ecn = kernel.options() & OPT_ECN != 0;
        info.ecn_seen = kernel.options() & OPT_ECN_SEEN != 0;
        info.snd_wscale = kernel.snd_wscale();
        info.rcv_wscale = kernel.rcv_wscale();
        info.rto = micros(kernel.rto());
        info.snd_mss = mss(kernel.snd_mss());
        info.rcv_mss = mss(kernel.rcv_mss());
        info.unacked = kernel.unacked();
        info.sacked = kernel.sacked();
        info.lost = kernel.lost();
        info.retrans = kernel.retrans();
        info.rtt = micros(kernel.rtt());
        info.rttvar = micros(kernel.rttvar());
        info.min_rtt = micros(kernel.min_rtt());
        info.snd_ssthresh = kernel.snd_ssthresh();
        info.snd_cwnd = kernel.snd_cwnd();
        info.snd_wnd = kernel.snd_wnd();
        info.rcv_wnd = kernel.rcv_wnd();
        info.rcv_space = kernel.rcv_space();
        info.total_retrans = kernel.total_retrans().into();
        info.retransmits = kernel.retransmits();
        info.probes = kernel.probes();
        info.pacing_rate = kernel.pacing_rate();
        info.delivered = kernel.delivered();
        info.delivered_ce = kernel.delivered_ce();
        info.bytes_acked = kernel.bytes_acked();
        info.bytes_received = kernel.bytes_received();
        info.bytes_sent = kernel.bytes_sent();
        info.bytes_retrans = kernel.bytes_retrans();
        info.notsent_bytes = kernel.notsent_bytes().into();
        info.segs_out = kernel.segs_out().into();
        info.segs_in = kernel.segs_in().into();
        info.data_segs_out = kernel.data_segs_out().into();
        info.data_segs_in = kernel.data_segs_in().into();
        info.dsack_dups = kernel.dsack_dups().into();
        info.reord_seen = kernel.reord_seen().into();
        info.rcv_ooopack = kernel.rcv_ooopack().into();
        Some(info)
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
