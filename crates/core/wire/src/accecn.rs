//! The AccECN option (RFC 9768 3.2.3): how many bytes of payload arrived with which ECN codepoint.

/// Option kind whose first field is the counter of ECT(0).
pub(crate) const ACCECN0: u8 = 172;
/// Option kind whose first field is the counter of ECT(1); Linux sends this one, and so do we.
pub(crate) const ACCECN1: u8 = 174;

/// Bytes of the option's kind and length, and of each field.
const HEAD_LEN: usize = 2;
const FIELD_LEN: usize = 3;

/// Counters of payload bytes by ECN codepoint, modulo 2^24; `None` if the option lacks the field.
///
/// Values are as on the wire: those of ECT(0) and ECT(1) begin at 1, that of CE at 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccEcn {
    /// EE1B: bytes received with ECT(1).
    pub ect1: Option<u32>,
    /// ECEB: bytes received with CE.
    pub ce: Option<u32>,
    /// EE0B: bytes received with ECT(0).
    pub ect0: Option<u32>,
}

impl AccEcn {
    /// Bytes of the longest option, padded.
    pub const MAX_LEN: usize = 12;

    /// Returns the bytes of an option with `fields` fields, padded to a multiple of 4.
    pub const fn padded_len(fields: usize) -> usize {
        (HEAD_LEN + FIELD_LEN * fields).next_multiple_of(4)
    }

    /// Parses the body of an option of kind 172 or 174; `None` for an invalid length.
    pub(crate) fn parse(kind: u8, body: &[u8]) -> Option<Self> {
        let (fields, []) = body.as_chunks::<FIELD_LEN>() else {
            return None;
        };
        let mut option = Self::default();
        let order = match kind {
            ACCECN0 => [&mut option.ect0, &mut option.ce, &mut option.ect1],
            _ => [&mut option.ect1, &mut option.ce, &mut option.ect0],
        };
        if fields.len() > order.len() {
            return None;
        }
        for (slot, &[a, b, c]) in order.into_iter().zip(fields) {
            *slot = Some(u32::from_be_bytes([0, a, b, c]));
        }
        Some(option)
    }

    /// Returns how many fields [`emit`](Self::emit) writes: the option ends with the last field that is `Some`.
    fn fields(&self) -> usize {
        match (self.ect1, self.ce, self.ect0) {
            (_, _, Some(_)) => 3,
            (_, Some(_), None) => 2,
            (Some(_), None, None) => 1,
            (None, None, None) => 0,
        }
    }

    pub(crate) fn emit_len(&self) -> usize {
        Self::padded_len(self.fields())
    }

    /// Returns the option as kind 174, padded with NOPs (1) to [`emit_len`](Self::emit_len).
    pub(crate) fn emit(&self) -> [u8; Self::MAX_LEN] {
        let mut out = [1; Self::MAX_LEN];
        let fields = [self.ect1, self.ce, self.ect0];
        let count = self.fields();
        // At most 11.
        (out[0], out[1]) = (ACCECN1, (HEAD_LEN + FIELD_LEN * count) as u8);
        let slots = out[HEAD_LEN..].chunks_exact_mut(FIELD_LEN);
        for (slot, field) in slots.zip(&fields[..count]) {
            slot.copy_from_slice(&field.unwrap_or(0).to_be_bytes()[1..]);
        }
        out
    }
}
