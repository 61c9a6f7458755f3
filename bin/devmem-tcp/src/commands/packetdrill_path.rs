//! `devmem-tcp packetdrill-path`: prints the path of the shared object for packetdrill.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::args::PacketdrillPath;
use tool::output::{Failure, print_json, print_line};

/// Name of the file.
const LIBRARY: &str = "libdevmem_packetdrill.so";

/// Folders to search, relative to the folder of this program: the output folders of cargo (for builds and for tests), and
/// that of an installation.
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
        Failure::unsupported(format!(
            "{LIBRARY} is not installed with {}",
            program.display()
        ))
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
    fn the_library_is_not_found_in_an_empty_folder() {
        assert_eq!(find(std::path::Path::new("/nonexistent")), None);
    }
}
