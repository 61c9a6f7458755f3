//! Bytes to checked headers and back: Ethernet, ARP, IPv4, IPv6, ICMP, TCP; checksums.
