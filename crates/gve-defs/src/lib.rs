//! The gVNIC's registers, admin queue commands, descriptors and device options: facts only.

#![forbid(unsafe_code)]
