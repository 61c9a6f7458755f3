//! Remedies of loads and stores in the words of this program.

use std::error::Error;

use tool::remedy::words;
use transfer::load::Setting;

/// Returns the reason of an error of a load or a store, and its remedy with the options of this program.
pub fn explain(error: &(dyn Error + 'static)) -> Option<(String, Option<String>)> {
    let (reason, remedy) = transfer::explain(error)?;
    Some((reason, remedy.map(|remedy| remedy.worded(option, words))))
}

/// Returns the options that set it.
fn option(setting: Setting) -> &'static str {
    match setting {
        Setting::Authorities => "--cacert FILE",
        Setting::Certificate => "--cert FILE --key FILE",
        Setting::Connections => "--connections N",
        Setting::IdleLimit => "--idle-limit SECONDS",
        Setting::PieceBytes => "--piece SIZE",
        // No command loads tensors one after the other.
        Setting::MemoryLimit => "the limit on memory",
        Setting::Subsystems => "`devmem-tcp load nvme://HOST`",
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use tool::output::Failure;
    use tool::remedy::names_a_call;
    use transfer::load::{LoadError, TlsOptions, UrlError};

    use super::*;

    #[test]
    fn settings_are_named_by_options_that_the_commands_have() {
        let cli = crate::args::Cli::command();
        let load = cli.find_subcommand("load").unwrap();
        for setting in Setting::ALL {
            let text = option(setting);
            assert!(!names_a_call(text), "{text}");
            for flag in text.split(' ').filter_map(|word| word.strip_prefix("--")) {
                let mut known = load.get_arguments().filter_map(clap::Arg::get_long);
                assert!(known.any(|name| name == flag), "--{flag}");
            }
        }
    }

    #[test]
    fn failures_have_the_options_in_their_text_whatever_is_around_the_error() {
        tool::output::set_explainer(explain);
        let no_family = || LoadError::NoFamily {
            host: "h".to_owned(),
            address: "::1".parse().unwrap(),
        };
        let around = anyhow::Error::new(no_family()).context("load it");
        for failure in [Failure::from(no_family()), Failure::from(around)] {
            let text = failure.to_string();
            assert!(
                text.ends_with("; give it one: --addr 10.77.0.2/24"),
                "{text}"
            );
            assert_eq!(text.matches("give it one").count(), 1, "{text}");
        }
        let url: Result<transfer::load::Url, UrlError> = "ftp://h/x".parse();
        let text = Failure::from(LoadError::from(url.unwrap_err())).to_string();
        assert!(text.ends_with("or nbd://HOST/EXPORT"), "{text}");
        let folder = tempfile::tempdir().unwrap();
        let empty = folder.path().join("empty");
        std::fs::write(&empty, "").unwrap();
        let refused = TlsOptions::new().authorities(&empty).client().unwrap_err();
        let text = Failure::from(refused).to_string();
        assert_eq!(text.matches("BEGIN CERTIFICATE").count(), 1, "{text}");
    }
}
