//! Runs one command with a time limit and keeps what it says.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// The workspace's root, where every command runs.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Where the full output of every step is kept, from the root.
const LOG_FOLDER: &str = "target/ci";

/// Lines shown of a step that failed and was not shown as it ran.
const TAIL_LINES: usize = 150;

/// Exit status of timeout(1) for a command that it ended.
const TIMED_OUT: i32 = 124;

/// A command about to run.
pub struct Invocation {
    step: String,
    line: Vec<String>,
    deadline: Instant,
    /// Variables set for it.
    pub env: &'static [(&'static str, &'static str)],
    /// What of its output is shown.
    pub show: Show,
}

/// What of a command's output is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Show {
    /// Everything on stdout, while it runs.
    AsItComes,
    /// The end of it, if it fails.
    Failure,
    /// Nothing: its failure is an answer.
    Nothing,
}

/// How a command ended.
#[derive(Debug)]
pub enum Ended {
    /// Exit status 0, with everything it wrote to stdout and stderr.
    Succeeded(String),
    /// Any other end, in words.
    Failed(String),
    /// It was ended because its time was over, in words.
    TimedOut(String),
}

impl Invocation {
    /// Prepares a command line for a step; no word of it has a space (see [`Invocation::arg`]).
    pub fn new(step: &str, line: &str, deadline: Instant) -> Self {
        let line = words(line);
        Self {
            step: step.to_owned(),
            line,
            deadline,
            env: &[],
            show: Show::Failure,
        }
    }

    /// Appends an argument, which may have spaces.
    pub fn arg(&mut self, argument: impl Into<String>) {
        self.line.push(argument.into());
    }

    /// Runs it and shows nothing of it.
    pub fn run_quietly(mut self) -> Ended {
        self.show = Show::Nothing;
        self.run()
    }

    /// Runs it.
    pub fn run(&self) -> Ended {
        let env: String = self
            .env
            .iter()
            .map(|(name, value)| format!("{name}='{value}' "))
            .collect();
        println!("$ {env}{}", self.line.join(" "));
        match self.start_and_wait() {
            Ok(ended) => ended,
            Err(error) => Ended::Failed(format!("{error:#}")),
        }
    }

    fn start_and_wait(&self) -> Result<Ended> {
        let limit = self.deadline.saturating_duration_since(Instant::now());
        let seconds = limit.as_secs().max(1);
        // timeout(1) ends the whole process group; cargo's children are in it.
        let mut child = Command::new("timeout")
            .args(["--kill-after=10", &seconds.to_string()])
            .args(&self.line)
            .current_dir(ROOT)
            .envs(self.env.iter().copied())
            .env("CARGO_TERM_COLOR", "never")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start timeout(1)")?;
        let stderr = child.stderr.take().context("no stderr")?;
        let stdout = child.stdout.take().context("no stdout")?;
        let live = self.show == Show::AsItComes;
        // Both pipes are drained at once: a full one would stop the command.
        let errors = thread::spawn(move || collect(stderr, false));
        let output = collect(stdout, live);
        let errors = errors.join().unwrap_or_default();
        let status = child.wait()?;
        let log = self.keep(&output, &errors)?;
        if status.success() {
            return Ok(Ended::Succeeded(output + &errors));
        }
        if self.show != Show::Nothing {
            let shown = if live { errors } else { errors + &output };
            eprintln!("{}", tail(&shown, TAIL_LINES));
        }
        let log = log.display();
        Ok(match status.code() {
            Some(TIMED_OUT) => Ended::TimedOut(format!("no end after {seconds} s, see {log}")),
            Some(code) => Ended::Failed(format!("status {code}, see {log}")),
            None => Ended::Failed(format!("ended by a signal, see {log}")),
        })
    }

    /// Appends to the step's log.
    fn keep(&self, output: &str, errors: &str) -> Result<PathBuf> {
        fs::create_dir_all(in_root(LOG_FOLDER))?;
        let path = Path::new(LOG_FOLDER).join(format!("{}.log", self.step));
        let mut log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(in_root(&path))?;
        write!(log, "$ {}\n{output}{errors}", self.line.join(" "))?;
        Ok(path)
    }
}

/// Returns a path from the workspace's root as one that can be opened from anywhere.
pub fn in_root(path: impl AsRef<Path>) -> PathBuf {
    Path::new(ROOT).join(path)
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn collect(pipe: impl Read, live: bool) -> String {
    let mut all = String::new();
    // Output that is not UTF-8 is kept as far as it is.
    for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        if live {
            println!("{line}");
        }
        all += &line;
        all.push('\n');
    }
    all
}

fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    let from = all.len().saturating_sub(lines);
    let mut shown = all[from..].join("\n");
    if from > 0 {
        shown.insert_str(0, &format!("[{from} lines before this]\n"));
    }
    shown
}

/// Tells whether a short command succeeds, silently.
pub fn succeeds(line: &str) -> bool {
    output(line).is_ok()
}

/// Returns the stdout of a short command.
pub fn output(line: &str) -> Result<String> {
    let output = Command::new("timeout")
        .arg("60")
        .args(words(line))
        .current_dir(ROOT)
        .stdin(Stdio::null())
        .output()?;
    if !output.status.success() {
        bail!(
            "{} failed: {}",
            line,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Returns the target triple of this machine, as the nightly compiler names it.
pub fn host_triple() -> Result<String> {
    let version = output("rustc +nightly -vV")?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV names no host")?.to_owned())
}

/// Returns the names, without their endings, of the files in a folder, sorted.
pub fn stems_in(folder: &str) -> Result<Vec<String>> {
    let entries = fs::read_dir(in_root(folder)).with_context(|| folder.to_owned())?;
    let mut stems = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        stems.push(stem.with_context(|| format!("{path:?}"))?.to_owned());
    }
    stems.sort();
    Ok(stems)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn shell(script: &str) -> Invocation {
        let mut invocation = Invocation::new("selftest", "sh -c", soon());
        invocation.arg(script);
        invocation
    }

    #[test]
    fn a_command_that_succeeds_gives_its_output_and_errors() {
        let ended = shell("echo out; echo err >&2").run();
        let Ended::Succeeded(output) = ended else {
            panic!("{ended:?}")
        };
        assert_eq!(output, "out\nerr\n");
    }

    #[test]
    fn a_command_that_fails_gives_its_status() {
        let ended = shell("exit 7").run_quietly();
        let Ended::Failed(how) = ended else {
            panic!("{ended:?}")
        };
        assert!(how.starts_with("status 7, see "), "{how}");
    }

    #[test]
    fn a_command_that_does_not_exist_has_failed() {
        let ended = Invocation::new("selftest", "devmem-tcp-no-such-program", soon()).run_quietly();
        assert!(matches!(ended, Ended::Failed(_)));
        assert!(!succeeds("devmem-tcp-no-such-program"));
    }

    #[test]
    fn a_command_without_end_is_ended() {
        // `tail -f` waits for ever; the limit is the shortest that timeout(1) takes.
        let ended = Invocation::new("selftest", "tail -f /dev/null", Instant::now()).run_quietly();
        let Ended::TimedOut(how) = ended else {
            panic!("{ended:?}")
        };
        assert!(how.starts_with("no end after "), "{how}");
    }

    #[test]
    fn the_tail_says_what_it_leaves_out() {
        assert_eq!(tail("a\nb\nc\n", 2), "[1 lines before this]\nb\nc");
        assert_eq!(tail("a\nb\n", 2), "a\nb");
    }
}
