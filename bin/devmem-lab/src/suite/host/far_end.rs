//! Our user-space stack at the other end of a guest's wire, in separate processes.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use devmem_linux::helper::Helper;
use tool::output::Failure;

use crate::suite::nvmet;
use crate::suite::report::{FAR_ADDRESS, FAR_PORT, FarEndRequest, PERIOD};
use crate::suite::traffic::{self, Family};

/// Maximum time to wait for a process after the end of its guest.
const LIMIT: Duration = Duration::from_secs(20);

/// The processes at the other end, one after another.
#[derive(Debug)]
pub struct FarEnd {
    /// `devmem-tcp`.
    tool: PathBuf,
    wire: PathBuf,
    /// Bytes of a sent stream.
    bytes: u64,
    /// Maximum number of processes for one guest: three for each row.
    max: usize,
    children: Vec<(String, Helper)>,
}

impl FarEnd {
    /// Creates it for the socket `wire`, on which a NIC listens. It sends streams of `bytes`, and starts at most `max`
    /// processes.
    pub fn new(tool: &Path, wire: &Path, bytes: u64, max: usize) -> Self {
        Self {
            tool: tool.to_owned(),
            wire: wire.to_owned(),
            bytes,
            max,
            children: Vec::new(),
        }
    }

    /// Starts `devmem-tcp` as requested, after the previous process has ended, because there is only one wire.
    ///
    /// # Errors
    ///
    /// It cannot be started, or the guest has already had as many processes as it has rows.
    pub fn start(&mut self, request: FarEndRequest) -> Result<(), Failure> {
        if self.children.len() >= self.max {
            return Err(Failure::failed(format!(
                "the guest requests our stack more often than it has rows ({})",
                self.max
            )));
        }
        let copied = self.wire.with_file_name("copied");
        let arguments = arguments(request, self.bytes, &copied);
        if let Some((_, last)) = self.children.last_mut() {
            wait(last);
        }
        let address = std::net::IpAddr::from(FAR_ADDRESS);
        let mut command = Command::new(&self.tool);
        command.args(&arguments).arg("--backend").arg("user");
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

    /// Waits for all processes. Returns for each its arguments, whether it succeeded, and its output: JSON, or an error.
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

/// Returns the arguments of `devmem-tcp` for a request. A sender sends `bytes`; what is loaded is in the file `copied`.
fn arguments(request: FarEndRequest, bytes: u64, copied: &Path) -> Vec<String> {
    let copied = copied.display().to_string();
    match request {
        FarEndRequest::Send { port } => {
            let guest = traffic::address(0, Family::V4).to_string();
            let (port, bytes) = (port.to_string(), bytes.to_string());
            ["send", &guest, &port, "--bytes", &bytes, "--json"]
                .map(str::to_owned)
                .to_vec()
        }
        FarEndRequest::Receive => {
            let (port, period) = (FAR_PORT.to_string(), PERIOD.to_string());
            ["recv", "-l", "-p", &port, "-v", &period, "--json"]
                .map(str::to_owned)
                .to_vec()
        }
        FarEndRequest::LoadNamespace => {
            let url = nvmet::url(traffic::address(0, Family::V4), 1);
            ["load", &url, "--to", &copied, "--json"]
                .map(str::to_owned)
                .to_vec()
        }
        FarEndRequest::StoreNamespace => {
            let url = nvmet::url(traffic::address(0, Family::V4), 2);
            ["store", &copied, &url, "--verify", "--json"]
                .map(str::to_owned)
                .to_vec()
        }
    }
}

/// Waits for a process, and kills it after a time limit. Returns whether it ended by itself.
fn wait(child: &mut Helper) -> bool {
    let ended = matches!(child.wait_at_most(LIMIT), Ok(Some(_)));
    if !ended {
        child.kill();
    }
    ended
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;

    #[test]
    fn a_guest_gets_no_more_processes_than_it_has_rows() {
        let mut none = FarEnd::new(Path::new("/tool"), Path::new("/nowhere"), 1, 0);
        let refused = none.start(FarEndRequest::Receive).unwrap_err();
        assert!(refused.to_string().contains("more often"), "{refused}");
        assert!(none.children.is_empty());
    }

    #[test]
    fn the_host_chooses_the_arguments() {
        let port = NonZeroU16::new(4000).unwrap();
        let copied = Path::new("/tmp/copied");
        let send = arguments(FarEndRequest::Send { port }, 1 << 20, copied);
        assert_eq!(send.join(" "), "send 10.77.0.1 4000 --bytes 1048576 --json");
        let receive = arguments(FarEndRequest::Receive, 1 << 20, copied);
        assert_eq!(receive.join(" "), "recv -l -p 5201 -v 7 --json");
        let load = arguments(FarEndRequest::LoadNamespace, 1 << 20, copied).join(" ");
        assert!(
            load.starts_with("load nvme://10.77.0.1:4420/nqn."),
            "{load}"
        );
        assert!(load.ends_with("?nsid=1 --to /tmp/copied --json"), "{load}");
    }
}
