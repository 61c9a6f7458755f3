//! The guest's kernel: what it must have built in, and where a suitable one is found.

use std::fs;
use std::path::{Path, PathBuf};

use devmem_linux::small_file;
use serde::Serialize;
use tool::output::{Failure, note};

use super::image;

/// Options that a kernel needs for device memory TCP, built in.
const DEVMEM_OPTIONS: &[&str] = &["CONFIG_NET_DEVMEM=y", "CONFIG_UDMABUF=y"];
/// Options that a kernel needs to start a guest, built in.
pub const BOOT_OPTIONS: &[&str] = &[
    "CONFIG_VIRTIO_CONSOLE=y",
    "CONFIG_VIRTIO_PCI=y",
    "CONFIG_DEVTMPFS=y",
    "CONFIG_SERIAL_8250_CONSOLE=y",
    "CONFIG_BINFMT_SCRIPT=y",
];
/// Option of the gVNIC driver, if it is not a module.
const KERNEL_DRIVER: &str = "CONFIG_GVE=y";
/// Modules for the guest, if the kernel has them, in load order: the driver, and the modules that the tests need.
const MODULES: &[&str] = &[
    "gve",
    "sch_netem",
    // For the kernel's own tests of pods and of offloads.
    "sch_ingress",
    "cls_bpf",
    "sch_fq",
    "sch_prio",
    "cls_fw",
    "sch_etf",
    "veth",
    "tun",
    "configfs",
    "nvmet",
    "nvmet_tcp",
    "nvme_fabrics",
    "nvme_tcp",
    "brd",
];

/// A driver that only some guests need: a module, or built in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtraDriver {
    /// Shared folders.
    VirtioFs,
    /// Disks.
    VirtioBlk,
}

impl ExtraDriver {
    const ALL: [Self; 2] = [Self::VirtioFs, Self::VirtioBlk];

    /// Returns the option of the kernel's configuration.
    fn config(self) -> &'static str {
        match self {
            Self::VirtioFs => "CONFIG_VIRTIO_FS=y",
            Self::VirtioBlk => "CONFIG_VIRTIO_BLK=y",
        }
    }

    /// Returns the modules in load order; the last one is the driver.
    fn modules(self) -> &'static [&'static str] {
        match self {
            Self::VirtioFs => &["fuse", "virtiofs"],
            Self::VirtioBlk => &["virtio_blk"],
        }
    }

    /// Returns the option of the command line that needs the driver.
    fn option(self) -> &'static str {
        match self {
            Self::VirtioFs => "--share",
            Self::VirtioBlk => "--disk",
        }
    }
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
    /// The modules of drivers that only some guests need.
    #[serde(skip)]
    pub extra_modules: Vec<PathBuf>,
    /// Those drivers that are built in; `None` if the configuration is not known.
    #[serde(skip)]
    pub extra_built_in: Option<Vec<ExtraDriver>>,
}

impl Kernel {
    /// Returns the modules for a guest that needs `drivers`, in load order.
    pub fn modules_for(&self, drivers: &[ExtraDriver]) -> Vec<&Path> {
        let extra = drivers.iter().flat_map(|driver| driver.modules());
        let extra = extra.filter_map(|name| self.extra_module(name));
        self.modules
            .iter()
            .map(PathBuf::as_path)
            .chain(extra)
            .collect()
    }

    fn extra_module(&self, name: &str) -> Option<&Path> {
        let mut modules = self.extra_modules.iter().map(PathBuf::as_path);
        modules.find(|module| is_module(module, name))
    }

    /// Checks that the kernel has the drivers that a guest needs. If its configuration is not known, the guest will tell.
    ///
    /// # Errors
    ///
    /// A driver is neither built in nor a module; the error names the option of the command line that needs it.
    pub fn check_drivers(&self, drivers: &[ExtraDriver]) -> Result<(), Failure> {
        let Some(built_in) = &self.extra_built_in else {
            return Ok(());
        };
        let lacks = |driver: &&ExtraDriver| {
            let module = driver
                .modules()
                .last()
                .and_then(|name| self.extra_module(name));
            !built_in.contains(driver) && module.is_none()
        };
        match drivers.iter().find(lacks) {
            None => Ok(()),
            Some(driver) => Err(Failure::unsupported(format!(
                "{} needs {}, which the kernel {} lacks",
                driver.option(),
                driver.config(),
                self.release
            ))
            .with_remedy(
                "set the option to y, or name the folder of the kernel's modules with --modules",
            )),
        }
    }
}

