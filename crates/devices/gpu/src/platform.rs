//! The words for a vendor's library: its names in messages, and its version.

use std::fmt;

/// The names that messages about a vendor's library have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Platform {
    /// The devices are this, a colon and a number.
    pub name: &'static str,
    /// The interface, before its version.
    pub title: &'static str,
    /// The library without its version.
    pub library: &'static str,
    /// Environment variable with the file name of the library.
    pub variable: &'static str,
    /// How the user finds the devices.
    pub devices: &'static str,
    /// How a program allocates memory of a device.
    pub allocators: &'static str,
    /// The call that selects a device.
    pub enter: &'static str,
    /// The name of error 3, which a child of fork(2) gets.
    pub not_initialized: &'static str,
}

/// A version of a library's interface.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Version(pub u32, pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}
