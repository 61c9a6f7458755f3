//! What a server needs to see: the request of a URL, with the credentials of the caller and of the environment.

use std::collections::BTreeMap;
use std::path::PathBuf;

use devmem_tcp::{Errno, ErrorKind};
use devmem_transfer::load::{
    HttpRequest, Origin, SecretError, Url, UrlError, password_of, read_secret,
};
use pyo3::prelude::*;

use crate::error::Error;
use crate::tls::of_read;

/// Fields of requests.
#[derive(FromPyObject)]
pub(crate) enum Headers {
    Map(BTreeMap<String, String>),
    Pairs(Vec<(String, String)>),
}

impl Headers {
    fn into_pairs(self) -> Vec<(String, String)> {
        match self {
            Self::Map(map) => map.into_iter().collect(),
            Self::Pairs(pairs) => pairs,
        }
    }
}

/// What the server needs to see.
#[derive(FromPyObject)]
pub(crate) struct Secrets {
    #[pyo3(item)]
    headers: Option<Headers>,
    #[pyo3(item)]
    headers_file: Option<PathBuf>,
    #[pyo3(item)]
    user: Option<String>,
    #[pyo3(item)]
    password: Option<String>,
    #[pyo3(item)]
    password_file: Option<PathBuf>,
}

impl Secrets {
    /// Returns the request for a URL.
    pub(crate) fn request(self, url: &str) -> Result<HttpRequest, Error> {
        let request = match url.parse().map_err(of_url)? {
            Origin::Http(request) => request,
            // Not http: an error that says so.
            _ => HttpRequest::new(url.parse::<Url>().map_err(of_url)?),
        };
        let headers = self.headers.map_or_else(Vec::new, Headers::into_pairs);
        let mut headers = headers.iter();
        let with_headers =
            headers.try_fold(request, |request, (name, value)| request.field(name, value));
        let mut request = with_headers.map_err(of_url)?;
        if let Some(file) = &self.headers_file {
            let text = read_secret(file)?;
            request = request.fields_of(&text, &file.to_string_lossy())?;
        }
        let of_file = self.password_file.as_deref().map(read_secret).transpose()?;
        let of_file = of_file.as_deref().map(password_of);
        if let Some(password) = self.password.as_deref().or(of_file) {
            request = request.with_password(self.user.as_deref(), password)?;
        }
        let request = request.secrets_from_env(self.user.as_deref())?;
        request.proxy_from_env().map_err(of_url)
    }
}

impl From<SecretError> for Error {
    fn from(error: SecretError) -> Self {
        match &error {
            SecretError::Read { source, .. } => of_read(source, error.to_string()),
            _ => Self::of_load(ErrorKind::InvalidInput, Errno::EINVAL.0, error.to_string()),
        }
    }
}

fn of_url(error: UrlError) -> Error {
    Error::of_load(ErrorKind::InvalidInput, Errno::EINVAL.0, error.to_string())
}
