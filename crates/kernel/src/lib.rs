//! The Linux side: everything that this workspace asks of the real kernel.
//!
//! For device memory on the kernel's own stack (Linux 6.12 and later):
//!
//! - [`dmabuf::DmabufFd`] is memory that a NIC can write to,
//! - [`nic_setup::NicSetup`] prepares a NIC and restores it exactly,
//! - [`netdev::Netdev`] binds the memory to its queues ([`netdev::BoundRx`], [`netdev::BoundTx`]),
//! - [`socket`] receives, gives frags back, sends, and reads completions;
//!
//! with [`errors::cause`] to say what a refusal means and [`doctor::Doctor`] what a machine lacks. In the walk of
//! a bind (ARCHITECTURE.md) this crate is the kernel's half: `NicSetup::apply`, then `Netdev::bind_rx`. What
//! undoes itself is a value: dropping a binding unbinds, dropping a set-up restores.
//!
//! For the user-space backend, what it needs around its stack:
//!
//! - [`tap::TapOptions`] opens the TAP interface that cables our NIC to this kernel,
//! - [`netif::Interface`] sets up the kernel's end of it,
//! - [`netns`] gives an unprivileged user a network of its own to do that in,
//!
//! with [`cpu`] to pin and measure threads and [`probe`] to say what works on this machine. In the walk of
//! a received segment this crate is step 0: it hands the descriptors to the `Link`, which does the reading.
//!
//! What it does not do: it moves no payload and knows no TCP. The only unsafe code is in `sys/`.

pub mod cpu;
pub mod dmabuf;
pub mod doctor;
pub mod drivers;
pub mod errors;
pub mod ethtool;
#[cfg(any(test, fuzzing, feature = "test-util"))]
pub mod fuzz;
pub mod helper;
pub mod netdev;
pub mod netif;
pub mod netlink;
pub mod netns;
pub mod nic_setup;
pub mod probe;
pub mod small_file;
pub mod socket;

pub mod tap;
#[cfg(feature = "test-util")]
pub mod test_util;

#[allow(
    unsafe_code,
    reason = "the crate's island: see the header of each file there"
)]
mod sys;
