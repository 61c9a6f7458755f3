//! Where things are in a guest.

/// This program.
pub const PROGRAM_PATH: &str = "/lab/devmem-lab";
/// The plugin for NCCL, in guests that exchange.
pub const PLUGIN_PATH: &str = "/lab/libnccl-net.so";
/// Root file system made of packages: Python and other programs that a guest does not have by itself.
pub const ROOT: &str = "/lab/root";
/// Minimum memory in MiB of a guest with that root file system.
pub const MIN_MEMORY_MIB: u32 = 2048;
