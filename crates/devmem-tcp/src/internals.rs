//! Access to the user-space stack for the other crates of this workspace. Not part of the API: it changes without notice.

use std::net::IpAddr;

use nic::Nic;

use crate::error::Error;
use crate::netdev::Netdev;
use crate::open::NetdevBuilder;

/// Checks that a NIC may have the address `ip` in a network with this prefix length: it is that of one host.
///
/// # Errors
/// What the address is, and the remedy.
pub fn check_address(ip: IpAddr, prefix_len: u8) -> Result<(), Error> {
    Ok(stack::check_address(ip, prefix_len)?)
}

/// Checks that `gateway` can be the router of a NIC with the address `ip`.
///
/// # Errors
/// What is wrong with it, and the remedy.
pub fn check_gateway(ip: IpAddr, prefix_len: u8, gateway: IpAddr) -> Result<(), Error> {
    Ok(stack::check_gateway(ip, prefix_len, gateway)?)
}

/// Sets all settings of TCP.
pub fn with_tcp_config(builder: NetdevBuilder, config: tcp::Config) -> NetdevBuilder {
    builder.tcp_config(config)
}

/// Calls `call` with the NIC of the user-space stack, or of its first shard, to read or change its rings, channels, RSS, rules
/// and counters.
///
/// # Errors
/// This is an interface of the kernel, or this process is a fork of the one that opened the NIC.
pub fn with_nic<T>(netdev: &Netdev, call: impl FnOnce(&mut Nic) -> T) -> Result<T, Error> {
    netdev.nic().with_nic(call)
}
