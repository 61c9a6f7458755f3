//! `devmem-tcp restore` with state files that are damaged, of other users, or not regular files. The tool runs as another
//! user with a folder of the test, so that no other test finds these files.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use devmem_linux::test_util::skip;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::geteuid;
use serde_json::json;

use crate::common::{Finished, start_command, tool};

/// The user to run the tool as. Not root, because root's folder is always in /run.
const NOBODY: u32 = 65_534;

/// A folder of state files of a user, removed at the end of the test.
struct Bench {
    /// The folder of XDG_RUNTIME_DIR.
    runtime: tempfile::TempDir,
}

impl Bench {
    /// Returns `None` if the tool cannot run as another user.
    fn new(test: &str) -> Option<Self> {
        let runtime = tempfile::tempdir().unwrap();
        let mut private = fs::DirBuilder::new();
        private.mode(0o700);
        let bench = Self { runtime };
        private.create(bench.folder()).unwrap();
        bench.give(bench.runtime.path());
        bench.give(&bench.folder());
        let mut probe = tool();
        probe.arg("--version");
        bench.as_user(&mut probe);
        match probe.output() {
            Ok(output) if output.status.success() => Some(bench),
            Ok(_) | Err(_) => {
                skip(test, "user", "the tool cannot run as another user here");
                None
            }
        }
    }

    fn folder(&self) -> PathBuf {
        self.runtime.path().join("devmem-tcp")
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    /// Changes the owner of a file to the user.
    fn give(&self, path: &Path) {
        if geteuid().is_root() {
            chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }

    fn as_user(&self, command: &mut std::process::Command) {
        command.env("XDG_RUNTIME_DIR", self.runtime.path());
        if geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
    }

    /// Writes a state file that belongs to the user.
    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.at(name);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        self.give(&path);
        path
    }

    fn run(&self, options: &str) -> Finished {
        let mut command = tool();
        command.arg("restore").args(options.split_whitespace());
        self.as_user(&mut command);
        start_command(command).finish()
    }

    /// Runs `restore` and asserts that it names the file, its fault and both commands, and does not print that nothing is
    /// left to restore.
    #[track_caller]
    fn assert_says(&self, path: &Path, words: &[&str]) {
        for options in ["", "--list", "--json"] {
            let said = self.run(options);
            said.failed_with(1, &format!("state file {}: ", path.display()));
            for word in words {
                assert!(
                    said.stderr.contains(word),
                    "no {word:?} in: {}",
                    said.stderr
                );
            }
            let nothing = said.stderr.contains("nothing is left");
            assert!(!nothing, "{options}: {}", said.stderr);
        }
    }
}

#[test]
fn a_damaged_file_is_named_with_the_position_of_the_fault_and_a_remedy() {
    let Some(bench) = Bench::new("damaged") else {
        return;
    };
    let texts: [(&[u8], &str); 5] = [
        (b"", "line 1 column 0"),
        (b"{\"version\": 1, \"boot_id\"", "line 1 column 24"),
        (b"\n\n{]", "line 3 column 2"),
        (&[0; 4096], "line 1 column 1"),
        (b"{\"version\": 1}", "missing field"),
    ];
    for (text, place) in texts {
        let path = bench.write("torn0-4026531840.json", text);
        let [look, remove] = ["cat", "rm"].map(|what| format!("`{what} {}`", path.display()));
        bench.assert_says(&path, &["it is damaged: ", place, &look, &remove]);
    }
    // Other interfaces are not affected.
    let other = bench.run("eth9");
    assert_eq!(other.code, Some(0), "{}", other.stderr);
    bench.run("torn0").failed_with(1, "it is damaged");
    let newer = bench.write("torn0-4026531840.json", b"{\"version\": 2, \"what\": []}");
    bench.assert_says(&newer, &["it has version 2", "restore with the version"]);
}

#[test]
fn special_files_are_refused_without_blocking() {
    let Some(bench) = Bench::new("kinds") else {
        return;
    };
    let path = bench.at("kind0-4026531840.json");
    let remove = format!("`rm {}`", path.display());
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, &path, FileType::Fifo, mode, 0).unwrap();
    bench.give(&path);
    bench.assert_says(&path, &["it is a FIFO, and not a regular file", &remove]);
    fs::remove_file(&path).unwrap();
    let socket = UnixListener::bind(&path).unwrap();
    bench.assert_says(&path, &["it is a socket, ", &remove]);
    drop(socket);
    fs::remove_file(&path).unwrap();
    symlink("/dev/zero", &path).unwrap();
    bench.assert_says(&path, &["it is a symbolic link, ", &remove]);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let remove = format!("`rmdir {}`", path.display());
    bench.assert_says(&path, &["it is a folder, ", &remove]);
}

#[test]
fn a_file_that_is_too_long_or_that_others_may_write_is_refused() {
    let Some(bench) = Bench::new("rights") else {
        return;
    };
    let path = bench.write("long0-4026531840.json", &vec![b' '; (4 << 20) + 1]);
    let look = format!("`head -c 1000 {}`", path.display());
    bench.assert_says(&path, &["it is longer than 4194304 bytes", &look]);
    fs::write(&path, "{}").unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o620)).unwrap();
    let mend = format!("`chmod go-w {}`", path.display());
    bench.assert_says(&path, &["its mode is 0620", &mend]);
    if geteuid().is_root() {
        fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        chown(&path, Some(0), Some(0)).unwrap();
        let owner = format!("it belongs to user 0, but this process runs as user {NOBODY}");
        bench.assert_says(&path, &[&owner, "run as its owner"]);
    }
}

#[test]
fn every_bad_file_is_named_and_a_lock_that_is_no_file_too() {
    let Some(bench) = Bench::new("several") else {
        return;
    };
    bench.write("one0-4026531840.json", b"{");
    bench.write("two0-4026531840.json", b"[");
    let said = bench.run("");
    for name in ["one0", "two0"] {
        let file = bench.at(&format!("{name}-4026531840.json"));
        let named = format!("state file {}: it is damaged", file.display());
        assert!(said.stderr.contains(&named), "{}", said.stderr);
    }
    fs::remove_file(bench.at("one0-4026531840.json")).unwrap();
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let record = json!({
        "version": 1, "boot_id": boot_id.trim(), "netns": 1, "pid": 1, "interface": "two0", "ifindex": 1,
        "undo": [{ "feature": { "name": "x", "before": false } }],
    });
    bench.write("two0-4026531840.json", record.to_string().as_bytes());
    let lock = bench.at("two0-4026531840.lock");
    mknodat(CWD, &lock, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    bench.give(&lock);
    bench.assert_says(
        &lock,
        &["it is a FIFO", &format!("`rm {}`", lock.display())],
    );
}

#[test]
fn a_folder_that_others_may_write_to_is_not_obeyed() {
    let Some(bench) = Bench::new("folder") else {
        return;
    };
    fs::set_permissions(bench.folder(), PermissionsExt::from_mode(0o770)).unwrap();
    let named = format!("the folder of state files {}: ", bench.folder().display());
    bench.run("").failed_with(1, &named);
    fs::remove_dir(bench.folder()).unwrap();
    assert_eq!(bench.run("").code, Some(0), "none is fine");
    fs::write(bench.folder(), "").unwrap();
    bench.run("").failed_with(1, "it is not a folder");
}
