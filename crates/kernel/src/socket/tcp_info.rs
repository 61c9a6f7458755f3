//! State of a connection: the socket option `TCP_INFO`.

use std::os::fd::BorrowedFd;

use devmem_uapi::Errno;

use crate::sys::message::{Readable, get_option};

/// Larger than the structure in any kernel so far, in bytes.
const BYTES_MAX: usize = 512;

/// `struct tcp_info`. Fields that this kernel does not have are 0.
#[derive(Clone, Debug)]
pub struct TcpInfo {
    bytes: [u8; BYTES_MAX],
}

/// Fields by their kernel names without `tcpi_`, with their offsets (linux include/uapi/linux/tcp.h `struct tcp_info`,
/// which grows only at its end).
macro_rules! fields {
    ($($name:ident: $type:ident at $offset:literal, $doc:literal;)*) => {
        impl TcpInfo {
            $(
                #[doc = $doc]
                pub fn $name(&self) -> $type {
                    const END: usize = $offset + size_of::<$type>();
                    const { assert!(END <= BYTES_MAX) };
                    let mut value = [0; size_of::<$type>()];
                    value.copy_from_slice(&self.bytes[$offset..END]);
                    $type::from_ne_bytes(value)
                }
            )*
        }
    };
}

fields! {
    state: u8 at 0, "State, as `TCP_ESTABLISHED` (1) and so on.";
    retransmits: u8 at 2, "Consecutive retransmission timeouts.";
    probes: u8 at 3, "Unanswered probes.";
    options: u8 at 5, "Options in use, the bits of [`TcpiOptions`](devmem_uapi::TcpiOptions).";
    window_scales: u8 at 6, "Two window scales of 4 bits each; [`snd_wscale`](Self::snd_wscale) and [`rcv_wscale`](Self::rcv_wscale).";
    rto: u32 at 8, "Retransmission timeout, microseconds.";
    snd_mss: u32 at 16, "Maximum segment size for sending, bytes.";
    rcv_mss: u32 at 20, "Estimate of the peer's maximum segment size, bytes.";
    unacked: u32 at 24, "Packets sent and not acknowledged.";
    sacked: u32 at 28, "Packets that the peer has reported by SACK.";
    lost: u32 at 32, "Packets considered lost.";
    retrans: u32 at 36, "Packets retransmitted and not acknowledged.";
    rtt: u32 at 68, "Smoothed round-trip time, microseconds.";
    rttvar: u32 at 72, "Mean deviation of the round-trip time, microseconds.";
    snd_ssthresh: u32 at 76, "Slow start threshold, packets.";
    snd_cwnd: u32 at 80, "Congestion window, packets.";
    rcv_space: u32 at 96, "Target of receive buffer auto-tuning, bytes.";
    total_retrans: u32 at 100, "Packets retransmitted since the connection was opened.";
    pacing_rate: u64 at 104, "Pacing rate, bytes per second.";
    bytes_acked: u64 at 120, "Payload bytes acknowledged by the peer.";
    bytes_received: u64 at 128, "Payload bytes received in order.";
    segs_out: u32 at 136, "Segments sent.";
    segs_in: u32 at 140, "Segments received.";
    notsent_bytes: u32 at 144, "Bytes queued and never sent.";
    min_rtt: u32 at 148, "Minimum round-trip time, microseconds.";
    data_segs_in: u32 at 152, "Segments with payload received.";
    data_segs_out: u32 at 156, "Segments with payload sent.";
    delivered: u32 at 192, "Packets delivered.";
    delivered_ce: u32 at 196, "Packets delivered by ACKs with an ECN echo.";
    bytes_sent: u64 at 200, "Payload bytes sent, including retransmissions.";
    bytes_retrans: u64 at 208, "Payload bytes retransmitted.";
    dsack_dups: u32 at 216, "D-SACKs received.";
    reord_seen: u32 at 220, "Number of reordering events.";
    rcv_ooopack: u32 at 224, "Out-of-order packets received.";
    snd_wnd: u32 at 228, "Send window, advertised by the peer, bytes.";
    rcv_wnd: u32 at 232, "Receive window, advertised to the peer, bytes.";
    total_rto: u16 at 240, "Retransmission timeouts since the connection was opened (Linux 6.7; 0 before).";
}

impl TcpInfo {
    /// Reads it from a TCP socket.
    ///
    /// # Errors
    ///
    /// `ENOPROTOOPT` or `EOPNOTSUPP` for sockets of other protocols.
    pub fn of(socket: BorrowedFd<'_>) -> Result<Self, Errno> {
        let mut bytes = [0; BYTES_MAX];
        get_option(socket, Readable::TcpInfo, &mut bytes)?;
        Ok(Self { bytes })
    }

    /// Returns the window scale of the peer.
    pub fn snd_wscale(&self) -> u8 {
        // The first bit-field is the lower half where bytes are little-endian.
        match cfg!(target_endian = "little") {
            true => self.window_scales() & 0xf,
            false => self.window_scales() >> 4,
        }
    }

    /// Returns the window scale of this end.
    pub fn rcv_wscale(&self) -> u8 {
        match cfg!(target_endian = "little") {
            true => self.window_scales() >> 4,
            false => self.window_scales() & 0xf,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn tcp_info_of_a_connection_over_the_loopback_is_plausible() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(&[7; 1000]).unwrap();
        server.read_exact(&mut [0; 1000]).unwrap();
        let theirs = TcpInfo::of(server.as_fd()).unwrap();
        assert_eq!((theirs.state(), theirs.bytes_received()), (1, 1000));
        assert!(theirs.segs_in() > 0 && theirs.data_segs_in() > 0);
        let ours = TcpInfo::of(client.as_fd()).unwrap();
        assert_eq!((ours.bytes_sent(), ours.bytes_retrans()), (1000, 0));
        assert!(ours.snd_mss() > 0 && ours.snd_cwnd() > 0 && ours.rto() > 0);
        assert!(ours.snd_wscale() <= 14 && ours.rcv_wscale() <= 14);
        assert_eq!(ours.snd_wscale(), theirs.rcv_wscale());
    }

    #[test]
    fn a_socket_of_another_protocol_has_no_tcp_info() {
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(TcpInfo::of(udp.as_fd()).is_err());
    }
}
