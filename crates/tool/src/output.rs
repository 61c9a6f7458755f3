//! Output of the programs: errors, notes, results, exit codes.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use anyhow::Context;
use devmem_linux::netlink::NetlinkError;
use devmem_linux::netns::NetnsError;
use devmem_linux::tap::TapError;
use devmem_tcp::text::{Printable, PrintableLines, is_unprintable};
use devmem_tcp::{ErrorKind, Remedy};
use rustix::io::Errno;

use crate::explain::explain;
use crate::remedy::words;

/// Writes a line to stderr as [`tell`] does, with the arguments of `format!`.
#[macro_export]
macro_rules! say {
    ($($words:tt)*) => {
        $crate::output::tell(format_args!("{}\n", format_args!($($words)*)))
    };
}
pub use crate::say;

/// Exit code of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The run succeeded.
    Done,
    /// The run failed.
    Failed,
    /// The command line is invalid.
    Usage,
    /// This machine does not support it, or the user lacks the permission.
    Unsupported,
    /// The exit code of the command that was run for the user.
    Command(u8),
}

impl Exit {
    /// Returns the number for exit(2).
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Unsupported => 3,
            Self::Command(code) => code,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// An error for the user: what failed, why, and what to do.
#[derive(Debug)]
pub struct Failure {
    exit: Exit,
    error: anyhow::Error,
    remedy: Option<String>,
}

impl Failure {
    /// Returns a usage error: the command line is invalid.
    pub fn usage(text: impl fmt::Display) -> Self {
        Self {
            exit: Exit::Usage,
            error: anyhow::anyhow!("{text}"),
            remedy: None,
        }
    }

    /// Returns a failure of the run.
    pub fn failed(text: impl fmt::Display) -> Self {
        Self {
            exit: Exit::Failed,
            error: anyhow::anyhow!("{text}"),
            remedy: None,
        }
    }

    /// Returns the failure of a command that was run for the user and has printed its own error.
    pub fn of_command(code: i32) -> Self {
        Self {
            exit: Exit::Command(
                u8::try_from(code)
                    .ok()
                    .filter(|&code| code != 0)
                    .unwrap_or(1),
            ),
            ..Self::failed(format_args!("the command ended with {code}"))
        }
    }

    /// Returns the failure that this machine does not support the run.
    pub fn unsupported(text: impl fmt::Display) -> Self {
        Self {
            exit: Exit::Unsupported,
            error: anyhow::anyhow!("{text}"),
            remedy: None,
        }
    }

    /// Returns the failure of a run that a signal, or the user of the live view, has cut short: see [`crate::signals`].
    pub fn interrupted() -> Self {
        Self::failed("interrupted")
    }

    /// Adds the remedy of an error of the library.
    #[must_use]
    pub fn with_remedy_of(mut self, remedy: Option<Remedy>) -> Self {
        self.remedy = remedy.map(words);
        self
    }

    /// Adds a remedy.
    #[must_use]
    pub fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Adds what failed, before the reason.
    #[must_use]
    pub fn within(self, what: impl fmt::Display) -> Self {
        let error = self.error.context(what.to_string());
        Self { error, ..self }
    }

    /// Replaces the exit code.
    #[must_use]
    pub fn ending_with(self, exit: Exit) -> Self {
        Self { exit, ..self }
    }

    /// Prints one line to stderr, after the program's name, and returns the exit code.
    pub fn report(&self, program: &str) -> Exit {
        say!("{program}: {self}");
        self.exit
    }
}

impl fmt::Display for Failure {
    /// Writes the causes on one line, outermost first, then the remedies.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut reasons = String::new();
        let mut remedies: Vec<String> = Vec::new();
        for cause in self.error.chain() {
            let (reason, remedy) = explain(cause);
            for line in lines(&remedy.unwrap_or_default()) {
                if !remedies.iter().any(|known| known == line) {
                    remedies.push(line.to_owned());
                }
            }
            let reason = one_line(&reason);
            // Errors of other crates may include the text of their source.
            if !reasons.contains(&reason) {
                let separator = if reasons.is_empty() { "" } else { ": " };
                reasons = reasons + separator + &reason;
            }
        }
        if remedies.is_empty() {
            remedies.extend(self.remedy.clone());
        }
        write!(f, "{}", Printable(reasons))?;
        let mut remedies = remedies.iter();
        remedies.try_for_each(|remedy| write!(f, "; {}", Printable(remedy)))
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        let error = error.into();
        let exit = error.chain().find_map(judge).unwrap_or(Exit::Failed);
        Self {
            exit,
            error,
            remedy: None,
        }
    }
}

