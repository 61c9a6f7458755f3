//! Which packages are fetched: the wanted ones and their dependencies, as apt resolves them, without those that only
//! installing them on a machine needs.

use std::path::Path;
use std::process::Command;

use anyhow::Context;
use tool::output::Failure;

use crate::apt_errors::last_words;

/// Dependencies of QEMU, the kernel and the guest's tools that are only needed for installing them on a machine. apt is
/// told that they are installed: it neither fetches them nor needs a suite that has them, which experimental is not.
const NOT_NEEDED: &[&str] = &[
    "adduser",
    "base-passwd",
    "cpio",
    "debconf",
    "dracut",
    "dracut-core",
    "dracut-install",
    "e2fsprogs",
    "initramfs-tools",
    "initramfs-tools-core",
    "initramfs-tools-bin",
    "ipxe-qemu",
    "klibc-utils",
    "kmod",
    "linux-base",
    "login.defs",
    "logsave",
    "mount",
    "passwd",
    "systemd",
    "udev",
];
/// Newer than any version that a dependency asks for.
const ASSUMED_VERSION: &str = "9999:0";

/// A package to fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Size of its file.
    pub bytes: u64,
}

/// Returns the text of dpkg's status file of a machine on which the packages that are not needed are installed.
pub fn assumed_installed() -> String {
    let entry = |name: &&str| {
        format!(
            "Package: {name}\nStatus: install ok installed\nVersion: {ASSUMED_VERSION}\nArchitecture: all\n\
             Multi-Arch: foreign\nMaintainer: none\nDescription: not needed\n\n"
        )
    };
    NOT_NEEDED.iter().map(entry).collect()
}

/// Returns the suites in which the dependencies of packages of `suites` are found: a suite that is only an addition to
/// another one follows that one.
pub fn with_bases(suites: &[String]) -> Vec<String> {
    const ADDITIONS: [&str; 4] = [
        "-backports",
        "-backports-sloppy",
        "-proposed-updates",
        "-updates",
    ];
    let base_of = |suite: &String| match suite.as_str() {
        "experimental" | "rc-buggy" => Some("sid".to_owned()),
        _ => {
            let base = ADDITIONS.iter().find_map(|end| suite.strip_suffix(end))?;
            Some(base.to_owned())
        }
    };
    let is_base =
        |suite: &String, base: &str| suite == base || (base == "sid" && suite == "unstable");
    let mut all: Vec<String> = Vec::new();
    for suite in suites {
        if let Some(base) = base_of(suite)
            && !suites.iter().chain(&all).any(|known| is_base(known, &base))
        {
            all.push(base);
        }
        all.push(suite.clone());
    }
    all
}

/// Returns the packages that `install` would fetch. `apt_get` is an apt-get with its configuration and lists; `suites` are
/// those of the lists.
///
/// # Errors
///
/// A package does not exist, or no suite has what it depends on.
pub fn resolve(
    mut apt_get: Command,
    suites: &[String],
    wanted: &[&str],
) -> Result<Vec<Package>, Failure> {
    let target = suites.last().map_or("", String::as_str);
    apt_get.args(["-q", "-y", "--print-uris", "-t", target, "install"]);
    let output = apt_get.args(wanted).output().context("run apt-get")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if output.status.success() {
        return Ok(text.lines().filter_map(parse_uri_line).collect());
    }
    let wanted = wanted.join(", ");
    let unmet = unmet_dependencies(&text);
    if unmet.is_empty() {
        let said = last_words(&output.stderr);
        let said = format!("{target} has no {wanted}: {said}");
        return Err(Failure::unsupported(said).with_remedy("choose another release with --suite"));
    }
    let all = suites.join(" and ");
    let unmet = unmet.join("; ");
    let said = format!("{all} alone cannot provide {wanted}: {unmet}");
    Err(Failure::unsupported(said).with_remedy(format!(
        "name the suite that has the rest before it, separated by a comma, as in: --suite sid,{target}"
    )))
}

/// Returns the dependencies that apt could not satisfy, one per package: `linux-image: Depends: kmod but it is not
/// installable`.
fn unmet_dependencies(said: &str) -> Vec<String> {
    const HEAD: &str = "unmet dependencies:";
    let lines = said.lines().skip_while(|line| !line.contains(HEAD)).skip(1);
    let mut unmet: Vec<String> = Vec::new();
    for line in lines.take_while(|line| line.starts_with(' ')) {
        match line.split_once(" : ") {
            Some((package, needs)) => unmet.push(format!("{}: {}", package.trim(), needs.trim())),
            // A further dependency, or an alternative, of the package above.
            None => {
                if let Some(last) = unmet.last_mut() {
                    last.push(' ');
                    last.push_str(line.trim());
                }
            }
        }
    }
    unmet
}

/// Parses a line of `--print-uris`: `'URI' NAME_VERSION_ARCH.deb BYTES HASH`.
fn parse_uri_line(line: &str) -> Option<Package> {
    let (_uri, rest) = line.strip_prefix('\'')?.split_once("' ")?;
    let mut words = rest.split_whitespace();
    let mut parts = words.next()?.strip_suffix(".deb")?.split('_');
    Some(Package {
        name: parts.next()?.to_owned(),
        version: unescaped(parts.next()?)?,
        bytes: words.next()?.parse().ok()?,
    })
}

/// Decodes the escapes in a file name of apt: the colon after an epoch is `%3a`, and a tilde `%7e`.
fn unescaped(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut decoded = parts.next()?.to_owned();
    for part in parts {
        let (code, rest) = (part.get(..2)?, part.get(2..)?);
        let byte = u8::from_str_radix(code, 16).ok().filter(u8::is_ascii)?;
        decoded.push(char::from(byte));
        decoded.push_str(rest);
    }
    Some(decoded)
}

/// Writes dpkg's status file into the folder of an apt.
///
/// # Errors
///
/// The folder cannot be written.
pub fn write_status(folder: &Path) -> std::io::Result<()> {
    std::fs::write(folder.join("status"), assumed_installed())
}

#[cfg(test)]
mod tests;
