//! Failed calls: the errno that C gets, and the text that `dmt_error` returns.

use std::borrow::Cow;
use std::cell::RefCell;
use std::error::Error;
use std::ffi::c_int;
use std::fmt;

use cabi::Answer;
use devmem_posix::{BindRxError, BindTxError, MemoryHolders};
use devmem_tcp::Remedy;
use devmem_uapi::Errno;
use devmem_uapi::text::PrintableLines;
use netmem::{CopyError, DeviceState, InUse, InUseReason};

use crate::stacks;

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    errno: Errno,
    /// The reason and the remedy; `None` if the errno says everything.
    reason: Option<Cow<'static, str>>,
    /// Of a receive that found nothing: the socket, to find the reason when it is asked for.
    receiver: Option<Receiver>,
}

/// A socket that has received nothing.
#[derive(Debug)]
struct Receiver {
    /// The number of its stack.
    stack: usize,
    fd: c_int,
}

/// A call and why it failed.
struct FailedCall {
    name: &'static str,
    failure: Failure,
}

thread_local! {
    /// The last failed call of this thread. The text is made by `dmt_error`, because a call that would block fails, too.
    static LAST: RefCell<Option<FailedCall>> = const { RefCell::new(None) };
}

/// Makes the call `name` on behalf of C, as [`cabi::finish`], and stores a failure for `dmt_error`.
pub(crate) fn finish<T: Answer, E: Into<Failure>>(
    name: &'static str,
    call: impl FnOnce() -> Result<T, E>,
) -> T::C {
    let mut has_returned = false;
    let answer = cabi::finish(|| {
        let outcome = call();
        has_returned = true;
        outcome.map_err(|error| store(name, error.into()))
    });
    if !has_returned {
        store(name, Errno::EIO.into());
    }
    answer
}

fn store(name: &'static str, failure: Failure) -> Errno {
    let errno = failure.errno;
    LAST.with(|last| last.replace(Some(FailedCall { name, failure })));
    errno
}

/// Returns the text of `dmt_error`; empty if no call of this thread has failed. Programs print it, so what a terminal would obey is
/// escaped.
pub(crate) fn last_text() -> String {
    LAST.with(|last| {
        let last = last.borrow();
        let text = last.as_ref().map(|call| PrintableLines(call).to_string());
        text.unwrap_or_default()
    })
}

impl Failure {
    pub(crate) fn new(errno: Errno, reason: impl Into<Cow<'static, str>>) -> Self {
        Self {
            errno,
            reason: Some(reason.into()),
            receiver: None,
        }
    }

    /// A receive on `fd` of the stack with this number that failed.
    pub(crate) fn of_receive(errno: Errno, stack: usize, fd: c_int) -> Self {
        let is_empty = errno == Errno::EAGAIN;
        Self {
            receiver: is_empty.then_some(Receiver { stack, fd }),
            ..Self::from(errno)
        }
    }

