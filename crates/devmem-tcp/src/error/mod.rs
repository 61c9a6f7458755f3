//! Why calls fail: [`Error`], and the errors of receiving and binding, whose variants programs act on.
//!
//! All of them have a kind for programs, the errno of the same refusal by Linux, a reason and a remedy for people, and become an
//! [`io::Error`] by `?`. How their texts are made is that of all crates: see the section "Errors" of `DECISIONS.md`.

mod bind;
mod boxed;
mod held_memory;
mod kind;
mod misplacement;
mod of_kernel;
mod of_memory;
mod of_stack;
mod recv;
mod remedy;

use std::convert::Infallible;
use std::error::Error as StdError;
use std::fmt;
use std::io;

use devmem_uapi::Errno;
use devmem_uapi::text::printable_lines;
use steer::RxQueueId;

pub use bind::BindError;
pub use held_memory::{HeldMemory, HeldUnit};
pub use kind::ErrorKind;
pub use misplacement::Misplacement;
pub use recv::RecvError;
pub use remedy::Remedy;
pub(crate) use runtime::NotReady;

/// Why a call failed.
///
/// `Display` prints the reason, with the reasons of its causes, so that [`source`](StdError::source) repeats nothing of it; the
/// [`remedy`](Self::remedy) is a value. `{:?}` prints both, the remedy on further lines, for a `main` that returns the error, and `{:#?}`
/// the fields. The texts may have names and messages from outside, in which what a terminal obeys is escaped.
///
/// The same refusal has the same kind and the same errno on both backends.
pub struct Error {
    kind: ErrorKind,
    errno: Errno,
    repr: Repr,
}

enum Repr {
    /// A reason without more, for calls that are repeated: it allocates nothing.
    Brief(&'static str),
    /// Boxed, because results with large errors are slow to return.
    Facts(Box<Facts>),
}

#[derive(Debug, Default)]
struct Facts {
    reason: String,
    remedy: Option<Remedy>,
    interface: Option<String>,
    queue: Option<RxQueueId>,
    kernel_message: Option<String>,
    /// An error of none of our crates, whose text is the reason.
    foreign: Option<io::Error>,
}

impl Error {
    /// Returns the kind, for programs.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the errno that the kernel's call returns for it.
    pub fn errno(&self) -> Errno {
        self.errno
    }

    /// Returns the reason, usually one line.
    pub fn reason(&self) -> &str {
        match &self.repr {
            Repr::Brief(reason) => reason,
            Repr::Facts(facts) => &facts.reason,
        }
    }

    /// Returns the remedy: what to change or type next.
    pub fn remedy(&self) -> Option<Remedy> {
        self.facts()?.remedy.clone()
    }

    /// Returns the interface of the kernel; `None` for a user-space NIC.
    pub fn interface(&self) -> Option<&str> {
        self.facts()?.interface.as_deref()
    }

    /// Returns the RX queue that was refused, the first one of several.
    pub fn queue(&self) -> Option<RxQueueId> {
        self.facts()?.queue
    }

    /// Returns the message of the kernel's extended acknowledgement, if it sent one.
    pub fn kernel_message(&self) -> Option<&str> {
        self.facts()?.kernel_message.as_deref()
    }

    fn facts(&self) -> Option<&Facts> {
        match &self.repr {
            Repr::Brief(_) => None,
            Repr::Facts(facts) => Some(facts),
        }
    }
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, errno: Errno, reason: impl Into<String>) -> Self {
        let facts = Facts {
            reason: printable_lines(reason.into()),
            ..Facts::default()
        };
        Self {
            kind,
            errno,
            repr: Repr::Facts(Box::new(facts)),
        }
    }

    /// An argument is invalid.
    pub(crate) fn invalid(reason: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidInput, Errno::EINVAL, reason)
    }

    /// An error with the kind that `errno` stands for.
    pub(crate) fn of_errno(errno: Errno, reason: impl Into<String>) -> Self {
        Self::new(ErrorKind::of_errno(errno), errno, reason)
    }

    /// Too many queues or none: queue 0 always uses host memory, so at most `channels - 1` can use device memory.
    pub(crate) fn no_such_queues(wanted: u16, channels: u16) -> Self {
        let most = channels.saturating_sub(1);
        Self::invalid(format!(
            "{wanted} queues cannot take device memory: the NIC has {channels} and keeps queue 0"
        ))
        .with_remedy(format!(
            "ask for 1 to {most}, or open the NIC with more queues"
        ))
    }

    fn brief(kind: ErrorKind, errno: Errno, reason: &'static str) -> Self {
        let repr = Repr::Brief(reason);
        Self { kind, errno, repr }
    }

    /// A system call failed, usually for lack of a resource.
    pub(crate) fn system<E: Into<io::Error>>(call: &'static str) -> impl FnOnce(E) -> Self {
        move |source| {
            let source = source.into();
            let remedy = "the process may be out of file descriptors or threads: see `ulimit -n` and `ulimit -u`";
            Self::of_io(format!("{call} failed: {source}"), &source).with_remedy(remedy)
        }
    }

    /// An error with the kind and the errno of an I/O error, whose text is part of the reason.
    pub(crate) fn of_io(reason: impl Into<String>, error: &io::Error) -> Self {
        let (kind, errno) = verdict_of_io(error);
        Self::new(kind, errno, reason)
    }

    pub(crate) fn with_remedy(self, remedy: impl Into<Remedy>) -> Self {
        self.with_remedy_if(Some(remedy))
    }

    /// Adds a remedy, if there is one.
    pub(crate) fn with_remedy_if(mut self, remedy: Option<impl Into<Remedy>>) -> Self {
        if let Some(remedy) = remedy {
            self.facts_mut().remedy = Some(remedy.into());
        }
        self
    }

    pub(crate) fn on(mut self, interface: &str) -> Self {
        self.facts_mut().interface = Some(interface.to_owned());
        self
    }

    fn on_queue(mut self, queue: RxQueueId) -> Self {
        self.facts_mut().queue = Some(queue);
        self
    }

    fn of_kind(self, kind: ErrorKind) -> Self {
        Self { kind, ..self }
    }

    fn facts_mut(&mut self) -> &mut Facts {
        if let Repr::Brief(reason) = self.repr {
            let facts = Facts {
                reason: reason.to_owned(),
                ..Facts::default()
            };
            self.repr = Repr::Facts(Box::new(facts));
        }
        match &mut self.repr {
            Repr::Facts(facts) => facts,
            Repr::Brief(_) => unreachable!("it has facts since the line above"),
        }
    }
}

