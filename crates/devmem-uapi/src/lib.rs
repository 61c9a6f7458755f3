//! Shared vocabulary of Linux device memory TCP: control messages, tokens, flags, errnos, limits.
