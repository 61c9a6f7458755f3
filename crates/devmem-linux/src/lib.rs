//! The Linux side: everything that this workspace asks of the real kernel.
//!
//! So far that is what the user-space backend needs around its stack:
//!
//! - [`tap::TapOptions`] opens the TAP interface that cables our NIC to this kernel,
//! - [`netif::Interface`] sets up the kernel's end of it,
//! - [`netns`] gives an unprivileged user a network of its own to do that in,
//!
//! with [`cpu`] to pin and measure threads and [`probe`] to say what works on this machine. In the walk of
//! a received segment (ARCHITECTURE.md) this crate is step 0: it hands the descriptors to the `Link`, which
//! does the reading.
//!
//! What it does not do: it moves no payload and knows no TCP. The only unsafe code is in `sys/`.

pub mod cpu;
pub mod dmabuf;
pub mod drivers;
pub mod errors;
pub mod ethtool;
pub mod netdev;
pub mod netif;
pub mod netlink;
pub mod netns;
pub mod nic_setup;
pub mod probe;
pub mod socket;
pub mod tap;
#[cfg(feature = "test-util")]
pub mod test_util;

#[allow(
    unsafe_code,
    reason = "the crate's island: see the header of each file there"
)]
mod sys;
