//! The shell completions, run by the shells.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{LIMIT, run};
use devmem_linux::test_util::{skip, wait_or_kill};
use tool::stock;

#[path = "../../src/dist/completions.rs"]
mod completions;

/// A typed line whose last word has one completion, and that word. An empty one: it has none.
const CASES: &[(&str, &str)] = &[
    ("rec", "recv"),
    ("recv --lis", "--listen"),
    ("recv --link tap:x --keep-l", "--keep-listening"),
    ("recv --backend ker", "kernel"),
    ("demo --direction loop", "loopback"),
    ("send --chu", "--chunk"),
    ("packetdrill-path --js", "--json"),
    ("lab ru", "run"),
    ("lab run --wi", "--wire"),
    // Commands of the demo's processes.
    ("__", ""),
    ("__s", ""),
];

/// Runs a script in a shell. `None`: there is no such shell.
fn output_of(test: &str, shell: &str, options: &[&str], script: &str) -> Option<String> {
    if stock::path_of(shell).is_none() {
        skip(test, shell, &format!("there is no {shell} here"));
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder can be made");
    let mut command = Command::new(shell);
    command.args(options).arg("-c").arg(script);
    // No settings of this user.
    command.env("HOME", folder.path()).env("TERM", "dumb");
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut child = child.expect("the shell is there");
    let mut stdout = child.stdout.take().expect("it was piped");
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut stdout, &mut bytes).expect("a pipe can be read");
        bytes
    });
    assert!(
        wait_or_kill(&mut child, LIMIT).is_some(),
        "{shell} did not end"
    );
    let bytes = reader.join().expect("the reader does not panic");
    Some(String::from_utf8(bytes).expect("the shell writes text"))
}

fn with_completions(check: impl Fn(&Path)) {
    let folder = tempfile::tempdir().expect("a folder can be made");
    completions::write(folder.path()).expect("there is room");
    check(folder.path());
}

#[test]
fn bash_completes_commands_and_options_at_every_level() {
    const TEST: &str = "completion::bash_completes_commands_and_options_at_every_level";
    with_completions(|folder| {
        for (line, completed) in CASES {
            // As readline calls the function that the script has registered (bash(1), Programmable Completion).
            let script = format!(
                "source {}/devmem-tcp.bash\n\
                 COMP_WORDS=(devmem-tcp {line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
                 registered=$(complete -p devmem-tcp); registered=${{registered#*-F }}; registered=${{registered%% *}}\n\
                 $registered devmem-tcp \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"\n\
                 printf '%s\\n' \"${{COMPREPLY[@]}}\"",
                folder.display()
            );
            let Some(said) = output_of(TEST, "bash", &["--norc", "--noprofile"], &script) else {
                return;
            };
            assert_eq!(said.trim_end(), *completed, "devmem-tcp {line}");
        }
    });
}

#[test]
fn fish_completes_commands_and_options_at_every_level() {
    const TEST: &str = "completion::fish_completes_commands_and_options_at_every_level";
    with_completions(|folder| {
        for (line, completed) in CASES {
            let script = format!(
                "source {}/devmem-tcp.fish; complete --do-complete 'devmem-tcp {line}'",
                folder.display()
            );
            let Some(said) = output_of(TEST, "fish", &["--no-config"], &script) else {
                return;
            };
            // A candidate and its description.
            let candidates: Vec<_> = said
                .lines()
                .filter_map(|line| line.split('\t').next())
                .collect();
            let expected: Vec<&str> = Some(*completed)
                .filter(|word| !word.is_empty())
                .into_iter()
                .collect();
            assert_eq!(candidates, expected, "devmem-tcp {line}");
        }
    });
}

#[test]
fn zsh_completes_commands_and_options_at_every_level() {
    const TEST: &str = "completion::zsh_completes_commands_and_options_at_every_level";
    with_completions(|folder| {
        // Completion needs the line editor, which needs a terminal: an interactive shell on a pseudoterminal, and Tab.
        let mut script = format!(
            "zmodload zsh/zpty || exit 1\n\
             zpty inner zsh -f -i\n\
             zpty -w inner 'PS1=; fpath=({} $fpath); autoload -Uz compinit; compinit -u -D'\n\
             zpty -w inner 'devmem-tcp() {{ print -r -- \"typed: $*.\" }}'\n",
            folder.display()
        );
        for (line, _) in CASES {
            script += &format!("zpty -w -n inner $'devmem-tcp {line}\\t\\n'\n");
        }
        script += "zpty -w inner exit\nwhile zpty -r inner text; do print -rn -- $text; done\n";
        let Some(said) = output_of(TEST, "zsh", &["-f"], &script) else {
            return;
        };
        let typed: Vec<&str> = said
            .lines()
            .filter_map(|line| line.trim().strip_prefix("typed: "))
            .collect();
        let expected: Vec<String> = CASES
            .iter()
            .map(|(line, completed)| {
                let before = line.rfind(' ').map_or(0, |space| space + 1);
                match completed.is_empty() {
                    true => format!("{line}."),
                    false => format!("{}{completed}.", &line[..before]),
                }
            })
            .collect();
        assert_eq!(typed, expected, "{said}");
    });
}

#[test]
fn a_misspelt_command_is_not_told_of_the_commands_of_helper_processes() {
    for line in ["sender", "_sender", "__sendr", "receiver", "rank", "_rank"] {
        let refused = run(line);
        assert_eq!(refused.code, Some(2), "{line}");
        for hidden in ["'__sender'", "'__receiver'", "'__rank'"] {
            assert!(!refused.stderr.contains(hidden), "{}", refused.stderr);
        }
    }
}