/// Returns the lines of a text that are not empty.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty())
}

/// Returns the lines of a text in one line.
fn one_line(text: &str) -> String {
    lines(text).collect::<Vec<_>>().join("; ")
}

/// Returns the exit code of a known error.
fn judge(cause: &(dyn std::error::Error + 'static)) -> Option<Exit> {
    let is_unsupported = if let Some(kind) = ErrorKind::of(cause) {
        kind.is_unsupported_here()
    } else if let Some(error) = cause.downcast_ref::<TapError>() {
        error.is_unsupported()
    } else if let Some(error) = cause.downcast_ref::<NetnsError>() {
        error.is_unsupported()
    } else {
        let error = cause.downcast_ref::<NetlinkError>()?;
        matches!(error.errno, Errno::PERM | Errno::ACCESS)
    };
    Some(match is_unsupported {
        true => Exit::Unsupported,
        false => Exit::Failed,
    })
}

/// Writes text to stderr. Ignores write errors (a closed pipe, a full disk), where `eprintln!` would panic. While output is
/// held, the text is kept for later. What a terminal would obey is escaped: any text may have some from outside.
pub fn tell(text: impl fmt::Display) {
    draw(PrintableLines(text));
}

/// As [`tell`], for text of this program alone: it may have control sequences.
pub(crate) fn draw(text: impl fmt::Display) {
    STDERR.write(&text.to_string(), &mut io::stderr());
}

/// Lines that are kept while output is held. More lines replace the oldest.
const MAX_HELD_LINES: usize = 10_000;

/// Text for stderr that is held back.
#[derive(Debug, Default)]
struct HeldLines(VecDeque<String>);

impl HeldLines {
    fn push(&mut self, text: &str) {
        for line in text.lines() {
            if self.0.len() == MAX_HELD_LINES {
                self.0.pop_front();
            }
            self.0.push_back(line.to_owned());
        }
    }
}

/// Text on its way to stderr.
#[derive(Debug)]
struct Stderr {
    /// `None` while nothing is held back.
    held: Mutex<Option<HeldLines>>,
}

/// That of this process.
static STDERR: Stderr = Stderr::new();

impl Stderr {
    const fn new() -> Self {
        Self {
            held: Mutex::new(None),
        }
    }

    fn held(&self) -> MutexGuard<'_, Option<HeldLines>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes text to `out`, or keeps it while text is held back.
    fn write(&self, text: &str, out: &mut impl Write) {
        match &mut *self.held() {
            Some(lines) => lines.push(text),
            None => {
                let _unheard = out.write_all(text.as_bytes());
            }
        }
    }

    fn hold(&'static self) -> HeldOutput {
        self.held().get_or_insert_default();
        HeldOutput(self)
    }
}

/// Holds back the text of [`tell`] while a full-screen view is on the terminal. Dropping it writes the text.
#[derive(Debug)]
pub struct HeldOutput(&'static Stderr);

/// Begins to hold back the text of [`tell`].
pub fn hold() -> HeldOutput {
    STDERR.hold()
}

impl HeldOutput {
    /// Returns the last lines, at most `most` of them.
    pub fn last(&self, most: usize) -> Vec<String> {
        let held = self.0.held();
        let lines = held.as_ref().map(|lines| &lines.0);
        let lines = lines.into_iter().flatten();
        let surplus = lines.clone().count().saturating_sub(most);
        lines.skip(surplus).cloned().collect()
    }
}

impl Drop for HeldOutput {
    fn drop(&mut self) {
        let lines = self.0.held().take().unwrap_or_default();
        for line in lines.0 {
            self.0.write(&format!("{line}\n"), &mut io::stderr());
        }
    }
}

static PROGRAM: OnceLock<&str> = OnceLock::new();

/// Sets the name that notes begin with, before the first one; without it, that is the tool's.
pub fn set_program(name: &'static str) {
    // A second call would be a mistake without consequences.
    let _ = PROGRAM.set(name);
}

/// Returns the name that notes begin with.
pub(crate) fn program() -> &'static str {
    PROGRAM.get().unwrap_or(&"devmem-tcp")
}

/// Prints a note to stderr, after the program's name.
pub fn note(text: impl fmt::Display) {
    say!("{}: {text}", program());
}

/// Prints a line, or several, to stdout. What a terminal would obey is escaped, as by [`tell`].
///
/// # Errors
///
/// Writing to stdout failed: a closed pipe or a full disk.
pub fn print_line(text: impl fmt::Display) -> anyhow::Result<()> {
    print_text(format_args!("{text}\n"))
}

/// As [`print_line`], without a line end behind the text.
///
/// # Errors
///
/// As [`print_line`].
pub fn print_text(text: impl fmt::Display) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    let printed = write!(stdout, "{}", PrintableLines(text)).and_then(|()| stdout.flush());
    printed.context("write to stdout")
}

