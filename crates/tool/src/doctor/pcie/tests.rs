use std::os::unix::fs::symlink;

use super::*;

/// A made-up tree: a switch below a root port with a GPU and two NICs, and a NIC below another host bridge.
struct Tree(tempfile::TempDir);

const SWITCH: &str = "pci0000:00/0000:00:01.0/0000:01:00.0";
const GPU: &str = "0000:04:00.0";

impl Tree {
    fn new() -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        tree.device("pci0000:00/0000:00:01.0");
        tree.device(SWITCH);
        for port in ["0000:02:01.0", "0000:02:02.0"] {
            tree.device(&format!("{SWITCH}/{port}"));
        }
        tree.device(&format!("{SWITCH}/0000:02:01.0/{GPU}"));
        tree.device("pci0000:80/0000:80:01.0");
        tree.nic("eth0", "pci0000:80/0000:80:01.0/0000:81:00.0");
        tree
    }

    /// With NICs next to the GPU; the interface of one of them is of a virtio device.
    fn with_near_nics() -> Self {
        let tree = Self::new();
        let port = format!("{SWITCH}/0000:02:02.0");
        tree.nic("eth2", &format!("{port}/0000:03:00.0"));
        tree.device(&format!("{port}/0000:03:00.1"));
        tree.interface("eth1", &format!("{port}/0000:03:00.1/virtio3"));
        tree
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn device(&self, path: &str) {
        let full = self.path("devices").join(path);
        fs::create_dir_all(&full).unwrap();
        let all = self.path("bus/pci/devices");
        fs::create_dir_all(&all).unwrap();
        symlink(&full, all.join(full.file_name().unwrap())).unwrap();
        self.config(path, &config(None));
    }

    fn config(&self, path: &str, config: &[u8]) {
        fs::write(self.path("devices").join(path).join("config"), config).unwrap();
    }

    fn nic(&self, name: &str, path: &str) {
        self.device(path);
        self.interface(name, path);
    }

    fn interface(&self, name: &str, path: &str) {
        let device = self.path("devices").join(path);
        fs::create_dir_all(&device).unwrap();
        let folder = self.path("class/net").join(name);
        fs::create_dir_all(&folder).unwrap();
        symlink(device, folder.join("device")).unwrap();
    }

    fn group(&self, address: &str, kind: &str) {
        let group = self.path("kernel/iommu_groups/7");
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join("type"), kind).unwrap();
        let device = self.path("bus/pci/devices").join(address);
        symlink(group, device.join("iommu_group")).unwrap();
    }

    fn examine(&self) -> [Check; 2] {
        let checks = Sysfs::at(self.0.path()).examine(GPU);
        checks.try_into().unwrap()
    }
}

/// A configuration space with two extended capabilities, the second of which is ACS if `control` is its control register.
fn config(control: Option<u16>) -> Vec<u8> {
    let mut config = vec![0; 4096];
    config[0x100..0x104].copy_from_slice(&0x1481_0001_u32.to_le_bytes());
    let id = if control.is_some() { ACS } else { 3 };
    config[0x148..0x14a].copy_from_slice(&id.to_le_bytes());
    config[0x14e..0x150].copy_from_slice(&control.unwrap_or(0xffff).to_le_bytes());
    config
}

#[test]
fn the_nearest_nic_shares_the_most_bridges() {
    let [path, iommu] = Tree::with_near_nics().examine();
    assert_eq!(path.state, CheckState::Good);
    let expected = "0000:04:00.0 and eth1 at 0000:03:00.1 share the bridge 0000:01:00.0, no redirection by ACS";
    assert_eq!((path.name, path.found.as_str()), (PCIE, expected));
    assert_eq!(iommu.state, CheckState::Good);
    assert_eq!(
        iommu.found,
        "addresses of eth1 at 0000:03:00.1 are not translated"
    );
}

#[test]
fn devices_without_a_common_bridge_are_told_of() {
    let [path, _] = Tree::new().examine();
    assert_eq!(path.state, CheckState::Mendable);
    assert!(
        path.found
            .contains("eth0 at 0000:81:00.0 share no PCIe bridge"),
        "{}",
        path.found
    );
    assert!(path.remedy.unwrap().contains("behind the same PCIe switch"));
}

#[test]
fn redirection_by_acs_names_each_bridge_and_its_command() {
    let tree = Tree::with_near_nics();
    // Source validation and translation blocking do not redirect; the root port is above the bridge that both share.
    tree.config("pci0000:00/0000:00:01.0", &config(Some(0x1f)));
    tree.config(&format!("{SWITCH}/0000:02:01.0"), &config(Some(0x1d)));
    tree.config(&format!("{SWITCH}/0000:02:02.0"), &config(Some(0x03)));
    let [path, _] = tree.examine();
    assert_eq!(path.state, CheckState::Mendable);
    assert!(
        path.found.ends_with(
            "but ACS of 0000:02:01.0 sends packets between them through the root complex"
        ),
        "{}",
        path.found
    );
    let remedy = path.remedy.unwrap();
    assert_eq!(
        remedy.lines().next(),
        Some("setpci -s 0000:02:01.0 ECAP_ACS+6.w=0:2c")
    );
    assert!(
        remedy.contains("pci=disable_acs_redir=0000:02:01.0;"),
        "{remedy}"
    );
}

#[test]
fn what_only_root_may_read_is_unknown() {
    let tree = Tree::with_near_nics();
    tree.config(&format!("{SWITCH}/0000:02:02.0"), &[0; 64]);
    let [path, _] = tree.examine();
    assert_eq!(
        (path.state, path.remedy.as_deref()),
        (CheckState::Unknown, Some("run it as root"))
    );
    // A conventional bridge has no extended capabilities.
    tree.config(&format!("{SWITCH}/0000:02:02.0"), &[0; 256]);
    let [path, _] = tree.examine();
    assert_eq!(path.state, CheckState::Good);
}

#[test]
fn capability_lists_that_loop_or_end_early_have_no_acs() {
    let mut looping = config(None);
    looping[0x148..0x14c].copy_from_slice(&0x1001_0003_u32.to_le_bytes());
    assert_eq!(acs_control(&looping), None);
    for len in 0..0x150 {
        assert_eq!(acs_control(&config(Some(1))[..len]), None, "{len}");
    }
    assert_eq!(acs_control(&config(Some(1))[..0x150]), Some(1));
    assert_eq!(acs_control(&[0xff; 4096]), None);
}

#[test]
fn a_translating_iommu_is_mendable_and_an_identity_is_good() {
    let states = [
        ("DMA-FQ\n", CheckState::Mendable, "(DMA-FQ)"),
        ("identity\n", CheckState::Good, "unchanged"),
        ("", CheckState::Unknown, "cannot be read"),
    ];
    for (kind, state, text) in states {
        let tree = Tree::with_near_nics();
        tree.group("0000:03:00.1", kind);
        let [_, iommu] = tree.examine();
        assert_eq!(iommu.state, state);
        assert!(iommu.found.contains(text), "{}", iommu.found);
        assert_eq!(
            iommu
                .remedy
                .is_some_and(|remedy| remedy.contains("iommu=pt")),
            state == CheckState::Mendable
        );
    }
}

#[test]
fn a_machine_without_nics_has_no_rows() {
    let tree = Tree(tempfile::tempdir().unwrap());
    tree.device(&format!("pci0000:00/{GPU}"));
    assert_eq!(Sysfs::at(tree.0.path()).examine(GPU), []);
    assert_eq!(Sysfs::at(tree.0.path()).examine("0000:05:00.0"), []);
}
