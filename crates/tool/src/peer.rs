//! A helper process of this program that reports in lines of text.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use devmem_linux::helper::Helper;
use serde::de::DeserializeOwned;

use crate::output::{Exit, Failure};
use crate::signals::StopFlag;
use crate::source::is_readable;

/// Time limit for a line.
const LINE_LIMIT: Duration = Duration::from_secs(30);
/// Maximum length of one wait; signals are checked between waits.
const WAIT_SLICE: Duration = Duration::from_millis(100);
/// Most bytes of its errors that are repeated.
const ERROR_BYTES: u64 = 64 << 10;
/// How the programs begin an error.
const PREFIXES: [&str; 2] = ["devmem-tcp: ", "devmem-bench: "];

/// A running helper process. It ends when this is dropped.
#[derive(Debug)]
pub struct Peer {
    name: String,
    child: Helper,
    says: BufReader<File>,
}

impl Peer {
    /// Starts `command`, which error messages call `name`, and which reports on its standard output.
    ///
    /// # Errors
    ///
    /// As [`Helper::start`].
    pub fn start(name: impl Into<String>, command: &mut Command) -> Result<Self, Failure> {
        let name = name.into();
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = start_apart(command).with_context(|| format!("start the {name}"))?;
        let says = child.take_stdout().map(OwnedFd::from);
        Self::new(name, child, says)
    }

    /// Starts `command`, which reports on its standard error.
    ///
    /// # Errors
    ///
    /// As [`Helper::start`].
    pub fn start_noting(name: impl Into<String>, command: &mut Command) -> Result<Self, Failure> {
        let name = name.into();
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = start_apart(command).with_context(|| format!("start the {name}"))?;
        let says = child.take_stderr().map(OwnedFd::from);
        Self::new(name, child, says)
    }

    /// Starts a cable between two UNIX sockets, a process that works like `devmem-tcp wire`: `command` with these `ends`. Returns
    /// when it listens.
    ///
    /// # Errors
    ///
    /// As [`hear`](Self::hear).
    pub fn start_cable(
        name: impl Into<String>,
        command: &mut Command,
        ends: &[PathBuf; 2],
        stop: &StopFlag,
    ) -> Result<Self, Failure> {
        for (option, socket) in ["--a", "--b"].into_iter().zip(ends) {
            command.arg(option);
            command.arg(format!("unix-listen:{}", socket.display()));
        }
        command.stdin(Stdio::null());
        let mut cable = Self::start_noting(name, command)?;
        let said = cable.hear(stop)?;
        match said.contains("are connected") {
            true => Ok(cable),
            false => {
                let (name, said) = (&cable.name, said.trim());
                Err(Failure::failed(format!("the {name} failed: {said}")))
            }
        }
    }

    fn new(name: String, child: Helper, says: Option<OwnedFd>) -> Result<Self, Failure> {
        let says = says.with_context(|| format!("the {name} has no output"))?;
        Ok(Self {
            name,
            child,
            says: BufReader::new(says.into()),
        })
    }

    /// Returns the id of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the next line of its output, which it writes with a single call.
    ///
    /// # Errors
    ///
    /// A signal has arrived; the process has ended, with its last error; no line for 30 seconds.
    pub fn hear(&mut self, stop: &StopFlag) -> Result<String, Failure> {
        let (name, start) = (&self.name, Instant::now());
        while self.says.buffer().is_empty()
            && !is_readable(self.says.get_ref(), WAIT_SLICE)
                .with_context(|| format!("wait for the {name}"))?
        {
            if stop.is_set() {
                return Err(Failure::interrupted());
            }
            if start.elapsed() > LINE_LIMIT {
                return Err(Failure::failed(format!(
                    "no output of the {name} for {LINE_LIMIT:?}"
                )));
            }
        }
        let mut line = String::new();
        let read = self.says.read_line(&mut line);
        match read.with_context(|| format!("read the output of the {name}"))? {
            0 if stop.is_set() => Err(Failure::interrupted()),
            0 => Err(failure(name, &mut self.child)),
            _ => Ok(line),
        }
    }

    /// Returns the next line of its output, which is JSON.
    ///
    /// # Errors
    ///
    /// As [`hear`](Self::hear).
    pub fn hear_json<T: DeserializeOwned>(&mut self, stop: &StopFlag) -> Result<T, Failure> {
        let said = self.hear(stop)?;
        let name = &self.name;
        let parsed = serde_json::from_str(&said);
        Ok(parsed.with_context(|| format!("parse the output of the {name}: {said:?}"))?)
    }

    /// Writes all of its standard input, which the command has made a pipe.
    ///
    /// # Errors
    ///
    /// The process has ended.
    pub fn tell(&mut self, line: &str) -> Result<(), Failure> {
        let name = &self.name;
        let mut stdin = self
            .child
            .take_stdin()
            .with_context(|| format!("the {name} has no stdin"))?;
        match writeln!(stdin, "{line}") {
            Ok(()) => Ok(()),
            Err(_ended) => Err(failure(name, &mut self.child)),
        }
    }
}

/// Starts a helper in a process group of its own, so that Ctrl-C in the terminal, which signals the group of this process, does not end
/// it before this process has made its report.
///
/// # Errors
///
/// As [`Helper::start`].
pub fn start_apart(command: &mut Command) -> io::Result<Helper> {
    Helper::start(command.process_group(0))
}

/// Returns an error with the last output of a failed helper process, and its exit code if that says that this machine does not support
/// the run.
pub fn failure(name: &str, child: &mut Helper) -> Failure {
    let mut said = String::new();
    if let Some(stderr) = child.take_stderr() {
        // Without the output if it cannot be read.
        let _ = stderr.take(ERROR_BYTES).read_to_string(&mut said);
    }
    let said = said.trim();
    let said = PREFIXES
        .iter()
        .find_map(|prefix| said.strip_prefix(prefix))
        .unwrap_or(said);
    let failure = Failure::failed(format!("the {name} failed: {said}"));
    // It has closed its output.
    let code = child.wait().ok().and_then(|status| status.code());
    match code == Some(Exit::Unsupported.code().into()) {
        true => failure.ending_with(Exit::Unsupported),
        false => failure,
    }
}
