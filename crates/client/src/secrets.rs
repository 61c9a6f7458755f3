//! Secrets of HTTP requests from files and from the environment. The arguments of a process are shown to every user of the machine
//! (`ps`), and stay in the history of a shell.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use devmem_tcp::text::Printable;

use crate::http::HttpRequest;
use crate::remedy::Remedy;
use crate::url::UrlError;

/// Longest file of secrets.
const MAX_BYTES: u64 = 64 << 10;

/// Fields of requests, one a line, as `NAME: VALUE`.
const HEADERS_VARIABLE: &str = "DEVMEM_HEADERS";
/// User of the server, if the URL names none.
const USER_VARIABLE: &str = "DEVMEM_USER";
/// Password of the server.
const PASSWORD_VARIABLE: &str = "DEVMEM_PASSWORD";

/// Why secrets cannot be used. No message shows one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// The file cannot be read.
    #[error("read secrets from {place}: {error}")]
    Read {
        /// The file, or standard input.
        place: String,
        /// The error.
        error: io::Error,
    },
    /// A line is no field.
    #[error("line {line} of {place} is not a field")]
    Field {
        /// The file or the variable.
        place: String,
        /// Number of the line.
        line: usize,
    },
    /// A field is not one that a request may have.
    #[error("line {line} of {place}: {error}")]
    Refused {
        /// The file or the variable.
        place: String,
        /// Number of the line.
        line: usize,
        /// The reason.
        error: UrlError,
    },
    /// There is a password, and no user.
    #[error("there is a password and no user")]
    NoUser,
}

impl SecretError {
    /// Returns what helps.
    pub fn remedy(&self) -> Option<Remedy> {
        let remedy = match self {
            Self::Field { .. } => "write NAME: VALUE",
            Self::NoUser => {
                "write USER@ before the host of the URL, or name the user beside the password"
            }
            Self::Refused { error, .. } => return error.remedy(),
            Self::Read { .. } => return None,
        };
        Some(remedy.into())
    }
}

/// Returns the text of a file of secrets; `-` is standard input. A FIFO will do, as `<(pass show hub)` of a shell.
///
/// # Errors
/// [`SecretError::Read`]: the file cannot be read, is longer than 64 KiB, or no text.
pub fn read_secret(path: &Path) -> Result<String, SecretError> {
    let is_stdin = path.as_os_str() == "-";
    let place = match is_stdin {
        true => "standard input".to_owned(),
        false => Printable(path.display()).to_string(),
    };
    let text = match is_stdin {
        true => limited(io::stdin().lock()),
        false => File::open(path).and_then(limited),
    };
    text.map_err(|error| SecretError::Read { place, error })
}

fn limited(from: impl Read) -> io::Result<String> {
    let mut text = String::new();
    from.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    match text.len() as u64 > MAX_BYTES {
        true => Err(io::Error::other("it is longer than 64 KiB")),
        false => Ok(text),
    }
}

