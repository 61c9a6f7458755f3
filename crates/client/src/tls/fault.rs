//! What a fault of TLS means, and what helps.

use devmem_tcp::text::printable;
use rustls::{AlertDescription, CertificateError, Error};

use crate::error::LoadError;
use crate::remedy::{Remedy, Setting};

/// Most names of a certificate that a message shows.
const MOST_NAMES: usize = 5;

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase<'a> {
    /// The handshake is not complete. The bytes that the server has sent and that are not understood.
    Handshake(&'a [u8]),
    Open,
}

/// Returns the error of a load after a fault of the connection to `host`.
pub(super) fn error_of(host: &str, error: &Error, phase: Phase<'_>) -> LoadError {
    let refused = |problem: String, remedy: Remedy| LoadError::Tls {
        host: host.to_owned(),
        problem,
        remedy,
    };
    match (error, phase) {
        (Error::InvalidCertificate(why), _) => {
            let (problem, remedy) = of_certificate(why);
            refused(problem, remedy)
        }
        (Error::AlertReceived(alert), _) => match of_alert(*alert) {
            Some((problem, remedy)) => refused(problem.to_owned(), remedy),
            None => broken(host, format!("the server ended TLS: {alert:?}")),
        },
        (Error::PeerIncompatible(why), _) => refused(
            format!("the server and this client have no protocol in common: {why:?}"),
            "the server needs TLS 1.2 or 1.3 with modern ciphers; its configuration may allow them"
                .into(),
        ),
        (Error::InvalidMessage(_), Phase::Handshake(seen)) => no_tls(host, seen),
        // Bytes that have changed on their way, for example: another connection may do better.
        (other, _) => broken(host, format!("TLS: {}", printable(&other.to_string()))),
    }
}

fn broken(host: &str, problem: String) -> LoadError {
    LoadError::Broken {
        host: host.to_owned(),
        problem: problem.into(),
    }
}

/// Returns the error of a server that has answered something else.
fn no_tls(host: &str, seen: &[u8]) -> LoadError {
    let problem = match seen.starts_with(b"HTTP/") {
        true => "the server answers in plain HTTP",
        false => "the answer of the server is not TLS",
    };
    LoadError::Tls {
        host: host.to_owned(),
        problem: problem.to_owned(),
        remedy: "write http:// for this port, or the port of https: 443 on most servers".into(),
    }
}

fn of_certificate(why: &CertificateError) -> (String, Remedy) {
    use CertificateError as Why;
    let (problem, remedy) = match why {
        Why::Expired | Why::ExpiredContext { .. } => (
            "the server's certificate has expired",
            "renew it on the server; if it has not expired, the clock of this machine is wrong",
        ),
        Why::NotValidYet | Why::NotValidYetContext { .. } => (
            "the server's certificate is not valid yet",
            "set the clock of this machine, or wait",
        ),
        Why::UnknownIssuer => {
            let problem = "the server's certificate is signed by no authority that is known here";
            let remedy = "name the file of its authority: {}, or SSL_CERT_FILE=FILE; if that is known, the server does not send the \
                          certificates between them";
            return (
                problem.to_owned(),
                Remedy::Set(remedy, Setting::Authorities),
            );
        }
        Why::BadSignature => {
            let problem = "the server's certificate is not signed by the authority that it names";
            let remedy = "a known authority has the same name and another key: name the file of the right one: {}";
            return (
                problem.to_owned(),
                Remedy::Set(remedy, Setting::Authorities),
            );
        }
        Why::Revoked => (
            "the server's certificate is revoked",
            "renew it on the server",
        ),
        Why::NotValidForNameContext {
            expected,
            presented,
        } => return of_names(&expected.to_str(), presented),
        Why::NotValidForName => return of_names("this host", &[]),
        other => {
            let text = format!("{other:?}");
            let remedy = match text.contains("CaUsedAsEndEntity") {
                true => {
                    "it is that of an authority; make one for the server: openssl req -x509 ... -addext basicConstraints=CA:FALSE"
                }
                false => "correct it on the server: `openssl x509 -text` shows what it has",
            };
            let problem = format!(
                "the server's certificate is not valid: {}",
                printable(&text)
            );
            return (problem, remedy.into());
        }
    };
    (problem.to_owned(), remedy.into())
}

/// Returns the error of a certificate for other names.
fn of_names(expected: &str, presented: &[String]) -> (String, Remedy) {
    let names = presented.iter().take(MOST_NAMES);
    let names: Vec<_> = names.map(|name| printable(shown_name(name))).collect();
    let names = match names.is_empty() {
        true => "no name that a URL can have".to_owned(),
        false => names.join(", "),
    };
    let problem = format!("the server's certificate is for {names}, and not for {expected}");
    let remedy = "write a name of the certificate in the URL, or get a certificate for this one";
    (problem, remedy.into())
}