    /// A failure with the text of `error`, causes that it does not tell, and its remedy in the words of C.
    pub(crate) fn of(errno: Errno, error: &(dyn Error + 'static)) -> Self {
        let mut reason = error.to_string();
        let mut cause = error.source();
        while let Some(next) = cause {
            reason.push_str(": ");
            reason.push_str(&next.to_string());
            cause = next.source();
        }
        Self::told(errno, &reason, Remedy::of(error))
    }

    fn told(errno: Errno, reason: &str, remedy: Option<Remedy>) -> Self {
        let remedy = remedy.map_or_else(String::new, |remedy| format!("; {}", words(remedy)));
        Self::new(errno, format!("{reason}{remedy}"))
    }

    /// A handle that is not valid in this process.
    pub(crate) fn of_handle(errno: Errno, what: &str) -> Self {
        let text = match errno {
            Errno::EOWNERDEAD => {
                format!("the {what} belongs to the parent of this process; create one after fork()")
            }
            _ => format!("the {what} is NULL, closed or was never created"),
        };
        Self::new(errno, text)
    }

    /// A memory that is bound already, or of which an earlier binding has lent some.
    pub(crate) fn of_in_use(in_use: &InUse) -> Self {
        Self::new(Errno::EBUSY, in_use_text(&in_use.holder, in_use.reason))
    }

    /// A binding that does not exist.
    pub(crate) fn no_binding(id: u32) -> Self {
        Self::new(
            Errno::EINVAL,
            format!(
                "there is no binding with the id {id}; dmt_bind_rx and dmt_bind_tx write the ids"
            ),
        )
    }

    /// A failure of `dmt_open`; remedies name the settings of C.
    pub(crate) fn of_open(error: &devmem_tcp::Error) -> Self {
        let reason = match error.remedy() {
            Some(Remedy::GiveAddress) => "the stack has no address",
            _ => error.reason(),
        };
        Self::told(error.errno(), reason, error.remedy())
    }

    /// A failure to bind to a NIC of the kernel; remedies name the functions of C.
    pub(crate) fn of_bind(errno: Errno, error: &(dyn Error + 'static)) -> Self {
        match Remedy::of(error) {
            Some(Remedy::ExportableMemory) => Self::new(
                errno,
                "memory of dmt_memory_new is not a dma-buf, which a NIC of the kernel needs; make it with dmt_memory_udmabuf, \
                 dmt_memory_heap, dmt_memory_import or a function for memory of a GPU",
            ),
            _ => Self::of(errno, error),
        }
    }
}

/// Returns a remedy with what C has instead of calls of the library.
fn words(remedy: Remedy) -> String {
    let words = match remedy {
        Remedy::GiveAddress => "add one to SETTINGS: address=10.77.0.2/24",
        Remedy::OtherWire => {
            "choose another name, or close one of the two stacks (dmt_stack_close)"
        }
        Remedy::SameShards => "open both with the same COUNT (dmt_open_shards)",
        Remedy::OneShard => {
            "open one stack (dmt_open), or open packet:NAME, tap:NAME, macvtap:NAME or mem:NAME"
        }
        Remedy::CorrectRouter => {
            "correct gateway= in SETTINGS, or check that the router is up and on this link"
        }
        Remedy::NameRouter => "name a router in SETTINGS: gateway=ADDRESS",
        // Its words are those of people.
        other => return other.to_string(),
    };
    words.to_owned()
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self {
            errno,
            reason: None,
            receiver: None,
        }
    }
}

impl Receiver {
    /// Returns who holds the memory that the peer's bytes need, if little of it is free now.
    fn reason(&self) -> Option<String> {
        let stack = stacks::stack(self.stack).ok()?;
        let holders = stack.posix().call(|table| table.memory_holders(self.fd))?;
        let MemoryHolders {
            dmabuf,
            niovs,
            lent,
            lent_by_others,
            unread,
        } = holders;
        let all = lent + lent_by_others;
        let others = match lent_by_others {
            0 => String::new(),
            others => format!(", {lent} by this socket and {others} by others"),
        };
        let unread = match unread {
            0 => String::new(),
            unread => format!("; {unread} hold bytes that it has not received"),
        };
        Some(format!(
            "no data: {all} of {niovs} net_iovs of the binding with id {dmabuf} are lent to the program{others}{unread}; return \
             their frags (SO_DEVMEM_DONTNEED), or bind more memory: until then the peer may not send more"
        ))
    }
}

impl From<CopyError> for Failure {
    fn from(error: CopyError) -> Self {
        let errno = match &error {
            CopyError::OutOfBounds(_) => Errno::EFAULT,
            CopyError::Sync { errno } => *errno,
            CopyError::Device(error) if error.state == DeviceState::Forked => Errno::EOWNERDEAD,
            CopyError::Device(_) => Errno::EIO,
        };
        Self::of(errno, &error)
    }
}

impl From<BindRxError> for Failure {
    fn from(error: BindRxError) -> Self {
        let text = match &error {
            BindRxError::Geometry(_) => {
                "the size of the memory is not a multiple of 65536 bytes; round it up in dmt_memory_new".to_owned()
            }
            BindRxError::QueueTaken { by, .. } => format!(
                "the stack receives into the memory with binding id {by} already; end that binding with dmt_unbind, or open \
                 another stack"
            ),
            BindRxError::InUse(in_use) => return Self::of_in_use(in_use),
            BindRxError::Restart { error, .. } => format!(
                "{error}; make the memory larger, or open the stack with fewer queues (rx_queues=1 in SETTINGS)"
            ),
            BindRxError::NoId => "every binding id is in use; end some bindings with dmt_unbind".to_owned(),
            error => with_remedy(error, error.remedy()),
        };
        Self::new(error.errno(), text)
    }
}

/// Returns the reason of an error of the stack, and the remedy.
fn with_remedy(error: &dyn Error, remedy: Option<&str>) -> String {
    match remedy {
        Some(remedy) => format!("{error}; {remedy}"),
        None => error.to_string(),
    }
}

fn in_use_text(holder: &str, reason: InUseReason) -> String {
    match reason {
        InUseReason::Bound => format!(
            "the memory is bound for receiving already, to {holder}; end that binding with dmt_unbind, or bind other memory"
        ),
        InUseReason::Lent {
            net_iovs,
            niov_size,
        } => format!(
            "{net_iovs} pieces of {niov_size} of the memory are still lent from its earlier binding to {holder}; return their \
             frags (SO_DEVMEM_DONTNEED), close the sockets with undelivered data, or bind other memory"
        ),
    }
}

impl From<BindTxError> for Failure {
    fn from(error: BindTxError) -> Self {
        let text = match &error {
            BindTxError::NoId => {
                "every binding id is in use; end some bindings with dmt_unbind".to_owned()
            }
            error => with_remedy(error, error.remedy()),
        };
        Self::new(error.errno(), text)
    }
}

impl fmt::Display for FailedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, failure } = self;
        let Failure {
            errno,
            reason,
            receiver,
        } = failure;
        if let Some(reason) = receiver.as_ref().and_then(Receiver::reason) {
            return write!(f, "{name}: {errno}: {reason}");
        }
        match (reason, *errno) {
            (Some(reason), errno) => write!(f, "{name}: {errno}: {reason}"),
            (None, Errno::EBADF) => write!(
                f,
                "{name}: {errno}: the descriptor is not open in this stack; pass one of its dmt_socket, dmt_accept or \
                 dmt_epoll_create1"
            ),
            (None, Errno::EFAULT) => write!(
                f,
                "{name}: {errno}: a pointer is NULL, or the next bytes are in device memory and the call has no MSG_SOCK_DEVMEM"
            ),
            (None, Errno::EIO) => write!(
                f,
                "{name}: {errno}: a bug of libdevmemtcp, which printed a message to stderr"
            ),
            (None, errno) => write!(f, "{name}: {errno}: {}", errno.describe()),
        }
    }
}

