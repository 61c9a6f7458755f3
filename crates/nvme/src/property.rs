//! Properties of a controller (Base, "Controller Properties").

/// Controller Capabilities, 8 bytes.
pub const CAP: u32 = 0x00;
/// Version, 4 bytes.
pub const VS: u32 = 0x08;
/// Controller Configuration, 4 bytes.
pub const CC: u32 = 0x14;
/// Controller Status, 4 bytes.
pub const CSTS: u32 = 0x1c;

/// Controller Configuration: enabled, with entries of 64 and 16 bytes, as the fabrics require.
const ENABLED: u32 = 1 | 6 << 16 | 4 << 20;
/// Controller Configuration: a normal shutdown is requested.
const SHUTDOWN: u32 = 1 << 14;
/// Controller Status: ready.
const READY: u32 = 1;
/// Controller Status: the controller has failed.
pub const FATAL: u32 = 2;
/// Controller Status: the shutdown is complete.
const SHUT_DOWN: u32 = 2 << 2;
const SHUTDOWN_MASK: u32 = 3 << 2;

/// What a controller can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Most entries of a queue.
    pub queue_entries: u32,
    /// Time in which it becomes ready, in milliseconds.
    pub ready_ms: u64,
    /// Its smallest memory page, in bytes, which the longest transfer is a multiple of.
    pub page_bytes: u64,
}

impl Capabilities {
    /// Parses the property.
    pub fn of(cap: u64) -> Self {
        Self {
            queue_entries: (cap & 0xffff) as u32 + 1,
            ready_ms: (cap >> 24 & 0xff) * 500,
            page_bytes: 1 << (12 + (cap >> 48 & 0xf)),
        }
    }

    /// Returns the property.
    pub fn to_bits(self) -> u64 {
        let page = u64::from(self.page_bytes.max(4096).ilog2() - 12);
        let entries = u64::from(self.queue_entries.clamp(1, 0x1_0000) - 1);
        // Queues are contiguous, and the NVM command set is supported.
        entries | 1 << 16 | (self.ready_ms / 500).min(0xff) << 24 | 1 << 37 | (page & 0xf) << 48
    }
}

/// Returns the configuration that enables a controller.
pub fn enabled(capabilities: Capabilities) -> u32 {
    let page = capabilities.page_bytes.max(4096).ilog2() - 12;
    ENABLED | page << 7
}

/// Returns the configuration that shuts a controller down.
pub fn shutdown(capabilities: Capabilities) -> u32 {
    enabled(capabilities) | SHUTDOWN
}

/// Where a controller is between its start and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It does not take commands yet.
    Starting,
    /// It takes commands.
    Ready,
    /// It has failed.
    Failed,
    /// It has ended.
    ShutDown,
}

impl Phase {
    /// Returns the phase that the property says.
    pub fn of(csts: u32) -> Self {
        match csts {
            csts if csts & FATAL != 0 => Self::Failed,
            csts if csts & SHUTDOWN_MASK == SHUT_DOWN => Self::ShutDown,
            csts if csts & READY != 0 => Self::Ready,
            _ => Self::Starting,
        }
    }

    /// Returns the property after a configuration was written.
    pub fn after(configuration: u32) -> u32 {
        match configuration {
            it if it & SHUTDOWN != 0 => READY | SHUT_DOWN,
            it if it & 1 != 0 => READY,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_those_that_were_written() {
        for page_bytes in [4096, 65_536] {
            let capabilities = Capabilities {
                queue_entries: 128,
                ready_ms: 7500,
                page_bytes,
            };
            assert_eq!(Capabilities::of(capabilities.to_bits()), capabilities);
        }
        // nvmet of Linux: 1024 entries, 15 x 500 ms, pages of 4 KiB.
        let nvmet = Capabilities::of(0x20_0f01_03ff);
        assert_eq!((nvmet.queue_entries, nvmet.ready_ms), (1024, 7500));
        assert_eq!(nvmet.page_bytes, 4096);
        assert_eq!(enabled(nvmet), 0x46_0001);
        assert_eq!(shutdown(nvmet), 0x46_4001);
        let large = Capabilities {
            page_bytes: 65_536,
            ..nvmet
        };
        assert_eq!(enabled(large), 0x46_0201);
        let all = Capabilities::of(u64::MAX);
        assert_eq!((all.queue_entries, all.page_bytes), (65_536, 1 << 27));
    }

    #[test]
    fn the_phase_follows_the_configuration() {
        let capabilities = Capabilities::of(0);
        assert_eq!(Phase::of(Phase::after(0)), Phase::Starting);
        assert_eq!(Phase::of(Phase::after(enabled(capabilities))), Phase::Ready);
        let ended = Phase::after(shutdown(capabilities));
        assert_eq!(Phase::of(ended), Phase::ShutDown);
        assert_eq!(Phase::of(0xffff_ffff), Phase::Failed);
        // Ready, a shutdown that goes on, and one that is complete.
        let phases = [0x1, 0x5, 0x9].map(Phase::of);
        assert_eq!(phases, [Phase::Ready, Phase::Ready, Phase::ShutDown]);
    }
}
