//! A build without Vulkan.

use devmem_linux::doctor::Check;

/// Examines nothing: this build cannot use Vulkan devices.
pub(super) fn examine() -> Vec<Check> {
    Vec::new()
}
