//! The way between a GPU and the nearest NIC: the PCIe bridges that they share, redirection by ACS, and the IOMMU.

use std::fs;
use std::path::{Path, PathBuf};

use devmem_linux::doctor::{Check, CheckState};
use devmem_linux::iommu::Translation;

/// Names of the rows.
const PCIE: &str = "pcie";
const IOMMU: &str = "iommu";

/// Where the extended capabilities of a PCI device start in its configuration (PCI Express Base Specification 7.6).
const EXTENDED: usize = 0x100;
/// The extended capability Access Control Services (7.7.11), and the offset of its control register.
const ACS: u16 = 0x000d;
const ACS_CONTROL: usize = 6;
/// P2P Request Redirect, P2P Completion Redirect and P2P Egress Control: packets to another device pass through the root
/// complex (linux drivers/pci/p2pdma.c, pci_bridge_has_acs_redir).
const ACS_REDIRECT: u16 = 0x2c;

/// The files of the kernel that describe devices.
pub(super) struct Sysfs {
    root: PathBuf,
}

impl Sysfs {
    /// Those of this machine.
    pub(super) fn of_this_machine() -> Self {
        Self::at("/sys")
    }

    pub(super) fn at(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        Self { root }
    }

    /// Examines the way from the GPU at a PCI address to the nearest NIC; nothing if there is no NIC of a PCI device.
    pub(super) fn examine(&self, gpu: &str) -> Vec<Check> {
        let Some(gpu) = Place::of(&self.root.join("bus/pci/devices").join(gpu)) else {
            return Vec::new();
        };
        match self.nearest(&gpu) {
            Some((name, nic)) => vec![self.path(&gpu, &name, &nic), self.iommu(&name, &nic)],
            None => Vec::new(),
        }
    }

    /// Returns the interface of a PCI device that shares the most bridges with the GPU; the first by name of several.
    fn nearest(&self, gpu: &Place) -> Option<(String, Place)> {
        let interfaces = fs::read_dir(self.root.join("class/net")).ok()?;
        let nics = interfaces.filter_map(|entry| {
            let entry = entry.ok()?;
            let place = Place::of(&entry.path().join("device"))?;
            Some((entry.file_name().to_string_lossy().into_owned(), place))
        });
        let mut nics: Vec<_> = nics.collect();
        nics.sort_by_key(|(name, place)| (usize::MAX - gpu.shared(place), name.clone()));
        nics.into_iter().next()
    }

    /// Examines the bridges between the two.
    fn path(&self, gpu: &Place, name: &str, nic: &Place) -> Check {
        let ends = format!("{} and {name} at {}", gpu.address(), nic.address());
        let shared = gpu.shared(nic);
        // The host bridge is the first element of a path.
        match gpu.0.get(1..shared).and_then(<[String]>::last) {
            Some(bridge) => {
                // As in calc_map_type_and_dist of linux drivers/pci/p2pdma.c, both devices and the shared bridge are on the way.
                let on_the_way = gpu.after(shared - 1).chain(nic.after(shared));
                self.redirection(&format!("{ends} share the bridge {bridge}"), on_the_way)
            }
            None => check(
                PCIE,
                CheckState::Mendable,
                format!(
                    "{ends} share no PCIe bridge: packets between them pass through the root complex, which may drop them"
                ),
                "move the NIC or the GPU to a slot behind the same PCIe switch; the user-space stack works anyway",
            ),
        }
    }