fn extra_built_in(config: &str) -> Vec<ExtraDriver> {
    let is_built_in = |driver: &ExtraDriver| missing_options(config, &[driver.config()]).is_empty();
    ExtraDriver::ALL.into_iter().filter(is_built_in).collect()
}

fn find_extra_modules(folder: &Path) -> Vec<PathBuf> {
    let names = ExtraDriver::ALL.into_iter().flat_map(ExtraDriver::modules);
    find_modules(folder, &names.copied().collect::<Vec<_>>())
}

/// Returns the kernel named on the command line. If its configuration file is found, a kernel that cannot start a guest is
/// refused, and a note is printed for a kernel without device memory TCP.
///
/// # Errors
///
/// The image is not a kernel, the folder of modules does not exist, or the kernel cannot start a guest.
pub fn named_kernel(image: &Path, modules: Option<&Path>) -> Result<Kernel, Failure> {
    image::check(image)?;
    if let Some(modules) = modules.filter(|modules| !modules.is_dir()) {
        return Err(Failure::usage(format_args!(
            "--modules {}: there is no such folder",
            modules.display()
        )));
    }
    let config = config_of(image, modules);
    if let Some((place, config)) = &config {
        let (shown, place) = (image.display(), place.display());
        let missing = missing_options(config, BOOT_OPTIONS);
        if !missing.is_empty() {
            let missing = missing.join(", ");
            return Err(Failure::unsupported(format!(
                "{shown} cannot start a guest: it lacks {missing} ({place})"
            ))
            .with_remedy(
                "set these options to y: the guest loads modules later than it needs them",
            ));
        }
        let missing = missing_options(config, DEVMEM_OPTIONS);
        if !missing.is_empty() {
            let missing = missing.join(", ");
            note(format_args!(
                "{shown} has no device memory TCP: it lacks {missing} ({place})"
            ));
        }
    }
    Ok(Kernel {
        image: image.to_owned(),
        modules: modules
            .map(|folder| find_modules(folder, MODULES))
            .unwrap_or_default(),
        release: image
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
        extra_modules: modules.map(find_extra_modules).unwrap_or_default(),
        extra_built_in: config.map(|(_, config)| extra_built_in(&config)),
    })
}

/// Returns the newest kernel of this machine that is suitable and readable.
pub fn installed_kernel() -> Option<Kernel> {
    newest_kernel(Path::new("/")).ok()
}

/// Returns path and text of the configuration of a kernel image. It is next to the image with the name that distributions
/// use, in the folder of the modules, or at the top of a build tree.
fn config_of(image: &Path, modules: Option<&Path>) -> Option<(PathBuf, String)> {
    /// More than the size of any kernel's configuration.
    const CONFIG_BYTES_MAX: u64 = 4 << 20;
    let folder = image.parent()?;
    let release = image.file_name()?.to_str()?.split_once('-');
    let next_to_image = match release {
        Some((_, release)) => folder.join(format!("config-{release}")),
        None => folder.join("config"),
    };
    // ARCH/boot/bzImage is three folders below the configuration, counted from the image.
    let tree = image.ancestors().nth(4).map(|tree| tree.join(".config"));
    let of_modules = modules.into_iter();
    let of_modules = of_modules.flat_map(|folder| [folder.join("config"), folder.join(".config")]);
    let mut places = [next_to_image].into_iter().chain(of_modules).chain(tree);
    places.find_map(|place| {
        let bytes = small_file::read(&place, CONFIG_BYTES_MAX).ok()?;
        Some((place, String::from_utf8_lossy(&bytes).into_owned()))
    })
}

