//! The messages between a broker and its clients, as plain data. Numbers are in the byte order of the machine.

use devmem_uapi::{DmabufId, Errno};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::netdev::KernelRxQueueId;

/// First bytes of each message: the protocol, and its version.
const MAGIC: [u8; 4] = *b"dmtb";
const VERSION: u16 = 1;
/// Most queues of one binding.
pub(super) const MAX_QUEUES: usize = 64;
/// Longest text of a refusal, in bytes.
const MAX_TEXT: usize = 1024;
/// `IFNAMSIZ` (linux include/uapi/linux/if.h), with the terminating NUL.
const NAME_BYTES: usize = 16;
/// Longest message.
pub(super) const MAX_BYTES: usize = size_of::<RefusalHeader>() + 2 * MAX_TEXT;
const _: () = assert!(MAX_BYTES > size_of::<RequestHeader>() + 4 * MAX_QUEUES);

/// Kinds of messages.
const KIND_HELLO: u16 = 1;
const KIND_REQUEST: u16 = 2;
const KIND_BOUND: u16 = 3;
const KIND_REFUSED: u16 = 4;

/// What each message begins with.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Start {
    magic: [u8; 4],
    version: u16,
    kind: u16,
}

/// The fixed part of a request; the queues follow, each a u32.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RequestHeader {
    start: Start,
    interface: [u8; NAME_BYTES],
    /// Bytes of a net_iov, 0 for a page.
    niov_bytes: u32,
    queues: u32,
}

/// The answer to a request that was granted.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct BoundMessage {
    start: Start,
    id: u32,
}

/// The fixed part of a refusal; reason and remedy follow.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RefusalHeader {
    start: Start,
    errno: i32,
    reason_bytes: u16,
    remedy_bytes: u16,
}

const _: () = assert!(size_of::<RequestHeader>() == 32 && size_of::<RefusalHeader>() == 16);

/// A request to bind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// Name of the interface in the network namespace of both.
    pub(super) interface: String,
    /// Its RX queues, at least one and each once.
    pub(super) queues: Vec<KernelRxQueueId>,
    /// Size of a net_iov, if it is not a page.
    pub(super) niov_bytes: Option<u32>,
}

/// Why a broker, or the kernel that it asked, refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Refusal {
    /// The errno of the kernel, or what stands for the broker's own reason.
    pub errno: Errno,
    /// The reason, in one line.
    pub reason: String,
    /// The remedy, one or more lines.
    pub remedy: Option<String>,
}

impl Refusal {
    pub(super) fn new(errno: Errno, reason: impl Into<String>) -> Self {
        Self {
            errno,
            reason: reason.into(),
            remedy: None,
        }
    }

    pub(super) fn with_remedy(self, remedy: impl Into<String>) -> Self {
        Self {
            remedy: Some(remedy.into()),
            ..self
        }
    }
}

/// What a broker says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// This user may ask.
    Hello,
    /// Bound; the netlink socket comes with it.
    Bound(DmabufId),
    /// Refused.
    Refused(Refusal),
}

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadMessage {
    #[error("not a message of this protocol")]
    Foreign,
    #[error("version {0} of the protocol, and this program has {ours}", ours = VERSION)]
    Version(u16),
    #[error("a message of another kind ({0}) than expected")]
    Kind(u16),
    #[error("a message of a wrong length")]
    Length,
    #[error("not the name of an interface")]
    Name,
    #[error("{0} queues: 1 to {most}, each once", most = MAX_QUEUES)]
    Queues(u32),
}

impl Start {
    fn new(kind: u16) -> Self {
        Self {
            magic: MAGIC,
            version: VERSION,
            kind,
        }
    }

    /// Reads the start of a message, and returns its kind.
    fn kind_of(bytes: &[u8]) -> Result<u16, BadMessage> {
        let (start, _) = Self::read_from_prefix(bytes).map_err(|_short| BadMessage::Foreign)?;
        match start {
            Self { magic, .. } if magic != MAGIC => Err(BadMessage::Foreign),
            Self { version, .. } if version != VERSION => Err(BadMessage::Version(version)),
            Self { kind, .. } => Ok(kind),
        }
    }
}

