//! Pipes and splice, and the kept inputs of the fuzz target that mixes them with socket calls.

mod fuzz_replay;
mod pipes;
