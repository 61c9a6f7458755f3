//! File-descriptor-shaped sockets, with Linux's calls and errnos, over the user-space stack.

#![forbid(unsafe_code)]