/// Calls that have to wait. The errno is EAGAIN for a timeout, too, as for a socket with SO_RCVTIMEO.
impl Error {
    /// A send found no room.
    pub(crate) fn no_room(reason: NotReady) -> Self {
        let timed_out = "the send queue stayed full until the timeout";
        Self::not_ready(reason, "the send queue is full", timed_out)
    }

    /// A send is not complete.
    pub(crate) fn not_complete(reason: NotReady) -> Self {
        let timed_out = "the send did not complete within the timeout";
        Self::not_ready(reason, "the send is not complete yet", timed_out)
    }

    /// No connection waits to be accepted.
    pub(crate) fn no_connection(reason: NotReady) -> Self {
        let timed_out = "no connection arrived within the timeout";
        Self::not_ready(reason, "no connection is pending", timed_out)
    }

    fn not_ready(reason: NotReady, would_block: &'static str, timed_out: &'static str) -> Self {
        match reason {
            NotReady::WouldBlock => Self::brief(ErrorKind::WouldBlock, Errno::EAGAIN, would_block),
            NotReady::TimedOut => Self::brief(ErrorKind::TimedOut, Errno::EAGAIN, timed_out),
        }
    }

    /// The stream ended after `filled` of the `wanted` bytes of a call.
    pub(crate) fn ended_early(filled: usize, wanted: usize) -> Self {
        let reason = format!("the stream ended after {filled} of {wanted} bytes");
        Self::new(ErrorKind::UnexpectedEof, Errno::ENODATA, reason)
    }

    /// The peer has not answered a SYN in time.
    pub(crate) fn no_answer() -> Self {
        let reason = "the peer did not answer";
        Self::of_errno(Errno::ETIMEDOUT, reason).with_remedy(of_stack::NO_ANSWER)
    }
}

/// The NIC and everything made from it belong to the process that this one was forked from. The call did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forked {
    /// The process that opened the NIC.
    pub(crate) owner: u32,
}

impl From<Forked> for Error {
    fn from(Forked { owner }: Forked) -> Self {
        let reason = format!("the NIC belongs to process {owner}, of which this one is a fork");
        // No socket call of the kernel returns EOWNERDEAD, so it cannot be confused with an error of a connection or of a closed
        // handle.
        Self::of_errno(Errno::EOWNERDEAD, reason)
            .with_remedy("open a NIC in this process, or fork before opening it")
    }
}

impl From<Forked> for io::Error {
    fn from(forked: Forked) -> Self {
        Error::from(forked).into()
    }
}

fn verdict_of_io(error: &io::Error) -> (ErrorKind, Errno) {
    let errno = error.raw_os_error().map(Errno);
    let kind = ErrorKind::of_io(error);
    (kind, errno.unwrap_or_else(|| kind.errno()))
}

/// Writes a reason, and a remedy below it, for `{:?}`.
fn write_both(f: &mut fmt::Formatter<'_>, reason: &str, remedy: Option<&Remedy>) -> fmt::Result {
    f.write_str(reason)?;
    let remedy = remedy.map(Remedy::to_string).unwrap_or_default();
    remedy.lines().try_for_each(|line| write!(f, "\n  {line}"))
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            let remedy = self.facts().and_then(|facts| facts.remedy.as_ref());
            return write_both(f, self.reason(), remedy);
        }
        let mut error = f.debug_struct("Error");
        error.field("kind", &self.kind).field("errno", &self.errno);
        match &self.repr {
            Repr::Brief(reason) => error.field("reason", reason),
            Repr::Facts(facts) => error
                .field("reason", &facts.reason)
                .field("remedy", &facts.remedy)
                .field("interface", &facts.interface)
                .field("queue", &facts.queue)
                .field("kernel_message", &facts.kernel_message)
                .field("foreign", &facts.foreign),
        };
        error.finish()
    }
}

/// An error has no source but that of an error of another crate: its reason says what the causes say.
impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.facts()?.foreign.as_ref()?.source()
    }
}

/// Keeps the error as the inner error, except for "would block", which is only a kind.
fn into_io(kind: ErrorKind, error: impl StdError + Send + Sync + 'static) -> io::Error {
    match kind {
        ErrorKind::WouldBlock => io::ErrorKind::WouldBlock.into(),
        kind => io::Error::new(kind.into(), error),
    }
}

/// Keeps the error as the inner error, except for "would block", which is only a kind.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        into_io(error.kind(), error)
    }
}

/// For arguments whose conversion cannot fail.
impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}
