//! The user-space TCP/IP stack and its device memory sockets.
