//! Messages of a vfio-user client.
//!
//! Input: messages after the version was negotiated. The size fields are part of the input, so that lengths are fuzzed, too.

use vfio_user::{
    Bus, CONFIG_REGION, Device, DeviceError, Msix, PciConfig, PciIdentity, REGION_COUNT, Region,
    Session,
};

const BAR_BYTES: u64 = 4096;

/// A device with registers that are memory, a configuration space, and a doorbell that reads and writes guest memory.
struct Registers {
    config: PciConfig,
    memory: Vec<u8>,
}

impl Device for Registers {
    fn regions(&self) -> [Region; REGION_COUNT] {
        let mut regions = [Region::NONE; REGION_COUNT];
        regions[0].size = BAR_BYTES;
        regions[2].size = BAR_BYTES;
        regions[CONFIG_REGION as usize].size = PciConfig::BYTES;
        regions
    }

    fn vectors(&self) -> u16 {
        3
    }

    fn region_read(
        &mut self,
        bus: &mut Bus,
        region: u32,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), DeviceError> {
        assert!(!out.is_empty(), "an access of 0 bytes");
        match region {
            0 => out.copy_from_slice(&self.memory[range(offset, out.len())]),
            2 => bus.dma.read(offset, out).map_err(|_| DeviceError)?,
            CONFIG_REGION => self.config.read(offset, out)?,
            _ => panic!("region {region} has no bytes"),
        }
        Ok(())
    }

    fn region_write(
        &mut self,
        bus: &mut Bus,
        region: u32,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        assert!(!bytes.is_empty(), "an access of 0 bytes");
        match region {
            0 => self.memory[range(offset, bytes.len())].copy_from_slice(bytes),
            2 => {
                bus.irqs.raise(u16::from(bytes[0]));
                bus.dma.write(offset, bytes).map_err(|_| DeviceError)?;
            }
            CONFIG_REGION => self.config.write(offset, bytes)?,
            _ => panic!("region {region} has no bytes"),
        }
        Ok(())
    }

    fn reset(&mut self, _bus: &mut Bus) {
        self.config.reset();
        self.memory.fill(0);
    }
}

fn range(offset: u64, len: usize) -> std::ops::Range<usize> {
    let start = usize::try_from(offset).expect("inside of the region");
    start..start + len
}

/// Checks that any input is answered by complete replies, at most one per message, or ends the session.
pub fn run(data: &[u8]) {
    let identity = PciIdentity {
        vendor: 1,
        device: 2,
        revision: 3,
        class: 0x02_0000,
        subsystem: (0, 0),
    };
    let msix = Msix {
        vectors: 3,
        bar: 1,
        table: 0,
        pending: 0x800,
    };
    let mut device = Registers {
        config: PciConfig::new(identity, [4096, 4096, 4096, 0, 0, 0], msix),
        memory: vec![0; BAR_BYTES as usize],
    };
    let mut bus = Bus::new(device.vectors()).expect("this machine has asynchronous I/O");
    let mut session = Session::default();
    let mut out = Vec::new();
    // VERSION, 20 bytes: 0.0 without JSON.
    let version = [0, 0, 1, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let agreed = session.on_bytes(&mut device, &mut bus, &version, &mut out);
    assert_eq!(agreed, Ok(()));
    out.clear();
    // A protocol violation may end the session.
    let _ = session.on_bytes(&mut device, &mut bus, data, &mut out);
    let mut replies = 0;
    let mut rest = &out[..];
    while let Some(header) = rest.first_chunk::<16>() {
        let size = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        assert_eq!(header[8] & 0xf, 1, "not a reply");
        rest = &rest[usize::try_from(size).expect("a size")..];
        replies += 1;
    }
    assert!(rest.is_empty(), "an incomplete reply");
    assert!(
        replies < session.stats().messages,
        "more replies than requests"
    );
}
