//! The socket table's integration tests, in one program. The `scenarios` also run through the Rust interface of the stack;
//! here they run through files.

mod door;
#[path = "../../../../core/stack/tests/scenarios/mod.rs"]
mod scenarios;

mod fuzz_replay;
mod idle;
mod pipes;
mod shared;
mod table;
mod threads;

/// Starts the threads of a NIC with this stack.
fn start(stack: stack::Stack) -> devmem_posix::Engine {
    let nic = devmem_posix::Opened::of_one(stack, Vec::new());
    let mut shards = devmem_posix::Engine::start(nic, Default::default).unwrap();
    shards.pop().unwrap()
}
