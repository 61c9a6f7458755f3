//! Memory in a control group with a small limit: what does not fit is an error, and the kernel has no reason to kill the process.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use devmem_linux::test_util::skip;
use devmem_tcp::{Dmabuf, Error, ErrorKind, memory::DmabufError};

const TEST: &str = "memory_that_a_control_group_does_not_allow_is_refused_with_its_limit";
/// Names the group to the process inside of it.
const INNER: &str = "DEVMEM_TEST_GROUP";
const LIMIT: usize = 96 << 20;

/// A control group, which ends with its last process.
struct Group(PathBuf);

impl Group {
    /// Makes one, by the first version of the interface or the second.
    fn new() -> std::io::Result<Self> {
        let name = format!("devmem-test-{}", std::process::id());
        let places = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        ];
        let mut failure = std::io::ErrorKind::NotFound.into();
        for (top, file) in places.iter().filter(|(top, _)| Path::new(top).exists()) {
            let group = Self(Path::new(top).join(&name));
            let made = fs::create_dir(&group.0)
                .and_then(|()| fs::write(group.0.join(file), LIMIT.to_string()));
            match made {
                Ok(()) => return Ok(group),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn enter(path: &str) {
        let procs = Path::new(path).join("cgroup.procs");
        fs::write(procs, std::process::id().to_string()).expect("the group exists");
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn memory_that_a_control_group_does_not_allow_is_refused_with_its_limit() {
    if let Ok(group) = std::env::var(INNER) {
        Group::enter(&group);
        return refused_inside(&group);
    }
    let group = match Group::new() {
        Ok(group) => group,
        Err(error) => return skip(TEST, "cgroup", &format!("make a control group: {error}")),
    };
    let this = std::env::current_exe().expect("the test binary has a path");
    let mut child = Command::new(this);
    child
        .args([TEST, "--exact", "--nocapture"])
        .env(INNER, &group.0);
    let output = child.output().expect("this program can be started");
    let said = String::from_utf8_lossy(&output.stdout);
    // By a signal, the kernel's killer would have ended it.
    assert!(output.status.success(), "{}: {said}", output.status);
    assert!(said.contains("1 passed"), "{said}");
}

/// In a group of [`LIMIT`] bytes.
fn refused_inside(group: &str) {
    let fits = Dmabuf::anonymous(LIMIT / 2).expect("half of the limit is free");
    // Each alone would fit.
    for made in [
        Dmabuf::anonymous(LIMIT / 2),
        Dmabuf::memfd((LIMIT / 2) + 4096),
    ] {
        let refused = made.expect_err("it is more than is left");
        assert!(matches!(refused, DmabufError::NoRoom(_)), "{refused:?}");
        let error = Error::from(refused);
        assert_eq!(error.kind(), ErrorKind::OutOfResources);
        let text = format!("{error:?}");
        assert!(
            text.contains("the limit of the control group is 96.0 MiB"),
            "{text}"
        );
        assert!(text.contains(group), "{text}");
    }
    drop(fits);
    drop(Dmabuf::anonymous(LIMIT / 2).expect("it is free again"));
}
