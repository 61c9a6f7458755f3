//! The record of a load that is not over: of which file, and which ranges have come. Lines of text.

use std::fs;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;

use crate::parallel::Done;

/// The first line.
const TITLE: &str = "devmem-tcp part 1";
/// Longest record that is read: a hundred thousand ranges.
const MAX_BYTES: u64 = 4 << 20;

/// What a file, or a range of it, is recognised by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileVersion {
    /// Size of the file on the server, if it is known.
    pub size: Option<u64>,
    /// Its ETag, or the time of its last change, if the server tells.
    pub validator: Option<String>,
    /// The bytes that are loaded.
    pub range: Range<u64>,
}

impl FileVersion {
    /// Returns the number of bytes that are loaded.
    pub(super) fn len(&self) -> u64 {
        self.range.end.saturating_sub(self.range.start)
    }

    /// Returns what is different between a file then and `now`, if anything is.
    pub(super) fn difference(&self, now: &Self) -> Option<String> {
        let shown = |range: &Range<u64>| format!("bytes {} to {}", range.start, range.end);
        if self.range != now.range {
            return Some(format!(
                "it has {}, not {}",
                shown(&self.range),
                shown(&now.range)
            ));
        }
        if let (Some(then), Some(now)) = (self.size, now.size)
            && then != now
        {
            return Some(format!("the file had {then} bytes and has {now}"));
        }
        (self.validator != now.validator).then(|| "its ETag or date has changed".to_owned())
    }
}

/// Writes a record in place of an earlier one, whole or not at all.
pub(super) fn write(path: &Path, version: &FileVersion, done: &Done) -> io::Result<()> {
    let Range { start, end } = version.range;
    let boot = boot_id();
    let mut text = format!("{TITLE}\nboot {boot}\nrange {start}-{end}\n");
    if let Some(size) = version.size {
        text += &format!("size {size}\n");
    }
    if let Some(validator) = &version.validator {
        text += &format!("validator {validator}\n");
    }
    for Range { start, end } in done.iter() {
        text += &format!("done {start}-{end}\n");
    }
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let written = fs::write(&new, text).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        // A part of a record is none, and takes room that may be short.
        let _ = fs::remove_file(&new);
    }
    written
}

/// Reads a record; `None` if there is none, if it makes no sense, or if the machine was started again since: a record may have reached the disk
/// before the bytes that it names.
pub(super) fn read(path: &Path) -> Option<(FileVersion, Done)> {
    let mut text = String::new();
    let file = fs::File::open(path).ok()?;
    file.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    parse(&text)
}

fn parse(text: &str) -> Option<(FileVersion, Done)> {
    let mut lines = text.lines();
    if lines.next() != Some(TITLE) {
        return None;
    }
    let (mut boot, mut range, mut done) = (None, None, Done::default());
    let (mut size, mut validator) = (None, None);
    for line in lines {
        let (name, value) = line.split_once(' ')?;
        match name {
            "boot" => boot = Some(value),
            "range" => range = Some(parse_range(value)?),
            "size" => size = Some(value.parse().ok()?),
            "validator" => validator = Some(value.to_owned()),
            "done" => done.add(parse_range(value)?),
            _ => return None,
        }
    }
    let version = FileVersion {
        size,
        validator,
        range: range?,
    };
    if boot? != boot_id() {
        return None;
    }
    let is_inside = |it: Range<u64>| it.start >= version.range.start && it.end <= version.range.end;
    let all_inside = done.iter().all(is_inside);
    all_inside.then_some((version, done))
}

/// Returns what changes when the machine is started; empty if the system does not tell.
fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.map_or_else(|_| String::new(), |id| id.trim().to_owned())
}

fn parse_range(text: &str) -> Option<Range<u64>> {
    let (start, end) = text.split_once('-')?;
    let (start, end) = (start.parse().ok()?, end.parse().ok()?);
    (start <= end).then_some(start..end)
}
