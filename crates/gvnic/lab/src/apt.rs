//! Packages of the distribution, unpacked into a folder: apt resolves dependencies, fetches packages and checks the
//! signatures; nothing is installed, and no state of this machine is changed.
//!
//! apt uses a separate state (lists, archives, an empty list of installed packages), so that the result does not depend
//! on installed packages, and needs no privilege. Archive and proxy are those of this machine's configuration; the suite
//! is our choice.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use devmem_linux::helper::Helper;

use super::apt_errors::last_words;
use super::resolve::{Package, resolve, write_status};
use tool::output::Failure;
use tool::progress::Progress;

/// Paths of Debian's archive keys; if there are none, apt's default is used.
const KEYRINGS: &[&str] = &[
    "/usr/share/keyrings/debian-archive-keyring.pgp",
    "/usr/share/keyrings/debian-archive-keyring.gpg",
];
/// Time between two checks of the progress.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Origin of packages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AptSource {
    /// Suites; the last one is preferred.
    pub suites: Vec<String>,
    /// Base address of the archive; `None` for that of this machine.
    pub mirror: Option<String>,
}

/// An apt with separate state in a folder.
#[derive(Debug)]
pub struct Apt {
    folder: PathBuf,
    suites: Vec<String>,
}

impl Apt {
    /// Writes the configuration into `folder`, which must be empty, and fetches the lists of packages.
    ///
    /// # Errors
    ///
    /// apt is not installed, the suite has no source, there is no network, or a signature is invalid.
    pub fn new(folder: &Path, source: &AptSource) -> Result<Self, Failure> {
        for program in ["apt-get", "dpkg-deb"] {
            let found = Command::new(program)
                .arg("--version")
                .stdout(Stdio::null())
                .status();
            if !found.is_ok_and(|status| status.success()) {
                return Err(Failure::unsupported(format!("there is no {program} here to fetch packages with"))
                    .with_remedy("give QEMU 10.1 or later with --qemu and a kernel with --kernel, --modules and --busybox"));
            }
        }
        let mirror = match &source.mirror {
            Some(mirror) => mirror.clone(),
            None => configured_mirror(folder)?,
        };
        write_configuration(folder, &mirror, &source.suites).context("configure apt")?;
        let apt = Self {
            folder: folder.to_owned(),
            suites: source.suites.clone(),
        };
        let progress = Progress::unknown("reading the lists of packages");
        // apt retries for many seconds; retries are used only if they may help, that is, if there is a network.
        let once = apt.update(&["-o", "Acquire::Retries=0"], &progress);
        let done = match once {
            Err(said) if !is_without_network(&said) => apt.update(&[], &progress),
            done => done,
        };
        progress.finish();
        done.map_err(|said| no_lists(source, &said))?;
        Ok(apt)
    }

    fn update(&self, options: &[&str], progress: &Progress) -> Result<(), String> {
        let mut update = self.apt_get(["-q", "-o", "APT::Update::Error-Mode=any"]);
        update.args(options).arg("update");
        run(update, progress, || None)
    }

