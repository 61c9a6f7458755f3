//! What is checked: the packages as cargo sees them, and the files as git lists them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::source::Source;

/// The workspace, read once.
#[derive(Debug, Default)]
pub struct Workspace {
    /// Members, in the order cargo lists them.
    pub packages: Vec<Package>,
    /// Every tracked or not ignored Rust file, by path from the root.
    pub sources: BTreeMap<String, Source>,
    /// Every tracked or not ignored text file, Rust included, by path from the root.
    pub texts: BTreeMap<String, String>,
}

/// One workspace member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Package {
    /// Folder from the root, such as `crates/wire`.
    pub folder: String,
    /// Dependencies that are themselves in this workspace.
    pub edges: Vec<Edge>,
    /// Root file of each target (`src/lib.rs`, `src/main.rs`, tests, benches), from the root.
    pub roots: Vec<String>,
}

/// A dependency of one workspace member on another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Folder of the member depended on.
    pub to: String,
    /// True where only tests, examples and benches get it.
    pub dev: bool,
}

impl Workspace {
    /// Reads the workspace of the current directory.
    pub fn load() -> Result<Self> {
        let metadata = metadata()?;
        let root = PathBuf::from(text(&metadata, "workspace_root")?);
        let packages = packages(&metadata, &root)?;
        let mut workspace = Self {
            packages,
            ..Self::default()
        };
        for path in files(&root)? {
            // A file that git lists and the disk lacks was deleted and not yet committed; one that is not
            // UTF-8 is no text.
            let Ok(content) = std::fs::read_to_string(root.join(&path)) else {
                continue;
            };
            workspace.add(path, content);
        }
        if workspace.sources.is_empty() {
            bail!(
                "no Rust file found under {}: nothing would be checked",
                root.display()
            );
        }
        Ok(workspace)
    }

    /// Takes one file in.
    pub fn add(&mut self, path: String, content: String) {
        if path.ends_with(".rs") {
            self.sources.insert(path.clone(), Source::parse(&content));
        }
        self.texts.insert(path, content);
    }
}

fn metadata() -> Result<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .context("cannot start cargo metadata")?;
    if !output.status.success() {
        bail!(
            "cargo metadata failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    serde_json::from_slice(&output.stdout).context("cargo metadata printed no JSON")
}

fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    value[key]
        .as_str()
        .with_context(|| format!("cargo metadata has no {key}"))
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a [Value]> {
    value[key]
        .as_array()
        .map(Vec::as_slice)
        .with_context(|| format!("cargo metadata has no list {key}"))
}

fn packages(metadata: &Value, root: &Path) -> Result<Vec<Package>> {
    list(metadata, "packages")?
        .iter()
        .map(|package| self::package(package, root))
        .collect()
}

fn package(package: &Value, root: &Path) -> Result<Package> {
    let manifest = Path::new(text(package, "manifest_path")?);
    let folder = manifest.parent().context("a manifest has no folder")?;
    let mut edges = Vec::new();
    for dependency in list(package, "dependencies")? {
        // Only path dependencies have a path, and all of ours lie in the workspace.
        if let Some(path) = dependency["path"].as_str() {
            let dev = dependency["kind"].as_str() == Some("dev");
            edges.push(Edge {
                to: relative(Path::new(path), root),
                dev,
            });
        }
    }
    let roots = list(package, "targets")?
        .iter()
        .map(|target| Ok(relative(Path::new(text(target, "src_path")?), root)))
        .collect::<Result<_>>()?;
    Ok(Package {
        folder: relative(folder, root),
        edges,
        roots,
    })
}

fn relative(path: &Path, root: &Path) -> String {
    path.strip_prefix(root)
        .unwrap_or(path)
        .to_string_lossy()
        .into_owned()
}

/// Lists tracked files and those that git would not ignore, so that a check sees a file before its commit.
fn files(root: &Path) -> Result<Vec<String>> {
    let listed = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(root)
        .output();
    let listed = listed.ok().filter(|output| output.status.success());
    let Some(listed) = listed else {
        // A source archive has no repository.
        let mut files = Vec::new();
        walk(root, root, &mut files)?;
        return Ok(files);
    };
    let names = String::from_utf8_lossy(&listed.stdout);
    Ok(names
        .split('\0')
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect())
}

/// Lists the files under a folder; build output and hidden folders other than CI's are left out.
fn walk(folder: &Path, root: &Path, files: &mut Vec<String>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let kind = entry.file_type()?;
        let skipped =
            name == "target" || (name.starts_with('.') && name != ".ci" && name != ".cargo");
        if kind.is_dir() && !skipped {
            walk(&entry.path(), root, files)?;
        } else if kind.is_file() {
            files.push(relative(&entry.path(), root));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_workspace_loads_with_its_packages_and_files() {
        let workspace = Workspace::load().unwrap();
        assert!(
            workspace
                .packages
                .iter()
                .any(|package| package.folder == "crates/wire")
        );
        assert!(workspace.sources.contains_key("xtask/src/workspace.rs"));
        assert!(workspace.texts.contains_key("Cargo.toml"));
    }

    #[test]
    fn dev_dependencies_are_told_from_normal_ones() {
        let metadata = serde_json::json!({ "packages": [{
            "manifest_path": "/root-of-it/crates/stack/Cargo.toml",
            "dependencies": [
                { "name": "devmem-nic", "kind": null, "path": "/root-of-it/crates/nic" },
                { "name": "devmem-netsim", "kind": "dev", "path": "/root-of-it/crates/netsim" },
                { "name": "slab", "kind": null },
            ],
            "targets": [{ "src_path": "/root-of-it/crates/stack/src/lib.rs" }],
        }]});
        let packages = packages(&metadata, Path::new("/root-of-it")).unwrap();
        let expected = Package {
            folder: "crates/stack".to_owned(),
            edges: vec![
                Edge {
                    to: "crates/nic".to_owned(),
                    dev: false,
                },
                Edge {
                    to: "crates/netsim".to_owned(),
                    dev: true,
                },
            ],
            roots: vec!["crates/stack/src/lib.rs".to_owned()],
        };
        assert_eq!(packages, [expected]);
    }

    #[test]
    fn a_source_archive_without_a_repository_is_walked() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let mut files = Vec::new();
        walk(root, root, &mut files).unwrap();
        assert!(files.iter().any(|file| file == "xtask/src/workspace.rs"));
        assert!(
            !files
                .iter()
                .any(|file| file.starts_with("target/") || file.starts_with(".git/"))
        );
    }

    #[test]
    fn metadata_without_packages_is_an_error() {
        assert!(packages(&serde_json::json!({}), Path::new("/")).is_err());
    }
}
