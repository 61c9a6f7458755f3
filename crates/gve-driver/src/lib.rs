//! A small guest driver for the gVNIC: the test and fuzz partner of the device. Never shipped.

#![forbid(unsafe_code)]
