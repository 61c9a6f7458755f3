//! Signatures of requests to S3 and compatible object stores: AWS Signature Version 4, in the `Authorization` field.
//! (The chapter "Authenticating Requests: Using the Authorization Header" of the Amazon S3 API reference.)

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use ring::{digest, hmac};

use super::profile::Profile;
use crate::url::{Url, decoded_bytes, encoded_bytes};

/// SHA-256 of an empty body.
const EMPTY_BODY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
/// The region of stores that have none.
const DEFAULT_REGION: &str = "us-east-1";
const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const SECONDS_PER_DAY: u64 = 86_400;

/// A request without a body, to be signed.
pub(super) struct Signed<'a> {
    pub(super) method: &'static str,
    pub(super) url: &'a Url,
    /// Its fields. Those that the store demands are signed: `range`, and all of its own.
    pub(super) fields: Vec<(&'a str, &'a str)>,
}

/// What an object store knows its user by.
#[derive(Clone, PartialEq, Eq)]
pub struct S3Credentials {
    access_key: String,
    secret_key: String,
    session_token: Option<String>,
    region: String,
}

impl S3Credentials {
    /// Returns credentials for a region; stores other than Amazon's usually take `us-east-1`.
    pub fn new(access_key: &str, secret_key: &str, region: &str) -> Self {
        Self {
            access_key: access_key.to_owned(),
            secret_key: secret_key.to_owned(),
            session_token: None,
            region: region.to_owned(),
        }
    }

    /// Adds the token of temporary credentials.
    #[must_use]
    pub fn session_token(mut self, token: &str) -> Self {
        self.session_token = Some(token.to_owned());
        self
    }

    /// Returns the credentials of the environment: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, and
    /// the region `AWS_REGION` or `AWS_DEFAULT_REGION`; without them those of the profile `AWS_PROFILE` in the files of Amazon's tools
    /// (`~/.aws/credentials` and `~/.aws/config`). `None` without a key.
    pub fn from_env() -> Option<Self> {
        let variable = |name: &str| std::env::var(name).ok();
        Self::from(&variable, &Profile::find(&variable).ok()?)
    }

    pub(super) fn from(
        variable: &impl Fn(&str) -> Option<String>,
        profile: &Profile,
    ) -> Option<Self> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        // A key is not mixed with the secret of another place.
        let (access_key, secret_key, session_token) = match set("AWS_ACCESS_KEY_ID") {
            Some(key) => (key, set("AWS_SECRET_ACCESS_KEY")?, set("AWS_SESSION_TOKEN")),
            None => (
                profile.get("aws_access_key_id")?,
                profile.get("aws_secret_access_key")?,
                profile.get("aws_session_token"),
            ),
        };
        Some(Self {
            access_key,
            secret_key,
            session_token,
            region: region(variable, profile),
        })
    }

    /// Returns the same user in another region; `None` in the same one.
    pub(super) fn in_region(&self, region: &str) -> Option<Self> {
        (self.region != region).then(|| Self {
            region: region.to_owned(),
            ..self.clone()
        })
    }

    /// Returns the fields that sign a request at the time `now`.
    pub(super) fn sign(
        &self,
        request: &Signed<'_>,
        now: SystemTime,
    ) -> Vec<(&'static str, String)> {
        let now = now.duration_since(SystemTime::UNIX_EPOCH);
        let time = timestamp(now.unwrap_or_default());
        let day = &time[..8];
        let mut ours = vec![
            ("x-amz-content-sha256", EMPTY_BODY.to_owned()),
            ("x-amz-date", time.clone()),
        ];
        if let Some(token) = &self.session_token {
            ours.push(("x-amz-security-token", token.clone()));
        }
        // In alphabetical order.
        let mut signed = BTreeMap::from([("host".to_owned(), request.url.authority())]);
        for (name, value) in &request.fields {
            let name = name.to_ascii_lowercase();
            if name == "range" || name.starts_with("x-amz-") {
                signed.insert(name, (*value).to_owned());
            }
        }
        signed.extend(
            ours.iter()
                .map(|(name, value)| ((*name).to_owned(), value.clone())),
        );
        let names: Vec<_> = signed.keys().map(String::as_str).collect();
        let names = names.join(";");
        let request = canonical_request(request, &signed, &names);
        let scope = format!("{day}/{}/s3/aws4_request", self.region);
        let hash = hex(digest::digest(&digest::SHA256, request.as_bytes()).as_ref());
        let text = format!("{ALGORITHM}\n{time}\n{scope}\n{hash}");
        let signature = hex(mac(self.key(day), &text).as_ref());
        let key = &self.access_key;
        let authorization = format!(
            "{ALGORITHM} Credential={key}/{scope}, SignedHeaders={names}, Signature={signature}"
        );
        ours.push(("Authorization", authorization));
        ours
    }

    /// Returns the key of a day.
    fn key(&self, day: &str) -> hmac::Tag {
        let secret = format!("AWS4{}", self.secret_key);
        let of_region = mac(mac(secret, day), &self.region);
        mac(mac(of_region, "s3"), "aws4_request")
    }
}

fn mac(key: impl AsRef<[u8]>, text: &str) -> hmac::Tag {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_ref());
    hmac::sign(&key, text.as_bytes())
}

/// Returns the region of the environment or of the profile.
pub(super) fn region(variable: &impl Fn(&str) -> Option<String>, profile: &Profile) -> String {
    let names = ["AWS_REGION", "AWS_DEFAULT_REGION"];
    let mut set = names.into_iter().filter_map(variable);
    let region = set.find(|region| !region.is_empty());
    let region = region.or_else(|| profile.get("region"));
    region.unwrap_or_else(|| DEFAULT_REGION.to_owned())
}

