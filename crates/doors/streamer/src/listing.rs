//! Lists of files.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Most folders inside each other.
const MAX_DEPTH: usize = 64;

/// A file, and its length.
pub(crate) type Listed = (PathBuf, u64);

/// Lists the files in a folder, and in those inside it if `depth` says so, in the order of their names. Links to files are followed, links to folders are not.
///
/// # Errors
/// The folder cannot be read.
pub(crate) fn files_in(folder: &Path, depth: Depth) -> io::Result<Vec<Listed>> {
    let mut listed = Vec::new();
    add(folder, depth, 0, &mut listed)?;
    listed.sort();
    Ok(listed)
}

/// How far a list goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    One,
    All,
}

fn add(folder: &Path, depth: Depth, level: usize, listed: &mut Vec<Listed>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        if kind.is_dir() {
            if depth == Depth::All && level < MAX_DEPTH {
                add(&path, depth, level + 1, listed)?;
            }
        } else if let Ok(found) = fs::metadata(&path)
            && found.is_file()
        {
            listed.push((path, found.len()));
        }
    }
    Ok(())
}

/// Returns whether a name has a pattern: any if there are none of these.
pub(crate) fn is_chosen(
    path: &Path,
    allowed: &[&[u8]],
    ignored: &[&[u8]],
    has: impl Fn(&[u8], &[u8]) -> bool,
) -> bool {
    let name = path.as_os_str().as_bytes();
    let is_allowed = allowed.is_empty() || allowed.iter().any(|pattern| has(pattern, name));
    is_allowed && !ignored.iter().any(|pattern| has(pattern, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_files_are_files_and_links_to_folders_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("sub/deep")).unwrap();
        fs::write(at("a"), "x").unwrap();
        fs::write(at("sub/b"), "xy").unwrap();
        fs::write(at("sub/deep/c"), "").unwrap();
        std::os::unix::fs::symlink(at("a"), at("link")).unwrap();
        std::os::unix::fs::symlink(at("sub"), at("other")).unwrap();
        std::os::unix::fs::symlink(at("nothing"), at("broken")).unwrap();
        let one = files_in(folder.path(), Depth::One).unwrap();
        assert_eq!(one, [(at("a"), 1), (at("link"), 1)]);
        let all = files_in(folder.path(), Depth::All).unwrap();
        let deeper = [(at("sub/b"), 2), (at("sub/deep/c"), 0)];
        assert_eq!(all, [one, deeper.to_vec()].concat());
        assert!(files_in(&at("nothing"), Depth::All).is_err());
        assert!(files_in(&at("a"), Depth::All).is_err());
    }
}
