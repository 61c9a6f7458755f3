//! Device memory TCP: receive TCP payload straight into device memory, send it from there.
