//! Memory of AMD's GPUs, on the stand-in for their libraries alone: a machine with an NVIDIA GPU runs the tests of `gpu` on it.

use std::path::PathBuf;

use super::gpu::{LIBRARY, moved_on_every_way, run_with, stub};

/// The library of AMD's driver.
const LIBRARY_OF_AMD: &str = "DEVMEM_LIBAMDHIP";

pub fn memory_is_read_and_written_from_either_side() {
    if std::env::var_os(LIBRARY_OF_AMD).is_some() {
        return moved_on_every_way();
    }
    let none = PathBuf::from("/nonexistent/libcuda.so.1");
    let libraries = [
        (LIBRARY, none),
        (LIBRARY_OF_AMD, stub()),
        ("DEVMEM_LIBHSA", stub()),
    ];
    let test = "gpus_of_amd::memory_is_read_and_written_from_either_side";
    run_with(test, "devices=1", &libraries);
}
