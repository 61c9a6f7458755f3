//! The index of a checkpoint in several files: a JSON object that names the file of each tensor.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fmt;

use client::dial::CancelCheck;
use client::http::{Client, HttpFile, HttpRequest};
use client::url::decoded_bytes;
use client::{Cause, LoadError};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use super::error::CheckpointError;
use super::header;
use super::json::{self, JsonError};
use super::limits::{CheckpointLimit, FIRST_BYTES, MAX_FILES, MAX_TENSORS};
use crate::load::loader::Loader;
use crate::load::source::Source;

/// Longest index: those of the largest checkpoints have a few megabytes.
const MAX_INDEX_BYTES: u32 = 100_000_000;

/// Names of files, each with those of its tensors.
type Names = BTreeMap<String, BTreeSet<String>>;

#[derive(Deserialize)]
struct Index {
    weight_map: WeightMap,
}

/// The files of all tensors.
struct WeightMap(Names);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(WeightMapVisitor)
    }
}

struct WeightMapVisitor;

impl<'de> Visitor<'de> for WeightMapVisitor {
    type Value = WeightMap;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors and the names of their files")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
        let (mut names, mut count) = (Names::new(), 0);
        while let Some((tensor, file)) = map.next_entry::<String, String>()? {
            count += 1;
            if count > MAX_TENSORS {
                return Err(A::Error::custom(CheckpointLimit::Tensors));
            }
            names.entry(file).or_default().insert(tensor);
            if names.len() > MAX_FILES {
                return Err(A::Error::custom(CheckpointLimit::Files));
            }
        }
        Ok(WeightMap(names))
    }
}

/// A file that the index names.
pub(super) struct Shard {
    pub(super) request: HttpRequest,
    /// Names of the tensors that are loaded from it, and that it must have.
    pub(super) tensors: BTreeSet<String>,
}

/// Reads the index and returns its files, in the order of their names.
pub(super) fn of(
    loader: &Loader,
    client: Client<'_>,
    request: HttpRequest,
    cancel_check: &mut CancelCheck<'_>,
) -> Result<Vec<Shard>, CheckpointError> {
    let (file, mut text) = HttpFile::open_with(client, &request, FIRST_BYTES, cancel_check)?;
    let name = file.name();
    let wrong = |problem: Cause| CheckpointError::Index {
        file: name.clone(),
        problem,
    };
    let size = file
        .size()
        .ok_or_else(|| CheckpointError::NoSize { file: name.clone() })?;
    let len = u32::try_from(size)
        .ok()
        .filter(|len| *len <= MAX_INDEX_BYTES);
    let len = len.ok_or_else(|| wrong(format!("it has {size} bytes").into()))?;
    loader.read_on(&Source::from(&file), &mut text, len, cancel_check)?;
    let names = names(&text, cancel_check).map_err(|unread| match unread {
        IndexError::Wrong(problem) => wrong(problem),
        IndexError::Cancelled => CheckpointError::Load(LoadError::Cancelled),
    })?;
    drop(text);
    // Beside the URL that the user gave, wherever that redirects to.
    let shards = names.into_iter().map(|(name, tensors)| {
        let request = file.request().sibling(&name)?;
        Ok(Shard { request, tensors })
    });
    shards.collect()
}

/// Why an index was not read.
#[derive(Debug)]
pub(super) enum IndexError {
    Wrong(Cause),
    /// The caller has cancelled it.
    Cancelled,
}

/// Returns the names of the files, and those of their tensors. The files must lie beside the index: it may not name other hosts and folders.
pub(super) fn names(text: &[u8], cancel_check: &mut CancelCheck<'_>) -> Result<Names, IndexError> {
    let index: Index = json::parse(text, cancel_check).map_err(|error| match error {
        JsonError::Cancelled => IndexError::Cancelled,
        JsonError::Invalid(error) => IndexError::Wrong(JsonError::text(&error).into()),
    })?;
    let WeightMap(names) = index.weight_map;
    match names.keys().find(|name| !is_beside(name)) {
        Some(name) => {
            let name = header::shortened(name);
            let problem = Cause::from(format!("{name:?} is not the name of a file beside it"));
            let remedy = "shards in other folders and on other hosts are not loaded";
            Err(IndexError::Wrong(problem.with_remedy(remedy)))
        }
        None => Ok(names),
    }
}

/// Returns whether a name is that of a file beside the index. It is percent-encoded for the request, so that it may have any character but those that
/// part folders, also if a server decodes it twice.
fn is_beside(name: &str) -> bool {
    let decoded = decoded_bytes(name);
    let parts = |byte: u8| b"/\\".contains(&byte) || byte.is_ascii_control();
    let is_parted = name.bytes().any(parts) || decoded.iter().copied().any(parts);
    let is_query = name.contains(['?']);
    !is_parted && !is_query && !matches!(decoded.as_slice(), b"" | b"." | b"..")
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::dial::never_cancelled;

    #[test]
    fn each_file_is_named_once() {
        let text = br#"{"metadata":{"total_size":9},"weight_map":{"a":"m-2.safetensors","b":"m-1.safetensors","c":"m-2.safetensors"}}"#;
        let found = names(text, &mut never_cancelled).unwrap();
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
            "a%2f..%2fx",
            "%2e%2e",
            r"sub\\x",
            r"x\n",
        ] {
            let text = format!(r#"{{"weight_map":{{"a":"{name}"}}}}"#);
            assert!(
                names(text.as_bytes(), &mut never_cancelled).is_err(),
                "{name}"
            );
        }
        for name in [
            "model 1.safetensors",
            "model+lora.safetensors",
            "model(1).safetensors",
            "modèle.safetensors",
            "~@,#'=:;&.safetensors",
            "100%.safetensors",
            ".hidden",
        ] {
            let text = format!(r#"{{"weight_map":{{"a":"{name}"}}}}"#);
            assert!(
                names(text.as_bytes(), &mut never_cancelled).is_ok(),
                "{name}"
            );
        }
        assert!(names(b"{}", &mut never_cancelled).is_err());
    }

    #[test]
    fn an_index_has_limits() {
        let of = |count: usize, name: fn(usize) -> String| {
            let one = |n| format!(r#""{n}":"{}""#, name(n));
            let map = (0..count).map(one).collect::<Vec<_>>().join(",");
            let text = format!(r#"{{"weight_map":{{{map}}}}}"#);
            match names(text.as_bytes(), &mut never_cancelled) {
                Ok(names) => format!("{} files", names.len()),
                Err(IndexError::Wrong(problem)) => problem.reason().to_owned(),
                Err(IndexError::Cancelled) => "cancelled".to_owned(),
            }
        };
        let each = |n: usize| format!("{n}.safetensors");
        assert_eq!(of(MAX_FILES, each), "10000 files");
        assert!(of(MAX_FILES + 1, each).starts_with("it has more than 10000 files"));
        let all_in_one = of(MAX_TENSORS + 1, |_| "x".to_owned());
        assert!(
            all_in_one.starts_with("it has more than 1000000 tensors"),
            "{all_in_one}"
        );
    }
}
