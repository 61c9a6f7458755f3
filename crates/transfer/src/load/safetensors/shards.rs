//! The index of a checkpoint in several files: a JSON object that names the file of each tensor.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use super::json::{self, JsonError};
use super::limits::{CheckpointLimit, MAX_FILES, MAX_TENSORS};
use super::{CheckpointError, header};
use crate::load::dial::GoOn;
use crate::load::error::LoadError;
use crate::load::http::HttpRequest;
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
    let names = names(&text, go_on).map_err(|unread| match unread {
        Unread::Wrong(problem) => wrong(problem),
        Unread::Cancelled => CheckpointError::Load(LoadError::Cancelled),
    })?;
    drop(text);
    let url = file.request().url();
    let shards = names.into_iter().map(|(name, tensors)| {
        let request = file.request().redirected(url.join(&name)?);
        Ok(Shard { request, tensors })
    });
    shards.collect()
}

/// Why an index was not read.
#[derive(Debug)]
pub(super) enum Unread {
    Wrong(String),
    /// The caller does not go on.
    Cancelled,
}

/// Returns the names of the files, and those of their tensors. The files must lie beside the index: it may not name other hosts and folders.
pub(super) fn names(text: &[u8], go_on: &mut GoOn<'_>) -> Result<Names, Unread> {
    let index: Index = json::parse(text, go_on).map_err(|error| match error {
        JsonError::Cancelled => Unread::Cancelled,
        JsonError::Invalid(error) => Unread::Wrong(JsonError::text(&error)),
    })?;
    let WeightMap(names) = index.weight_map;
    let is_plain = |name: &&String| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        name.bytes().all(allowed) && !name.is_empty() && !name.starts_with('.')
    };
    match names.keys().find(|name| !is_plain(name)) {
        Some(name) => {
            let name = header::shortened(name);
            let problem = format!("{name:?} is not the name of a file beside it");
            Err(Unread::Wrong(problem))
        }
        None => Ok(names),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::dial::always;

    #[test]
    fn each_file_is_named_once() {
        let text = br#"{"metadata":{"total_size":9},"weight_map":{"a":"m-2.safetensors","b":"m-1.safetensors","c":"m-2.safetensors"}}"#;
        let found = names(text, &mut always).unwrap();
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
            assert!(names(text.as_bytes(), &mut always).is_err(), "{name}");
        }
        assert!(names(b"{}", &mut always).is_err());
    }

    #[test]
    fn an_index_has_limits() {
        let of = |count: usize, name: fn(usize) -> String| {
            let one = |n| format!(r#""{n}":"{}""#, name(n));
            let map = (0..count).map(one).collect::<Vec<_>>().join(",");
            let text = format!(r#"{{"weight_map":{{{map}}}}}"#);
            match names(text.as_bytes(), &mut always) {
                Ok(names) => format!("{} files", names.len()),
                Err(Unread::Wrong(problem)) => problem,
                Err(Unread::Cancelled) => "cancelled".to_owned(),
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
