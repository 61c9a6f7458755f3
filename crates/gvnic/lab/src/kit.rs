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
use super::image;
use tool::output::{Failure, note};

/// The device of QEMU 10.1 and later that speaks vfio-user (QEMU docs/interop/vfio-user.rst).
const QEMU_DEVICE: &str = "vfio-user-pci";
/// Options that must be built into a kernel.
const KERNEL_OPTIONS: &[&str] = &[
    "CONFIG_NET_DEVMEM=y",
    "CONFIG_UDMABUF=y",
    "CONFIG_VIRTIO_CONSOLE=y",
    "CONFIG_VIRTIO_PCI=y",
    "CONFIG_DEVTMPFS=y",
    "CONFIG_SERIAL_8250_CONSOLE=y",
];
/// Option of the gVNIC driver, built in or a module.
const KERNEL_DRIVER: &str = "CONFIG_GVE=";
/// Modules for the guest, if the kernel has them: the driver, and those that the tests need.
const MODULES: &[&str] = &["gve", "sch_netem", "veth", "tun"];
/// Guest programs besides the shell, with their paths in the packages.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("ethtool", &["usr/sbin/ethtool", "sbin/ethtool"]),
    ("ip", &["usr/bin/ip", "bin/ip", "usr/sbin/ip"]),
    ("tc", &["usr/sbin/tc", "sbin/tc"]),
    ("ss", &["usr/bin/ss", "bin/ss"]),
];
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

/// A kernel with its modules.
#[derive(Clone, Debug, Serialize)]
pub struct Kernel {
    /// The image.
    pub image: PathBuf,
    /// The modules for the guest, in load order.
    pub modules: Vec<PathBuf>,
    /// Kernel release, or the name of the file.
    pub release: String,
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
}