    /// Fetches the packages `wanted` with their dependencies, and unpacks them below `root`. Returns them as
    /// `NAME VERSION`.
    ///
    /// # Errors
    ///
    /// A package does not exist, a download or a checksum failed, or the disk is full.
    pub fn unpack(&self, wanted: &[&str], root: &Path) -> Result<Vec<String>, Failure> {
        let packages = self.resolve(wanted)?;
        let total = packages.iter().map(|package| package.bytes).sum();
        let debs = self.folder.join("debs");
        fs::create_dir_all(&debs)?;
        let progress = Progress::bytes("fetching packages", total);
        let mut download = self.apt_get(["-q", "download"]);
        download.args(packages.iter().map(|p| format!("{}={}", p.name, p.version)));
        download.current_dir(&debs);
        let done = run(download, &progress, || Some(folder_bytes(&debs)));
        progress.finish();
        done.map_err(|said| Failure::failed(format!("fetch packages: {said}")))?;

        let archives: Vec<PathBuf> = fs::read_dir(&debs)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension() == Some(OsStr::new("deb")))
            .collect();
        if archives.len() != packages.len() {
            return Err(Failure::failed(format!(
                "{} of {} packages were fetched",
                archives.len(),
                packages.len()
            )));
        }
        let progress = Progress::count("unpacking", archives.len() as u64);
        fs::create_dir_all(root)?;
        for (at, archive) in archives.iter().enumerate() {
            let mut extract = Command::new("dpkg-deb");
            extract.arg("-x").arg(archive).arg(root);
            run(extract, &progress, || None)
                .map_err(|said| Failure::failed(format!("unpack {}: {said}", archive.display())))?;
            fs::remove_file(archive)?;
            progress.at(at as u64 + 1);
        }
        progress.finish();
        Ok(packages
            .iter()
            .map(|p| format!("{} {}", p.name, p.version))
            .collect())
    }

    /// Returns the packages that are fetched for `wanted`.
    ///
    /// # Errors
    ///
    /// As [`resolve`].
    pub fn resolve(&self, wanted: &[&str]) -> Result<Vec<Package>, Failure> {
        resolve(self.apt_get([]), &self.suites, wanted)
    }

    fn apt_get<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = Command::new("apt-get");
        command
            .arg("-c")
            .arg(self.folder.join("apt.conf"))
            .args(arguments);
        command.env("LC_ALL", "C");
        command
    }
}

/// Returns whether apt's errors mean that there is no network: host names do not resolve, or addresses are unreachable. A
/// timeout does not count, because a retry may succeed.
fn is_without_network(said: &str) -> bool {
    let unresolved = ["Temporary failure resolving", "Could not resolve"];
    let unreachable = said.contains("Network is unreachable") && !said.contains("timed out");
    unreachable || unresolved.iter().any(|words| said.contains(words))
}

fn no_lists(source: &AptSource, said: &str) -> Failure {
    let suites = source.suites.join(", ");
    match is_without_network(said) {
        true => {
            // All files fail with the same error.
            let first = said.split("; ").next().unwrap_or_default();
            Failure::unsupported(format!(
                "there is no network to fetch packages: {first}"
            ))
            .with_remedy(
                "connect this machine and run it again; --mirror names an archive that can be reached (also file:/PATH), \
                 --cache a folder with what was fetched elsewhere",
            )
        }
        false => Failure::unsupported(format!("cannot read the package lists of {suites}: {said}"))
            .with_remedy("choose another archive with --mirror, or another release with --suite"),
    }
}

/// Returns the archive from which apt gets the release of this machine. `empty` is an empty folder for the package lists,
/// because reading those of this machine takes seconds.
fn configured_mirror(empty: &Path) -> Result<String, Failure> {
    let release = os_release("VERSION_CODENAME").unwrap_or_default();
    let output = Command::new("apt-get")
        .arg("-o")
        .arg(format!("Dir::State::lists={}", empty.display()))
        .args([
            "indextargets",
            "--no-release-info",
            "--format",
            "$(RELEASE) $(COMPONENT) $(REPO_URI)",
            "Created-By: Packages",
        ])
        .output()
        .context("run apt-get")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let uri = text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (of, component, uri) = (words.next()?, words.next()?, words.next()?);
        (of == release && component == "main").then(|| uri.to_owned())
    });
    uri.ok_or_else(|| {
        Failure::unsupported(format!(
            "apt on this machine has no source for its own release ({release:?})"
        ))
        .with_remedy("name an archive with --mirror")
    })
}

/// Returns a field of os-release(5).
pub fn os_release(field: &str) -> Option<String> {
    let text = fs::read_to_string("/etc/os-release").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix('='))?;
    Some(line.trim_matches('"').to_owned())
}

