//! Pipes and splice, as a program of Rust calls them, and the fuzz target that mixes them with socket calls.

mod fuzz_replay;
mod pipes;
