//! Our user-space stack at the other end of a guest's wire, in processes of its own.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use devmem_linux::helper::Helper;

use super::stack_rows::FAR_ADDRESS;
use tool::output::Failure;

/// When the guest has gone, nobody keeps the other end.
const LIMIT: Duration = Duration::from_secs(20);

/// The other end's processes, one after another.
#[derive(Debug)]
pub struct FarEnd {
    wire: PathBuf,
    children: Vec<(String, Helper)>,
}

impl FarEnd {
    /// An other end that connects to `wire`, where a NIC listens.
    pub fn new(wire: &Path) -> Self {
        Self {
            wire: wire.to_owned(),
            children: Vec::new(),
        }
    }

    /// Starts `devmem-tcp` with `arguments`, when the one before has ended: there is one wire.
    ///
    /// # Errors
    ///
    /// It cannot be started.
    pub fn start(&mut self, arguments: &[String]) -> Result<(), Failure> {
        if let Some((_, last)) = self.children.last_mut() {
            wait(last);
        }
        let address = std::net::IpAddr::from(FAR_ADDRESS);
        let mut command = Helper::this_program();
        command.args(arguments).arg("--backend").arg("user");
        command
            .arg("--link")
            .arg(format!("unix:{}", self.wire.display()));
        command.arg("--addr").arg(format!("{address}/24"));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = Helper::start(&mut command).context("start our stack")?;
        self.children.push((arguments.join(" "), child));
        Ok(())
    }

    /// Waits for all of them. Returns for each what it was, whether it went well, and what it said: its JSON, or its error.
    pub fn finish(self) -> Vec<(String, bool, String)> {
        let finish = |(what, mut child): (String, Helper)| {
            let ended = wait(&mut child);
            let output = child.wait_with_output();
            let (ok, said) = match output {
                Ok(output) if output.status.success() => (ended, output.stdout),
                Ok(output) => (false, output.stderr),
                Err(error) => (false, error.to_string().into_bytes()),
            };
            (what, ok, String::from_utf8_lossy(&said).trim().to_owned())
        };
        self.children.into_iter().map(finish).collect()
    }
}

/// Waits for a process, and ends it if that takes long. Tells whether it ended by itself.
fn wait(child: &mut Helper) -> bool {
    let ended = matches!(child.wait_at_most(LIMIT), Ok(Some(_)));
    if !ended {
        child.kill();
    }
    ended
}
