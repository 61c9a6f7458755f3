//! The socket table's integration tests, in one program. The `scenarios` also run through the Rust interface of the stack;
//! here they run through files.

mod door;
#[path = "../../../../core/stack/tests/scenarios/mod.rs"]
mod scenarios;

mod fuzz_replay;
mod pipes;
mod shared;
mod table;
mod threads;
