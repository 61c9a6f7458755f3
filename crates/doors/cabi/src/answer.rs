//! What a call returns to C.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use devmem_uapi::Errno;

/// A number that a call returns to C.
pub trait Answer {
    /// The type in C.
    type C;
    /// The value that is returned when errno is set.
    const FAILED: Self::C;

    /// Converts the number to the type in C; saturates if that is smaller.
    fn into_c(self) -> Self::C;
}

impl Answer for c_int {
    type C = c_int;
    const FAILED: c_int = -1;

    fn into_c(self) -> c_int {
        self
    }
}

impl Answer for () {
    type C = c_int;
    const FAILED: c_int = -1;

    fn into_c(self) -> c_int {
        0
    }
}

impl Answer for usize {
    type C = isize;
    const FAILED: isize = -1;

    fn into_c(self) -> isize {
        isize::try_from(self).unwrap_or(isize::MAX)
    }
}

/// Runs a call for C: an error becomes -1 and errno, and so does a panic (EIO), which is a bug in this
/// library and must not unwind into C.
pub fn finish<T: Answer>(call: impl FnOnce() -> Result<T, Errno>) -> T::C {
    // State behind a lock that the panic poisoned stays usable (`Posix::lock`).
    let outcome = catch_unwind(AssertUnwindSafe(call));
    match outcome.unwrap_or(Err(Errno::EIO)) {
        Ok(answer) => answer.into_c(),
        Err(errno) => {
            crate::raw::memory::set_errno(errno);
            T::FAILED
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno() -> Option<i32> {
        std::io::Error::last_os_error().raw_os_error()
    }

    #[test]
    fn errors_become_minus_one_and_errno() {
        assert_eq!(finish(|| Err::<usize, _>(Errno::ENOTCONN)), -1);
        assert_eq!(errno(), Some(Errno::ENOTCONN.0));
        assert_eq!(finish(|| Ok(7usize)), 7);
        assert_eq!(finish(|| Ok(())), 0);
        assert_eq!(finish(|| Ok(3)), 3);
    }

    #[test]
    fn a_panic_does_not_cross() {
        let answer = finish(|| -> Result<c_int, Errno> { panic!("the test panics on purpose") });
        assert_eq!((answer, errno()), (-1, Some(Errno::EIO.0)));
    }
}
