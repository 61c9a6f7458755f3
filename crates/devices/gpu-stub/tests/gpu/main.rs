//! The whole of `devmem-gpu`, `devmem-cuda` and `devmem-hip` on the stub of the libraries, each test in its own process with its
//! own plan; and a real GPU, where one is.

mod added;
mod adopted;
mod allocations;
mod checksums;
mod copies;
mod drivers;
mod hip;
mod provider;
mod ptx;
mod rates;
mod real;
mod registered;
mod support;
mod transfer;