impl Request {
    /// Encodes the request; `None` if a broker would not read it back: no interface can have the name, or there are no queues, too many, or
    /// one twice.
    pub(super) fn emit(&self) -> Option<Vec<u8>> {
        let Self {
            interface,
            queues,
            niov_bytes,
        } = self;
        let mut name = [0; NAME_BYTES];
        // The last byte stays NUL.
        name[..NAME_BYTES - 1]
            .get_mut(..interface.len())?
            .copy_from_slice(interface.as_bytes());
        let header = RequestHeader {
            start: Start::new(KIND_REQUEST),
            interface: name,
            niov_bytes: niov_bytes.unwrap_or(0),
            queues: u32::try_from(queues.len()).ok()?,
        };
        let mut bytes = header.as_bytes().to_vec();
        for queue in queues {
            bytes.extend_from_slice(&queue.0.to_ne_bytes());
        }
        (Self::parse(&bytes).as_ref() == Ok(self)).then_some(bytes)
    }

    /// Reads a request of a client.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, BadMessage> {
        match Start::kind_of(bytes)? {
            KIND_REQUEST => {}
            kind => return Err(BadMessage::Kind(kind)),
        }
        let header = RequestHeader::read_from_prefix(bytes);
        let (header, rest) = header.map_err(|_short| BadMessage::Length)?;
        let count = usize::try_from(header.queues).unwrap_or(usize::MAX);
        if !(1..=MAX_QUEUES).contains(&count) {
            return Err(BadMessage::Queues(header.queues));
        }
        let (numbers, []) = rest.as_chunks::<4>() else {
            return Err(BadMessage::Length);
        };
        if numbers.len() != count {
            return Err(BadMessage::Length);
        }
        let numbers = numbers.iter().copied().map(u32::from_ne_bytes);
        let queues: Vec<_> = numbers.map(KernelRxQueueId).collect();
        let mut sorted = queues.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() != count {
            return Err(BadMessage::Queues(header.queues));
        }
        Ok(Self {
            interface: name_of(&header.interface).ok_or(BadMessage::Name)?,
            queues,
            niov_bytes: Some(header.niov_bytes).filter(|bytes| *bytes != 0),
        })
    }
}

/// Reads a name that ends at its first NUL, and has nothing behind it. Only printable ASCII: a name is compared with those of
/// grants, and printed.
fn name_of(bytes: &[u8; NAME_BYTES]) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    let (name, rest) = bytes.split_at(end);
    let is_name = !name.is_empty() && name.iter().all(u8::is_ascii_graphic);
    let is_name = is_name && rest.iter().all(|byte| *byte == 0);
    is_name.then(|| String::from_utf8_lossy(name).into_owned())
}

impl Answer {
    /// Encodes the answer. A long text is cut.
    pub(super) fn emit(&self) -> Vec<u8> {
        match self {
            Self::Hello => Start::new(KIND_HELLO).as_bytes().to_vec(),
            Self::Bound(id) => {
                let start = Start::new(KIND_BOUND);
                BoundMessage { start, id: id.0 }.as_bytes().to_vec()
            }
            Self::Refused(refusal) => {
                let (reason, reason_bytes) = cut(&refusal.reason);
                let (remedy, remedy_bytes) = cut(refusal.remedy.as_deref().unwrap_or_default());
                let header = RefusalHeader {
                    start: Start::new(KIND_REFUSED),
                    errno: refusal.errno.0,
                    reason_bytes,
                    remedy_bytes,
                };
                [header.as_bytes(), reason.as_bytes(), remedy.as_bytes()].concat()
            }
        }
    }

    /// Reads an answer of a broker.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, BadMessage> {
        match Start::kind_of(bytes)? {
            KIND_HELLO if bytes.len() == size_of::<Start>() => Ok(Self::Hello),
            KIND_BOUND => {
                let bound = BoundMessage::read_from_bytes(bytes);
                let bound = bound.map_err(|_length| BadMessage::Length)?;
                Ok(Self::Bound(DmabufId(bound.id)))
            }
            KIND_REFUSED => parse_refusal(bytes).map(Self::Refused),
            KIND_HELLO => Err(BadMessage::Length),
            kind => Err(BadMessage::Kind(kind)),
        }
    }
}

fn parse_refusal(bytes: &[u8]) -> Result<Refusal, BadMessage> {
    let header = RefusalHeader::read_from_prefix(bytes);
    let (header, texts) = header.map_err(|_short| BadMessage::Length)?;
    let at = usize::from(header.reason_bytes);
    let remedy_bytes = usize::from(header.remedy_bytes);
    let (reason, remedy) = texts.split_at_checked(at).ok_or(BadMessage::Length)?;
    if remedy.len() != remedy_bytes || reason.len().max(remedy.len()) > MAX_TEXT {
        return Err(BadMessage::Length);
    }
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Ok(Refusal {
        errno: Errno(header.errno),
        reason: text(reason),
        remedy: (!remedy.is_empty()).then(|| text(remedy)),
    })
}

