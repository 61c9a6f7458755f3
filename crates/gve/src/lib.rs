//! The gVNIC as a device without a transport: registers, admin queue, rings and wires are handed in.

#![forbid(unsafe_code)]
