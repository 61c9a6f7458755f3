//! The parts of a guest: QEMU, a kernel with its modules, a shell and a few tools. Each comes from the command line, else
//! from this machine if it is suitable, else from packages of the distribution.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;
use serde::Serialize;

use super::apt::{self, Apt, Source};
use super::cache::{Cache, Manifest};
use super::elf::Packaged;
use super::image;
use devmem_linux::small_file;
use tool::output::{Failure, note};

/// The device of QEMU 10.1 and later that speaks vfio-user (QEMU docs/interop/vfio-user.rst).
const QEMU_DEVICE: &str = "vfio-user-pci";
/// Options that must be built into a kernel: device memory needs these,
const DEVMEM_OPTIONS: &[&str] = &["CONFIG_NET_DEVMEM=y", "CONFIG_UDMABUF=y"];
/// and the guest does not start without these.
pub const BOOT_OPTIONS: &[&str] = &[
    "CONFIG_VIRTIO_CONSOLE=y",
    "CONFIG_VIRTIO_PCI=y",
    "CONFIG_DEVTMPFS=y",
    "CONFIG_SERIAL_8250_CONSOLE=y",
];
/// Option of the gVNIC driver, if it is not a module.
const KERNEL_DRIVER: &str = "CONFIG_GVE=y";
/// Modules for the guest, if the kernel has them: the driver, and those that the tests need.
const MODULES: &[&str] = &["gve", "sch_netem", "veth", "tun"];
/// Guest programs besides the shell, with their paths in the packages.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("ethtool", &["usr/sbin/ethtool", "sbin/ethtool"]),
    ("ip", &["usr/bin/ip", "bin/ip", "usr/sbin/ip"]),
    ("tc", &["usr/sbin/tc", "sbin/tc"]),
    ("ss", &["usr/bin/ss", "bin/ss"]),
];
/// Packages to fetch together: what a cache folder is named after, and their names.
type Packages = (&'static str, &'static [&'static str]);

const QEMU_PACKAGES: Packages = ("qemu", &["qemu-system-x86"]);
const KERNEL_PACKAGES: Packages = ("kernel", &["linux-image-cloud-amd64"]);
const TOOL_PACKAGES: Packages = ("tools", &["busybox-static", "ethtool", "iproute2"]);
/// What the kernel's test programs need: Python, and the programs that they start.
const SELFTEST_PACKAGES: Packages = (
    "selftests",
    &[
        "bash",
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
    /// Suites of the kernel; `None` for those of the other packages.
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
        let mut packages = Vec::new();
        let kernel = match (named_kernel, &options.kernel_suites) {
            (Some(kernel), _) => Some(kernel),
            (None, Some(suites)) => {
                let (root, fetched) = fetched(options, suites, &[KERNEL_PACKAGES])?;
                packages = fetched;
                Some(packaged_kernel(&root)?)
            }
            (None, None) => installed_kernel().filter(|_| look_here),
        };

        let mut wanted = Vec::new();
        if qemu.is_none() {
            wanted.push(QEMU_PACKAGES);
        }
        if kernel.is_none() {
            wanted.push(KERNEL_PACKAGES);
        }
        wanted.push(TOOL_PACKAGES);
        if let (Some(qemu), Some(kernel), Some(busybox)) = (&qemu, &kernel, &options.busybox) {
            return Ok(Self {
                qemu: qemu.clone(),
                kernel: kernel.clone(),
                busybox: busybox.clone(),
                tools: None,
                programs: Vec::new(),
                packages,
            });
        }
        let suites = match &options.suites {
            Some(suites) => suites.clone(),
            None => default_suites()?,
        };
        let (root, others) = fetched(options, &suites, &wanted)?;
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
                    None => format!("it ended: {}", output.status),
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
            false => Err(format!("it knows no {QEMU_DEVICE}")),
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
        .with_remedy("--suite names a release with QEMU 10.1 or later")
    })
}

/// Returns the kernel named on the command line. If its configuration is found, a kernel with which no guest can start is
/// refused, and one without device memory is noted.
fn named_kernel(image: &Path, modules: Option<&Path>) -> Result<Kernel, Failure> {
    image::check(image)?;
    if let Some(modules) = modules.filter(|modules| !modules.is_dir()) {
        return Err(Failure::usage(format_args!(
            "--modules {}: there is no such folder",
            modules.display()
        )));
    }
    if let Some((place, config)) = config_of(image, modules) {
        let (shown, place) = (image.display(), place.display());
        let missing = missing_options(&config, BOOT_OPTIONS);
        if !missing.is_empty() {
            let missing = missing.join(", ");
            return Err(Failure::unsupported(format!(
                "no guest can start with {shown}: it lacks {missing} ({place})"
            ))
            .with_remedy("build these options into the kernel; modules do not serve"));
        }
        let missing = missing_options(&config, DEVMEM_OPTIONS);
        if !missing.is_empty() {
            let missing = missing.join(", ");
            note(format_args!(
                "{shown} has no device memory TCP: it lacks {missing} ({place})"
            ));
        }
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

/// Returns the text of the configuration of a kernel image, and its path: beside the image as distributions name it, in the
/// folder of the modules, or at the top of a build tree.
fn config_of(image: &Path, modules: Option<&Path>) -> Option<(PathBuf, String)> {
    /// More than the configuration of any kernel.
    const CONFIG_BYTES_MAX: u64 = 4 << 20;
    let folder = image.parent()?;
    let release = image.file_name()?.to_str()?.split_once('-');
    let beside = match release {
        Some((_, release)) => folder.join(format!("config-{release}")),
        None => folder.join("config"),
    };
    // ARCH/boot/bzImage is three folders below the configuration, counted from the image.
    let tree = image.ancestors().nth(4).map(|tree| tree.join(".config"));
    let of_modules = modules.into_iter();
    let of_modules = of_modules.flat_map(|folder| [folder.join("config"), folder.join(".config")]);
    let mut places = [beside].into_iter().chain(of_modules).chain(tree);
    places.find_map(|place| {
        let bytes = small_file::read(&place, CONFIG_BYTES_MAX).ok()?;
        Some((place, String::from_utf8_lossy(&bytes).into_owned()))
    })
}

/// Returns those of `options` that a configuration does not have.
fn missing_options(config: &str, options: &[&'static str]) -> Vec<&'static str> {
    let is_missing = |option: &&&str| !config.lines().any(|line| line == **option);
    options.iter().filter(is_missing).copied().collect()
}

fn packaged_kernel(root: &Path) -> Result<Kernel, Failure> {
    newest_kernel(root).map_err(|reasons| {
        let reasons = match reasons.is_empty() {
            true => "they have no kernel".to_owned(),
            false => reasons.join("; "),
        };
        Failure::unsupported(format!("the kernel of these packages cannot be used: {reasons}"))
            .with_remedy(
                "--kernel-suite names a release with Linux 6.12 or later, --kernel a kernel of your own",
            )
    })
}

/// Returns the newest suitable kernel below a root, else what each release found there lacks. Image and configuration are next to the
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
    let mut reasons = Vec::new();
    for release in releases.iter().rev() {
        let modules = folder.join(release);
        let boot = root.join("boot");
        let places = [
            (modules.join("vmlinuz"), modules.join("config")),
            (
                boot.join(format!("vmlinuz-{release}")),
                boot.join(format!("config-{release}")),
            ),
        ];
        let found = places.into_iter().find_map(|(image, config)| {
            fs::File::open(&image).ok()?;
            Some((image, fs::read_to_string(config).ok()?))
        });
        let Some((image, config)) = found else {
            reasons.push(format!("{release} has no image that this user can read"));
            continue;
        };
        match kernel_at(image, &config, &modules, release) {
            Ok(kernel) => return Ok(kernel),
            Err(missing) => reasons.push(format!("{release} lacks {}", missing.join(", "))),
        }
    }
    Err(reasons)
}

/// Returns a kernel with every option and the driver, else those that it lacks.
fn kernel_at(
    image: PathBuf,
    config: &str,
    modules: &Path,
    release: &str,
) -> Result<Kernel, Vec<&'static str>> {
    let modules = find_modules(modules);
    let mut missing = missing_options(config, DEVMEM_OPTIONS);
    missing.extend(missing_options(config, BOOT_OPTIONS));
    let is_built_in = config.lines().any(|line| line == KERNEL_DRIVER);
    if !is_built_in && !modules.iter().any(|module| is_module(module, "gve")) {
        missing.push("the gve driver");
    }
    match missing.is_empty() {
        true => Ok(Kernel {
            image,
            modules,
            release: release.to_owned(),
        }),
        false => Err(missing),
    }
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
        } else if let Some(name) = module_name(&entry.path()) {
            files.push((name, entry.path()));
        }
    }
}

/// Returns the name under which the kernel knows the module in a file; `None` if the file is no module.
fn module_name(file: &Path) -> Option<String> {
    let name = file.file_name()?.to_str()?;
    Some(name.split_once(".ko")?.0.replace('-', "_"))
}

fn is_module(file: &Path, name: &str) -> bool {
    module_name(file).as_deref() == Some(name)
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
            "it is not known which packages of {distribution:?} serve"
        ))
        .with_remedy("name them with --suite, or give --qemu, --kernel, --modules and --busybox"));
    }
    let release = apt::os_release("VERSION_CODENAME").unwrap_or_default();
    Ok(match OLDER.contains(&release.as_str()) {
        true => vec![SERVES.to_owned(), format!("{SERVES}-backports")],
        false => vec![release],
    })
}

