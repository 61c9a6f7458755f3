//! The admin queue: executes the commands in the guest's ring, and writes answers and a status for each.
//!
//! Commands are executed within the doorbell write, so the driver sees them done when it first reads the event counter.

mod command;
mod describe;
mod flow_rules;
mod queues;
pub(crate) mod report;
mod rss;

use gve_defs::adminq::{ENTRY_BYTES, Entry, STATUS_OFFSET, Status};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::device::Gve;
use crate::env::{BadAddress, Env, GuestAddr, GuestMemory};
use command::Command;

/// The admin queue of a running driver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Adminq {
    base: GuestAddr,
    /// A power of two.
    entries: u32,
    /// Number of executed commands, modulo 2^32.
    done: u32,
}

impl Adminq {
    /// Returns a queue of `bytes` bytes; `None` if the number of entries is not a power of two, or if the queue reaches
    /// past the address space.
    pub(crate) fn new(base: GuestAddr, bytes: u16) -> Option<Self> {
        let usable = bytes.is_power_of_two() && usize::from(bytes) >= ENTRY_BYTES;
        let entries = u32::from(bytes) / ENTRY_BYTES as u32;
        let end = base.checked_add(bytes.into());
        (usable && end.is_some()).then_some(Self {
            base,
            entries,
            done: 0,
        })
    }

    /// Returns the event counter.
    pub(crate) const fn done(&self) -> u32 {
        self.done
    }

    fn addr(&self, index: u32) -> GuestAddr {
        let at = u64::from(index % self.entries) * ENTRY_BYTES as u64;
        // Cannot wrap: `new` has checked that the queue ends within the address space.
        GuestAddr(self.base.0 + at)
    }
}

impl Gve {
    /// Executes the commands up to the driver's count `announced`.
    pub(crate) fn run_adminq(&mut self, announced: u32, env: &mut Env<'_>) {
        let Some(adminq) = self.adminq.as_mut() else {
            self.stats.adminq_broken += 1;
            return;
        };
        let (queue, first) = (*adminq, adminq.done);
        // On any error, too, so that the driver does not wait for these commands.
        adminq.done = announced;
        let count = announced.wrapping_sub(first);
        if count > queue.entries {
            self.stats.adminq_broken += 1;
            return;
        }
        for index in 0..count {
            let addr = queue.addr(first.wrapping_add(index));
            if self.run_entry(addr, env).is_err() {
                self.stats.adminq_broken += 1;
            }
        }
    }

    fn run_entry(&mut self, addr: GuestAddr, env: &mut Env<'_>) -> Result<(), BadAddress> {
        let entry: Entry = read(env.memory, addr)?;
        let done = Command::parse(&entry).and_then(|command| self.do_command(&command, env));
        let status = match done {
            Ok(()) => {
                self.stats.adminq_commands += 1;
                Status::PASSED
            }
            Err(status) => {
                self.stats.adminq_refused += 1;
                status
            }
        };
        let Status(status) = status;
        let place = GuestAddr(addr.0 + STATUS_OFFSET);
        env.memory.write(place, &status.to_be_bytes())
    }

    fn do_command(&mut self, command: &Command, env: &mut Env<'_>) -> Result<(), Status> {
        let memory = env.memory;
        match command {
            Command::DescribeDevice(command) => self.describe_device(command, memory),
            Command::ConfigureDeviceResources(command) => self.configure_resources(command, memory),
            Command::DeconfigureDeviceResources => self.deconfigure_resources(),
            Command::CreateTxQueue(command) => self.create_tx_queue(command, memory),
            Command::CreateRxQueue(command) => self.create_rx_queue(command, memory),
            Command::DestroyTxQueue(command) => self.destroy_tx_queue(command),
            Command::DestroyRxQueue(command) => self.destroy_rx_queue(command),
            Command::ConfigureRss(command) => self.configure_rss(command, memory),
            Command::QueryRss(command) => self.query_rss(command, memory),
            Command::SetDriverParameter(command) => self.set_driver_parameter(command),
            Command::ReportStats(command) => self.attach_stats(command, env),
            Command::ReportLinkSpeed(command) => self.report_link_speed(command, memory),
            Command::GetPtypeMap(command) => self.ptype_map(command, memory),
            Command::VerifyDriverCompatibility(command) => self.verify_driver(command, memory),
            Command::QueryFlowRules(command) => self.query_flow_rules(command, memory),
            Command::Extended(command) => self.extended(command, memory),
        }
    }
}

/// Reads a struct from guest memory: one copy, which is then validated.
fn read<T: FromBytes + IntoBytes>(
    memory: &dyn GuestMemory,
    addr: GuestAddr,
) -> Result<T, BadAddress> {
    let mut value = T::new_zeroed();
    memory.read(addr, value.as_mut_bytes())?;
    Ok(value)
}

/// Reads a struct that a command points to.
fn read_argument<T: FromBytes + IntoBytes>(
    memory: &dyn GuestMemory,
    addr: u64,
) -> Result<T, Status> {
    read(memory, GuestAddr(addr)).map_err(|_| Status::INVALID_ARGUMENT)
}

/// Writes an answer to the address in a command.
fn answer(memory: &dyn GuestMemory, addr: u64, bytes: &[u8]) -> Result<(), Status> {
    memory
        .write(GuestAddr(addr), bytes)
        .map_err(|_| Status::INVALID_ARGUMENT)
}

/// Writes an answer if the available length is large enough.
fn answer_within(
    memory: &dyn GuestMemory,
    (addr, room): (u64, u64),
    bytes: &[u8],
) -> Result<(), Status> {
    if room < bytes.len() as u64 {
        return Err(Status::INVALID_ARGUMENT);
    }
    answer(memory, addr, bytes)
}

/// Reads the struct of a command from the start of an entry's body.
fn body<T: FromBytes + KnownLayout + Immutable>(entry: &Entry) -> Result<T, Status> {
    match T::read_from_prefix(&entry.body) {
        Ok((value, _)) => Ok(value),
        Err(_) => Err(Status::INVALID_ARGUMENT),
    }
}
