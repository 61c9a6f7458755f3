//! NIC drivers that are known to support device memory, or known not to (linux v7.3 drivers/net).
//!
//! The table is for explanations only. Decisions come from probing the kernel.

use serde::Serialize;

use crate::ethtool::RX_GRO_HW;

/// Support of an operation by a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Support {
    /// Since this kernel version.
    Since(&'static str),
    /// Since this kernel version, only on queues leased from another netdev.
    LeasedSince(&'static str),
    /// Not in Linux 7.2.
    No,
}

impl Support {
    /// Returns whether any kernel version supports it.
    pub fn exists(self) -> bool {
        self != Self::No
    }
}

/// A driver and its known properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KnownDriver {
    /// Its name, as ethtool gives it.
    pub name: &'static str,
    /// Its hardware.
    pub hardware: &'static str,
    /// Binding device memory to its RX queues.
    pub rx: Support,
    /// Sending from device memory.
    pub tx: Support,
    /// A feature that must be on before header split can be switched on.
    pub split_needs: Option<&'static str>,
    /// Known peculiarities, one line each.
    pub quirks: &'static [&'static str],
}

const fn unsupported(
    name: &'static str,
    hardware: &'static str,
    why: &'static [&'static str],
) -> KnownDriver {
    KnownDriver {
        name,
        hardware,
        rx: Support::No,
        tx: Support::No,
        split_needs: None,
        quirks: why,
    }
}

/// All drivers in the table; supported ones first.
pub const KNOWN_DRIVERS: &[KnownDriver] = &[
    KnownDriver {
        name: "mlx5_core",
        hardware: "NVIDIA ConnectX-7 and later",
        rx: Support::Since("6.17"),
        tx: Support::Since("6.17"),
        split_needs: Some(RX_GRO_HW),
        quirks: &[
            "hardware GRO must be on before tcp-data-split",
            "refused with XDP, HTB offload, or port or RX timestamping",
            "restarting one queue interrupts all queues",
            "with several physical functions, all bound queues must use the same one",
            "net_iovs larger than a page since Linux 7.3",
        ],
    },
    KnownDriver {
        name: "bnxt_en",
        hardware: "Broadcom NetXtreme-C/E",
        rx: Support::Since("6.16"),
        tx: Support::Since("6.16"),
        split_needs: None,
        quirks: &[
            "needs recent firmware (about 230) and a physical function",
            "refuses an explicit tcp-data-split off: use auto",
            "a ring change re-opens the NIC",
            "net_iovs larger than a page since Linux 7.3",
        ],
    },
    KnownDriver {
        name: "gve",
        hardware: "Google gVNIC",
        rx: Support::Since("6.18"),
        tx: Support::Since("6.18"),
        split_needs: None,
        quirks: &[
            "queue 0 cannot be bound",
            "needs the DQO-RDA queue format",
            "refused with XDP",
            "binding stops all queues for a moment",
        ],
    },
    KnownDriver {
        name: "fbnic",
        hardware: "Meta FBNIC",
        rx: Support::Since("6.18"),
        tx: Support::Since("6.18"),
        split_needs: None,
        quirks: &[
            "header split cannot be switched off",
            "splits at the wrong place before a fix of February 2026",
        ],
    },
    KnownDriver {
        name: "netkit",
        hardware: "container netdev",
        rx: Support::LeasedSince("7.2"),
        tx: Support::LeasedSince("7.2"),
        split_needs: None,
        quirks: &["queues are leased from a NIC, which its agent sets up outside of the container"],
    },
    unsupported(
        "bnge",
        "Broadcom ThorUltra",
        &["splits into unreadable memory, but has no queue management yet"],
    ),
    unsupported(
        "netdevsim",
        "simulated netdev",
        &["no DMA; useful for tests of header split and refusals"],
    ),
    unsupported("ice", "Intel E800", &[]),
    unsupported("idpf", "Intel IPU", &[]),
    unsupported("iavf", "Intel virtual function", &[]),
    unsupported("virtio_net", "virtio", &[]),
    unsupported(
        "veth",
        "container netdev",
        &["no hardware queues; lease one to a netkit instead"],
    ),
    unsupported("tun", "TUN/TAP", &["use the user-space backend on it"]),
];

/// Finds a driver by the name that ethtool gives.
pub fn known_driver(name: &str) -> Option<&'static KnownDriver> {
    KNOWN_DRIVERS.iter().find(|driver| driver.name == name)
}

/// Returns the list of drivers that can bind device memory, as text.
pub fn supported_list() -> String {
    let supported = KNOWN_DRIVERS.iter().filter_map(|driver| match driver.rx {
        Support::Since(kernel) => Some(format!(
            "{} ({}, Linux {kernel})",
            driver.name, driver.hardware
        )),
        Support::LeasedSince(_) | Support::No => None,
    });
    supported.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_driver_is_listed_once_and_supported_drivers_come_first() {
        let mut names: Vec<_> = KNOWN_DRIVERS.iter().map(|d| d.name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
        assert!(KNOWN_DRIVERS.is_sorted_by_key(|d| !d.rx.exists()));
    }

    #[test]
    fn the_list_for_people_names_supported_drivers_only() {
        let list = supported_list();
        for driver in KNOWN_DRIVERS {
            let works = matches!(driver.rx, Support::Since(_));
            assert_eq!(list.contains(driver.name), works, "{}", driver.name);
        }
    }
}