/// Returns the members of `options` that are not in a configuration.
fn missing_options(config: &str, options: &[&'static str]) -> Vec<&'static str> {
    let is_missing = |option: &&&str| !config.lines().any(|line| line == **option);
    options.iter().filter(is_missing).copied().collect()
}

/// Returns the newest suitable kernel of unpacked packages.
///
/// # Errors
///
/// The packages have no suitable kernel; the message names what each kernel lacks.
pub fn packaged_kernel(root: &Path) -> Result<Kernel, Failure> {
    newest_kernel(root).map_err(|reasons| {
        let reasons = match reasons.is_empty() {
            true => "they have no kernel".to_owned(),
            false => reasons.join("; "),
        };
        Failure::unsupported(format!("the kernel of these packages cannot be used: {reasons}"))
            .with_remedy(
                "choose a release with Linux 6.12 or later with --kernel-suite, or a kernel with --kernel",
            )
    })
}

/// Returns the newest suitable kernel below a root, else what each release found there lacks. Image and configuration are
/// next to the modules (Debian 13 and others; readable by all users) or in /boot (older distributions).
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

/// Returns the kernel if it has every option and the driver, else what it lacks.
fn kernel_at(
    image: PathBuf,
    config: &str,
    modules: &Path,
    release: &str,
) -> Result<Kernel, Vec<&'static str>> {
    let extra_modules = find_extra_modules(modules);
    let modules = find_modules(modules, MODULES);
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
            extra_modules,
            extra_built_in: Some(extra_built_in(config)),
        }),
        false => Err(missing),
    }
}

/// Returns the modules with these names below a folder, with any compression.
fn find_modules(folder: &Path, names: &[&str]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    collect(folder, &mut files, 0);
    let find = |name: &&str| {
        files
            .iter()
            .find(|(stem, _)| stem == *name)
            .map(|(_, path)| path.clone())
    };
    names.iter().filter_map(find).collect()
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

/// Returns the kernel's name of the module in a file; `None` if the file is not a module.
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

    #[test]
    fn a_named_kernel_that_cannot_start_a_guest_is_refused_with_the_missing_options() {
        let scratch = tempfile::tempdir().unwrap();
        let image = scratch.path().join("vmlinuz-6.1.0");
        let mut bytes = vec![0; 1024];
        bytes[0x1fe..0x200].copy_from_slice(&[0x55, 0xaa]);
        bytes[0x202..0x206].copy_from_slice(b"HdrS");
        bytes[0x206..0x208].copy_from_slice(&0x020f_u16.to_le_bytes());
        fs::write(&image, bytes).unwrap();
        assert!(
            named_kernel(&image, None).is_ok(),
            "there is no configuration"
        );
        let config = all_options().replace("VIRTIO_CONSOLE=y", "VIRTIO_CONSOLE=m");
        fs::write(scratch.path().join("config-6.1.0"), config).unwrap();
        let said = named_kernel(&image, None).unwrap_err().to_string();
        assert!(said.contains("it lacks CONFIG_VIRTIO_CONSOLE=y"), "{said}");
        let config = all_options().replace("CONFIG_NET_DEVMEM=y", "");
        fs::write(scratch.path().join("config-6.1.0"), config).unwrap();
        assert!(named_kernel(&image, None).is_ok(), "it can start a guest");
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
        let next_to_modules = root.join("lib/modules/7.9.0/vmlinuz");
        assert_eq!(found(), Ok(("7.9.0".to_owned(), next_to_modules)));
    }

    #[test]
    fn a_kernel_without_the_driver_of_an_option_is_refused_before_a_guest_starts() {
        let scratch = tempfile::tempdir().unwrap();
        fs::write(scratch.path().join("virtio_blk.ko.xz"), "").unwrap();
        let mut kernel = Kernel {
            image: PathBuf::from("bzImage"),
            modules: Vec::new(),
            release: "7.9.0".to_owned(),
            extra_modules: find_extra_modules(scratch.path()),
            extra_built_in: Some(extra_built_in("CONFIG_VIRTIO_FS=m\n")),
        };
        let both = [ExtraDriver::VirtioBlk, ExtraDriver::VirtioFs];
        assert!(kernel.check_drivers(&both[..1]).is_ok(), "it is a module");
        assert_eq!(kernel.modules_for(&both).len(), 1);
        assert_eq!(kernel.modules_for(&[]), Vec::<&Path>::new());
        let said = kernel.check_drivers(&both).unwrap_err().to_string();
        assert!(said.contains("--share needs CONFIG_VIRTIO_FS=y"), "{said}");
        kernel.extra_built_in = Some(extra_built_in("CONFIG_VIRTIO_FS=y\n"));
        assert!(kernel.check_drivers(&both).is_ok(), "it is built in");
        kernel.extra_built_in = None;
        kernel.extra_modules.clear();
        assert!(
            kernel.check_drivers(&both).is_ok(),
            "the configuration is not known"
        );
    }

    fn all_options() -> String {
        [DEVMEM_OPTIONS, BOOT_OPTIONS].concat().join("\n")
    }
}
