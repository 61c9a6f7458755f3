//! The counters of both sides, and where they begin.

/// Initial value of the ACE counter (RFC 9768 3.2.1, linux `TCP_ACCECN_CEP_INIT_OFFSET`): not 0, so that a middlebox that
/// clears the field is detected.
pub(super) const ACE_START: u32 = 5;

/// Initial value of the counters of ECT(0) and ECT(1), for the same reason (RFC 9768 3.2.1).
pub(super) const OPTION_START: u32 = 1;

/// Bytes of payload by codepoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CodepointBytes {
    pub(crate) ect1: u32,
    pub(crate) ect0: u32,
    pub(crate) ce: u32,
}