impl Kit {
    /// Finds or fetches all parts.
    ///
    /// # Errors
    ///
    /// A part named on the command line is not suitable, or packages cannot be fetched.
    pub fn provide(options: &KitOptions) -> Result<Self, Failure> {
        let named_qemu = options.qemu.as_deref().map(named_qemu).transpose()?;
        let named_kernel = options
            .kernel
            .as_deref()
            .map(|image| named_kernel(image, options.modules.as_deref()))
            .transpose()?;
        let look_here = !options.packaged;
        let qemu = named_qemu.or_else(|| installed_qemu().filter(|_| look_here));
        let kernel = named_kernel.or_else(|| installed_kernel().filter(|_| look_here));

        let mut wanted = Vec::new();
        if qemu.is_none() {
            wanted.push(("qemu", vec!["qemu-system-x86"]));
        }
        if kernel.is_none() {
            wanted.push(("kernel", vec!["linux-image-cloud-amd64"]));
        }
        wanted.push(("tools", vec!["busybox-static", "ethtool", "iproute2"]));
        if let (Some(qemu), Some(kernel), Some(busybox)) = (&qemu, &kernel, &options.busybox) {
            return Ok(Self {
                qemu: qemu.clone(),
                kernel: kernel.clone(),
                busybox: busybox.clone(),
                tools: None,
                programs: Vec::new(),
                packages: Vec::new(),
            });
        }
        let (root, packages) = packages(options, &wanted)?;
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

/// Returns the kernel named on the command line; missing drivers are detected at boot.
fn named_kernel(image: &Path, modules: Option<&Path>) -> Result<Kernel, Failure> {
    image::check(image)?;
    if let Some(modules) = modules.filter(|modules| !modules.is_dir()) {
        return Err(Failure::usage(format_args!(
            "--modules {}: there is no such folder",
            modules.display()
        )));
    }
    Ok(Kernel {
        image: image.to_owned(),
        modules: modules.map(find_modules).unwrap_or_default(),
        release: image
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
    })
}

/// Returns the newest kernel of this machine that is suitable and readable.
fn installed_kernel() -> Option<Kernel> {
    newest_kernel(Path::new("/")).ok()
}

fn packaged_kernel(root: &Path) -> Result<Kernel, Failure> {
    newest_kernel(root).map_err(|releases| {
        let needs = KERNEL_OPTIONS.join(", ");
        Failure::unsupported(format!(
            "the kernel of these packages ({}) does not have {needs} and the gve driver",
            releases.join(", ")
        ))
        .with_remedy(
            "choose a release with Linux 6.16 or later with --suite, or a kernel with --kernel",
        )
    })
}

/// Returns the newest suitable kernel below a root, else the releases found there. Image and configuration are next to the
/// modules (Debian 13 and others; readable by all users) or in /boot (older distributions).
fn newest_kernel(root: &Path) -> Result<Kernel, Vec<String>> {
    let folders = ["usr/lib/modules", "lib/modules"].map(|place| root.join(place));
    let folder = folders.into_iter().find(|folder| folder.is_dir());
    let Some(folder) = folder else {
        return Err(Vec::new());
    };
    let entries = fs::read_dir(&folder).into_iter().flatten();
    let mut releases: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    releases.sort_by_key(|release| numbers(release));
    let found = releases.iter().rev().find_map(|release| {
        let modules = folder.join(release);
        let boot = root.join("boot");
        let places = [
            (modules.join("vmlinuz"), modules.join("config")),
            (
                boot.join(format!("vmlinuz-{release}")),
                boot.join(format!("config-{release}")),
            ),
        ];
        places.into_iter().find_map(|(image, config)| {
            kernel_at(image, &fs::read_to_string(config).ok()?, &modules, release)
        })
    });
    found.ok_or(releases)
}

fn kernel_at(image: PathBuf, config: &str, modules: &Path, release: &str) -> Option<Kernel> {
    fs::File::open(&image).ok()?;
    let modules = find_modules(modules);
    let has = |option: &str| config.lines().any(|line| line == option);
    let driver = config
        .lines()
        .any(|line| line == format!("{KERNEL_DRIVER}y"));
    let serves = KERNEL_OPTIONS.iter().all(|option| has(option)) && (driver || !modules.is_empty());
    serves.then(|| Kernel {
        image,
        modules,
        release: release.to_owned(),
    })
}

/// Returns the guest's modules below a folder, with any compression.
fn find_modules(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    collect(folder, &mut files, 0);
    let find = |name: &&str| {
        files
            .iter()
            .find(|(stem, _)| stem == *name)
            .map(|(_, path)| path.clone())
    };
    MODULES.iter().filter_map(find).collect()
}

fn collect(folder: &Path, files: &mut Vec<(String, PathBuf)>, depth: u32) {
    /// Maximum depth of the search; modules are never deeper.
    const DEEPEST: u32 = 12;
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        if kind.is_dir() && depth < DEEPEST {
            collect(&entry.path(), files, depth + 1);
        } else if let Some((stem, _)) = entry.file_name().to_string_lossy().split_once(".ko") {
            files.push((stem.replace('-', "_"), entry.path()));
        }
    }
}

/// Returns the numbers in a release, to compare releases.
fn numbers(release: &str) -> Vec<u64> {
    release
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|word| word.parse().ok())
        .collect()
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

/// Returns the folder with the wanted packages, which are fetched if necessary, and their names.
fn packages(
    options: &KitOptions,
    wanted: &[(&str, Vec<&str>)],
) -> Result<(PathBuf, Vec<String>), Failure> {
    if std::env::consts::ARCH != "x86_64" {
        return Err(
            Failure::unsupported("packages for the lab are known only for x86_64")
                .with_remedy("give --qemu, --kernel, --modules and --busybox"),
        );
    }
    let cache = Cache::new(options.cache.clone())?;
    let suites = match &options.suites {
        Some(suites) => suites.clone(),
        None => default_suites()?,
    };
    let parts: Vec<&str> = wanted.iter().map(|(part, _)| *part).collect();
    let key = format!("{}-{}", suites.join("+").replace('/', "_"), parts.join("+"));
    let why = match cache.get(&key) {
        Ok(Some((folder, manifest))) if !options.refresh => {
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
    if options.refresh || !matches!(found, Ok(Some(_))) {
        note(format_args!(
            "fetching {} from {}, about 100 MB, once",
            parts.join(", "),
            suites.join(" and ")
        ));
        let source = AptSource {
            suites,
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
    fn releases_are_compared_by_their_numbers() {
        assert!(numbers("7.3.4+deb13-cloud-amd64") > numbers("7.2.12+deb13-cloud-amd64"));
        assert!(numbers("6.12.100") > numbers("6.12.99"));
        assert!(numbers("") < numbers("1"));
    }

    #[test]
    fn a_suitable_kernel_has_every_option_and_the_driver() {
        let image = std::env::current_exe().unwrap();
        let options = KERNEL_OPTIONS.join("\n");
        let nowhere = Path::new("/nonexistent");
        let judge = |config: &str| kernel_at(image.clone(), config, nowhere, "r");
        assert!(judge(&format!("{options}\nCONFIG_GVE=y")).is_some());
        assert!(
            judge(&format!("{options}\nCONFIG_GVE=m")).is_none(),
            "and no module"
        );
        assert!(judge("CONFIG_GVE=y").is_none());
        assert!(judge("").is_none());
    }

    #[test]
    fn the_newest_suitable_kernel_is_found_next_to_its_modules_or_in_boot() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path();
        let write = |place: &str, text: &str| {
            let path = root.join(place);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let serves = format!("{}\nCONFIG_GVE=y", KERNEL_OPTIONS.join("\n"));
        let found = || newest_kernel(root).map(|kernel| (kernel.release, kernel.image));
        assert_eq!(found(), Err(Vec::new()));
        write("lib/modules/7.10.0/config", "CONFIG_GVE=m");
        write("lib/modules/7.10.0/vmlinuz", "");
        assert_eq!(found(), Err(vec!["7.10.0".to_owned()]));
        fs::create_dir_all(root.join("lib/modules/7.3.1")).unwrap();
        write("boot/config-7.3.1", &serves);
        write("boot/vmlinuz-7.3.1", "");
        let in_boot = root.join("boot/vmlinuz-7.3.1");
        assert_eq!(found(), Ok(("7.3.1".to_owned(), in_boot)));
        write("lib/modules/7.9.0/config", &serves);
        write("lib/modules/7.9.0/vmlinuz", "");
        let beside = root.join("lib/modules/7.9.0/vmlinuz");
        assert_eq!(found(), Ok(("7.9.0".to_owned(), beside)));
    }

    #[test]
    fn qemu_is_queried_for_one_device_because_listing_all_may_fail() {
        use std::os::unix::fs::PermissionsExt;
        // As Debian's QEMU 11.1 does on a machine with the QEMU 7.2 of Debian 12.
        let script = "#!/bin/sh\n\
            case \"$*\" in\n\
            '-device help') echo 'failed to open module: libepoxy.so.0' >&2; kill -ABRT $$;;\n\
            '-device vfio-user-pci,help') echo 'vfio-user-pci options:';;\n\
            --version) echo 'QEMU emulator version 11.1.3';;\n\
            esac\n";
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("qemu");
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        let qemu = named_qemu(&path);
        fs::write(&path, "#!/bin/sh\necho 'what it says' >&2\nexit 1\n").unwrap();
        let broken = named_qemu(&path);
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
