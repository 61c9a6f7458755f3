//! `libstreamer.so`: the library of Run:ai's model streamer, on this project's loader.
//!
//! The Python package `runai-model-streamer` opens it in place of its own (`STREAMER_LIBRARY`), and calls the functions of `ffi/`, the only unsafe code here.
//! Key types: `Streamer` (takes submissions, and answers each of their ranges once), `Target` (memory of the
//! caller) and `Code` (the answer).
//!
//! A submission is cut into tasks, which threads take in order: a piece of a local file (`local`), or all ranges of an object (`object`), which the loader
//! of `devmem-transfer` receives over several connections. It is the program in the walk of a received segment, as the loader is.
//!
//! # What it does not do
//!
//! It fills host memory only, as the Python package asks for. It neither lists objects nor reads from Google's and Azure's stores. It reads files through the page cache.

mod code;
mod ffi;
mod listing;
mod local;
mod log;
mod object;
mod registry;
mod remedy;
mod store;
mod streamer;
mod submission;
