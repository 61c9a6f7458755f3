//! Limits in trees of files as the kernel shows them.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const MIB: u64 = 1 << 20;

/// A tree of files, removed at the end.
struct Tree(PathBuf);

impl Tree {
    fn new(files: &[(&str, &str)]) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("devmem-room-{}-{number}", std::process::id());
        let tree = Self(std::env::temp_dir().join(name));
        for (path, text) in files {
            let path = tree.0.join(path);
            let folder = path.parent().expect("it is below the root");
            fs::create_dir_all(folder).expect("a folder for the test");
            fs::write(path, text).expect("a file for the test");
        }
        tree
    }

    fn check(&self, mebibytes: u64) -> Result<(), String> {
        let checked = check_room_below(&self.0, mebibytes * MIB);
        checked.map_err(|refused| {
            let told = format!("{refused}\n  {}", refused.remedy());
            told.replace(self.0.to_str().unwrap_or("?"), "")
        })
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const MEMINFO: (&str, &str) = (
    "proc/meminfo",
    "MemTotal: 9000000 kB\nMemAvailable:    1048576 kB\nSwapFree:  0 kB\n",
);
const MOUNT_V2: (&str, &str) = (
    "proc/self/mountinfo",
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
);

#[test]
fn the_tightest_group_above_the_process_limits_it() {
    let tree = Tree::new(&[
        MEMINFO,
        MOUNT_V2,
        ("proc/self/cgroup", "0::/a/b\n"),
        ("sys/fs/cgroup/a/b/memory.max", "max\n"),
        ("sys/fs/cgroup/a/b/memory.current", "1\n"),
        ("sys/fs/cgroup/a/memory.max", "104857600\n"),
        ("sys/fs/cgroup/a/memory.current", "31457280\n"),
        // 10 MiB can be reclaimed.
        (
            "sys/fs/cgroup/a/memory.stat",
            "anon 1\ninactive_file 5242880\nactive_file 5242880\n",
        ),
    ]);
    assert_eq!(tree.check(80), Ok(()));
    let refused = tree.check(81).unwrap_err();
    assert_eq!(
        refused,
        "81.0 MiB of memory do not fit into the 80.0 MiB that are free: the limit of the control group is 100.0 MiB, of which \
         20.0 MiB are in use\n  ask for less, or raise the limit: /sys/fs/cgroup/a/memory.max, `docker run --memory`, or the \
         unit's MemoryMax="
    );
}

#[test]
fn swap_space_counts_as_far_as_the_group_may_use_it() {
    let swapping = (
        "proc/meminfo",
        "MemAvailable: 1048576 kB\nSwapFree: 40960 kB\n",
    );
    for (swap_max, room) in [("max", 104), ("20971520", 84), ("0", 64)] {
        let tree = Tree::new(&[
            swapping,
            MOUNT_V2,
            ("proc/self/cgroup", "0::/a\n"),
            ("sys/fs/cgroup/a/memory.max", "67108864\n"),
            ("sys/fs/cgroup/a/memory.current", "0\n"),
            ("sys/fs/cgroup/a/memory.swap.max", swap_max),
        ]);
        assert_eq!(tree.check(room), Ok(()), "{swap_max}");
        assert!(tree.check(room + 1).is_err(), "{swap_max}");
    }
}

#[test]
fn the_first_version_has_a_tree_for_memory() {
    let mounts = "31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
        32 30 0:28 /docker/x /sys/fs/cgroup/my\\040memory rw - cgroup cgroup rw,memory\n\
        33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    let at = |name: &str| format!("sys/fs/cgroup/my memory/{name}");
    let limit = at("y/memory.limit_in_bytes");
    let usage = at("y/memory.usage_in_bytes");
    let above = at("memory.limit_in_bytes");
    let tree = Tree::new(&[
        MEMINFO,
        ("proc/self/mountinfo", mounts),
        (
            "proc/self/cgroup",
            "5:cpu:/z\n4:memory,hugetlb:/docker/x/y\n0::/\n",
        ),
        (&limit, "67108864\n"),
        (&usage, "0\n"),
        (&above, "9223372036854771712\n"),
    ]);
    assert_eq!(tree.check(64), Ok(()));
    let refused = tree.check(65).unwrap_err();
    assert!(
        refused.contains("my memory/y/memory.limit_in_bytes"),
        "{refused}"
    );
}

#[test]
fn in_a_container_the_mounted_group_is_the_own_one() {
    // With a control group namespace a group above is `/..`, and without one the path is that of the host.
    for path in ["0::/\n", "0::/../outside\n", "0::/host/docker/x\n"] {
        let tree = Tree::new(&[
            MEMINFO,
            (
                "proc/self/mountinfo",
                "30 23 0:26 /other /sys/fs/cgroup rw - cgroup2 cgroup rw\n",
            ),
            ("proc/self/cgroup", path),
            ("sys/fs/cgroup/memory.max", "67108864\n"),
            ("sys/fs/cgroup/memory.current", "0\n"),
        ]);
        assert_eq!(tree.check(64), Ok(()), "{path}");
        assert!(tree.check(65).is_err(), "{path}");
    }
}

#[test]
fn without_a_group_the_machine_is_the_limit_and_what_cannot_be_read_is_none() {
    let tree = Tree::new(&[MEMINFO]);
    assert_eq!(tree.check(1024), Ok(()));
    let refused = tree.check(1025).unwrap_err();
    assert!(
        refused.contains("the machine has no more\n  ask for less"),
        "{refused}"
    );
    for (path, text) in [
        ("proc/meminfo", "MemAvailable: x kB\n"),
        ("proc/self/cgroup", "0::\n::\n\n"),
        ("proc/self/mountinfo", "30 - cgroup2\n1 2 3 4 - cgroup2\n"),
    ] {
        let tree = Tree::new(&[(path, text)]);
        assert_eq!(tree.check(1 << 40), Ok(()), "{path}");
    }
}
