//! `devmem-tcp packetdrill-path`: where the shared object for packetdrill is.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::args::PacketdrillPath;
use tool::output::{Failure, print_json, print_line};

/// The file's name.
const LIBRARY: &str = "libdevmem_packetdrill.so";

/// Where it may be, from the folder of this program: beside it, as cargo builds it and as its tests do, or installed.
const PLACES: [&str; 3] = [".", "deps", "../lib"];

#[derive(Serialize)]
struct ObjectPath<'p> {
    path: &'p Path,
}

/// Prints the path.
///
/// # Errors
///
/// The library was not built.
pub fn run(args: &PacketdrillPath) -> Result<(), Failure> {
    let program = std::env::current_exe()?;
    let folder = program.parent().unwrap_or(Path::new("."));
    let path = find(folder).ok_or_else(|| {
        Failure::unsupported(format!("{LIBRARY} is not beside {}", program.display()))
            .with_remedy("build it: cargo build --release -p devmem-packetdrill")
    })?;
    if args.output.json {
        return print_json(&ObjectPath { path: &path });
    }
    Ok(print_line(path.display())?)
}

fn find(folder: &Path) -> Option<PathBuf> {
    PLACES
        .iter()
        .map(|place| folder.join(place).join(LIBRARY))
        .find_map(|candidate| candidate.canonicalize().ok())
}

#[cfg(test)]
mod tests {
    use super::find;

    #[test]
    fn a_folder_without_the_library_has_none() {
        assert_eq!(find(std::path::Path::new("/nonexistent")), None);
    }
}
