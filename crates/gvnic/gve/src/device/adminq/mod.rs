//! The admin queue: executes the commands in the guest's ring, and writes answers and a status for each.
//!
//! Commands are executed within the doorbell write, so the driver sees them done when it first reads the event counter.

mod command;
mod describe;
mod flow_rules;
mod queues;
mod report;
pub(super) mod ring;
mod rss;

use gve_defs::adminq::{AdminqEntry, AdminqStatus, STATUS_OFFSET};
use zerocopy::{FromBytes, IntoBytes};

use crate::device::Gve;
use crate::env::{BadAddress, Env, GuestAddr, GuestMemory};
use command::AdminqCommand;

impl Gve {
    /// Executes the commands up to the driver's count `announced`.
    pub(crate) fn run_adminq(&mut self, announced: u32, env: &mut Env<'_>) {
        let Some(adminq) = self.adminq.as_mut() else {
            self.stats.adminq_broken += 1;
            return;
        };
        let queue = *adminq;
        let Some(count) = adminq.take(announced) else {
            self.stats.adminq_broken += 1;
            return;
        };
        for index in 0..count {
            let addr = queue.addr(queue.done().wrapping_add(index));
            if self.run_entry(addr, env).is_err() {
                self.stats.adminq_broken += 1;
            }
        }
    }

    fn run_entry(&mut self, addr: GuestAddr, env: &mut Env<'_>) -> Result<(), BadAddress> {
        let entry: AdminqEntry = read(env.memory, addr)?;
        let done = AdminqCommand::parse(&entry).and_then(|command| self.do_command(&command, env));
        let status = match done {
            Ok(()) => {
                self.stats.adminq_commands += 1;
                AdminqStatus::PASSED
            }
            Err(status) => {
                self.stats.adminq_refused += 1;
                status
            }
        };
        let AdminqStatus(status) = status;
        let place = GuestAddr(addr.0 + STATUS_OFFSET);
        env.memory.write(place, &status.to_be_bytes())
    }

    fn do_command(
        &mut self,
        command: &AdminqCommand,
        env: &mut Env<'_>,
    ) -> Result<(), AdminqStatus> {
        let memory = env.memory;
        match command {
            AdminqCommand::DescribeDevice(command) => self.describe_device(command, memory),
            AdminqCommand::ConfigureDeviceResources(command) => {
                self.configure_resources(command, memory)
            }
            AdminqCommand::DeconfigureDeviceResources => self.deconfigure_resources(),
            AdminqCommand::CreateTxQueue(command) => self.create_tx_queue(command, memory),
            AdminqCommand::CreateRxQueue(command) => self.create_rx_queue(command, memory),
            AdminqCommand::DestroyTxQueue(command) => self.destroy_tx_queue(command),
            AdminqCommand::DestroyRxQueue(command) => self.destroy_rx_queue(command),
            AdminqCommand::ConfigureRss(command) => self.configure_rss(command, memory),
            AdminqCommand::QueryRss(command) => self.query_rss(command, memory),
            AdminqCommand::SetDriverParameter(command) => self.set_driver_parameter(command),
            AdminqCommand::ReportStats(command) => self.attach_stats(command, env),
            AdminqCommand::ReportLinkSpeed(command) => self.report_link_speed(command, memory),
            AdminqCommand::GetPtypeMap(command) => self.ptype_map(command, memory),
            AdminqCommand::VerifyDriverCompatibility(command) => {
                self.verify_driver(command, memory)
            }
            AdminqCommand::QueryFlowRules(command) => self.query_flow_rules(command, memory),
            AdminqCommand::Extended(command) => self.extended(command, memory),
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
) -> Result<T, AdminqStatus> {
    read(memory, GuestAddr(addr)).map_err(|_| AdminqStatus::INVALID_ARGUMENT)
}

/// Writes an answer to the address in a command.
fn answer(memory: &dyn GuestMemory, addr: u64, bytes: &[u8]) -> Result<(), AdminqStatus> {
    memory
        .write(GuestAddr(addr), bytes)
        .map_err(|_| AdminqStatus::INVALID_ARGUMENT)
}

/// Writes an answer if the available length is large enough.
fn answer_within(
    memory: &dyn GuestMemory,
    addr: u64,
    room: u64,
    bytes: &[u8],
) -> Result<(), AdminqStatus> {
    if room < bytes.len() as u64 {
        return Err(AdminqStatus::INVALID_ARGUMENT);
    }
    answer(memory, addr, bytes)
}
