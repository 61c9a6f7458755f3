//! The whole of `devmem-cuda` on the stub of the driver: each test runs in its own process, with its own plan.

mod adopted;
mod allocations;
mod copies;
mod drivers;
mod provider;
mod support;
mod transfer;