/// Prints the one JSON object of a run to stdout.
///
/// # Errors
///
/// As [`print_line`].
pub fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    Ok(print_line(printable_json(&serde_json::to_string(value)?))?)
}

/// Escapes in JSON what [`tell`] escapes in text. Such characters are in strings only, and JSON has an escape for each.
fn printable_json(json: &str) -> String {
    let mut printable = String::with_capacity(json.len());
    for c in json.chars() {
        match is_unprintable(c) {
            false => printable.push(c),
            true => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    printable.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    printable
}

#[cfg(test)]
mod tests {
    use devmem_linux::nic_setup::Leftover;
    use devmem_tcp::cuda::GpuError;
    use devmem_tcp::memory::{CopyError, DeviceError, DeviceState};

    use super::*;

    #[test]
    fn held_text_is_kept_in_lines() {
        // Not that of the process, which other tests write to.
        let stderr: &'static Stderr = Box::leak(Box::new(Stderr::new()));
        let mut out = Vec::new();
        let held = stderr.hold();
        for text in ["one\ntwo\n", "three\n"] {
            stderr.write(text, &mut out);
        }
        assert_eq!(held.last(2), ["two", "three"]);
        assert_eq!(held.last(9).len(), 3);
        drop(held);
        stderr.write("four\n", &mut out);
        assert_eq!(out, b"four\n");
    }

    #[test]
    fn no_output_has_what_a_terminal_obeys() {
        let hostile = "a\x1b]0;x\x07\u{9b}31m\u{202e}b";
        let shown = Failure::failed(hostile).with_remedy(hostile).to_string();
        let escaped = "a\\u{1b}]0;x\\u{7}\\u{9b}31m\\u{202e}b";
        assert_eq!(shown, format!("{escaped}; {escaped}"));
        assert_eq!(PrintableLines(hostile).to_string(), escaped);
        let json = printable_json(&serde_json::to_string(hostile).unwrap());
        assert!(!json.contains(is_unprintable), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), hostile);
    }

    #[test]
    fn a_failure_is_one_line_with_every_cause_once_and_the_remedy_last() {
        let tap = TapError::NotAdmin { name: "dm0".into() };
        let failure = Failure::from(Err::<(), _>(tap).context("open the link").unwrap_err());
        let text = failure.to_string();
        assert!(!text.contains('\n'), "{text}");
        assert!(
            text.starts_with("open the link: no permission to attach to TAP dm0; run as root"),
            "{text}"
        );
        assert_eq!(failure.exit, Exit::Unsupported);
    }

    #[test]
    fn the_text_of_an_unknown_error_is_one_line_and_no_remedy() {
        let unknown = || Failure::from(anyhow::anyhow!("bind refused\n  in one way\n  or another"));
        assert_eq!(
            unknown().to_string(),
            "bind refused; in one way; or another"
        );
        assert_eq!(unknown().exit, Exit::Failed);
        let text = unknown().with_remedy("do this").to_string();
        assert!(text.ends_with("or another; do this"), "{text}");
    }

    #[test]
    fn a_cause_in_the_text_of_the_error_is_not_repeated() {
        #[derive(Debug, thiserror::Error)]
        #[error("open x: {source}")]
        struct Open {
            source: io::Error,
        }
        let source = io::Error::other("it is gone");
        let failure = Failure::from(Open { source });
        assert_eq!(failure.to_string(), "open x: it is gone");
    }

    #[test]
    fn a_remedy_of_the_library_is_printed_once_with_the_options_of_the_program() {
        #[derive(Debug, thiserror::Error)]
        #[error("connect")]
        struct Connect {
            source: devmem_tcp::Error,
        }
        let refused = || devmem_tcp::Netdev::user("tap", "10.77.0.2/24").unwrap_err();
        let source = refused();
        for failure in [
            Failure::from(Connect { source }),
            Failure::from(io::Error::from(refused())),
            Failure::from(io::Error::other(io::Error::from(refused()))),
        ] {
            let text = failure.to_string();
            assert_eq!(text.matches("write tap:NAME").count(), 1, "{text}");
            assert!(text.ends_with("unix-listen:PATH"), "{text}");
            assert!(!text.contains("Netdev::"), "{text}");
        }
    }

    #[test]
    fn errors_of_memory_and_of_the_system_have_their_remedies() {
        let size = devmem_tcp::Dmabuf::anonymous(1).unwrap_err();
        let gpu = GpuError::Size { size: 1 };
        let copy = CopyError::Device(DeviceError {
            call: "call",
            name: "NAME",
            code: 1,
            state: DeviceState::Usable,
            remedy: "look at it",
        });
        let folder = tempfile::tempdir().unwrap();
        let state = Leftover::read(folder.path()).unwrap_err();
        for (failure, reason, remedy) in [
            (Failure::from(size), "4096", "round it up"),
            (
                Failure::from(gpu),
                "1 bytes",
                "take a positive multiple of 4096",
            ),
            (Failure::from(copy), "call failed: NAME (1)", "look at it"),
            (
                Failure::from(io::Error::other(copy)),
                "call failed",
                "look at it",
            ),
            (
                Failure::from(state),
                "it is a folder",
                "` removes it if it is empty",
            ),
        ] {
            let text = failure.to_string();
            assert!(text.contains(reason), "{text}");
            assert!(text.ends_with(remedy), "{text}");
            assert_eq!(text.matches(remedy).count(), 1, "{text}");
        }
    }

    #[test]
    fn the_exit_code_of_a_library_error_follows_its_kind() {
        let missing = devmem_tcp::Netdev::kernel("nosuch0").unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        assert_eq!(Failure::from(missing).exit, Exit::Failed);
        // A loopback has no header split, also for root.
        let lo = devmem_tcp::Netdev::kernel("lo").unwrap();
        let plan = lo.plan_receive("127.0.0.1:5201".parse().unwrap());
        let refused = plan.commands().unwrap_err();
        assert!(refused.kind().is_unsupported_here(), "{refused}");
        let refused = anyhow::Error::from(refused).context("set up lo");
        assert_eq!(Failure::from(refused).exit, Exit::Unsupported);
    }

    #[test]
    fn the_limit_of_a_namespace_is_distinguished_from_that_of_the_machine() {
        assert_eq!(Failure::from(NetnsError::Threads).exit, Exit::Failed);
        let forbidden = NetnsError::Forbidden {
            uid: 1,
            errno: Errno::PERM,
        };
        assert_eq!(Failure::from(forbidden).exit, Exit::Unsupported);
    }
}
