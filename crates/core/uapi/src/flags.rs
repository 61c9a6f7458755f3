//! Flags of sendmsg and recvmsg (linux include/linux/socket.h).

bitflags::bitflags! {
    /// Flags given to, and returned by, sendmsg and recvmsg.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct MsgFlags: u32 {
        /// Leave the data queued.
        #[doc(alias = "MSG_PEEK")]
        const PEEK = 0x2;
        /// Returned by recvmsg: the control messages did not fit.
        #[doc(alias = "MSG_CTRUNC")]
        const CTRUNC = 0x8;
        /// Discard the bytes instead of copying them.
        #[doc(alias = "MSG_TRUNC")]
        const TRUNC = 0x20;
        /// Do not wait.
        #[doc(alias = "MSG_DONTWAIT")]
        const DONTWAIT = 0x40;
        /// End a record: later bytes are not put into the same packet as its last byte.
        #[doc(alias = "MSG_EOR")]
        const EOR = 0x80;
        /// Wait until the iovec is full.
        #[doc(alias = "MSG_WAITALL")]
        const WAITALL = 0x100;
        /// Read the error queue.
        #[doc(alias = "MSG_ERRQUEUE")]
        const ERRQUEUE = 0x2000;
        /// Do not raise SIGPIPE.
        #[doc(alias = "MSG_NOSIGNAL")]
        const NOSIGNAL = 0x4000;
        /// More bytes will be sent soon: a partial segment may wait for them.
        #[doc(alias = "MSG_MORE")]
        const MORE = 0x8000;
        /// Accept payload that lies in device memory.
        #[doc(alias = "MSG_SOCK_DEVMEM")]
        const SOCK_DEVMEM = 0x200_0000;
        /// Send from the caller's memory; the error queue reports when it may be reused.
        #[doc(alias = "MSG_ZEROCOPY")]
        const ZEROCOPY = 0x400_0000;
    }
}

bitflags::bitflags! {
    /// Options in use on a connection, as in `tcpi_options` of TCP_INFO (include/uapi/linux/tcp.h).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct TcpiOptions: u8 {
        /// Timestamps.
        #[doc(alias = "TCPI_OPT_TIMESTAMPS")]
        const TIMESTAMPS = 1;
        /// Selective acknowledgements.
        #[doc(alias = "TCPI_OPT_SACK")]
        const SACK = 2;
        /// Window scaling.
        #[doc(alias = "TCPI_OPT_WSCALE")]
        const WSCALE = 4;
        /// ECN was agreed on.
        #[doc(alias = "TCPI_OPT_ECN")]
        const ECN = 8;
        /// Data of the peer came with an ECN codepoint.
        #[doc(alias = "TCPI_OPT_ECN_SEEN")]
        const ECN_SEEN = 16;
        /// Payload of a SYN was accepted.
        #[doc(alias = "TCPI_OPT_SYN_DATA")]
        const SYN_DATA = 32;
    }
}
