//! The parts of a guest: QEMU, a kernel with its modules, a shell and a few tools. Each comes from the command line, else
//! from this machine if it is suitable, else from packages of the distribution.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;
use serde::Serialize;

use super::apt::{self, Apt, AptSource};
use super::cache::{Cache, Manifest};
use super::elf::Packaged;
use super::kernel::{Kernel, installed_kernel, named_kernel, packaged_kernel};
use super::resolve::with_bases;
use super::shares::Virtiofsd;
use tool::output::{Failure, note};

/// The device of QEMU 10.1 and later that speaks vfio-user (QEMU docs/interop/vfio-user.rst).
const QEMU_DEVICE: &str = "vfio-user-pci";
/// Guest programs besides the shell, with their paths in the packages.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("ethtool", &["usr/sbin/ethtool", "sbin/ethtool"]),
    ("ip", &["usr/bin/ip", "bin/ip", "usr/sbin/ip"]),
    ("tc", &["usr/sbin/tc", "sbin/tc"]),
    ("ss", &["usr/bin/ss", "bin/ss"]),
];
/// Packages that are fetched together: a part of the cache folder's name, and the names of the packages.
type Packages = (&'static str, &'static [&'static str]);

const QEMU_PACKAGES: Packages = ("qemu", &["qemu-system-x86"]);
const KERNEL_PACKAGES: Packages = ("kernel", &["linux-image-cloud-amd64"]);
const TOOL_PACKAGES: Packages = ("tools", &["busybox-static", "ethtool", "iproute2"]);
const SHARE_PACKAGES: Packages = ("virtiofsd", &["virtiofsd"]);
/// Packages for the kernel's test programs: Python, and the programs that they start.
const SELFTEST_PACKAGES: Packages = (
    "selftests",
    &[
        "bash",
        "bpftool",
        "coreutils",
        "dash",
        "ethtool",
        "gawk",
        "grep",
        "iperf3",
        "iproute2",
        "iputils-ping",
        "procps",
        "python3",
        "python3-yaml",
        "sed",
        "socat",
        "util-linux",
    ],
);
/// Folders such as documentation, which are removed from the cache.
const NOT_KEPT: &[&str] = &[
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/lintian",
    "usr/share/bug",
    "usr/share/alsa",
];

/// Options of the command line for the parts.
#[derive(Clone, Debug)]
pub struct KitOptions {
    /// Cache folder.
    pub cache: Option<PathBuf>,
    /// Suites of the packages; `None` for the default of this distribution.
    pub suites: Option<Vec<String>>,
    /// Suites of the kernel package; `None` for `suites`.
    pub kernel_suites: Option<Vec<String>>,
    /// Base address of the package archive.
    pub mirror: Option<String>,
    /// A QEMU to use.
    pub qemu: Option<PathBuf>,
    /// A kernel image to use.
    pub kernel: Option<PathBuf>,
    /// The folder with that kernel's modules.
    pub modules: Option<PathBuf>,
    /// A statically linked busybox.
    pub busybox: Option<PathBuf>,
    /// Fetch nothing.
    pub offline: bool,
    /// Fetch again even if the cache is complete.
    pub refresh: bool,
    /// Use packages even if suitable programs are installed.
    pub packaged: bool,
}

/// A usable QEMU.
#[derive(Clone, Debug, Serialize)]
pub struct Qemu {
    /// The program.
    pub program: PathBuf,
    /// Folder of the unpacked packages; `None` for an installed QEMU.
    pub root: Option<PathBuf>,
    /// Output of `--version`.
    pub version: String,
}

/// All parts of a guest.
#[derive(Clone, Debug, Serialize)]
pub struct Kit {
    /// The machine.
    pub qemu: Qemu,
    /// The kernel.
    pub kernel: Kernel,
    /// The shell and its commands.
    pub busybox: PathBuf,
    /// Folder of the unpacked packages with further programs.
    pub tools: Option<PathBuf>,
    /// Programs for the guest from there: name and path.
    pub programs: Vec<(String, PathBuf)>,
    /// The packages that were unpacked.
    pub packages: Vec<String>,
    /// Cache folder.
    #[serde(skip)]
    pub cache: PathBuf,
}

impl Kit {
    /// Finds or fetches all parts.
    ///
    /// # Errors
    ///
    /// A part named on the command line is not suitable, or packages cannot be fetched.
    pub fn provide(options: &KitOptions) -> Result<Self, Failure> {
        let named_qemu = options.qemu.as_deref().map(named_qemu).transpose()?;
        let look_here = !options.packaged;
        let qemu = named_qemu.or_else(|| installed_qemu().filter(|_| look_here));
        let (kernel, mut packages) = kernel(options)?;

        let mut wanted = Vec::new();
        if qemu.is_none() {
            wanted.push(QEMU_PACKAGES);
        }
        if kernel.is_none() {
            wanted.push(KERNEL_PACKAGES);
        }
        wanted.push(TOOL_PACKAGES);
        let cache = Cache::new(options.cache.clone())?.folder().to_owned();
        if let (Some(qemu), Some(kernel), Some(busybox)) = (&qemu, &kernel, &options.busybox) {
            return Ok(Self {
                qemu: qemu.clone(),
                kernel: kernel.clone(),
                busybox: busybox.clone(),
                tools: None,
                programs: Vec::new(),
                packages,
                cache,
            });
        }
        let (root, others) = fetched(options, &suites(options)?, &wanted)?;
        packages.extend(others);
        let busybox = ["usr/bin/busybox", "bin/busybox"].map(|place| root.join(place));
        let busybox = options
            .busybox
            .clone()
            .or_else(|| busybox.into_iter().find(|path| path.exists()));
        Ok(Self {
            qemu: match qemu {
                Some(qemu) => qemu,
                None => packaged_qemu(&root)?,
            },
            kernel: match kernel {
                Some(kernel) => kernel,
                None => packaged_kernel(&root)?,
            },
            busybox: busybox
                .ok_or_else(|| Failure::failed("the package busybox-static has no busybox"))?,
            programs: programs(&root),
            tools: Some(root),
            packages,
            cache,
        })
    }
}

impl Qemu {
    /// Returns a command that starts this QEMU.
    ///
    /// # Errors
    ///
    /// Its libraries are missing.
    pub fn command(&self) -> std::io::Result<Command> {
        let Some(root) = &self.root else {
            return Ok(Command::new(&self.program));
        };
        let packaged = Packaged::new(root)?;
        let mut command = packaged.command(&self.program);
        command.env("QEMU_MODULE_DIR", packaged.libraries.join("qemu"));
        for folder in ["usr/share/qemu", "usr/share/seabios"] {
            command.arg("-L").arg(root.join(folder));
        }
        Ok(command)
    }

    /// Checks its version and that it has the device.
    ///
    /// # Errors
    ///
    /// Its error output, or why it could not be started.
    fn probe(mut self) -> Result<Self, String> {
        let ask = |arguments: &[&str]| {
            let command = self.command();
            let output = command.and_then(|mut c| c.args(arguments).stdin(Stdio::null()).output());
            let output = output.map_err(|error| error.to_string())?;
            let said = String::from_utf8_lossy(&output.stderr);
            match output.status.success() {
                true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
                false => Err(match said.lines().last() {
                    Some(line) => line.to_owned(),
                    None => format!("it exited: {}", output.status),
                }),
            }
        };
        // Query only this device. To list all devices, QEMU loads all its modules, and takes missing ones from the folder of
        // this machine; it exits if they belong to another version.
        let help = ask(&["-device", &format!("{QEMU_DEVICE},help")])?;
        let version = ask(&["--version"])?;
        self.version = version.lines().next().unwrap_or_default().to_owned();
        match help.contains(QEMU_DEVICE) {
            true => Ok(self),
            false => Err(format!("it has no device {QEMU_DEVICE}")),
        }
    }
}

fn named_qemu(program: &Path) -> Result<Qemu, Failure> {
    let qemu = Qemu {
        program: program.to_owned(),
        root: None,
        version: String::new(),
    };
    qemu.probe().map_err(|said| {
        let program = program.display();
        Failure::unsupported(format!("{program} has no device {QEMU_DEVICE}: {said}"))
            .with_remedy("QEMU 10.1 or later has it")
    })
}

fn installed_qemu() -> Option<Qemu> {
    named_qemu(Path::new("qemu-system-x86_64")).ok()
}

fn packaged_qemu(root: &Path) -> Result<Qemu, Failure> {
    let qemu = Qemu {
        program: root.join("usr/bin/qemu-system-x86_64"),
        root: Some(root.to_owned()),
        version: String::new(),
    };
    qemu.probe().map_err(|said| {
        Failure::unsupported(format!(
            "the QEMU of these packages has no device {QEMU_DEVICE}: {said}"
        ))
        .with_remedy("choose a release with QEMU 10.1 or later with --suite")
    })
}

fn programs(root: &Path) -> Vec<(String, PathBuf)> {
    let find = |(name, places): &(&str, &[&str])| {
        let place = places
            .iter()
            .map(|place| root.join(place))
            .find(|path| path.exists())?;
        Some(((*name).to_owned(), place))
    };
    PROGRAMS.iter().filter_map(find).collect()
}

/// Returns the suites of the packages. A QEMU with the device and a kernel with the drivers are in Debian since after
/// release 13, which has them as backports.
fn default_suites() -> Result<Vec<String>, Failure> {
    const SERVES: &str = "trixie";
    const OLDER: &[&str] = &["", "bullseye", "bookworm", SERVES];
    let distribution = apt::os_release("ID").unwrap_or_default();
    if distribution != "debian" {
        return Err(Failure::unsupported(format!(
            "the packages of {distribution:?} for the lab are unknown"
        ))
        .with_remedy("name them with --suite, or give --qemu, --kernel, --modules and --busybox"));
    }
    let release = apt::os_release("VERSION_CODENAME").unwrap_or_default();
    Ok(match OLDER.contains(&release.as_str()) {
        true => vec![SERVES.to_owned(), format!("{SERVES}-backports")],
        false => vec![release],
    })
}

/// Returns the kernel named on the command line, the kernel of the release named there, or a suitable installed kernel; and
/// the packages fetched for it.
fn kernel(options: &KitOptions) -> Result<(Option<Kernel>, Vec<String>), Failure> {
    if let Some(image) = &options.kernel {
        let kernel = named_kernel(image, options.modules.as_deref())?;
        return Ok((Some(kernel), Vec::new()));
    }
    if let Some(suites) = &options.kernel_suites {
        let (root, packages) = fetched(options, suites, &[KERNEL_PACKAGES])?;
        return Ok((Some(packaged_kernel(&root)?), packages));
    }
    let kernel = installed_kernel().filter(|_| !options.packaged);
    Ok((kernel, Vec::new()))
}

/// Returns the root file system in which the kernel's test programs run, fetched if necessary.
///
/// # Errors
///
/// As [`Kit::provide`].
pub fn selftest_root(options: &KitOptions) -> Result<PathBuf, Failure> {
    Ok(fetched(options, &suites(options)?, &[SELFTEST_PACKAGES])?.0)
}

/// Returns the program that serves shared folders: the installed one, else that of its package, fetched if necessary.
///
/// # Errors
///
/// As [`Kit::provide`].
pub fn virtiofsd(options: &KitOptions) -> Result<Virtiofsd, Failure> {
    let installed = Virtiofsd::installed().filter(|_| !options.packaged);
    match installed {
        Some(program) => Ok(program),
        None => {
            let (root, _) = fetched(options, &suites(options)?, &[SHARE_PACKAGES])?;
            Ok(Virtiofsd::packaged(&root))
        }
    }
}

fn suites(options: &KitOptions) -> Result<Vec<String>, Failure> {
    match &options.suites {
        Some(suites) => Ok(with_bases(suites)),
        None => default_suites(),
    }
}

/// Returns the folder with the wanted packages, and their names. Fetches them if necessary.
fn fetched(
    options: &KitOptions,
    suites: &[String],
    wanted: &[Packages],
) -> Result<(PathBuf, Vec<String>), Failure> {
    if std::env::consts::ARCH != "x86_64" {
        return Err(
            Failure::unsupported("packages for the lab are known only for x86_64")
                .with_remedy("give --qemu, --kernel, --modules and --busybox"),
        );
    }
    let cache = Cache::new(options.cache.clone())?;
    let parts: Vec<&str> = wanted.iter().map(|(part, _)| *part).collect();
    let key = format!("{}-{}", suites.join("+").replace('/', "_"), parts.join("+"));
    let why = match cache.get(&key) {
        Ok(Some((folder, manifest))) if !options.refresh && has_all(&manifest, wanted) => {
            return Ok((folder.join("root"), manifest.packages));
        }
        Ok(_) => format!("the lab's packages are not in {}", cache.folder().display()),
        Err(damaged) => format!("the lab's cache is damaged: {damaged}"),
    };
    if options.offline {
        return Err(Failure::unsupported(why)
            .with_remedy("run `devmem-tcp lab fetch` once with a network, without --offline"));
    }
    let locked = cache.lock()?;
    // Another process may have fetched it meanwhile.
    let found = cache.get(&key);
    if let Err(damaged) = &found {
        note(format_args!("the lab's cache is damaged: {damaged}"));
    }
    let is_complete = |found: &(PathBuf, Manifest)| !options.refresh && has_all(&found.1, wanted);
    if !found.is_ok_and(|found| found.as_ref().is_some_and(is_complete)) {
        note(format_args!(
            "fetching {} from {}, once",
            parts.join(", "),
            suites.join(" and ")
        ));
        let source = AptSource {
            suites: suites.to_vec(),
            mirror: options.mirror.clone(),
        };
        let names: Vec<&str> = wanted
            .iter()
            .flat_map(|(_, names)| names.iter().copied())
            .collect();
        locked.put(&key, |folder| fetch(folder, &source, &names))?;
    }
    let (folder, manifest) = cache
        .get(&key)
        .map_err(Failure::failed)?
        .context("the packages have disappeared from the cache")?;
    Ok((folder.join("root"), manifest.packages))
}

/// Returns whether a folder of the cache has all wanted packages. An older version of this program may have fetched fewer.
fn has_all(manifest: &Manifest, wanted: &[Packages]) -> bool {
    let has = |name: &&str| {
        let mut packages = manifest.packages.iter();
        packages.any(|package| package.split(' ').next() == Some(*name))
    };
    wanted.iter().all(|(_, names)| names.iter().all(has))
}

fn fetch(folder: &Path, source: &AptSource, names: &[&str]) -> Result<Manifest, Failure> {
    let state = folder.join("apt");
    let root = folder.join("root");
    fs::create_dir_all(&state)?;
    let packages = Apt::new(&state, source)?.unpack(names, &root)?;
    fs::remove_dir_all(state)?;
    for place in NOT_KEPT {
        // Not all packages have these folders.
        let _ = fs::remove_dir_all(root.join(place));
    }
    Ok(Manifest { packages })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_with_fewer_packages_than_wanted_is_not_complete() {
        let manifest = Manifest {
            packages: vec!["bash 5.2-1".to_owned(), "dash 0.5".to_owned()],
        };
        assert!(has_all(&manifest, &[("shells", &["dash", "bash"])]));
        assert!(!has_all(&manifest, &[("shells", &["bash", "zsh"])]));
        assert!(!has_all(&manifest, &[("shells", &["das"])]));
    }

    #[test]
    fn qemu_is_queried_for_one_device_because_listing_all_may_fail() {
        // As Debian's QEMU 11.1 does on a machine with the QEMU 7.2 of Debian 12.
        let script = "#!/bin/sh\n\
            case \"$*\" in\n\
            '-device help') echo 'failed to open module: libepoxy.so.0' >&2; kill -ABRT $$;;\n\
            '-device vfio-user-pci,help') echo 'vfio-user-pci options:';;\n\
            --version) echo 'QEMU emulator version 11.1.3';;\n\
            esac\n";
        let scratch = tempfile::tempdir().unwrap();
        // Written by a process of its own: no child of another test has it open for writing (ETXTBSY).
        let run = |script: &str| {
            let [draft, path] = ["draft", "qemu"].map(|name| scratch.path().join(name));
            fs::write(&draft, script).unwrap();
            let mut install = Command::new("install");
            let status = install.args(["-m", "755"]).arg(&draft).arg(&path).status();
            assert!(status.unwrap().success());
            named_qemu(&path)
        };
        let qemu = run(script);
        let broken = run("#!/bin/sh\necho 'what it says' >&2\nexit 1\n");
        assert_eq!(qemu.unwrap().version, "QEMU emulator version 11.1.3");
        let said = broken.unwrap_err().to_string();
        assert!(said.contains("what it says"), "{said}");
    }

    #[test]
    fn another_program_is_refused_as_qemu() {
        let error = named_qemu(Path::new("true")).unwrap_err();
        assert!(error.to_string().contains(QEMU_DEVICE), "{error}");
    }
}
