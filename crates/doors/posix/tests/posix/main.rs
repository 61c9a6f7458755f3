//! The socket table's integration tests, in one binary. What programs may expect of sockets whatever way they call is
//! asked by `scenarios`, written for the stack's own interface as well; here it is asked through files.

mod door;
#[path = "../../../../core/stack/tests/scenarios/mod.rs"]
mod scenarios;

mod shared;
mod table;
mod threads;
