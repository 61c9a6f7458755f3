//! A build without Vulkan.

use devmem_linux::doctor::Check;

use crate::doctor::pcie::Sysfs;

/// Examines nothing: this build cannot use Vulkan devices.
pub(super) fn examine(_sysfs: &Sysfs) -> Vec<Check> {
    Vec::new()
}