/// Returns the beginning of a text that fits into a message, and its length.
fn cut(text: &str) -> (&str, u16) {
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let text = &text[..end];
    (text, u16::try_from(text.len()).unwrap_or(0))
}

/// Body of a fuzz target: reads bytes as a message of a client, and of a broker.
///
/// # Panics
///
/// If a message changes when it is encoded and read again.
#[cfg(any(test, fuzzing, feature = "test-util"))]
pub(crate) fn fuzz_messages(bytes: &[u8]) {
    if let Ok(request) = Request::parse(bytes) {
        let emitted = request.emit().expect("it was read");
        assert_eq!(emitted, bytes, "{request:?}");
    }
    if let Ok(answer) = Answer::parse(bytes) {
        let emitted = answer.emit();
        assert!(emitted.len() <= MAX_BYTES, "{answer:?}");
        // Text that is not UTF-8 is replaced, and may get longer; then it is cut.
        let again = Answer::parse(&emitted).expect("it was emitted");
        assert_eq!(again.emit(), emitted, "{answer:?}");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request() -> Request {
        Request {
            interface: "dm0".to_owned(),
            queues: [4, 1, u32::MAX].map(KernelRxQueueId).to_vec(),
            niov_bytes: Some(16384),
        }
    }

    #[test]
    fn a_message_is_read_back_as_it_was() {
        let bytes = request().emit().unwrap();
        assert_eq!(Request::parse(&bytes), Ok(request()));
        let refusal = Refusal::new(Errno::EEXIST, "queue 1 is taken").with_remedy("take another");
        let answers = [
            Answer::Hello,
            Answer::Bound(DmabufId(u32::MAX)),
            Answer::Refused(refusal),
            Answer::Refused(Refusal::new(Errno::EPERM, "")),
        ];
        for answer in answers {
            assert_eq!(Answer::parse(&answer.emit()), Ok(answer));
        }
    }

    #[test]
    fn a_message_that_is_cut_longer_or_foreign_is_refused() {
        let bytes = request().emit().unwrap();
        for end in 0..bytes.len() {
            assert!(Request::parse(&bytes[..end]).is_err(), "{end}");
        }
        assert_eq!(
            Request::parse(&[&bytes[..], &[0; 4]].concat()),
            Err(BadMessage::Length)
        );
        let mut other = bytes.clone();
        other[4] = 2;
        assert_eq!(Request::parse(&other), Err(BadMessage::Version(2)));
        other[0] = 0;
        assert_eq!(Request::parse(&other), Err(BadMessage::Foreign));
        assert_eq!(Answer::parse(&bytes), Err(BadMessage::Kind(KIND_REQUEST)));
        assert_eq!(
            Request::parse(&Answer::Hello.emit()),
            Err(BadMessage::Kind(KIND_HELLO))
        );
    }

    #[test]
    fn a_request_has_one_name_and_each_queue_once() {
        let named = |name: &str| Request {
            interface: name.to_owned(),
            ..request()
        };
        for name in ["", "a name", "sixteen-letters-", "eth\0", "é"] {
            assert_eq!(named(name).emit(), None, "{name:?}");
        }
        assert!(named("a-name-of-15-by").emit().is_some());
        let with = |queues: &[u32]| Request {
            queues: queues.iter().copied().map(KernelRxQueueId).collect(),
            ..request()
        };
        let most: Vec<_> = (0..64).collect();
        assert!(with(&most).emit().is_some());
        let more: Vec<_> = (0..65).collect();
        for queues in [&more[..], &[], &[1, 2, 1]] {
            assert_eq!(with(queues).emit(), None, "{queues:?}");
        }
        // The name has bytes behind its end.
        let mut bytes = request().emit().unwrap();
        bytes[8 + 15] = b'x';
        assert_eq!(Request::parse(&bytes), Err(BadMessage::Name));
    }

    #[test]
    fn a_long_text_is_cut_between_two_characters() {
        let long = "é".repeat(MAX_TEXT);
        let refusal = Refusal::new(Errno::EPERM, format!("x{long}"));
        let bytes = Answer::Refused(refusal.with_remedy(long)).emit();
        assert!(bytes.len() <= MAX_BYTES);
        let Ok(Answer::Refused(read)) = Answer::parse(&bytes) else {
            panic!("{bytes:?}")
        };
        assert_eq!(read.reason.len(), MAX_TEXT - 1);
        assert_eq!(read.remedy.map(|text| text.len()), Some(MAX_TEXT));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            fuzz_messages(&bytes);
        }

        #[test]
        fn no_changed_message_panics(at in 0usize..44, value: u8) {
            let mut bytes = request().emit().unwrap();
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
            fuzz_messages(&bytes);
        }
    }
}
