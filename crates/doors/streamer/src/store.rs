//! Objects that were opened, and what their stores ask for.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use devmem_tcp::Netdev;
use transfer::load::{CancelCheck, HttpRequest, LoadError, Loader, Origin, Source, UrlError};

use crate::code::Code;

/// Keys of credentials, and the variables of Amazon's tools that they stand for.
const VARIABLES: [(&str, &[&str]); 5] = [
    ("access_key_id", &["AWS_ACCESS_KEY_ID"]),
    ("secret_access_key", &["AWS_SECRET_ACCESS_KEY"]),
    ("session_token", &["AWS_SESSION_TOKEN"]),
    ("region", &["AWS_REGION", "AWS_DEFAULT_REGION"]),
    ("endpoint", &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]),
];
/// Most objects that stay open: each keeps a connection or two.
const MAX_OPEN: usize = 256;

/// An object that was opened, and the NIC of the route to it.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    pub(crate) nic: Netdev,
    pub(crate) source: Source,
}

#[derive(Debug, Default)]
pub(crate) struct Store {
    given: Mutex<Option<BTreeMap<String, String>>>,
    opened: Mutex<HashMap<String, Opened>>,
}

impl Store {
    /// Sets the credentials, once.
    pub(crate) fn set(&self, given: BTreeMap<String, String>) -> Result<(), Code> {
        let mut own = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        match &*own {
            Some(own) if *own != given => Err(Code::CredentialsDiffer),
            _ => {
                *own = Some(given);
                Ok(())
            }
        }
    }

    /// Opens an object, or returns it as it was opened before.
    pub(crate) fn open(
        &self,
        name: &str,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<Opened, LoadError> {
        let locked = || self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = locked().get(name) {
            return Ok(opened.clone());
        }
        let origin = self.origin(name)?;
        let nic = origin.kernel_nic(cancel_check)?;
        let source = Loader::new(&nic).open(&origin, cancel_check)?;
        let opened = Opened { nic, source };
        let mut all = locked();
        if all.len() >= MAX_OPEN {
            all.clear();
        }
        all.insert(name.to_owned(), opened.clone());
        Ok(opened)
    }

    fn origin(&self, name: &str) -> Result<Origin, UrlError> {
        let given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let given = given.clone().unwrap_or_default();
        let request = match name.starts_with("s3://") {
            true => HttpRequest::s3_object_of(name, |variable| variable_of(&given, variable))?,
            false => HttpRequest::new(name.parse()?),
        };
        request.proxy_from_env().map(Origin::Http)
    }
}

/// Returns a variable: what was given for it, or that of the environment.
fn variable_of(given: &BTreeMap<String, String>, variable: &str) -> Option<String> {
    let key = VARIABLES
        .iter()
        .find(|(_, names)| names.contains(&variable));
    let own = key.and_then(|(key, _)| given.get(*key));
    own.cloned().or_else(|| std::env::var(variable).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_set_once_and_come_before_the_environment() {
        let store = Store::default();
        let given = BTreeMap::from([("endpoint".to_owned(), "http://10.0.0.1:9000".to_owned())]);
        assert_eq!(store.set(given.clone()), Ok(()));
        assert_eq!(store.set(given.clone()), Ok(()));
        assert_eq!(store.set(BTreeMap::new()), Err(Code::CredentialsDiffer));
        let Ok(Origin::Http(request)) = store.origin("s3://bucket/a b") else {
            panic!("it is an object");
        };
        assert_eq!(
            request.url().to_string(),
            "http://10.0.0.1:9000/bucket/a%20b"
        );
        assert!(store.origin("s3://bucket").is_err());
        assert_eq!(
            variable_of(&given, "AWS_ENDPOINT_URL").as_deref(),
            Some("http://10.0.0.1:9000")
        );
    }
}
