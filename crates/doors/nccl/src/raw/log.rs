// UNSAFETY: calls the variadic function that NCCL gave for messages.

//! NCCL's log.

use std::ffi::{CString, c_int};
use std::sync::{PoisonError, RwLock};

use devmem_tcp::text::PrintableLines;

use super::abi::{LOG_FLAGS, LOG_INFO, LOG_WARN, LogFn};

static LOG: RwLock<Option<LogFn>> = RwLock::new(None);

/// Takes NCCL's function, which any thread may call until the library is closed.
pub(crate) fn set(log: Option<LogFn>) {
    *LOG.write().unwrap_or_else(PoisonError::into_inner) = log;
}

/// Writes a warning, which also becomes the text of NCCL's last error.
pub(crate) fn warn(text: &str) {
    write(LOG_WARN, text);
}

/// Writes an information.
pub(crate) fn info(text: &str) {
    write(LOG_INFO, text);
}

fn write(level: c_int, text: &str) {
    let Some(log) = *LOG.read().unwrap_or_else(PoisonError::into_inner) else {
        return;
    };
    // It may have text from outside; NULs are escaped, too.
    let text = CString::new(PrintableLines(text).to_string());
    let Ok(text) = text else {
        return;
    };
    let file = c"libnccl-net-devmem";
    // SAFETY: 1. NCCL's function, called as its type says; 2. "%s" takes the one string that follows, so the text is never a
    // format; 3. all strings live until the call returns.
    unsafe {
        log(
            level,
            LOG_FLAGS,
            file.as_ptr(),
            0,
            c"%s".as_ptr(),
            text.as_ptr(),
        )
    };
}
