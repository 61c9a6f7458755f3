//! `devmem-tcp load nvme://HOST`: lists the subsystems of a host and their namespaces.

use std::fmt;

use devmem_tcp::Netdev;
use devmem_tcp::text::Printable;
use serde::Serialize;

use crate::load_failure::load_failure;
use crate::remedies::of_load;
use tool::output::Failure;
use tool::parse::OutputArgs;
use tool::signals::StopFlag;
use tool::size::Size;
use transfer::load::{Cause, NvmeListed, NvmeNamespace, NvmeSubsystem, NvmeUrl, Origin};

/// The list. The field names are those of the JSON and must not change.
#[derive(Debug, Serialize)]
struct List {
    subsystems: Vec<Subsystem>,
}

/// A subsystem of the host.
#[derive(Debug, Serialize)]
struct Subsystem {
    /// The URL to load it by, for one of its namespaces.
    url: String,
    namespaces: Vec<Namespace>,
    /// Why its namespaces are not known.
    error: Option<String>,
}

/// A namespace.
#[derive(Debug, Serialize)]
struct Namespace {
    nsid: u32,
    /// Its size, and the size of a block; `null` if it cannot be loaded.
    bytes: Option<u64>,
    block_bytes: Option<u64>,
    read_only: bool,
}

/// Returns the URL of a host without a subsystem.
pub fn host_of(origin: &Origin) -> Option<&NvmeUrl> {
    match origin {
        Origin::Nvme(url) if url.subsystem().is_empty() => Some(url),
        _ => None,
    }
}

/// Lists the subsystems of the host.
///
/// # Errors
///
/// It does not answer, or a signal has arrived.
pub fn run(nic: &Netdev, url: &NvmeUrl, form: OutputArgs, stop: &StopFlag) -> Result<(), Failure> {
    let listed = NvmeNamespace::list(nic, url, &mut || stop.control_flow());
    let listed = listed.map_err(|error| load_failure(error, &Origin::Nvme(url.clone()), stop))?;
    form.print(&List {
        subsystems: listed.into_iter().map(Subsystem::of).collect(),
    })
}

impl Subsystem {
    fn of(listed: NvmeSubsystem) -> Self {
        let NvmeSubsystem { url, namespaces } = listed;
        let (namespaces, error) = match namespaces {
            Ok(namespaces) => (namespaces, None),
            Err(cause) => (Vec::new(), Some(one_line(&cause))),
        };
        Self {
            url: url.to_string(),
            namespaces: namespaces.into_iter().map(Namespace::of).collect(),
            error,
        }
    }
}

/// Returns a reason, and the remedy behind it.
fn one_line(cause: &Cause) -> String {
    let remedy = cause.remedy().map(of_load);
    let remedy = remedy.map_or_else(String::new, |remedy| format!("; {remedy}"));
    format!("{}{remedy}", cause.reason())
}

impl Namespace {
    fn of(listed: NvmeListed) -> Self {
        let NvmeListed {
            nsid,
            bytes,
            block_bytes,
            is_read_only,
        } = listed;
        Self {
            nsid,
            bytes,
            block_bytes,
            read_only: is_read_only,
        }
    }
}

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.subsystems.is_empty() {
            writeln!(f, "no subsystem over TCP, or none that this host may see")?;
        }
        for Subsystem {
            url,
            namespaces,
            error,
        } in &self.subsystems
        {
            writeln!(f, "{url}")?;
            if let Some(error) = error {
                writeln!(f, "  {}", Printable(error))?;
            }
            for namespace in namespaces {
                writeln!(f, "  {namespace}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nsid={}", self.nsid)?;
        match (self.bytes, self.block_bytes) {
            (Some(bytes), Some(block)) => write!(f, "  {}, blocks of {block}", Size(bytes))?,
            _ => write!(f, "  of blocks that cannot be loaded")?,
        }
        match self.read_only {
            true => f.write_str(", read-only"),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_every_namespace_and_every_error() {
        let url: NvmeUrl = "nvme://10.0.0.1/nqn.a:b".parse().unwrap();
        let namespace = NvmeListed {
            nsid: 2,
            bytes: Some(1 << 20),
            block_bytes: Some(512),
            is_read_only: true,
        };
        let odd = NvmeListed {
            nsid: 3,
            bytes: None,
            block_bytes: None,
            is_read_only: false,
        };
        let listed = |namespaces| {
            let url = url.clone();
            Subsystem::of(NvmeSubsystem { url, namespaces })
        };
        let list = List {
            subsystems: vec![
                listed(Ok(vec![namespace, odd])),
                listed(Err(Cause::from("it refuses").with_remedy("ask"))),
            ],
        };
        let text = list.to_string();
        for expected in [
            "nvme://10.0.0.1/nqn.a:b\n",
            "  nsid=2  1 MiB, blocks of 512, read-only\n",
            "  nsid=3  of blocks that cannot be loaded\n",
            "  it refuses; ask\n",
        ] {
            assert!(text.contains(expected), "{expected:?}: {text}");
        }
        let json = serde_json::to_value(&list).unwrap();
        assert_eq!(json["subsystems"][1]["error"], "it refuses; ask");
        let none = List {
            subsystems: Vec::new(),
        };
        assert!(none.to_string().contains("no subsystem"));
    }
}