/// Returns the name in `DnsName("NAME")`.
fn shown_name(name: &str) -> &str {
    let inner = name.split_once('(').map_or(name, |(_, inner)| inner);
    inner.trim_matches(|c| c == '"' || c == ')')
}

/// Returns what an alert of the server means, unless another connection may do better.
fn of_alert(alert: AlertDescription) -> Option<(&'static str, Remedy)> {
    use AlertDescription as Alert;
    Some(match alert {
        Alert::CertificateRequired => (
            "the server asks for a certificate of this client",
            Remedy::Set("name it and its key: {}", Setting::Certificate),
        ),
        Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateRevoked
        | Alert::CertificateExpired
        | Alert::CertificateUnknown
        | Alert::UnknownCA
        // It cannot verify a signature.
        | Alert::DecryptError
        | Alert::AccessDenied => (
            "the server refuses the certificate of this client, or that there is none",
            Remedy::Set(
                "name another one and its key: {}; the log of the server may say why",
                Setting::Certificate,
            ),
        ),
        Alert::HandshakeFailure | Alert::ProtocolVersion | Alert::InsufficientSecurity => (
            "the server refuses the handshake: there is no protocol or cipher in common, or it asks for a client certificate",
            Remedy::Set(
                "it needs TLS 1.2 or 1.3 with modern ciphers; name a client certificate, if it wants one: {}",
                Setting::Certificate,
            ),
        ),
        Alert::UnrecognisedName => (
            "the server has no certificate for this name",
            "check the host of the URL".into(),
        ),
        Alert::NoApplicationProtocol => (
            "the server does not speak HTTP/1.1",
            "allow it on the server beside HTTP/2".into(),
        ),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(error: &Error, phase: Phase<'_>) -> String {
        let error = error_of("host", error, phase);
        format!("{error}; {}", error.remedy().unwrap())
    }

    #[test]
    fn each_fault_has_its_cause_and_what_helps() {
        let certificate = |why| Error::InvalidCertificate(why);
        for (error, expected) in [
            (certificate(CertificateError::Expired), ["expired", "clock"]),
            (
                certificate(CertificateError::UnknownIssuer),
                ["authority", "`TlsOptions::authorities`"],
            ),
            (
                certificate(CertificateError::NotValidYet),
                ["not valid yet", "clock"],
            ),
            (
                certificate(CertificateError::BadEncoding),
                ["BadEncoding", "openssl x509"],
            ),
            (
                Error::AlertReceived(AlertDescription::CertificateRequired),
                ["certificate of this client", "`TlsOptions::identity`"],
            ),
            (
                Error::AlertReceived(AlertDescription::HandshakeFailure),
                ["refuses the handshake", "TLS 1.2"],
            ),
        ] {
            let text = text(&error, Phase::Open);
            assert!(expected.iter().all(|word| text.contains(word)), "{text}");
            assert!(text.starts_with("host: ") && text.contains("; "), "{text}");
        }
    }

    #[test]
    fn names_of_a_certificate_are_shown_and_cannot_write_to_a_terminal() {
        let presented = ["DnsName(\"*.other\")".to_owned(), "\u{1b}[2J".to_owned()];
        let (problem, _) = of_names("host", &presented);
        assert!(problem.contains("*.other,"), "{problem}");
        assert!(problem.ends_with("and not for host"), "{problem}");
        assert!(!problem.contains('\u{1b}'), "{problem}");
    }

    #[test]
    fn some_faults_may_end_with_the_connection() {
        let changed = error_of("host", &Error::DecryptError, Phase::Open);
        assert!(matches!(changed, LoadError::Broken { .. }), "{changed:?}");
        let ended = Error::AlertReceived(AlertDescription::InternalError);
        let ended = error_of("host", &ended, Phase::Open);
        assert!(matches!(ended, LoadError::Broken { .. }), "{ended:?}");
    }

    #[test]
    fn plain_http_is_recognised() {
        let error = Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType);
        let plain = text(&error, Phase::Handshake(b"HTTP/1.1 400 Bad Request"));
        assert!(
            plain.contains("plain HTTP") && plain.contains("http://"),
            "{plain}"
        );
        let other = text(&error, Phase::Handshake(b"SSH-2.0-"));
        assert!(other.contains("not TLS"), "{other}");
        let later = error_of("host", &error, Phase::Open);
        assert!(matches!(later, LoadError::Broken { .. }), "{later:?}");
    }
}
