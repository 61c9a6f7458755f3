//! The acceptance tests of a stock guest kernel with our gVNICs, row by row.
//!
//! `host` starts a guest for each group and collects what its rows report; in the guest `rows` runs them one after
//! another, over `traffic` (kernel sockets on both NICs) and `devmem` (our NIC's queues bound to device memory).

mod broker_rows;
mod devmem;
pub mod devmem_rows;
mod exchange;
mod exchange_rows;
pub mod host;
mod lease_rows;
mod load_rows;
mod loading;
mod long_rows;
pub mod nic;
mod nic_rows;
mod nvme_rows;
mod nvmet;
pub mod pods;
mod report;
pub mod row;
pub mod rows;
mod stack_rows;
mod traffic;
