//! The TCP Fast Open option (RFC 7413 4.1.1): a cookie, or the request for one.

/// Kind of the option (IANA).
pub(crate) const KIND: u8 = 34;

/// Kind of experiments, shared by all of them (RFC 6994).
pub(crate) const EXPERIMENT: u8 = 254;

/// The number that marks an experimental option as Fast Open (RFC 7413 4.1.1; linux `TCPOPT_FASTOPEN_MAGIC`).
const MAGIC: [u8; 2] = [0xf9, 0x89];

/// A Fast Open cookie: 4 to 16 bytes, an even number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FastOpenCookie {
    bytes: [u8; Self::MAX_LEN],
    len: u8,
}

impl FastOpenCookie {
    /// Length of the shortest cookie.
    pub const MIN_LEN: usize = 4;

    /// Length of the longest cookie.
    pub const MAX_LEN: usize = 16;

    /// Returns the cookie with these bytes; `None` if no cookie has this length.
    pub fn new(cookie: &[u8]) -> Option<Self> {
        if cookie.len() < Self::MIN_LEN || !cookie.len().is_multiple_of(2) {
            return None;
        }
        let mut bytes = [0; Self::MAX_LEN];
        bytes.get_mut(..cookie.len())?.copy_from_slice(cookie);
        let len = u8::try_from(cookie.len()).ok()?;
        Some(Self { bytes, len })
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len.into()).unwrap_or_default()
    }
}

impl std::fmt::Debug for FastOpenCookie {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_bytes()
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Form of the option.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FastOpenForm {
    /// Kind 34.
    #[default]
    Standard,
    /// Kind 254 with the number F989, from before the standard.
    Experimental,
}

/// The Fast Open option of a SYN or SYN-ACK.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastOpen {
    /// The cookie; `None` requests one.
    pub cookie: Option<FastOpenCookie>,
    /// Its form.
    pub form: FastOpenForm,
}

impl FastOpen {
    /// Bytes of the longest option, with padding.
    const MAX_EMIT: usize = 20;

    /// Parses the bytes behind kind and length. `None`: an experiment of another kind, or no length of a cookie.
    pub(crate) fn parse(kind: u8, body: &[u8]) -> Option<Self> {
        let (form, body) = match kind {
            KIND => (FastOpenForm::Standard, body),
            _ => (FastOpenForm::Experimental, body.strip_prefix(&MAGIC)?),
        };
        let cookie = match body {
            [] => None,
            bytes => Some(FastOpenCookie::new(bytes)?),
        };
        Some(Self { cookie, form })
    }

    fn header(&self) -> usize {
        match self.form {
            FastOpenForm::Standard => 2,
            FastOpenForm::Experimental => 4,
        }
    }

    fn cookie_bytes(&self) -> &[u8] {
        self.cookie.as_ref().map_or(&[], FastOpenCookie::as_bytes)
    }

    /// Returns the bytes of the option with its padding: a multiple of 4.
    pub(crate) fn emit_len(&self) -> usize {
        (self.header() + self.cookie_bytes().len()).next_multiple_of(4)
    }

    /// Returns the option, padded with NOPs (1); the first [`FastOpen::emit_len`] bytes count.
    pub(crate) fn emit(&self) -> [u8; Self::MAX_EMIT] {
        let mut out = [1; Self::MAX_EMIT];
        let cookie = self.cookie_bytes();
        let len = self.header() + cookie.len();
        // At most 4 + 16.
        let head = match self.form {
            FastOpenForm::Standard => [KIND, len as u8, 0, 0],
            FastOpenForm::Experimental => [EXPERIMENT, len as u8, MAGIC[0], MAGIC[1]],
        };
        let bytes = head.iter().take(self.header()).chain(cookie);
        out.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        out
    }
}