/// Without the secrets.
impl fmt::Debug for S3Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Credentials")
            .field("access_key", &self.access_key)
            .field("region", &self.region)
            .finish_non_exhaustive()
    }
}

fn canonical_request(
    request: &Signed<'_>,
    signed: &BTreeMap<String, String>,
    names: &str,
) -> String {
    let (method, target) = (request.method, request.url.target());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut parameters: Vec<_> = query
        .split('&')
        .filter(|parameter| !parameter.is_empty())
        .map(|parameter| {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            (encoded(name, ""), encoded(value, ""))
        })
        .collect();
    parameters.sort();
    let parameters: Vec<_> = parameters
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let fields: String = signed
        .iter()
        .map(|(name, value)| {
            let words: Vec<_> = value.split_ascii_whitespace().collect();
            format!("{name}:{}\n", words.join(" "))
        })
        .collect();
    let (path, query) = (encoded(path, "/"), parameters.join("&"));
    format!("{method}\n{path}\n{query}\n{fields}\n{names}\n{EMPTY_BODY}")
}

/// Returns a part of a URL as [`encoded_bytes`]. Characters that are percent-encoded already stay so.
fn encoded(text: &str, kept: &str) -> String {
    encoded_bytes(&decoded_bytes(text), kept)
}

/// Returns a time since 1970 as `YYYYMMDDTHHMMSSZ` (ISO 8601, basic format).
fn timestamp(since_1970: Duration) -> String {
    let seconds = since_1970.as_secs();
    let (year, month, day) = date(seconds / SECONDS_PER_DAY);
    let second = seconds % SECONDS_PER_DAY;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

/// Returns year, month and day of the Gregorian calendar, `days` days after the first of January 1970.
fn date(days: u64) -> (u64, u64, u64) {
    let mut left = days;
    let mut year = 1970;
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        if left < length {
            break;
        }
        left -= length;
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The user of the examples in the Amazon S3 API reference.
    fn example() -> S3Credentials {
        let secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
        S3Credentials::new("AKIAIOSFODNN7EXAMPLE", secret, "us-east-1")
    }

    /// 2013-05-24 00:00:00 UTC.
    fn then() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_369_353_600)
    }

    fn signed(
        credentials: &S3Credentials,
        url: &str,
        range: Option<&str>,
    ) -> Vec<(&'static str, String)> {
        let request = Signed {
            method: "GET",
            url: &url.parse().unwrap(),
            fields: range.map(|range| ("Range", range)).into_iter().collect(),
        };
        credentials.sign(&request, then())
    }

    fn authorization(credentials: &S3Credentials, url: &str, range: Option<&str>) -> String {
        let fields = signed(credentials, url, range);
        let (name, value) = fields.last().unwrap();
        assert_eq!(*name, "Authorization");
        value.clone()
    }

    #[test]
    fn the_examples_of_the_reference_have_their_signatures() {
        let host = "http://examplebucket.s3.amazonaws.com";
        let piece = Some("bytes=0-9");
        for (target, piece, signature) in [
            (
                "/test.txt",
                piece,
                "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
            ),
            (
                "/?lifecycle",
                None,
                "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
            ),
            (
                "/?max-keys=2&prefix=J",
                None,
                "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
            ),
        ] {
            let field = authorization(&example(), &format!("{host}{target}"), piece);
            assert!(
                field.ends_with(&format!("Signature={signature}")),
                "{field}"
            );
            let scope = "AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request";
            assert!(field.contains(&format!("Credential={scope}, ")), "{field}");
        }
    }

    #[test]
    fn a_session_token_is_signed_and_secrets_are_not_shown() {
        let credentials = example().session_token("t0ken");
        let fields = signed(&credentials, "http://host/x", None);
        assert!(fields.contains(&("x-amz-security-token", "t0ken".to_owned())));
        assert!(
            authorization(&credentials, "http://host/x", None).contains(";x-amz-security-token,")
        );
        let shown = format!("{credentials:?}");
        assert!(
            !shown.contains("wJalr") && !shown.contains("t0ken"),
            "{shown}"
        );
    }

    #[test]
    fn names_are_encoded_once_however_they_are_written() {
        for written in ["/a b+c/d%2fe~", "/a%20b%2bc/d%2Fe%7e"] {
            assert_eq!(encoded(written, "/"), "/a%20b%2Bc/d/e~");
        }
        assert_eq!(encoded("%zz%+5%4", ""), "%25zz%25%2B5%254");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |seconds| timestamp(Duration::from_secs(seconds));
        assert_eq!(at(0), "19700101T000000Z");
        assert_eq!(at(951_827_696), "20000229T123456Z");
        assert_eq!(at(1_369_353_600), "20130524T000000Z");
        assert_eq!(at(4_107_542_399), "21000228T235959Z");
        assert_eq!(at(4_107_542_400), "21000301T000000Z");
    }

    #[test]
    fn the_environment_names_keys_and_region() {
        let of = |set: &[(&str, &str)]| {
            let find = |name: &str| set.iter().find(|(key, _)| *key == name);
            let variable = |name: &str| find(name).map(|(_, value)| (*value).to_owned());
            S3Credentials::from(&variable, &Profile::find(&variable).unwrap())
        };
        assert_eq!(of(&[("AWS_ACCESS_KEY_ID", "a")]), None);
        let keys = [("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b")];
        assert_eq!(of(&keys), Some(S3Credentials::new("a", "b", "us-east-1")));
        let more = [
            keys[0],
            keys[1],
            ("AWS_DEFAULT_REGION", "eu-1"),
            ("AWS_SESSION_TOKEN", "c"),
        ];
        let expected = S3Credentials::new("a", "b", "eu-1").session_token("c");
        assert_eq!(of(&more), Some(expected));
    }
}
