//! What to do about an error of a load or a store.

use std::borrow::Cow;
use std::fmt;

/// What to change or do next. Where that is a setting of this library it is named by a [`Setting`], and each interface has its own words for
/// those: `Display` prints the words of programs in Rust.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// Words that mean the same in each interface: what to change outside of the program, or in the URL.
    Text(Cow<'static, str>),
    /// Words in which a setting is named, at [`SETTING`](Self::SETTING).
    Set(&'static str, Setting),
    /// The remedy of an error of the NIC or the memory.
    Library(devmem_tcp::Remedy),
}

/// A setting that helps. What sets it has a name in each interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// The file of the authorities of https servers.
    Authorities,
    /// The certificate of this client and its key.
    Certificate,
    /// The number of connections.
    Connections,
    /// How long a server may send nothing.
    IdleLimit,
    /// The length of a request.
    PieceBytes,
    /// The most memory of tensors that come one after the other.
    MemoryLimit,
    /// What lists the NVMe subsystems of a host.
    Subsystems,
}

impl Setting {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Authorities,
        Self::Certificate,
        Self::Connections,
        Self::IdleLimit,
        Self::PieceBytes,
        Self::MemoryLimit,
        Self::Subsystems,
    ];

    fn in_rust(self) -> &'static str {
        match self {
            Self::Authorities => "`TlsOptions::authorities`",
            Self::Certificate => "`TlsOptions::identity`",
            Self::Connections => "`connections` of the loader",
            Self::IdleLimit => "`idle_limit` of the loader",
            Self::PieceBytes => "`piece_bytes` of the loader",
            Self::MemoryLimit => "`StreamSettings::memory_limit`",
            Self::Subsystems => "`NvmeNamespace::list`",
        }
    }
}

impl Remedy {
    /// Where the words of [`Set`](Self::Set) name the setting.
    pub const SETTING: &'static str = "{}";

    /// Returns the remedy in the words of an interface: `setting` names a setting, and `library` words a remedy of the NIC or the memory.
    pub fn worded(
        &self,
        setting: impl Fn(Setting) -> &'static str,
        library: impl Fn(devmem_tcp::Remedy) -> String,
    ) -> String {
        match self {
            Self::Text(text) => text.to_string(),
            Self::Set(text, set) => text.replace(Self::SETTING, setting(*set)),
            Self::Library(remedy) => library(remedy.clone()),
        }
    }
}

impl From<&'static str> for Remedy {
    fn from(text: &'static str) -> Self {
        debug_assert!(!names_a_door(text), "{text:?} is of one interface");
        Self::Text(text.into())
    }
}

/// The text may have some from outside: what a terminal obeys is escaped.
impl From<String> for Remedy {
    fn from(text: String) -> Self {
        match devmem_tcp::Remedy::from(text) {
            devmem_tcp::Remedy::Text(text) => Self::Text(text),
            other => Self::Library(other),
        }
    }
}

impl From<devmem_tcp::Remedy> for Remedy {
    fn from(remedy: devmem_tcp::Remedy) -> Self {
        Self::Library(remedy)
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.worded(Setting::in_rust, |remedy| remedy.to_string()))
    }
}

/// Returns whether a text names what only one interface has. Flags of other programs are none of ours.
fn names_a_door(text: &str) -> bool {
    const OF_DOORS: [&str; 14] = [
        "::",
        "()",
        "`Loader",
        "memory_limit",
        "devmem-tcp load",
        "devmem_tcp.",
        "--addr",
        "--cacert",
        "--cert",
        "--connections",
        "--idle-limit",
        "--piece",
        "--range",
        "--to ",
    ];
    OF_DOORS.iter().any(|word| text.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rust_names_what_the_library_has() {
        for setting in Setting::ALL {
            let remedy = Remedy::Set("raise it: {}", setting).to_string();
            assert!(remedy.starts_with("raise it: `"), "{remedy}");
            assert!(!remedy.contains("--"), "{remedy}");
        }
    }

    #[test]
    fn a_text_for_all_interfaces_names_nothing_of_one() {
        for of_one in [
            "name the file: --cacert FILE",
            "call `Loader::connections`",
            "raise memory_limit",
            "`devmem-tcp load nvme://HOST` lists them",
        ] {
            assert!(names_a_door(of_one), "{of_one}");
        }
        for of_all in [
            "`nbdinfo --list nbd://host` lists the exports",
            "it needs PEM: -----BEGIN CERTIFICATE-----",
            "qemu-nbd and nbdkit have --read-only and -r",
        ] {
            assert!(!names_a_door(of_all), "{of_all}");
        }
    }
}