#[cfg(test)]
mod tests {
    use devmem_linux::nic_setup::{PlanError, StateError, StateFault};

    use super::*;

    #[test]
    fn remedies_of_opening_name_what_c_has() {
        for remedy in [
            Remedy::GiveAddress,
            Remedy::OtherWire,
            Remedy::SameShards,
            Remedy::OneShard,
            Remedy::CorrectRouter,
            Remedy::NameRouter,
        ] {
            let text = words(remedy);
            for word in ["::", "`", "--", "()"] {
                assert!(!text.contains(word), "{text}");
            }
        }
    }

    #[test]
    fn the_text_is_that_of_the_last_failed_call() {
        finish("dmt_open", || {
            Err::<(), _>(Failure::new(Errno::EINVAL, "the stack has no address"))
        });
        assert_eq!(last_text(), "dmt_open: EINVAL: the stack has no address");
        finish("dmt_close", || Err::<(), _>(Errno::EBADF));
        assert!(last_text().starts_with("dmt_close: EBADF: the descriptor"));
        finish("dmt_socket", || Ok::<_, Failure>(7));
        assert!(last_text().starts_with("dmt_close: EBADF: "));
    }

    #[test]
    fn the_text_has_the_reason_of_the_library_and_its_remedy() {
        let fault = StateFault::Mode { mode: 0o666 };
        let path = "/run/x.json".into();
        let error = devmem_tcp::Error::from(PlanError::State(StateError::NotOurs { path, fault }));
        finish("dmt_nic_bind", || {
            Err::<(), _>(Failure::of(error.errno(), &error))
        });
        let text = last_text();
        assert!(text.contains("its mode is 0666"), "{text}");
        assert_eq!(text.matches("chmod go-w /run/x.json").count(), 1, "{text}");
    }

    #[test]
    fn a_cause_that_the_text_does_not_tell_stands_behind_it() {
        #[derive(Debug)]
        struct Refused(std::io::Error);

        impl fmt::Display for Refused {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("lo is not an Ethernet interface")
            }
        }

        impl Error for Refused {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(&self.0)
            }
        }

        let error = Refused(Errno::EINVAL.into());
        let cause = error.0.to_string();
        finish("dmt_open", || {
            Err::<(), _>(Failure::of(Errno::EINVAL, &error))
        });
        assert_eq!(
            last_text(),
            format!("dmt_open: EINVAL: lo is not an Ethernet interface: {cause}")
        );
    }

    #[test]
    fn a_copy_that_a_device_failed_is_eio_with_its_call() {
        let error = netmem::DeviceError {
            call: "cuMemcpyDtoHAsync",
            name: "CUDA_ERROR_ILLEGAL_ADDRESS",
            code: 700,
            state: netmem::DeviceState::Lost,
            remedy: "restart the program",
        };
        finish("dmt_memory_read", || {
            Err::<(), Failure>(CopyError::Device(error).into())
        });
        let text = last_text();
        assert!(
            text.starts_with("dmt_memory_read: EIO: cuMemcpyDtoHAsync failed: "),
            "{text}"
        );
        let state = netmem::DeviceState::Forked;
        finish("dmt_memory_read", || {
            let error = netmem::DeviceError { state, ..error };
            Err::<(), Failure>(CopyError::Device(error).into())
        });
        assert!(last_text().starts_with("dmt_memory_read: EOWNERDEAD: "));
    }

    #[test]
    fn a_panic_is_the_last_failed_call() {
        finish("dmt_send", || -> Result<i32, Failure> {
            panic!("the test panics on purpose")
        });
        assert!(last_text().starts_with("dmt_send: EIO: a bug"));
    }
}
