//! Test programs of a Linux source tree, and the files that they need in the guest.

use std::path::{Path, PathBuf};

use tool::output::Failure;

/// Path of the source tree in the root file system of a guest.
pub const TREE: &str = "/linux";
/// Folder of the tests in a source tree.
pub const TESTS: &str = "tools/testing/selftests";
/// Folders of the programs, below [`TESTS`].
const FOLDERS: &[&str] = &["drivers/net", "drivers/net/hw"];
/// Files and folders of the tree that the programs use: tests, Python modules, and netlink specifications.
const NEEDED: &[&str] = &[
    "tools/testing/selftests/drivers/net",
    "tools/testing/selftests/net/lib",
    "tools/testing/selftests/net/forwarding",
    "tools/testing/selftests/kselftest",
    "tools/net/ynl/pyynl",
    "Documentation/netlink/specs",
    "tools/testing/selftests/net/lib.sh",
];
/// Files that every program loads, with the folders of [`NEEDED`] that they stand for.
const LOADED: &[(&str, &str)] = &[
    (
        "tools/testing/selftests/drivers/net/lib/py/__init__.py",
        "tools/testing/selftests/drivers/net",
    ),
    (
        "tools/testing/selftests/net/lib/py/__init__.py",
        "tools/testing/selftests/net/lib",
    ),
    ("tools/net/ynl/pyynl/lib/__init__.py", "tools/net/ynl/pyynl"),
    (
        "Documentation/netlink/specs/netdev.yaml",
        "Documentation/netlink/specs",
    ),
];
/// The default programs: tests for one NIC and a remote end in which a gVNIC can pass test cases. stats.py makes gve dereference NULL.
const DEFAULT: &[&str] = &[
    "drivers/net/ping.py",
    "drivers/net/hds.py",
    "drivers/net/napi_id.py",
    "drivers/net/queues.py",
    "drivers/net/ring_reconfig.py",
    "drivers/net/so_txtime.py",
    "drivers/net/gro.py",
    "drivers/net/hw/rss_api.py",
    "drivers/net/hw/rss_ctx.py",
    "drivers/net/hw/toeplitz.py",
    "drivers/net/hw/devmem.py",
    "drivers/net/hw/userns_devmem.py",
    "drivers/net/hw/nk_netns.py",
    "drivers/net/hw/nk_devmem.py",
    "drivers/net/hw/nk_qlease.py",
    "drivers/net/hw/iou-zcrx.py",
    "drivers/net/hw/ntuple.py",
    "drivers/net/hw/rss_input_xfrm.py",
    "drivers/net/hw/csum.py",
    "drivers/net/hw/tso.py",
    "drivers/net/hw/irq.py",
    "drivers/net/hw/pp_alloc_fail.py",
];

/// A source tree with the programs to run.
#[derive(Clone, Debug)]
pub struct Tree {
    folder: PathBuf,
    /// The programs, by their paths below [`TESTS`].
    pub programs: Vec<String>,
}

impl Tree {
    /// Finds the programs `names` in a source tree; without names, the default programs that exist there. A name is a path
    /// below the folder of the tests, or a file name with or without its extension.
    ///
    /// # Errors
    ///
    /// The folder is not a source tree with these tests, or there is no program of a name.
    pub fn open(folder: &Path, names: &[String]) -> Result<Self, Failure> {
        let tests = folder.join(TESTS);
        if !tests.join(FOLDERS[0]).is_dir() {
            return Err(Failure::usage(format!(
                "--tree {}: the folder has no {TESTS}/{}",
                folder.display(),
                FOLDERS[0]
            ))
            .with_remedy("give the top folder of a Linux source tree, 6.14 or later"));
        }
        check_is_complete(folder)?;
        let programs = match names {
            [] => default_programs(folder)?,
            names => names
                .iter()
                .map(|name| find(&tests, name))
                .collect::<Result<_, _>>()?,
        };
        Ok(Self {
            folder: folder.to_owned(),
            programs,
        })
    }

    /// Returns the files and folders that the programs need: path here, and path below `place` in the guest.
    pub fn parts(&self, place: &str) -> Vec<(PathBuf, String)> {
        let parts = NEEDED.iter().map(|part| {
            let from = self.folder.join(part);
            (from, format!("{place}/{part}"))
        });
        // Some versions of Linux do not have all of them.
        parts.filter(|(from, _)| from.exists()).collect()
    }
}

