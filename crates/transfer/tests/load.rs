//! Loads from servers at the other end of a TAP, each test in a separate network namespace. Every byte depends on its
//! position, and all of them are compared.

#![allow(
    clippy::single_range_in_vec_init,
    reason = "a load takes a list of ranges"
)]

#[path = "load/cancel.rs"]
mod cancel;
#[path = "load/checkpoint.rs"]
mod checkpoint;
#[path = "load/faulty.rs"]
mod faulty;
#[path = "load/fuzz_replay.rs"]
mod fuzz_replay;
#[path = "load/heads.rs"]
mod heads;
#[path = "load/hostile.rs"]
mod hostile;
#[path = "load/https.rs"]
mod https;
#[path = "load/https_proxy.rs"]
mod https_proxy;
#[path = "load/kernel_sockets.rs"]
mod kernel_sockets;
#[path = "load/nbd.rs"]
mod nbd;
#[path = "load/nbd_old.rs"]
mod nbd_old;
#[path = "load/nbd_script.rs"]
mod nbd_script;
#[path = "load/nvme.rs"]
mod nvme;
#[path = "load/nvme_faulty.rs"]
mod nvme_faulty;
#[path = "load/origins.rs"]
mod origins;
#[path = "load/pipeline.rs"]
mod pipeline;
#[path = "load/process.rs"]
mod process;
#[path = "load/server.rs"]
mod server;
#[path = "load/sloppy.rs"]
mod sloppy;
#[path = "load/stock.rs"]
mod stock;
#[path = "load/store.rs"]
mod store;
#[path = "load/sums.rs"]
mod sums;
#[path = "load/tensors.rs"]
mod tensors;
#[path = "load/tls_server.rs"]
mod tls_server;
#[path = "load/world.rs"]
mod world;
