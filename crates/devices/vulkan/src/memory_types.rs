//! Choice of the memory type of an allocation.

use ash::vk;

/// Whether the CPU can access an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Placement {
    /// Memory of the device that the CPU maps.
    Mapped,
    /// Memory of the device, whether or not the CPU could map it.
    Device,
    /// Host memory that the device can access, to pass bytes to it.
    Host,
}

/// Types that need a feature which is not switched on, or that are no ordinary memory.
const EXCLUDED: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::from_raw(
    vk::MemoryPropertyFlags::PROTECTED.as_raw()
        | vk::MemoryPropertyFlags::LAZILY_ALLOCATED.as_raw()
        | vk::MemoryPropertyFlags::DEVICE_COHERENT_AMD.as_raw(),
);

const COHERENT: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::from_raw(
    vk::MemoryPropertyFlags::HOST_VISIBLE.as_raw()
        | vk::MemoryPropertyFlags::HOST_COHERENT.as_raw(),
);

/// Returns the indices of the types that fit, the best first. `allowed` has a bit for each type that the buffer can have.
pub(crate) fn candidates(types: &[vk::MemoryType], allowed: u32, wish: Placement) -> Vec<u32> {
    let needed = match wish {
        Placement::Mapped => COHERENT | vk::MemoryPropertyFlags::DEVICE_LOCAL,
        Placement::Device => vk::MemoryPropertyFlags::DEVICE_LOCAL,
        Placement::Host => COHERENT,
    };
    let mut fitting: Vec<(bool, u32)> = Vec::new();
    for (index, kind) in (0..32).zip(types) {
        let flags = kind.property_flags;
        if allowed & 1 << index == 0 || !flags.contains(needed) || flags.intersects(EXCLUDED) {
            continue;
        }
        // Reads of the CPU are fast where it caches; memory that it cannot map leaves room in the BAR.
        let is_second_choice = match wish {
            Placement::Mapped | Placement::Host => {
                !flags.contains(vk::MemoryPropertyFlags::HOST_CACHED)
            }
            Placement::Device => flags.contains(vk::MemoryPropertyFlags::HOST_VISIBLE),
        };
        fitting.push((is_second_choice, index));
    }
    // Equal types stay in the driver's order, which is that of their speed.
    fitting.sort_by_key(|(is_second_choice, _)| *is_second_choice);
    fitting.into_iter().map(|(_, index)| index).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::DEVICE_LOCAL;
    const CACHED: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::HOST_CACHED;

    fn types(flags: &[vk::MemoryPropertyFlags]) -> Vec<vk::MemoryType> {
        let kind = |&property_flags| vk::MemoryType {
            property_flags,
            heap_index: 0,
        };
        flags.iter().map(kind).collect()
    }

    #[test]
    fn a_discrete_device_maps_its_bar_and_stages_the_rest() {
        let types = types(&[
            LOCAL,
            COHERENT,
            LOCAL | COHERENT,
            COHERENT | CACHED,
            LOCAL | vk::MemoryPropertyFlags::PROTECTED,
            LOCAL | COHERENT | vk::MemoryPropertyFlags::DEVICE_COHERENT_AMD,
        ]);
        assert_eq!(candidates(&types, !0, Placement::Mapped), [2]);
        assert_eq!(candidates(&types, !0, Placement::Device), [0, 2]);
        assert_eq!(candidates(&types, !0, Placement::Host), [3, 1, 2]);
        assert_eq!(candidates(&types, 0b01, Placement::Mapped), []);
    }

    #[test]
    fn an_integrated_device_maps_everything_cached_if_possible() {
        let types = types(&[LOCAL | COHERENT, LOCAL | COHERENT | CACHED]);
        assert_eq!(candidates(&types, !0, Placement::Mapped), [1, 0]);
        assert_eq!(candidates(&types, !0, Placement::Device), [0, 1]);
    }
}
