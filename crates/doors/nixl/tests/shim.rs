//! The C++ part of the plugin under AddressSanitizer: a program drives the engine's class as libnixl does, over the built library.

use std::path::{Path, PathBuf};
use std::process::Command;

use devmem_linux::test_util::built_library;

/// Returns what a compiler prints, if it succeeds.
fn run(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then_some(text)
}

fn compiler() -> Command {
    Command::new(std::env::var("CXX").unwrap_or_else(|_| "g++".to_owned()))
}

/// Returns why the program cannot be made here, if it cannot.
fn missing(folder: &Path) -> Option<&'static str> {
    if run(compiler().arg("--version")).is_none() {
        return Some("there is no C++ compiler (apt install g++, or name one in CXX)");
    }
    let empty = folder.join("empty.cc");
    std::fs::write(&empty, "int main() { return 0; }\n").expect("a file");
    let program = folder.join("empty");
    let made = run(compiler()
        .args(["-std=c++20", "-fsanitize=address", "-o"])
        .args([&program, &empty]));
    if made.is_none() {
        return Some("the C++ compiler has no C++20, or no AddressSanitizer");
    }
    let starts = run(&mut Command::new(program)).is_some();
    (!starts).then_some("programs with AddressSanitizer do not start here")
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn good(command: &mut Command) -> String {
    let output = command.output().expect("a program");
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{command:?}\n{out}{err}");
    out.into_owned()
}

#[test]
fn the_class_of_the_engine_handles_memory_right() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    if let Some(reason) = missing(folder.path()) {
        println!("SKIP {reason}");
        return;
    }
    let library = built_library("libplugin_DEVMEM.so");
    let common = [
        "-std=c++20".to_owned(),
        "-g".to_owned(),
        "-DDEVMEM_NIXL_VERSION=\"test\"".to_owned(),
        format!("-I{}", source("shim").display()),
    ];
    // The plugin compares its table of virtual functions with those of other plugins: this one has it.
    let other = folder.path().join("libplugin_OTHER.so");
    good(
        compiler()
            .args(&common)
            .args(["-shared", "-fPIC", "-o"])
            .args([&other, &source("shim/plugin.cc")]),
    );
    let driver = folder.path().join("driver");
    good(
        compiler()
            .args(&common)
            .args(["-fsanitize=address", "-fno-omit-frame-pointer", "-o"])
            .args([
                &driver,
                &source("tests/shim/driver.cc"),
                &source("shim/plugin.cc"),
                &library,
            ])
            .arg(format!(
                "-Wl,-rpath,{}",
                library.parent().expect("a folder").display()
            )),
    );
    let out = good(
        Command::new(driver)
            .env("NIXL_PLUGIN_DIR", folder.path())
            .env("ASAN_OPTIONS", "detect_leaks=1:halt_on_error=1"),
    );
    assert_eq!(out, "driven\n");
}
