//! Edits of the kernel's test programs, in the guest, where they assume another NIC than a gVNIC. Each is an insertion of ours; a tree in
//! which its place is not found stays as it is.

use std::fs;
use std::path::Path;

use anyhow::Context as _;

/// An insertion.
#[derive(Debug)]
struct Edit {
    /// The file, below the top folder of the tree.
    file: &'static str,
    /// What stands behind the insertion. It must be in the file exactly once.
    before: &'static str,
    insertion: &'static str,
    /// The reason, for people.
    why: &'static str,
}

const EDITS: &[Edit] = &[Edit {
    file: "tools/testing/selftests/net/lib/py/ynl.py",
    before: "\n\nclass RtnlFamily(YnlFamily):",
    insertion: "
        # Inserted by devmem-tcp lab, for programs that do not look what a NIC has.
        if Path(sys.argv[0]).name in ['iou-zcrx.py', 'nk_devmem.py', 'nk_qlease.py', 'ntuple.py', 'userns_devmem.py']:
            self._channels_get = self.channels_get
            self.channels_get = self._combined_channels_get
            self._rings_set = self.rings_set
            self.rings_set = self._known_rings_set

    # Inserted by devmem-tcp lab: the programs set a threshold of header split, and gve has none, but splits all packets. They make the
    # RX ring one of 64 entries, and gve's has 512 at least.
    def _known_rings_set(self, values, *args, **kwargs):
        known = self.rings_get({'header': values['header']})
        wanted = dict(values)
        if 'hds-thresh' not in known:
            wanted.pop('hds-thresh', None)
        if wanted.get('rx') == 64:
            wanted.pop('rx')
        return self._rings_set(wanted, *args, **kwargs)

    # Inserted by devmem-tcp lab: the programs count combined channels, and a gVNIC has RX and TX channels.
    def _combined_channels_get(self, *args, **kwargs):
        found = self._channels_get(*args, **kwargs)
        for channels in found if isinstance(found, list) else [found]:
            for what in ['count', 'max']:
                if f'rx-{what}' in channels:
                    channels.setdefault(f'combined-{what}', channels[f'rx-{what}'])
        return found
",
    why: "five programs count combined channels, set a threshold of header split and a ring of 64 entries, and gve has none of these",
}];

/// Edits the programs of a tree. Returns a line for each edit that does not fit this version of the tree.
///
/// # Errors
///
/// A file cannot be read or written.
pub fn apply(tree: &Path) -> anyhow::Result<Vec<String>> {
    let mut left = Vec::new();
    for edit in EDITS {
        let path = tree.join(edit.file);
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", edit.file))?;
        match edit.made_in(&text) {
            Some(edited) => {
                fs::write(&path, edited).with_context(|| format!("edit {}", edit.file))?;
            }
            None => left.push(format!(
                "{} is not edited, for its text is another one: {}",
                edit.file, edit.why
            )),
        }
    }
    Ok(left)
}

impl Edit {
    /// Returns the text with the insertion; `None` if its place is not found, or more than once.
    fn made_in(&self, text: &str) -> Option<String> {
        let (head, tail) = text.split_once(self.before)?;
        (!tail.contains(self.before)).then(|| [head, self.insertion, self.before, tail].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAMILIES: &str = "class EthtoolFamily(YnlFamily):\n    def __init__(self):\n        super().__init__('x')\n\n\n\
        class RtnlFamily(YnlFamily):\n    pass\n";

    #[test]
    fn an_insertion_stands_before_its_place_and_all_else_stays() {
        let edit = &EDITS[0];
        let edited = edit.made_in(FAMILIES).unwrap();
        assert_eq!(edited.replace(edit.insertion, ""), FAMILIES);
        let at = |text: &str| edited.find(text).unwrap();
        assert!(at("super().__init__") < at("self._channels_get ="));
        assert!(at("return found") < at("class RtnlFamily"));
    }

    #[test]
    fn a_text_without_the_place_or_with_two_is_left() {
        let edit = &EDITS[0];
        assert_eq!(edit.made_in("class Other:\n"), None);
        assert_eq!(edit.made_in(&format!("{FAMILIES}\n{FAMILIES}")), None);
    }

    #[test]
    fn a_tree_of_another_version_is_named_and_not_changed() {
        let tree = tempfile::tempdir().unwrap();
        for edit in EDITS {
            let path = tree.path().join(edit.file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "other\n").unwrap();
        }
        let left = apply(tree.path()).unwrap();
        assert_eq!(left.len(), EDITS.len());
        assert!(left[0].contains("ynl.py is not edited"), "{left:?}");
        let text = fs::read_to_string(tree.path().join(EDITS[0].file)).unwrap();
        assert_eq!(text, "other\n");
    }
}
