//! The way between a GPU and the nearest NIC: the PCIe bridges that they share, redirection by ACS, and the IOMMU.

use std::fs;
use std::path::{Path, PathBuf};

use devmem_linux::doctor::{Check, CheckState};

/// Names of the rows.
const PCIE: &str = "pcie";
const IOMMU: &str = "iommu";

/// Where the extended capabilities of a PCI device start in its configuration (PCI Express Base Specification 7.6).
const EXTENDED: usize = 0x100;
/// The extended capability Access Control Services (7.7.11), and the offset of its control register.
const ACS: u16 = 0x000d;
const ACS_CONTROL: usize = 6;
/// P2P Request Redirect, P2P Completion Redirect and Upstream Forwarding: packets to another device pass through the root
/// complex.
const ACS_REDIRECT: u16 = 0x1c;

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
        let Some(bridge) = gpu.0.get(..shared).and_then(|all| all.get(1..)?.last()) else {
            return Check {
                name: PCIE,
                state: CheckState::Mendable,
                found: format!(
                    "{ends} share no PCIe bridge: packets between them pass through the root complex, which may drop them"
                ),
                remedy: Some(
                    "move the NIC or the GPU to a slot behind the same PCIe switch; the user-space stack works anyway"
                        .to_owned(),
                ),
            };
        };
        let below = gpu.bridges(shared).chain(nic.bridges(shared));
        let controls: Vec<_> = below
            .map(|bridge| (bridge, self.acs_control(bridge)))
            .collect();
        let between = format!("{ends} share the bridge {bridge}");
        let redirecting = controls.iter().filter_map(|(bridge, control)| {
            let redirects = matches!(control, Ok(Some(bits)) if bits & ACS_REDIRECT != 0);
            redirects.then_some(*bridge)
        });
        let redirecting: Vec<_> = redirecting.collect();
        if !redirecting.is_empty() {
            let bridges = redirecting.join(", ");
            let command = |bridge| format!("setpci -s {bridge} ECAP_ACS+6.w=0:{ACS_REDIRECT:x}");
            let commands: Vec<_> = redirecting.iter().map(command).collect();
            return Check {
                name: PCIE,
                state: CheckState::Mendable,
                found: format!(
                    "{between}, but ACS of {bridges} sends packets between them through the root complex"
                ),
                remedy: Some(format!(
                    "{}\nor boot with pci=disable_acs_redir={}; both let the devices behind the bridge reach each other",
                    commands.join("\n"),
                    redirecting.join(";")
                )),
            };
        }
        let unread = controls.iter().find(|(_, control)| control.is_err());
        match unread {
            Some((bridge, _)) => Check {
                name: PCIE,
                state: CheckState::Unknown,
                found: format!("{between}; ACS of {bridge} cannot be read"),
                remedy: Some("run it as root".to_owned()),
            },
            None => Check {
                name: PCIE,
                state: CheckState::Good,
                found: format!("{between}, no redirection by ACS"),
                remedy: None,
            },
        }
    }

    /// Returns the ACS control register of a bridge, `None` if it has none.
    ///
    /// # Errors
    ///
    /// The configuration beyond its first 64 bytes is readable for root only.
    fn acs_control(&self, bridge: &str) -> Result<Option<u16>, ()> {
        let config = self
            .root
            .join("bus/pci/devices")
            .join(bridge)
            .join("config");
        let config = fs::read(config).map_err(drop)?;
        match config.len() {
            // Without extended capabilities: a conventional bridge.
            256 => Ok(None),
            0..=EXTENDED => Err(()),
            _ => Ok(acs_control(&config)),
        }
    }

    /// Examines the translation of the NIC's addresses.
    fn iommu(&self, name: &str, nic: &Place) -> Check {
        let address = nic.address();
        let group = self.root.join("bus/pci/devices").join(address);
        let group = fs::canonicalize(group.join("iommu_group")).ok();
        let good = |found| Check {
            name: IOMMU,
            state: CheckState::Good,
            found,
            remedy: None,
        };
        let Some(group) = group else {
            return good(format!(
                "addresses of {name} at {address} are not translated"
            ));
        };
        let kind = fs::read_to_string(group.join("type")).unwrap_or_default();
        match kind.trim() {
            "identity" => good(format!(
                "addresses of {name} at {address} pass the IOMMU unchanged"
            )),
            "" => Check {
                name: IOMMU,
                state: CheckState::Unknown,
                found: format!("{}/type cannot be read", group.display()),
                remedy: None,
            },
            kind => Check {
                name: IOMMU,
                state: CheckState::Mendable,
                found: format!(
                    "the IOMMU translates the addresses of {name} at {address} ({kind}): its packets to a GPU pass through the root complex"
                ),
                remedy: Some("boot with iommu=pt on the kernel's command line".to_owned()),
            },
        }
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

    /// Returns the bridges after the first `shared` elements.
    fn bridges(&self, shared: usize) -> impl Iterator<Item = &str> {
        let bridges = self.0.get(shared..self.0.len().saturating_sub(1));
        bridges.unwrap_or_default().iter().map(String::as_str)
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
