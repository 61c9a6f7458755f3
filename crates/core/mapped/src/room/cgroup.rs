//! The memory limits of the control groups of this process, of both versions (cgroup-v2.rst, cgroup-v1/memory.rst).

use std::fs;
use std::path::{Path, PathBuf};

/// A limit, and what counts against it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    /// The file with it.
    pub(super) file: PathBuf,
    pub(super) bytes: u64,
    /// Bytes that are charged.
    charged: u64,
    /// Bytes of `charged` that the kernel takes back before it kills a process: the cache of files, and of the kernel.
    reclaimable: u64,
    /// Bytes that may move to swap space, if there is any; `None` without a limit.
    swap: Option<u64>,
}

impl Limit {
    /// Returns the bytes in use that cannot be reclaimed.
    pub(super) fn used(&self) -> u64 {
        self.charged.saturating_sub(self.reclaimable)
    }

    /// Returns the bytes that can be touched, of a machine with `swap` free bytes of swap space.
    pub(super) fn free(&self, swap: u64) -> u64 {
        let swap = self.swap.map_or(swap, |most| most.min(swap));
        self.bytes.saturating_sub(self.used()).saturating_add(swap)
    }
}

/// Version of the interface that the memory of a process is controlled by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// The memory control groups of a process: its own, and those above it.
#[derive(Debug)]
pub(super) struct Groups(Vec<(PathBuf, Version)>);

impl Groups {
    /// Finds the groups by the files below `root`. Groups outside of the mounted tree, those of a container's host, cannot be read.
    pub(super) fn of_this_process(root: &Path) -> Self {
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let (own, mounts) = (read("proc/self/cgroup"), read("proc/self/mountinfo"));
        let mut groups = Vec::new();
        for version in [Version::V2, Version::V1] {
            let path = own.lines().find_map(|line| path_of(line, version));
            let mount = mounts.lines().find_map(|line| Mount::parse(line, version));
            if let (Some(path), Some(mount)) = (path, mount) {
                let top = root.join(mount.place.strip_prefix("/").unwrap_or(&mount.place));
                let mut group = mount
                    .inside(Path::new(path))
                    .map_or_else(|| top.clone(), |it| top.join(it));
                while group.starts_with(&top) {
                    groups.push((group.clone(), version));
                    if !group.pop() {
                        break;
                    }
                }
            }
        }
        Self(groups)
    }

    /// Returns the limits of all groups that have one.
    pub(super) fn limits(&self) -> Vec<Limit> {
        let limit = |(group, version): &(PathBuf, Version)| match version {
            Version::V2 => limit_v2(group),
            Version::V1 => limit_v1(group),
        };
        self.0.iter().filter_map(limit).collect()
    }
}

/// Returns the path of a group in a line of /proc/self/cgroup: `4:memory:/a/b`, or `0::/a/b`.
fn path_of(line: &str, version: Version) -> Option<&str> {
    let (number, rest) = line.split_once(':')?;
    let (controllers, path) = rest.split_once(':')?;
    let is_ours = match version {
        Version::V2 => number == "0" && controllers.is_empty(),
        Version::V1 => controllers
            .split(',')
            .any(|controller| controller == "memory"),
    };
    is_ours.then_some(path)
}

/// A mounted tree of groups.
struct Mount {
    /// The group that is at the place.
    root: PathBuf,
    place: PathBuf,
}

impl Mount {
    /// Parses a line of /proc/self/mountinfo (proc_pid_mountinfo(5)).
    fn parse(line: &str, version: Version) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut after = after.split(' ');
        let kind = after.next()?;
        let mut options = after.nth(1).unwrap_or_default().split(',');
        let is_ours = match version {
            Version::V2 => kind == "cgroup2",
            Version::V1 => kind == "cgroup" && options.any(|option| option == "memory"),
        };
        let mut fields = before.split(' ').skip(3);
        let (root, place) = (fields.next()?, fields.next()?);
        is_ours.then(|| Self {
            root: unescaped(root).into(),
            place: unescaped(place).into(),
        })
    }

    /// Returns the path of a group below the place; `None` if the group is not in the mounted tree.
    fn inside(&self, group: &Path) -> Option<PathBuf> {
        let inside = group.strip_prefix(&self.root).ok()?;
        let is_plain = |part| matches!(part, std::path::Component::Normal(_));
        inside.components().all(is_plain).then(|| inside.to_owned())
    }
}

/// Replaces the escapes of blanks and backslashes: `\040`.
fn unescaped(text: &str) -> String {
    let pairs = [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ];
    let replace = |text: String, (escape, char): &(&str, &str)| text.replace(escape, char);
    pairs.iter().fold(text.to_owned(), replace)
}

fn limit_v2(group: &Path) -> Option<Limit> {
    let file = group.join("memory.max");
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let swap = number(&group.join("memory.swap.max"));
    let swapped = number(&group.join("memory.swap.current"));
    Some(Limit {
        bytes: number(&file)?,
        file,
        charged: number(&group.join("memory.current"))?,
        reclaimable: sum(&stat, &["active_file", "inactive_file", "slab_reclaimable"]),
        swap: swap.map(|most| most.saturating_sub(swapped.unwrap_or(0))),
    })
}

/// A group without a limit has the largest number of pages.
const UNLIMITED_V1: u64 = 1 << 62;

fn limit_v1(group: &Path) -> Option<Limit> {
    let file = group.join("memory.limit_in_bytes");
    let bytes = number(&file).filter(|bytes| *bytes < UNLIMITED_V1)?;
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let charged = number(&group.join("memory.usage_in_bytes"))?;
    // Of memory and swap space together.
    let both = number(&group.join("memory.memsw.limit_in_bytes"));
    let both = both.filter(|most| *most < UNLIMITED_V1);
    Some(Limit {
        bytes,
        file,
        charged,
        reclaimable: sum(&stat, &["total_active_file", "total_inactive_file"]),
        swap: both.map(|most| most.saturating_sub(bytes)),
    })
}

/// Reads a number; `None` for `max`, and without the file.
fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Sums fields of a `memory.stat`.
fn sum(stat: &str, fields: &[&str]) -> u64 {
    let value = |line: &str| {
        let (name, digits) = line.split_once(' ')?;
        fields
            .contains(&name)
            .then(|| digits.trim().parse::<u64>().ok())?
    };
    stat.lines().filter_map(value).fold(0, u64::saturating_add)
}
