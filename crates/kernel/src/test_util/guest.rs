//! Tests that need what a guest of the lab has, and other machines may lack.
//!
//! `.ci/run --only lab` runs them in a guest. It takes the test programs from what is built: those with [`RUNS_IN_GUEST`] in
//! their executable. A package whose programs also have many other tests names those for the guest in its Cargo.toml:
//!
//! ```toml
//! [package.metadata.lab.tests]
//! exchange = ["kernel_nic"]
//! ```

use std::path::Path;
use std::{env, fs};

use super::skip;

/// What a guest of the lab has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestHas {
    /// A NIC that supports device memory, named by `DEVMEM_TEST_NIC`, and its peer in the namespace `peer`.
    Nic,
    /// A kernel with device memory TCP, and root in its initial user namespace.
    Kernel,
    /// /dev/udmabuf, which makes dma-bufs.
    Udmabuf,
}

impl GuestHas {
    /// Returns its name in `DEVMEM_REQUIRE`.
    fn name(self) -> &'static str {
        match self {
            Self::Nic => "nic",
            Self::Kernel => "kernel",
            Self::Udmabuf => "udmabuf",
        }
    }
}

/// The words by which `.ci/run` recognizes the test programs for the guest.
const RUNS_IN_GUEST: &str = "a guest of the lab runs this test: .ci/run --only lab";

/// Prints that `test` is skipped for want of something that a guest of the lab has, as [`skip`] does.
///
/// # Panics
///
/// If `DEVMEM_REQUIRE` contains its name, as it does in the guest; or if the package's Cargo.toml names the tests of this
/// program that run in the guest, and `test` is none of them.
pub fn skip_outside_guest(test: &str, what: GuestHas, reason: &str) {
    let manifest =
        env::var_os("CARGO_MANIFEST_DIR").map(|folder| Path::new(&folder).join("Cargo.toml"));
    let manifest = manifest.and_then(|path| fs::read_to_string(path).ok());
    if let (Some(manifest), Some(program)) = (manifest, program_name()) {
        let named = tests_in_guest(&manifest, &program);
        assert!(
            named.is_none_or(|named| named.iter().any(|part| test.contains(part))),
            "{test} needs a guest, and would not run there: name it in [package.metadata.lab.tests] of Cargo.toml, at {program}"
        );
    }
    skip(test, what.name(), &format!("{reason} ({RUNS_IN_GUEST})"));
}

/// Returns the name of this test program: that of its file without the hash of cargo.
fn program_name() -> Option<String> {
    let me = env::current_exe().ok()?;
    let (name, _hash) = me.file_stem()?.to_str()?.rsplit_once('-')?;
    Some(name.to_owned())
}

/// Returns the parts of test names that a Cargo.toml has for a program, as in `exchange = ["kernel_nic"]`; `None` if it has no
/// entry for it: all tests run in the guest.
fn tests_in_guest<'a>(manifest: &'a str, program: &str) -> Option<Vec<&'a str>> {
    let lines = manifest.lines().map(str::trim);
    let mut section = lines
        .skip_while(|line| *line != "[package.metadata.lab.tests]")
        .skip(1)
        .take_while(|line| !line.starts_with('['));
    let list = section.find_map(|line| {
        let (name, list) = line.split_once('=')?;
        (name.trim() == program).then_some(list)
    })?;
    // Between quotation marks: every second part.
    Some(list.split('"').skip(1).step_by(2).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tests_for_the_guest_are_all_of_a_program_or_those_that_its_package_names() {
        let manifest = "[package]\nname = \"x\"\nwire = [\"no\"]\n\n[package.metadata.lab.tests]\n\
            exchange = [\"kernel_nic\", \"descriptors\"]\nnone=[]\n\n[dependencies]\nwire = \"1\"\n";
        let of = |program| tests_in_guest(manifest, program);
        assert_eq!(of("exchange").unwrap(), ["kernel_nic", "descriptors"]);
        assert_eq!(of("none").unwrap(), Vec::<&str>::new());
        assert_eq!(of("wire"), None);
        assert_eq!(tests_in_guest("[package]\n", "wire"), None);
    }
}
