//! Guest memory for unit tests.

use std::cell::RefCell;

use crate::env::{BadAddress, GuestAddr, GuestMemory};

/// Memory from address 0 on.
#[derive(Debug)]
pub(crate) struct Memory(RefCell<Vec<u8>>);

impl Memory {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(RefCell::new(vec![0; bytes]))
    }
}

fn range(addr: GuestAddr, len: usize, size: usize) -> Result<std::ops::Range<usize>, BadAddress> {
    let bad = BadAddress { addr, len };
    let start = usize::try_from(addr.0).map_err(|_| bad)?;
    let end = start.checked_add(len).filter(|end| *end <= size);
    end.map(|end| start..end).ok_or(bad)
}

impl GuestMemory for Memory {
    fn read(&self, addr: GuestAddr, out: &mut [u8]) -> Result<(), BadAddress> {
        let bytes = self.0.borrow();
        out.copy_from_slice(&bytes[range(addr, out.len(), bytes.len())?]);
        Ok(())
    }

    fn write(&self, addr: GuestAddr, from: &[u8]) -> Result<(), BadAddress> {
        let mut bytes = self.0.borrow_mut();
        let range = range(addr, from.len(), bytes.len())?;
        bytes[range].copy_from_slice(from);
        Ok(())
    }

    fn store_release_u16(&self, addr: GuestAddr, value: u16) -> Result<(), BadAddress> {
        self.write(addr, &value.to_le_bytes())
    }
}