    /// Examines whether a device on the way sends packets through the root complex.
    fn redirection<'a>(&self, between: &str, on_the_way: impl Iterator<Item = &'a str>) -> Check {
        let (mut redirecting, mut unread) = (Vec::new(), None);
        for device in on_the_way {
            match self.acs_control(device) {
                Ok(Some(bits)) if bits & ACS_REDIRECT != 0 => redirecting.push(device),
                Ok(_) => {}
                Err(()) => unread = unread.or(Some(device)),
            }
        }
        if !redirecting.is_empty() {
            let command = |device| format!("setpci -s {device} ECAP_ACS+6.w=0:{ACS_REDIRECT:x}\n");
            let commands: String = redirecting.iter().map(command).collect();
            let devices = redirecting.join(";");
            return check(
                PCIE,
                CheckState::Mendable,
                format!(
                    "{between}, but ACS of {} sends packets between them through the root complex",
                    redirecting.join(", ")
                ),
                &format!(
                    "{commands}or boot with pci=disable_acs_redir={devices}; both remove isolation between devices"
                ),
            );
        }
        match unread {
            Some(device) => check(
                PCIE,
                CheckState::Unknown,
                format!("{between}; ACS of {device} cannot be read"),
                "run it as root",
            ),
            None => check(
                PCIE,
                CheckState::Good,
                format!("{between}, no redirection by ACS"),
                "",
            ),
        }
    }

    /// Returns the ACS control register of a device, `None` if it has none.
    ///
    /// # Errors
    ///
    /// The configuration beyond its first 64 bytes is readable for root only.
    fn acs_control(&self, device: &str) -> Result<Option<u16>, ()> {
        let config = self
            .root
            .join("bus/pci/devices")
            .join(device)
            .join("config");
        let config = fs::read(config).map_err(drop)?;
        match config.len() {
            // Without extended capabilities: a device of conventional PCI.
            256 => Ok(None),
            0..=EXTENDED => Err(()),
            _ => Ok(acs_control(&config)),
        }
    }

    /// Examines the translation of the NIC's addresses.
    fn iommu(&self, name: &str, nic: &Place) -> Check {
        let address = nic.address();
        let translation = Translation::of_pci(&self.root, address);
        let (state, found, remedy) = match translation.unwrap_or(Translation::None) {
            Translation::None => {
                let found = format!("addresses of {name} at {address} are not translated");
                (CheckState::Good, found, "")
            }
            Translation::Identity => {
                let found = format!("addresses of {name} at {address} pass the IOMMU unchanged");
                (CheckState::Good, found, "")
            }
            Translation::Unreadable(file) => {
                let found = format!("{} cannot be read", file.display());
                (CheckState::Unknown, found, "run it as root")
            }
            Translation::Translated(kind) => (
                CheckState::Mendable,
                format!(
                    "the IOMMU translates the addresses of {name} at {address} ({kind}): its packets to a GPU pass through the root complex"
                ),
                "boot with iommu=pt on the kernel's command line",
            ),
        };
        check(IOMMU, state, found, remedy)
    }
}

/// Returns a row; an empty remedy is none.
fn check(name: &'static str, state: CheckState, found: String, remedy: &str) -> Check {
    Check {
        name,
        state,
        found,
        remedy: (!remedy.is_empty()).then(|| remedy.to_owned()),
    }
}

/// Finds the ACS control register in a configuration space. The list of capabilities is the device's: it may be wrong.
fn acs_control(config: &[u8]) -> Option<u16> {
    let word = |at: usize| {
        let bytes = config.get(at..at.checked_add(2)?)?;
        Some(u16::from_le_bytes(bytes.try_into().ok()?))
    };
    let mut at = EXTENDED;
    // Each capability has 4 bytes or more, so a longer list has a loop.
    for _ in 0..config.len() / 4 {
        if word(at)? == ACS {
            return word(at + ACS_CONTROL);
        }
        // Bits 20 to 31 of the header: the next one, a multiple of 4.
        at = usize::from(word(at + 2)? >> 4 & 0xffc);
        if at < EXTENDED {
            return None;
        }
    }
    None
}

/// The way to a PCI device: the host bridge, the bridges, and the device.
struct Place(Vec<String>);

impl Place {
    /// Follows a link to a device; `None` if it is not one of PCI.
    fn of(link: &Path) -> Option<Self> {
        let path = fs::canonicalize(link).ok()?;
        let names = path
            .components()
            .map(|part| part.as_os_str().to_string_lossy());
        // The interface of a virtio NIC is below its PCI device.
        let names = names
            .skip_while(|name| !name.starts_with("pci"))
            .take_while(|name| name.starts_with("pci") || is_address(name));
        let names: Vec<_> = names.map(std::borrow::Cow::into_owned).collect();
        (names.len() > 1).then_some(Self(names))
    }

    fn address(&self) -> &str {
        self.0.last().map_or("", String::as_str)
    }

    /// Returns how many elements from the host bridge on are the same.
    fn shared(&self, other: &Self) -> usize {
        let pairs = self.0.iter().zip(&other.0);
        pairs.take_while(|(one, other)| one == other).count()
    }

    /// Returns the elements after the first `count`.
    fn after(&self, count: usize) -> impl Iterator<Item = &str> {
        self.0.iter().skip(count).map(String::as_str)
    }
}

/// Returns whether a name is a PCI address, such as 0000:02:00.0.
fn is_address(name: &str) -> bool {
    let parts: Vec<_> = name.split([':', '.']).collect();
    let is_hex =
        |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    parts.len() == 4 && parts.iter().all(is_hex)
}

#[cfg(test)]
mod tests;
