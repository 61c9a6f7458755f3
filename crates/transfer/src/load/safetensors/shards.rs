//! The index of a checkpoint in several files: a JSON object that names the file of each tensor.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use serde::Deserialize;

use super::CheckpointError;
use crate::load::dial::GoOn;
use crate::load::http::HttpRequest;
use crate::load::loader::Loader;
use crate::load::source::Source;

/// Longest index: those of the largest checkpoints have a few megabytes.
const MAX_INDEX_BYTES: u32 = 100_000_000;

#[derive(Deserialize)]
struct Index {
    /// Names of tensors, and of their files.
    weight_map: BTreeMap<String, String>,
}

/// A file that the index names.
pub(super) struct Shard {
    pub(super) request: HttpRequest,
    /// Names of the tensors that it must have.
    pub(super) tensors: BTreeSet<String>,
}

/// Reads the index and returns its files, in the order of their names.
pub(super) fn of(
    loader: &Loader,
    request: HttpRequest,
    go_on: &mut GoOn<'_>,
) -> Result<Vec<Shard>, CheckpointError> {
    let file = loader.open_file(request, go_on)?;
    let name = file.request().url().to_string();
    let wrong = |problem: String| CheckpointError::Index {
        file: name.clone(),
        problem,
    };
    let size = file
        .size()
        .ok_or_else(|| CheckpointError::NoSize { file: name.clone() })?;
    let len = u32::try_from(size)
        .ok()
        .filter(|len| *len <= MAX_INDEX_BYTES);
    let len = len.ok_or_else(|| wrong(format!("it has {size} bytes")))?;
    let text = loader.read(&Source::from(&file), 0, len, go_on)?;
    let names = names(&text).map_err(wrong)?;
    let url = file.request().url();
    let shards = names.into_iter().map(|(name, tensors)| {
        let request = file.request().redirected(url.join(&name)?);
        Ok(Shard { request, tensors })
    });
    shards.collect()
}

/// Returns the names of the files, and those of their tensors. The files must lie beside the index: it may not name other hosts and folders.
pub(super) fn names(text: &[u8]) -> Result<BTreeMap<String, BTreeSet<String>>, String> {
    let index: Index = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let mut names = BTreeMap::<String, BTreeSet<String>>::new();
    for (tensor, file) in index.weight_map {
        names.entry(file).or_default().insert(tensor);
    }
    let is_plain = |name: &&String| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        name.bytes().all(allowed) && !name.is_empty() && !name.starts_with('.')
    };
    match names.keys().find(|name| !is_plain(name)) {
        Some(name) => Err(format!("{name:?} is not the name of a file beside it")),
        None => Ok(names),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_is_named_once() {
        let text = br#"{"metadata":{"total_size":9},"weight_map":{"a":"m-2.safetensors","b":"m-1.safetensors","c":"m-2.safetensors"}}"#;
        let found = names(text).unwrap();
        let files: Vec<_> = found.keys().collect();
        assert_eq!(files, ["m-1.safetensors", "m-2.safetensors"]);
        assert_eq!(
            found["m-2.safetensors"],
            ["a", "c"].map(String::from).into()
        );
    }

    #[test]
    fn files_of_other_hosts_and_folders_are_refused() {
        for name in [
            "http://other/x",
            "//other/x",
            "../x",
            "/etc/x",
            "a/b",
            "..",
            "",
            "x?y",
        ] {
            let text = format!(r#"{{"weight_map":{{"a":"{name}"}}}}"#);
            assert!(names(text.as_bytes()).is_err(), "{name}");
        }
        assert!(names(b"{}").is_err());
    }
}