/// Returns the default programs that exist in a source tree.
fn default_programs(folder: &Path) -> Result<Vec<String>, Failure> {
    let tests = folder.join(TESTS);
    let found = DEFAULT.iter().filter(|name| tests.join(name).is_file());
    let found: Vec<_> = found.map(|name| (*name).to_owned()).collect();
    match found.is_empty() {
        false => Ok(found),
        true => Err(Failure::usage(format!(
            "--tree {}: it has none of the default programs ({}, ...)",
            folder.display(),
            DEFAULT[0]
        ))
        .with_remedy("name the programs to run, or give a newer source tree")),
    }
}

/// Checks that a source tree has what every program loads.
fn check_is_complete(folder: &Path) -> Result<(), Failure> {
    let missing = LOADED
        .iter()
        .filter(|(file, _)| !folder.join(file).is_file());
    let missing: Vec<_> = missing.collect();
    if missing.is_empty() {
        return Ok(());
    }
    let shown = folder.display();
    let files: Vec<_> = missing.iter().map(|(file, _)| *file).collect();
    let folders: Vec<_> = missing.iter().map(|(_, folder)| *folder).collect();
    let what = format!(
        "--tree {shown}: the source tree is incomplete: it lacks {}",
        files.join(", ")
    );
    let remedy = match folder.join(".git").exists() {
        true => format!(
            "if it is a sparse checkout of Linux 6.14 or later: git -C {shown} sparse-checkout add {}",
            folders.join(" ")
        ),
        false => format!(
            "copy from a source tree of Linux 6.14 or later, or give it whole: {}",
            folders.join(" ")
        ),
    };
    Err(Failure::usage(what).with_remedy(remedy))
}

/// Returns the path of a program below `tests`.
fn find(tests: &Path, name: &str) -> Result<String, Failure> {
    let as_path = [name.to_owned()].into_iter();
    let in_folders = FOLDERS.iter().flat_map(|folder| {
        ["", ".py", ".sh"].map(|extension| format!("{folder}/{name}{extension}"))
    });
    let mut places = as_path.chain(in_folders);
    let is_program = |place: &String| {
        let is_script = place.ends_with(".py") || place.ends_with(".sh");
        is_script && !place.contains("..") && tests.join(place).is_file()
    };
    places.find(is_program).ok_or_else(|| {
        Failure::usage(format!("{name}: the tree has no such test program"))
            .with_remedy(format!("ls {}", tests.join("drivers/net{,/hw}").display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> tempfile::TempDir {
        let scratch = tempfile::tempdir().unwrap();
        for file in [
            "drivers/net/ping.py",
            "drivers/net/hw/devmem.py",
            "drivers/net/hw/x.sh",
        ] {
            let path = scratch.path().join(TESTS).join(file);
            write(&path);
        }
        for (file, _) in LOADED {
            write(&scratch.path().join(file));
        }
        scratch
    }

    fn write(path: &Path) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
    }

    #[test]
    fn programs_are_found_by_path_by_name_and_by_default() {
        let tree = tree();
        let open = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            Tree::open(tree.path(), &names).map(|tree| tree.programs)
        };
        let ping = "drivers/net/ping.py";
        assert_eq!(open(&["ping", "ping.py", ping]).unwrap(), [ping; 3]);
        assert_eq!(open(&["x"]).unwrap(), ["drivers/net/hw/x.sh"]);
        assert_eq!(open(&[]).unwrap(), [ping, "drivers/net/hw/devmem.py"]);
        for wrong in ["nothing", "../ping.py", "drivers/net"] {
            assert!(open(&[wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_incomplete_tree_is_refused_with_what_it_lacks_and_how_to_get_it() {
        for (file, part) in LOADED {
            let tree = tree();
            std::fs::remove_file(tree.path().join(file)).unwrap();
            let refused = || Tree::open(tree.path(), &[]).unwrap_err().to_string();
            let said = refused();
            assert!(said.contains(&format!("it lacks {file}")), "{said}");
            assert!(said.contains(&format!("give it whole: {part}")), "{said}");
            write(&tree.path().join(".git"));
            let said = refused();
            assert!(
                said.contains(&format!("sparse-checkout add {part}")),
                "{said}"
            );
        }
    }

    #[test]
    fn a_tree_without_a_default_program_is_refused() {
        let tree = tree();
        for name in ["ping.py", "hw/devmem.py"] {
            let path = tree.path().join(TESTS).join("drivers/net").join(name);
            std::fs::remove_file(path).unwrap();
        }
        let said = Tree::open(tree.path(), &[]).unwrap_err().to_string();
        assert!(said.contains("none of the default programs"), "{said}");
        assert!(Tree::open(tree.path(), &["x".to_owned()]).is_ok());
    }

    #[test]
    fn a_folder_without_tests_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let said = Tree::open(scratch.path(), &[]).unwrap_err().to_string();
        assert!(
            said.contains("the folder has no tools/testing/selftests"),
            "{said}"
        );
    }
}