/// Returns the root file system in which the kernel's test programs run, fetched if necessary.
///
/// # Errors
///
/// As [`Kit::provide`].
pub fn selftest_root(options: &KitOptions) -> Result<PathBuf, Failure> {
    let suites = match &options.suites {
        Some(suites) => suites.clone(),
        None => default_suites()?,
    };
    Ok(fetched(options, &suites, &[SELFTEST_PACKAGES])?.0)
}

/// Returns the folder with the wanted packages, which are fetched if necessary, and their names.
fn fetched(
    options: &KitOptions,
    suites: &[String],
    wanted: &[Packages],
) -> Result<(PathBuf, Vec<String>), Failure> {
    if std::env::consts::ARCH != "x86_64" {
        return Err(
            Failure::unsupported("packages for the lab are known for x86_64 only")
                .with_remedy("give --qemu, --kernel, --modules and --busybox"),
        );
    }
    let cache = Cache::new(options.cache.clone())?;
    let parts: Vec<&str> = wanted.iter().map(|(part, _)| *part).collect();
    let key = format!("{}-{}", suites.join("+").replace('/', "_"), parts.join("+"));
    let why = match cache.get(&key) {
        Ok(Some((folder, manifest))) if !options.refresh => {
            return Ok((folder.join("root"), manifest.packages));
        }
        Ok(_) => format!("the lab is not in {}", cache.folder().display()),
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
        let source = Source {
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
        .context("the cache lost what was put into it")?;
    Ok((folder.join("root"), manifest.packages))
}

fn fetch(folder: &Path, source: &Source, names: &[&str]) -> Result<Manifest, Failure> {
    let state = folder.join("apt");
    let root = folder.join("root");
    fs::create_dir_all(&state)?;
    let packages = Apt::new(&state, source)?.unpack(names, &root)?;
    fs::remove_dir_all(state)?;
    for place in NOT_KEPT {
        // Not every package has one.
        let _ = fs::remove_dir_all(root.join(place));
    }
    Ok(Manifest { packages })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_kernel_is_the_one_with_the_greater_numbers() {
        assert!(numbers("7.3.4+deb13-cloud-amd64") > numbers("7.2.12+deb13-cloud-amd64"));
        assert!(numbers("6.12.100") > numbers("6.12.99"));
        assert!(numbers("") < numbers("1"));
    }

    #[test]
    fn a_kernel_serves_with_every_option_and_the_driver_in_some_form() {
        let image = std::env::current_exe().unwrap();
        let options = all_options();
        let nowhere = Path::new("/nonexistent");
        let lacks = |config: &str| kernel_at(image.clone(), config, nowhere, "r").unwrap_err();
        let serves = format!("{options}\nCONFIG_GVE=y");
        assert!(kernel_at(image.clone(), &serves, nowhere, "r").is_ok());
        let no_module = lacks(&format!("{options}\nCONFIG_GVE=m"));
        assert_eq!(no_module, ["the gve driver"]);
        let without = serves.replace("CONFIG_NET_DEVMEM=y", "# CONFIG_NET_DEVMEM is not set");
        assert_eq!(lacks(&without), ["CONFIG_NET_DEVMEM=y"]);
        assert_eq!(
            lacks("").len(),
            DEVMEM_OPTIONS.len() + BOOT_OPTIONS.len() + 1
        );
    }

    fn all_options() -> String {
        [DEVMEM_OPTIONS, BOOT_OPTIONS].concat().join("\n")
    }

    #[test]
    fn a_named_kernel_with_which_no_guest_can_start_is_refused_by_what_it_lacks() {
        let scratch = tempfile::tempdir().unwrap();
        let image = scratch.path().join("vmlinuz-6.1.0");
        let mut bytes = vec![0; 1024];
        bytes[0x1fe..0x200].copy_from_slice(&[0x55, 0xaa]);
        bytes[0x202..0x206].copy_from_slice(b"HdrS");
        bytes[0x206..0x208].copy_from_slice(&0x020f_u16.to_le_bytes());
        fs::write(&image, bytes).unwrap();
        assert!(named_kernel(&image, None).is_ok(), "nothing is known of it");
        let config = all_options().replace("VIRTIO_CONSOLE=y", "VIRTIO_CONSOLE=m");
        fs::write(scratch.path().join("config-6.1.0"), config).unwrap();
        let said = named_kernel(&image, None).unwrap_err().to_string();
        assert!(said.contains("it lacks CONFIG_VIRTIO_CONSOLE=y"), "{said}");
        let config = all_options().replace("CONFIG_NET_DEVMEM=y", "");
        fs::write(scratch.path().join("config-6.1.0"), config).unwrap();
        assert!(named_kernel(&image, None).is_ok(), "guests start with it");
    }

    #[test]
    fn the_newest_kernel_that_serves_is_found_beside_its_modules_or_in_boot() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path();
        let write = |place: &str, text: &str| {
            let path = root.join(place);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let serves = format!("{}\nCONFIG_GVE=y", all_options());
        let found = || newest_kernel(root).map(|kernel| (kernel.release, kernel.image));
        assert_eq!(found(), Err(Vec::new()));
        write("lib/modules/7.10.0/config", &all_options());
        write("lib/modules/7.10.0/vmlinuz", "");
        let said = "7.10.0 lacks the gve driver".to_owned();
        assert_eq!(found(), Err(vec![said]));
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
    fn a_qemu_that_would_find_the_modules_of_another_version_is_asked_for_the_one_device() {
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
    fn what_is_no_qemu_is_refused() {
        let error = named_qemu(Path::new("true")).unwrap_err();
        assert!(error.to_string().contains(QEMU_DEVICE), "{error}");
    }
}
