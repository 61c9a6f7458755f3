//! `devmem-tcp restore` after a killed run, with a feature of a veth. The lab has the tests of settings that only a NIC for
//! device memory has.

mod bad_files;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use crate::common::run;
use devmem_linux::ethtool::Ethtool;
use devmem_linux::netif::Interface;
use devmem_linux::test_util::{in_netns, skip};
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};

/// A feature of a veth that can be switched.
const FEATURE: &str = "tx-nocache-copy";

/// A state file as a run leaves it, removed at the end of the test.
struct StateFile {
    path: PathBuf,
    /// The lock that the run holds while it is alive.
    lock: Option<File>,
}

impl StateFile {
    /// Writes the state file of a run in this process that has switched [`FEATURE`] on. `None` if state files cannot be
    /// written.
    fn write(test: &str, interface: &str, alive: bool) -> Option<Self> {
        let folder = PathBuf::from("/run/devmem-tcp");
        match fs::DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                skip(
                    test,
                    "tun",
                    &format!("no folder {}: {error}", folder.display()),
                );
                return None;
            }
            _ => {}
        }
        let netns = fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let record = json!({
            "version": 1,
            "boot_id": boot_id.trim(),
            "netns": netns,
            "pid": std::process::id(),
            "interface": interface,
            "ifindex": Interface::by_name(interface).unwrap().index(),
            "undo": [{ "feature": { "name": FEATURE, "before": false } }],
        });
        let path = folder.join(format!("{interface}-{netns}.json"));
        let private = |path: &PathBuf| {
            let mut options = File::options();
            options.write(true).create(true).mode(0o600).open(path)
        };
        let made = private(&path).and_then(|file| Ok(serde_json::to_writer(file, &record)?));
        if let Err(error) = made {
            skip(test, "tun", &format!("{}: {error}", path.display()));
            return None;
        }
        let lock = private(&path.with_extension("lock")).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        Some(Self {
            path,
            lock: alive.then_some(lock),
        })
    }
}

impl Drop for StateFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(self.path.with_extension("lock"));
    }
}

/// Creates a veth pair; the end `name` has [`FEATURE`] on, as a run would have left it.
fn left_changed(name: &str) -> Ethtool {
    Interface::create_veth_pair(name, "peer0").unwrap();
    let mut ethtool = Ethtool::by_name(name).unwrap();
    assert!(!is_on(&mut ethtool), "it is off in a new veth");
    ethtool.set_feature(FEATURE, true).unwrap();
    ethtool
}

fn is_on(ethtool: &mut Ethtool) -> bool {
    ethtool
        .feature(FEATURE)
        .unwrap()
        .expect("a veth has it")
        .active
}

#[test]
fn the_changes_of_a_killed_run_are_listed_and_restored() {
    const TEST: &str = "restore::the_changes_of_a_killed_run_are_listed_and_restored";
    in_netns(TEST, || {
        let mut veth = left_changed("left0");
        let Some(file) = StateFile::write(TEST, "left0", false) else {
            return;
        };
        let listed = run("restore --list left0");
        assert_eq!(listed.code, Some(0), "{}", listed.stderr);
        let text = String::from_utf8(listed.stdout).unwrap();
        assert!(
            text.starts_with("left0: left changed by process "),
            "{text}"
        );
        assert!(
            text.contains(&format!("\n  ethtool -K left0 {FEATURE} on")),
            "{text}"
        );
        assert!(is_on(&mut veth), "listing changes nothing");

        let json = run("restore left0 --json").json();
        assert_eq!(json[0]["interface"], "left0");
        assert_eq!(
            json[0]["restored"],
            json!([format!("feature {FEATURE} off on left0")])
        );
        assert!(!is_on(&mut veth));
        assert!(!file.path.exists(), "the state file is removed");
        let again = run("restore left0");
        assert_eq!(again.code, Some(0));
        assert!(
            again.stderr.contains("nothing is left to restore"),
            "{}",
            again.stderr
        );
    });
}

#[test]
fn the_changes_of_a_living_run_are_not_restored() {
    const TEST: &str = "restore::the_changes_of_a_living_run_are_not_restored";
    in_netns(TEST, || {
        let mut veth = left_changed("busy0");
        let Some(mut file) = StateFile::write(TEST, "busy0", true) else {
            return;
        };
        let refused = run("restore busy0");
        refused.failed_with(
            1,
            &format!("busy0 is in use by process {}", std::process::id()),
        );
        // Without a name, interfaces in use are skipped.
        let passed_over = run("restore");
        assert_eq!(passed_over.code, Some(0), "{}", passed_over.stderr);
        assert!(is_on(&mut veth));
        let listed: Value = run("restore --list --json busy0").json();
        assert_eq!(listed[0]["standing"], "in_use", "{listed}");

        file.lock = None;
        assert_eq!(run("restore busy0").code, Some(0));
        assert!(!is_on(&mut veth));
    });
}

#[test]
fn a_file_that_other_users_may_have_written_is_refused() {
    const TEST: &str = "restore::a_file_that_other_users_may_have_written_is_refused";
    in_netns(TEST, || {
        use std::os::unix::fs::PermissionsExt;
        let mut veth = left_changed("bad0");
        let Some(file) = StateFile::write(TEST, "bad0", false) else {
            return;
        };
        fs::set_permissions(&file.path, PermissionsExt::from_mode(0o622)).unwrap();
        run("restore bad0").failed_with(1, "other users may have written it");
        assert!(is_on(&mut veth));
    });
}
