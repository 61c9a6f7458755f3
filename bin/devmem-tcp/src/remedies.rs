//! Remedies of loads, stores and exchanges in the words of this program.

use std::error::Error;

use tool::explain::Explained;
use tool::remedy::words;
use transfer::load::Setting;

/// Returns the reason of an error of a load, a store or an exchange, and its remedy with the options of this program.
pub fn explain(error: &(dyn Error + 'static)) -> Option<Explained> {
    if let Some((reason, remedy)) = exchange::explain(error) {
        return Some((reason, remedy.map(of_exchange)));
    }
    let (reason, remedy) = transfer::explain(error)?;
    Some((reason, remedy.as_ref().map(of_load)))
}

/// Returns a remedy of a load or a store with the options of this program.
pub fn of_load(remedy: &transfer::load::Remedy) -> String {
    remedy.worded(option, words)
}

/// Returns a remedy of an exchange, whose programs are ranks of `demo --exchange`.
fn of_exchange(remedy: exchange::Remedy) -> String {
    match remedy {
        exchange::Remedy::Library(remedy) => words(remedy),
        exchange::Remedy::SameLength | exchange::Remedy::WholeTicket => {
            "run one version of this program".to_owned()
        }
        other => other.to_string(),
    }
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
        tool::explain::set_explainer(explain);
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
        let length = exchange::Cause::TooLong {
            sent: 2,
            posted: 1,
            tag: 0,
            is_ours: true,
        };
        let around = anyhow::Error::new(std::sync::Arc::new(length)).context("the neighbour");
        let text = Failure::from(around).to_string();
        assert!(
            text.starts_with("the neighbour: a message of 2 bytes"),
            "{text}"
        );
        assert!(
            text.ends_with("; run one version of this program"),
            "{text}"
        );
        let refused =
            exchange::FabricError::Nic(devmem_tcp::Netdev::user("tap", "10.0.0.1/8").unwrap_err());
        let text = Failure::from(refused).to_string();
        assert_eq!(text.matches("write tap:NAME").count(), 1, "{text}");
        let refused = transfer::store::Input::open(std::path::Path::new("/proc")).unwrap_err();
        let text = Failure::from(refused).to_string();
        assert_eq!(text, "/proc is a folder; name a file or a block device");
        let folder = tempfile::tempdir().unwrap();
        let empty = folder.path().join("empty");
        std::fs::write(&empty, "").unwrap();
        let refused = TlsOptions::new().authorities(&empty).client().unwrap_err();
        let text = Failure::from(refused).to_string();
        assert_eq!(text.matches("BEGIN CERTIFICATE").count(), 1, "{text}");
    }
}
