//! Compiles the C++ part of the plugin. Without a C++20 compiler the rest is built and tested, and a warning says what is missing.
#![forbid(unsafe_code)]

const SOURCE: &str = "shim/plugin.cc";

fn main() {
    println!("cargo::rustc-check-cfg=cfg(has_shim)");
    for file in [SOURCE, "shim/nixl_abi.h", "shim/devmem_nixl.h"] {
        println!("cargo::rerun-if-changed={file}");
    }
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++20")
        .file(SOURCE)
        .define(
            "DEVMEM_NIXL_VERSION",
            Some(concat!("\"", env!("CARGO_PKG_VERSION"), "\"")),
        )
        .warnings(true)
        .extra_warnings(true)
        .flag_if_supported("-fvisibility=hidden");
    match build.try_compile("devmem_nixl_shim") {
        Ok(()) => println!("cargo::rustc-cfg=has_shim"),
        Err(error) => println!(
            "cargo::warning=libplugin_DEVMEM.so is built without its C++ part, so NIXL cannot load it: {}; \
             install a compiler for C++20 (Debian: apt install g++), or name one in CXX",
            error.to_string().lines().next().unwrap_or_default()
        ),
    }
}