fn write_configuration(folder: &Path, mirror: &str, suites: &[String]) -> std::io::Result<()> {
    for part in [
        "lists/partial",
        "cache/archives/partial",
        "sources",
        "empty",
    ] {
        fs::create_dir_all(folder.join(part))?;
    }
    write_status(folder)?;
    let keyring = KEYRINGS.iter().find(|path| Path::new(path).exists());
    let signed = keyring
        .map(|path| format!("Signed-By: {path}\n"))
        .unwrap_or_default();
    let sources = format!(
        "Types: deb\nURIs: {mirror}\nSuites: {}\nComponents: main\n{signed}",
        suites.join(" ")
    );
    fs::write(folder.join("sources/lab.sources"), sources)?;
    // Hooks of this machine must not run after our updates. The user `_apt` cannot access a private folder.
    let hooks = [
        "APT::Update::Pre-Invoke",
        "APT::Update::Post-Invoke",
        "APT::Update::Post-Invoke-Success",
    ];
    let mut text: String = hooks
        .iter()
        .map(|hook| format!("#clear {hook};\n"))
        .collect();
    let mut set = |key: &str, value: &str| text.push_str(&format!("{key} \"{value}\";\n"));
    let place = |part: &str| folder.join(part).to_string_lossy().into_owned();
    set("Dir::State", &place(""));
    set("Dir::State::lists", &place("lists"));
    set("Dir::State::status", &place("status"));
    set("Dir::State::extended_states", &place("extended_states"));
    set("Dir::Cache", &place("cache"));
    set("Dir::Cache::archives", &place("cache/archives"));
    set("Dir::Cache::pkgcache", "pkgcache.bin");
    set("Dir::Cache::srcpkgcache", "");
    set("Dir::Etc::sourcelist", "/dev/null");
    set("Dir::Etc::sourceparts", &place("sources"));
    set("Dir::Etc::preferences", "/dev/null");
    set("Dir::Etc::preferencesparts", &place("empty"));
    set("Dir::Log", &place(""));
    set("APT::Sandbox::User", "root");
    set("APT::Install-Recommends", "false");
    set("Acquire::Languages", "none");
    set(
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled",
        "false",
    );
    set(
        "Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled",
        "false",
    );
    fs::write(folder.join("apt.conf"), text)
}

/// Runs a command to its end, and shows its progress. An error has the last lines of its output.
fn run(
    mut command: Command,
    progress: &Progress,
    position: impl Fn() -> Option<u64>,
) -> Result<(), String> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = Helper::start(&mut command).map_err(|error| format!("{command:?}: {error}"))?;
    let stderr = child.take_stderr();
    let reader = thread::spawn(move || {
        let mut said = Vec::new();
        if let Some(mut stderr) = stderr {
            let _ = std::io::Read::read_to_end(&mut stderr, &mut said);
        }
        said
    });
    let status = loop {
        match child.ended() {
            Ok(Some(status)) => break status,
            Ok(None) => {
                if let Some(position) = position() {
                    progress.at(position);
                }
            }
            Err(error) => return Err(error.to_string()),
        }
        thread::sleep(POLL_INTERVAL);
    };
    let said = reader.join().unwrap_or_default();
    if status.success() {
        return Ok(());
    }
    Err(last_words(&said))
}

fn folder_bytes(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries
        .filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len()))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_without_a_network_are_distinguished_from_temporary_ones() {
        for said in [
            "Failed to fetch http://a/InRelease  Temporary failure resolving 'a'",
            "Failed to fetch http://a/InRelease  Could not resolve 'a'",
            "Cannot initiate the connection to 10.0.0.1:80. - connect (101: Network is unreachable)",
        ] {
            assert!(is_without_network(said), "{said}");
        }
        for said in [
            "Failed to fetch http://a/InRelease  502  Bad Gateway",
            "connect (101: Network is unreachable) Could not connect to a:80 (192.0.2.1), connection timed out",
            "The repository 'http://a x Release' is not signed.",
        ] {
            assert!(!is_without_network(said), "{said}");
        }
    }

    #[test]
    fn the_private_configuration_has_no_path_of_the_machines_apt() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path();
        write_configuration(
            folder,
            "http://archive.invalid/debian",
            &["a".into(), "b".into()],
        )
        .unwrap();
        let sources = fs::read_to_string(folder.join("sources/lab.sources")).unwrap();
        assert!(sources.contains("Suites: a b\n"), "{sources}");
        let text = fs::read_to_string(folder.join("apt.conf")).unwrap();
        assert!(!text.contains("/var/lib"), "{text}");
    }
}
