//! The pages of memory files.

use std::fs;
use std::path::Path;

const FOLDER: &str = "/sys/kernel/mm/transparent_hugepage";

/// Returns whether the kernel may give memory files larger pages than base pages unasked, as the administrator of the machine
/// has set (linux Documentation/admin-guide/mm/transhuge.rst).
pub fn memory_files_may_have_large_pages() -> bool {
    may_have(Path::new(FOLDER))
}

fn may_have(folder: &Path) -> bool {
    let allows = |folder: &Path| chosen(folder).is_some_and(|word| !is_never(&word));
    let of_all_sizes = allows(folder);
    // For each size since Linux 6.11.
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let of_one_size = |size: &Path| match chosen(size).as_deref() {
        Some("inherit") => of_all_sizes,
        Some(word) => !is_never(word),
        None => false,
    };
    of_all_sizes
        || entries
            .map(|entry| entry.path())
            .any(|path| of_one_size(&path))
}

fn is_never(word: &str) -> bool {
    matches!(word, "never" | "deny")
}

/// Returns the word in brackets of `always within_size [never]`.
fn chosen(folder: &Path) -> Option<String> {
    let words = fs::read_to_string(folder.join("shmem_enabled")).ok()?;
    let (_, word) = words.split_once('[')?;
    Some(word.split_once(']')?.0.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_counts_and_inherits_what_is_set_for_all() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path();
        assert!(!may_have(folder), "no such setting");
        let set = |size: &str, words: &str| {
            fs::create_dir_all(folder.join(size)).unwrap();
            fs::write(folder.join(size).join("shmem_enabled"), words).unwrap();
            may_have(folder)
        };
        assert!(!set("", "always within_size advise [never] deny force\n"));
        let size = "hugepages-2048kB";
        assert!(!set(size, "always [inherit] within_size advise never\n"));
        assert!(set("", "always [within_size] advise never deny force\n"));
        assert!(!set("", "always within_size advise never [deny] force\n"));
        let size = "hugepages-64kB";
        assert!(!set(size, "always inherit within_size advise [never]\n"));
        assert!(set(size, "[always] inherit within_size advise never\n"));
        assert!(!set(size, "nonsense\n"));
    }
}
