//! `cargo xtask`: checks of the sources for which there is no existing tool.
//!
//! Each check is a function from a [`workspace::Workspace`] (the text files that git lists) to a list of
//! findings, with its table of rules at the top of its file. cargo-deny checks the dependency direction
//! (`deny.toml`), clippy the length of functions and the types that only some crates may use (`clippy.toml`),
//! typos the spelling; `.ci/run` runs them all.
//!
//! It only reads sources: it builds nothing and changes no file.

#![forbid(unsafe_code)]

mod examples;
mod fuzz;
mod islands;
mod map;
mod sizes;
mod walks;
mod workspace;

use std::process::ExitCode;

use workspace::{Finding, Workspace};

/// A check: its name, its description for the usage message, its function.
type Check = (&'static str, &'static str, fn(&Workspace) -> Vec<Finding>);

const CHECKS: &[Check] = &[
    ("unsafe", "unsafe code only in its islands", islands::check),
    ("sizes", "lines per file", sizes::check),
    ("walks", "the walks are what the code calls", walks::check),
    ("fuzz", "all lists of fuzz targets agree", fuzz::check),
    ("map", "map and deny.toml name all packages", map::check),
    (
        "examples",
        "examples of libraries are tests",
        examples::check,
    ),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(chosen) = choose(&arguments) else {
        eprintln!("usage: cargo xtask all | CHECK...\n");
        for (name, what, _) in CHECKS {
            eprintln!("  {name:<8} {what}");
        }
        return ExitCode::from(2);
    };
    let workspace = match Workspace::load() {
        Ok(workspace) => workspace,
        Err(error) => {
            eprintln!("xtask: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut status = ExitCode::SUCCESS;
    for (name, _, check) in chosen {
        let findings = check(&workspace);
        for finding in &findings {
            println!("{name}: {finding}");
            status = ExitCode::FAILURE;
        }
        println!(
            "{name}: {} files, {} findings",
            workspace.texts.len(),
            findings.len()
        );
    }
    status
}

/// Returns the checks that the arguments name; `None` for a usage error.
fn choose(arguments: &[String]) -> Option<Vec<&'static Check>> {
    match arguments {
        [] => None,
        [all] if all == "all" => Some(CHECKS.iter().collect()),
        names => names
            .iter()
            .map(|name| CHECKS.iter().find(|check| check.0 == name))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn checks_are_chosen_by_name_and_an_unknown_name_is_a_usage_error() {
        let chosen = |name: &str| super::choose(&[name.to_owned()]).map(|checks| checks.len());
        assert_eq!(chosen("walks"), Some(1));
        assert_eq!(chosen("all"), Some(super::CHECKS.len()));
        assert_eq!(chosen("walk"), None);
        assert!(super::choose(&[]).is_none());
    }
}
