//! The Linux side: all interfaces to the real kernel that this workspace uses.
//!
//! For device memory on the kernel's own stack (Linux 6.12 and later):
//!
//! - [`dmabuf::DmabufFd`] is memory that a NIC can write to,
//! - [`nic_setup::NicSetup`] prepares a NIC and restores it exactly,
//! - [`netdev::Netdev`] binds the memory to its queues ([`netdev::BoundRx`], [`netdev::BoundTx`]),
//! - [`broker`] is a process that does so for programs without the privilege,
//! - [`socket`] receives, returns frags, sends, and reads completions;
//!
//! [`errors::cause`] explains a refusal of the kernel, and [`doctor::Doctor`] finds what a machine lacks. A bind is
//! `NicSetup::apply`, then `Netdev::bind_rx`. Changes are
//! undone by dropping a value: dropping a binding unbinds, dropping a set-up restores.
//!
//! For the user-space backend, around its stack:
//!
//! - [`tap::TapOptions`] opens the TAP interface that joins our NIC to this kernel,
//! - [`packet::PacketOptions`] opens a packet socket, which joins it to an interface of this machine,
//! - [`macvtap::MacvtapOptions`] opens a macvtap interface over one,
//! - [`netif::Interface`] sets up the kernel's end of it,
//! - [`netns`] lets an unprivileged user do that in a separate network namespace,
//! - [`cpu`] pins threads and measures their time, and [`probe`] finds what works on this machine.
//!
//! In the walk of a received segment this crate is step 0: it passes the descriptors to the `Link`, which reads from them.
//!
//! It does not move payload and has no TCP. The only unsafe code is in `sys/`.

pub mod broker;
pub mod cpu;
pub mod dmabuf;
pub mod doctor;
pub mod drivers;
pub mod errors;
pub mod ethtool;
#[cfg(any(test, fuzzing, feature = "test-util"))]
pub mod fuzz;
pub mod helper;
pub mod iommu;
pub mod macvtap;
pub mod netdev;
pub mod netif;
pub mod netlink;
pub mod netns;
pub mod nftables;
pub mod nic_setup;
pub mod packet;
pub mod probe;
mod queue_id;
pub mod small_file;
pub mod socket;

pub mod tap;
#[cfg(feature = "test-util")]
pub mod test_util;

mod sys;
