//! Exchange: two fabrics in one process, over wires with and without faults.

mod by_hand;
mod copies;
mod descriptors;
mod engine;
mod failure;
mod fuzz_replay;
mod hostile;
mod kernel_nic;
mod landing;
mod messages;
mod one_sided;
mod placing;
mod seeds;
mod world;
