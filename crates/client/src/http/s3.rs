//! Objects of S3 and compatible stores: `s3://BUCKET/KEY`.

use super::profile::Profile;
use super::request::HttpRequest;
use super::sigv4::{S3Credentials, region};
use crate::shown::shown;
use crate::url::{Url, UrlError, encoded_bytes};

/// The scheme of an object.
const SCHEME: &str = "s3://";

impl HttpRequest {
    /// Returns the request for the object `s3://BUCKET/KEY`, signed with the credentials of the environment, if there are any
    /// ([`S3Credentials::from_env`]).
    ///
    /// The store is that of `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL`, an http or https URL, without one Amazon's of the region, by https.
    ///
    /// # Errors
    /// The text is no such name, or the endpoint is not an http or https URL.
    pub fn s3_object(text: &str) -> Result<Self, UrlError> {
        Self::s3_object_of(text, |name| std::env::var(name).ok())
    }

    /// As [`s3_object`](Self::s3_object), with other variables than those of the environment.
    ///
    /// # Errors
    /// As [`s3_object`](Self::s3_object).
    pub fn s3_object_of(
        text: &str,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, UrlError> {
        let profile = Profile::find(&variable)?;
        let request = Self::new(address(text, &variable, &profile)?);
        Ok(match S3Credentials::from(&variable, &profile) {
            Some(credentials) => request.sign_s3(credentials),
            None => request.of_object(),
        })
    }
}

/// Returns the URL of an object.
fn address(
    text: &str,
    variable: &impl Fn(&str) -> Option<String>,
    profile: &Profile,
) -> Result<Url, UrlError> {
    let name = text
        .strip_prefix(SCHEME)
        .and_then(|name| name.split_once('/'));
    let is_bucket = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let name = name.filter(|(bucket, key)| {
        !bucket.is_empty() && bucket.bytes().all(is_bucket) && !key.is_empty()
    });
    let (bucket, key) = name.ok_or_else(|| UrlError::Malformed {
        text: shown(text),
        problem: "write s3://BUCKET/KEY",
    })?;
    let key = encoded_bytes(key.as_bytes(), "/");
    let mut endpoints = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"].into_iter();
    let endpoint = endpoints.find_map(|name| variable(name).filter(|url| !url.is_empty()));
    match endpoint {
        Some(endpoint) => format!("{}/{bucket}/{key}", endpoint.trim_end_matches('/')).parse(),
        None => {
            let region = region(variable, profile);
            // The certificate is one for `*.s3.REGION`, where the star has no dot (RFC 9525 6.3).
            let place = match bucket.contains('.') {
                true => format!("s3.{region}.amazonaws.com/{bucket}"),
                false => format!("{bucket}.s3.{region}.amazonaws.com"),
            };
            format!("https://{place}/{key}").parse()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str, set: &[(&str, &str)]) -> Result<String, UrlError> {
        let find = |name: &str| set.iter().find(|(key, _)| *key == name);
        let variable = |name: &str| find(name).map(|(_, value)| (*value).to_owned());
        Ok(address(text, &variable, &Profile::default())?.to_string())
    }

    #[test]
    fn an_object_is_at_the_endpoint_of_the_environment_or_at_amazon() {
        let minio = ("AWS_ENDPOINT_URL", "http://10.0.0.1:9000/");
        let object = url("s3://models/a b/c+d.safetensors", &[minio]).unwrap();
        assert_eq!(
            object,
            "http://10.0.0.1:9000/models/a%20b/c%2Bd.safetensors"
        );
        let region = ("AWS_REGION", "eu-central-1");
        let object = url("s3://models/x", &[region]).unwrap();
        assert_eq!(object, "https://models.s3.eu-central-1.amazonaws.com/x");
        let dotted = url("s3://a.b/x", &[region]).unwrap();
        assert_eq!(dotted, "https://s3.eu-central-1.amazonaws.com/a.b/x");
        let encrypted = ("AWS_ENDPOINT_URL_S3", "https://store");
        let object = url("s3://a/b", &[minio, encrypted]).unwrap();
        assert_eq!(object, "https://store/a/b");
    }

    #[test]
    fn what_names_no_object_is_refused() {
        for text in [
            "s3://",
            "s3://a",
            "s3://a/",
            "s3:///b",
            "s3://a@host/b",
            "s3://a:1/b",
            "http://a/b",
        ] {
            let refused = url(text, &[]).unwrap_err().to_string();
            assert!(refused.contains("s3://BUCKET/KEY"), "{text}: {refused}");
        }
    }
}
