//! Flags of sendmsg and recvmsg (linux include/linux/socket.h).

bitflags::bitflags! {
    /// Flags given to, and returned by, sendmsg and recvmsg.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct MsgFlags: u32 {
        /// Leave the data queued.
        #[doc(alias = "MSG_PEEK")]
        const PEEK = 0x2;
        /// Returned: control messages did not fit.
        #[doc(alias = "MSG_CTRUNC")]
        const CTRUNC = 0x8;
        /// Discard the bytes instead of copying them.
        #[doc(alias = "MSG_TRUNC")]
        const TRUNC = 0x20;
        /// Do not wait.
        #[doc(alias = "MSG_DONTWAIT")]
        const DONTWAIT = 0x40;
        /// End a record: nothing that is sent later joins the packet of the last byte.
        #[doc(alias = "MSG_EOR")]
        const EOR = 0x80;
        /// Wait until the iovec is full.
        #[doc(alias = "MSG_WAITALL")]
        const WAITALL = 0x100;
        /// Read the error queue.
        #[doc(alias = "MSG_ERRQUEUE")]
        const ERRQUEUE = 0x2000;
        /// No SIGPIPE.
        #[doc(alias = "MSG_NOSIGNAL")]
        const NOSIGNAL = 0x4000;
        /// More will be sent at once.
        #[doc(alias = "MSG_MORE")]
        const MORE = 0x8000;
        /// Take payload that lies in device memory.
        #[doc(alias = "MSG_SOCK_DEVMEM")]
        const SOCK_DEVMEM = 0x200_0000;
        /// Send from the caller's memory; the error queue tells when it may be reused.
        #[doc(alias = "MSG_ZEROCOPY")]
        const ZEROCOPY = 0x400_0000;
    }
}
