//! The files to check: the text files that git lists.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The text files of the repository.
#[derive(Debug, Default)]
pub struct Workspace {
    /// Content by path from the root. A file that is not UTF-8 is not listed.
    pub texts: BTreeMap<String, String>,
}

/// A violation of a rule by a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Path from the root.
    pub path: String,
    /// Line, counted from 1; 0 for the whole file.
    pub line: usize,
    /// The violation and the remedy.
    pub what: String,
}

impl Finding {
    /// Returns a finding at a line of a file.
    pub fn new(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line,
            what: what.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

impl Workspace {
    /// Reads tracked files, and untracked files that git does not ignore, so that files are checked before their commit.
    pub fn load() -> Result<Self, String> {
        let root = root();
        let listed = Command::new("git")
            .args([
                "ls-files",
                "-z",
                "--cached",
                "--others",
                "--exclude-standard",
            ])
            .current_dir(&root)
            .output()
            .map_err(|error| format!("cannot start git: {error}"))?;
        if !listed.status.success() {
            let said = String::from_utf8_lossy(&listed.stderr);
            return Err(format!("git ls-files failed: {}", said.trim()));
        }
        let names = String::from_utf8_lossy(&listed.stdout);
        let read = |name: &str| {
            let text = std::fs::read_to_string(root.join(name)).ok()?;
            Some((name.to_owned(), text))
        };
        let texts: BTreeMap<_, _> = names.split('\0').filter_map(read).collect();
        match texts.keys().any(|path| path.ends_with(".rs")) {
            true => Ok(Self { texts }),
            false => Err(format!("git lists no Rust file under {}", root.display())),
        }
    }

    /// Lists the Rust files, without those of integration tests and of `tests.rs` siblings.
    pub fn production(&self) -> impl Iterator<Item = (&str, &str)> {
        self.rust().filter(|(path, _)| !is_test_file(path))
    }

    /// Lists all Rust files.
    pub fn rust(&self) -> impl Iterator<Item = (&str, &str)> {
        let texts = self.texts.iter();
        texts
            .filter(|(path, _)| path.ends_with(".rs"))
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Returns the text of a file; empty if it does not exist.
    pub fn text(&self, path: &str) -> &str {
        self.texts.get(path).map_or("", String::as_str)
    }

    /// Lists the packages, fuzz targets and this program included: folder and manifest.
    pub fn packages(&self) -> impl Iterator<Item = (&str, &str)> {
        let manifest = |(path, text): (&'_ String, &'_ String)| {
            path.ends_with("/Cargo.toml") && text.contains("[package]")
        };
        let manifests = self.texts.iter().filter(move |file| manifest(*file));
        manifests.map(|(path, text)| (path.trim_end_matches("/Cargo.toml"), text.as_str()))
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn is_test_file(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.split('/').any(|part| part == "tests")
}

/// Returns the part of a file before its module of unit tests, which is the last item of a file here.
pub fn production_part(text: &str) -> &str {
    let is_head = |at: &usize| {
        let mut lines = text[*at..].lines().filter(|line| !line.starts_with("#["));
        text[..*at].ends_with('\n')
            && lines
                .next()
                .is_some_and(|line| line.starts_with("mod tests {"))
    };
    let mut heads = text.match_indices("#[cfg(").map(|(at, _)| at);
    let end = heads.find(is_head).unwrap_or(text.len());
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_workspace_is_listed() {
        let workspace = Workspace::load().unwrap();
        assert!(workspace.packages().any(|(folder, _)| folder == "xtask"));
        assert!(!workspace.text("xtask/src/main.rs").is_empty());
        assert!(workspace.production().all(|file| !is_test_file(file.0)));
    }

    #[test]
    fn the_production_part_ends_at_the_module_of_tests() {
        let text = "fn a() {}\n#[cfg(all(test, not(loom)))]\n#[path = \"x.rs\"]\nmod tests {\n}\n";
        assert_eq!(production_part(text), "fn a() {}\n");
        let whole = "#[cfg(test)]\nmod tests;\nfn a() {}\n#[cfg(test)]\nuse a::b;\n";
        assert_eq!(production_part(whole), whole);
    }
}
