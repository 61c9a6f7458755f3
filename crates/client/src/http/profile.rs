//! The files in which Amazon's tools keep credentials: `~/.aws/credentials` and `~/.aws/config`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::url::UrlError;

/// Longest file that is read.
const MAX_BYTES: u64 = 1 << 20;
/// The profile if `AWS_PROFILE` names none.
const DEFAULT: &str = "default";

/// The settings of one profile.
#[derive(Debug, Default)]
pub(super) struct Profile(BTreeMap<String, String>);

impl Profile {
    /// Reads the profile that the variables of the environment name.
    ///
    /// # Errors
    /// `AWS_PROFILE` names one that neither file has.
    pub(super) fn find(variable: &impl Fn(&str) -> Option<String>) -> Result<Self, UrlError> {
        let set = |name: &str| variable(name).filter(|text| !text.is_empty());
        let named = set("AWS_PROFILE").or_else(|| set("AWS_DEFAULT_PROFILE"));
        let name = named.as_deref().unwrap_or(DEFAULT);
        let file = |variable: &str, usual: &str| {
            let home = || Some(Path::new(&set("HOME")?).join(usual));
            let text = read(&set(variable).map(PathBuf::from).or_else(home)?);
            Some(text.unwrap_or_default())
        };
        let config = file("AWS_CONFIG_FILE", ".aws/config").unwrap_or_default();
        let credentials = file("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials");
        let mut found = section(&config, |heading| match heading.strip_prefix("profile ") {
            Some(profile) => profile.trim() == name,
            None => heading == DEFAULT && name == DEFAULT,
        });
        let own = section(&credentials.unwrap_or_default(), |heading| heading == name);
        let is_missing = found.is_none() && own.is_none();
        if is_missing && named.is_some() {
            return Err(UrlError::Malformed {
                text: name.chars().take(100).collect(),
                problem: "AWS_PROFILE names a profile that neither ~/.aws/credentials nor ~/.aws/config has",
            });
        }
        let mut settings = found.take().unwrap_or_default();
        settings.extend(own.unwrap_or_default());
        Ok(Self(settings))
    }

    /// Returns a setting that is not empty.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        self.0.get(name).filter(|value| !value.is_empty()).cloned()
    }
}

/// Reads a file; what cannot be read has no settings.
fn read(path: &Path) -> Option<String> {
    let mut text = String::new();
    let file = File::open(path).ok()?;
    file.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Returns the settings below the headings that are `wanted`; `None` without one. Lines that begin with a blank belong to a nested setting.
fn section(text: &str, wanted: impl Fn(&str) -> bool) -> Option<BTreeMap<String, String>> {
    let (mut found, mut is_inside) = (None, false);
    for line in text.lines() {
        if let Some(heading) = line.trim().strip_prefix('[') {
            is_inside = heading
                .strip_suffix(']')
                .is_some_and(|it| wanted(it.trim()));
            if is_inside {
                found.get_or_insert_with(BTreeMap::new);
            }
        } else if is_inside
            && !line.starts_with([' ', '\t', '#', ';'])
            && let Some((name, value)) = line.split_once('=')
            && let Some(settings) = &mut found
        {
            settings.insert(name.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_in_both_files() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(".aws")).unwrap();
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(".aws").join(name), text).unwrap();
        };
        write(
            "credentials",
            "# mine\n[default]\naws_access_key_id = a\naws_secret_access_key=b=\n[work]\nAWS_ACCESS_KEY_ID=c\n",
        );
        write(
            "config",
            "[default]\nregion = eu-1\ns3 =\n  region = nested\n[profile work]\nregion = eu-2\n[work]\nregion = no\n",
        );
        let home = folder.path().to_str().unwrap();
        let find = |set: &[(&str, &str)]| {
            let set = [&[("HOME", home)], set].concat();
            let get = |name: &str| set.iter().find(|(key, _)| *key == name);
            Profile::find(&|name: &str| get(name).map(|(_, value)| (*value).to_owned()))
        };
        let default = find(&[]).unwrap();
        let of = |profile: &Profile, name| profile.get(name).unwrap_or_default();
        assert_eq!(of(&default, "aws_secret_access_key"), "b=");
        assert_eq!(of(&default, "region"), "eu-1");
        let work = find(&[("AWS_PROFILE", "work")]).unwrap();
        assert_eq!(of(&work, "aws_access_key_id"), "c");
        assert_eq!(of(&work, "region"), "eu-2");
        assert_eq!(work.get("aws_secret_access_key"), None);
        let refused = find(&[("AWS_PROFILE", "none")]).unwrap_err().to_string();
        assert!(refused.contains("neither"), "{refused}");
        let elsewhere = find(&[("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")]).unwrap();
        assert_eq!(elsewhere.get("aws_access_key_id"), None);
        assert!(
            Profile::find(&|_: &str| None)
                .unwrap()
                .get("region")
                .is_none()
        );
    }
}
