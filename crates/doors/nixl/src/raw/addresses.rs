// UNSAFETY: getifaddrs(3), whose list leads to memory of the C library.

//! The addresses of this machine.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns the addresses of interfaces that are up, those of the loopback interface last. Addresses of IPv6 that need an interface beside
/// them (fe80::/10) are left out.
pub(crate) fn of_this_machine() -> io::Result<Vec<IpAddr>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: there is room for the pointer.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut at = first.cast_const();
    while !at.is_null() {
        // SAFETY: an element of the list, which is freed below.
        let it = unsafe { &*at };
        if it.ifa_flags & libc::IFF_UP.cast_unsigned() != 0 {
            // SAFETY: the address of an element of the list.
            found.extend(unsafe { address(it.ifa_addr) });
        }
        at = it.ifa_next.cast_const();
    }
    // SAFETY: the list of the call above; nothing of it is used any more.
    unsafe { libc::freeifaddrs(first) };
    found.sort_by_key(IpAddr::is_loopback);
    found.dedup();
    Ok(found)
}

/// # Safety
/// `raw` is null or a socket address of its family.
unsafe fn address(raw: *const libc::sockaddr) -> Option<IpAddr> {
    if raw.is_null() {
        return None;
    }
    // SAFETY: each socket address begins with its family.
    let family = unsafe { (*raw).sa_family };
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: an address of this family; it may be less aligned than its type.
            let it = unsafe { raw.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(it.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let it = unsafe { raw.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(it.sin6_addr.s6_addr);
            (!ip.is_unicast_link_local()).then_some(ip.into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_addresses_come_last() {
        let all = of_this_machine().unwrap();
        let first = all
            .iter()
            .position(IpAddr::is_loopback)
            .unwrap_or(all.len());
        assert!(all[first..].iter().all(IpAddr::is_loopback), "{all:?}");
    }
}