/// Returns the password in a text of a file: its first line.
pub fn password_of(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

impl HttpRequest {
    /// Adds the fields of a text, one a line. Empty lines, and those that begin with `#`, are skipped. `place` names the text in errors.
    ///
    /// # Errors
    /// A line is no field, or one that the loader sets itself.
    pub fn fields_of(self, text: &str, place: &str) -> Result<Self, SecretError> {
        let is_field = |line: &str| !line.is_empty() && !line.starts_with('#');
        let lines = text.lines().map(str::trim).enumerate();
        let mut fields = lines.filter(|(_, line)| is_field(line));
        fields.try_fold(self, |request, (index, line)| {
            request.field_line(line, place, index + 1)
        })
    }

    /// Adds a field that is written as `NAME: VALUE`, as [`field`](Self::field).
    fn field_line(self, text: &str, place: &str, line: usize) -> Result<Self, SecretError> {
        let place = Printable(place).to_string();
        let Some((name, value)) = text.split_once(':') else {
            return Err(SecretError::Field { place, line });
        };
        let added = self.field(name.trim(), value.trim());
        added.map_err(|error| SecretError::Refused { place, line, error })
    }

    /// Adds what the environment has for all requests: the fields of `DEVMEM_HEADERS`, one a line, and the password of
    /// `DEVMEM_PASSWORD` for `user`, or else that of the URL or of `DEVMEM_USER`. A password of the URL wins.
    ///
    /// # Errors
    /// A line is no field; there is a password and no user.
    pub fn secrets_from_env(self, user: Option<&str>) -> Result<Self, SecretError> {
        self.secrets_from(user, |name| std::env::var(name).ok())
    }

    fn secrets_from(
        self,
        user: Option<&str>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, SecretError> {
        let set = |name| variable(name).filter(|text| !text.is_empty());
        let request = match set(HEADERS_VARIABLE) {
            Some(text) => self.fields_of(&text, HEADERS_VARIABLE)?,
            None => self,
        };
        let has_own = request.url().has_password() || request.is_signed();
        match set(PASSWORD_VARIABLE).filter(|_| !has_own) {
            Some(password) => {
                let of_url = request.url().user().map(str::to_owned);
                let user = user
                    .map(str::to_owned)
                    .or(of_url)
                    .or_else(|| set(USER_VARIABLE));
                request.with_password(user.as_deref(), &password)
            }
            None => Ok(request),
        }
    }

    /// Sends `password` with the requests (Basic, RFC 7617), for `user` or else for that of the URL.
    ///
    /// # Errors
    /// [`SecretError::NoUser`].
    pub fn with_password(self, user: Option<&str>, password: &str) -> Result<Self, SecretError> {
        let user = user.or_else(|| self.url().user()).map(str::to_owned);
        let user = user.ok_or(SecretError::NoUser)?;
        Ok(self.with_credentials(&user, password))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Ask;

    fn request(url: &str) -> HttpRequest {
        HttpRequest::new(url.parse().unwrap())
    }

    fn sent(request: &HttpRequest) -> String {
        let mut out = Vec::new();
        request.write(Ask::All, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn fields_are_lines_of_a_text() {
        let text = "# of the hub\nAuthorization: Bearer a:b\r\n\n  X-Api-Key:k\n";
        let with = request("http://host/").fields_of(text, "FILE").unwrap();
        let sent = sent(&with);
        assert!(
            sent.contains("\r\nAuthorization: Bearer a:b\r\nX-Api-Key: k\r\n"),
            "{sent}"
        );
    }

    #[test]
    fn a_wrong_line_is_named_and_not_shown() {
        let refused = |text: &str| {
            let refused = request("http://host/").fields_of(text, "FILE").unwrap_err();
            let text = refused.to_string();
            assert!(!text.contains("s3cret"), "{text}");
            text
        };
        assert!(refused("A: b\ns3cret\n").starts_with("line 2 of FILE is not a field"));
        assert!(refused("Bearer s3cret: x").starts_with("line 1 of FILE: "));
        assert!(refused("Range: s3cret").contains("the loader sets this field itself"));
    }

    #[test]
    fn the_environment_has_fields_and_a_password() {
        let of = |url: &str, set: &[(&str, &str)]| {
            let find = |name: &str| set.iter().find(|(key, _)| *key == name);
            let with = request(url).secrets_from(None, |name| Some(find(name)?.1.to_owned()));
            with.map(|with| sent(&with))
        };
        let password = ("DEVMEM_PASSWORD", "open sesame");
        let user = ("DEVMEM_USER", "Aladdin");
        // RFC 7617 2, the example.
        let basic = "\r\nAuthorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==\r\n";
        assert!(
            of("http://Aladdin@host/", &[password])
                .unwrap()
                .contains(basic)
        );
        assert!(
            of("http://host/", &[password, user])
                .unwrap()
                .contains(basic)
        );
        assert!(
            of(
                "http://Aladdin:open%20sesame@host/",
                &[("DEVMEM_PASSWORD", "x")]
            )
            .unwrap()
            .contains(basic)
        );
        assert!(matches!(
            of("http://host/", &[password]),
            Err(SecretError::NoUser)
        ));
        let fields = of("http://host/", &[("DEVMEM_HEADERS", "A: 1\nB: 2")]).unwrap();
        assert!(fields.contains("\r\nA: 1\r\nB: 2\r\n"), "{fields}");
        assert!(
            !of("http://host/", &[user])
                .unwrap()
                .contains("Authorization")
        );
    }

    #[test]
    fn a_file_of_secrets_has_a_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, "pass word\r\nrest\n").unwrap();
        assert_eq!(password_of(&read_secret(&path).unwrap()), "pass word");
        std::fs::write(&path, vec![b'x'; 64 << 10]).unwrap();
        assert!(read_secret(&path).is_ok());
        std::fs::write(&path, vec![b'x'; (64 << 10) + 1]).unwrap();
        let refused = read_secret(&path).unwrap_err().to_string();
        assert!(
            refused.contains("longer than 64 KiB") && refused.contains("secret"),
            "{refused}"
        );
        assert!(read_secret(Path::new("/dev/zero")).is_err());
        assert!(read_secret(&folder.path().join("none")).is_err());
    }
}
