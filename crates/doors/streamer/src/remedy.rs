//! Remedies in the words of those who use the streamer: they set variables of the environment, and call nothing of this library.

use std::fmt;

use devmem_tcp::Remedy;
use transfer::load::{LoadError, Setting};

/// An error of a load, with its remedy on a line below.
pub(crate) struct Worded<'a>(pub(crate) &'a LoadError);

impl fmt::Display for Worded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.0, f)?;
        match self.0.remedy() {
            Some(remedy) => write!(f, "\n  {}", remedy.worded(variable, words)),
            None => Ok(()),
        }
    }
}

/// Returns what sets it.
fn variable(setting: Setting) -> &'static str {
    match setting {
        Setting::Authorities => "among those of the system (ca-certificates)",
        Setting::Certificate | Setting::IdleLimit | Setting::PieceBytes => {
            "no variable of the streamer does"
        }
        Setting::Connections => "RUNAI_STREAMER_CONCURRENCY=N",
        Setting::MemoryLimit => "RUNAI_STREAMER_MEMORY_LIMIT=BYTES",
        Setting::Subsystems => "the controller",
    }
}

fn words(remedy: Remedy) -> String {
    match remedy {
        Remedy::GiveAddress => {
            "give the interface one: ip address add ADDRESS/LENGTH dev INTERFACE".to_owned()
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedies_name_neither_calls_nor_options() {
        let host = "h".to_owned();
        let (problem, address) = ("it".to_owned(), "::1".parse().unwrap());
        let mut said = vec![
            Worded(&LoadError::NoFamily {
                host: host.clone(),
                address,
            })
            .to_string(),
        ];
        for setting in Setting::ALL {
            let error = LoadError::Tls {
                host: host.clone(),
                problem: problem.clone(),
                remedy: transfer::load::Remedy::Set("name it: {}", setting),
            };
            said.push(Worded(&error).to_string());
        }
        for text in said {
            assert_eq!(text.lines().count(), 2, "{text}");
            for word in ["Loader", "TlsOptions", "--", "`", "=\""] {
                assert!(!text.contains(word), "{text}");
            }
        }
    }
}
