//! Tests of the server with a small device and a client like QEMU, in one program.

mod common;

mod conversation;
mod fuzz_replay;
mod hostile;
mod silent_file;
