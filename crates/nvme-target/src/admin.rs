//! The admin queue of a controller.

use nvme::Status;
use nvme::command::{
    self, CNS_ACTIVE, CNS_CONTROLLER, CNS_DESCRIPTORS, CNS_NAMESPACE, FABRICS, GET_LOG_PAGE,
    IDENTIFY, KEEP_ALIVE, LOG_DISCOVERY, PROPERTY_GET, PROPERTY_SET, SET_FEATURES, Sqe,
};
use nvme::discovery::{self, Record};
use nvme::identify::{Controller as Page, PAGE_BYTES, active_page, descriptor_page};
use nvme::pdu::FromHost;
use nvme::property::{self, Capabilities, Phase};

use crate::connection::{Connection, End, sequence};
use crate::controller::Controller;
use crate::mistake::Mistake;
use crate::{Counts, Shared};

/// Length of a submission queue entry, in units of 16 bytes.
const SQE_UNITS: u32 = 4;

/// The answer to a command.
enum Answer {
    Result(u64),
    Data(Vec<u8>),
}

/// Serves the admin queue to its end.
pub(crate) fn serve(connection: &mut Connection, controller: &Controller) -> Result<(), End> {
    loop {
        let FromHost::Command { sqe, data_bytes } = connection.read_pdu()? else {
            return Err(sequence("a PDU that is no command").into());
        };
        connection.read_capsule_data(data_bytes)?;
        let id = sqe.command_id.get();
        match answer(&connection.shared, controller, &sqe) {
            Ok(Answer::Result(result)) => connection.respond(id, result, Status::SUCCESS),
            Ok(Answer::Data(mut data)) => {
                data.truncate(sqe.data_bytes() as usize);
                let mistakes = &connection.shared.subsystem.mistakes;
                if mistakes.take_of_admin(Mistake::ShortPage) {
                    data.truncate(data.len() / 2);
                }
                connection.respond_with(id, &data)?;
            }
            Err(status) => connection.respond(id, 0, status.do_not_retry()),
        }
    }
}

fn answer(shared: &Shared, controller: &Controller, sqe: &Sqe) -> Result<Answer, Status> {
    if !sqe.is_well_formed() {
        return Err(Status::INVALID_FIELD);
    }
    match sqe.opcode {
        FABRICS => property(shared, controller, sqe).map(Answer::Result),
        KEEP_ALIVE => {
            Counts::add(&shared.counts.keep_alives, 1);
            Ok(Answer::Result(0))
        }
        IDENTIFY => identify(shared, controller, sqe).map(Answer::Data),
        SET_FEATURES => {
            let wanted = sqe.as_queues().ok_or(Status::INVALID_FIELD)?;
            let granted = wanted.min(shared.subsystem.queues);
            Ok(Answer::Result(command::queues_result(granted)))
        }
        GET_LOG_PAGE => log(shared, sqe).map(Answer::Data),
        _ => Err(Status::INVALID_OPCODE),
    }
}

fn property(shared: &Shared, controller: &Controller, sqe: &Sqe) -> Result<u64, Status> {
    let (offset, value) = sqe.as_property();
    match (sqe.fabrics_type(), offset) {
        (PROPERTY_GET, property::CAP) => {
            let capabilities = Capabilities {
                queue_entries: shared.subsystem.queue_entries,
                ready_ms: shared.subsystem.ready_ms,
                page_bytes: 4096,
            };
            Ok(capabilities.to_bits())
        }
        (PROPERTY_GET, property::VS) => Ok(nvme::identify::VERSION.into()),
        (PROPERTY_GET, property::CC) => Ok(controller.configuration().into()),
        (PROPERTY_GET, property::CSTS) => {
            let mistakes = &shared.subsystem.mistakes;
            Ok(match Phase::after(controller.configuration()) {
                _ if mistakes.take_of_admin(Mistake::NotReady) => 0,
                _ if mistakes.take_of_admin(Mistake::Failed) => property::FATAL.into(),
                csts => csts.into(),
            })
        }
        (PROPERTY_SET, property::CC) => {
            let mistakes = &shared.subsystem.mistakes;
            if !mistakes.take_of_admin(Mistake::NeverReady) {
                controller.configure(value);
            }
            if Phase::of(Phase::after(value)) == Phase::ShutDown {
                Counts::add(&shared.counts.shutdowns, 1);
            }
            Ok(0)
        }
        _ => Err(Status::INVALID_FIELD),
    }
}

fn identify(shared: &Shared, controller: &Controller, sqe: &Sqe) -> Result<Vec<u8>, Status> {
    let subsystem = &shared.subsystem;
    if (sqe.data_bytes() as usize) < PAGE_BYTES {
        return Err(Status::INVALID_SGL_LENGTH);
    }
    let disks = &subsystem.disks;
    match sqe.as_cns() {
        CNS_CONTROLLER => Ok(Page {
            serial: "1".to_owned(),
            model: "devmem-tcp test target".to_owned(),
            id: controller.id,
            transfer_log2: subsystem.transfer_log2,
            capsule_units: SQE_UNITS + subsystem.capsule_bytes / 16,
            capsule_offset: 0,
            deallocates: subsystem.has_optional_commands,
            writes_zeroes: subsystem.has_optional_commands,
            has_volatile_cache: disks.iter().any(|disk| disk.has_volatile_cache()),
            max_commands: u16::try_from(subsystem.queue_entries).unwrap_or(u16::MAX),
            subsystem_nqn: subsystem.nqn.clone(),
        }
        .to_page()),
        CNS_ACTIVE => {
            let numbered = (1..).zip(disks);
            let after = sqe.nsid();
            let active = numbered.filter(|(nsid, disk)| *nsid > after && disk.is_active());
            Ok(active_page(active.map(|(nsid, _)| nsid)))
        }
        CNS_NAMESPACE => {
            let index = sqe.nsid().checked_sub(1).ok_or(Status::INVALID_NAMESPACE)?;
            let disk = disks.get(index as usize).ok_or(Status::INVALID_NAMESPACE)?;
            Ok(disk.identify().to_page())
        }
        CNS_DESCRIPTORS => {
            let index = sqe.nsid().checked_sub(1).ok_or(Status::INVALID_NAMESPACE)?;
            let disk = disks.get(index as usize).filter(|disk| disk.is_active());
            disk.ok_or(Status::INVALID_NAMESPACE)?;
            Ok(descriptor_page(uuid_of(&subsystem.nqn, sqe.nsid())))
        }
        _ => Err(Status::INVALID_FIELD),
    }
}

/// Returns the identifier of a namespace: another one in each subsystem.
fn uuid_of(nqn: &str, nsid: u32) -> [u8; 16] {
    let mut id = [0_u8; 16];
    for (at, byte) in nqn.bytes().enumerate() {
        id[at % 12] = id[at % 12].wrapping_mul(31).wrapping_add(byte);
    }
    id[12..].copy_from_slice(&nsid.to_be_bytes());
    // A UUID of version 8 (RFC 9562 5.8).
    id[6] = id[6] & 0x0f | 0x80;
    id[8] = id[8] & 0x3f | 0x80;
    id
}

fn log(shared: &Shared, sqe: &Sqe) -> Result<Vec<u8>, Status> {
    let (LOG_DISCOVERY, range) = sqe.as_log() else {
        return Err(Status::INVALID_FIELD);
    };
    let record = Record {
        is_tcp: true,
        has_namespaces: true,
        address: shared.address.ip().to_string(),
        port: shared.address.port().to_string(),
        subsystem_nqn: shared.subsystem.nqn.clone(),
    };
    let bytes = discovery::log(&[record]);
    let start = usize::try_from(range.start).unwrap_or(usize::MAX);
    let end = usize::try_from(range.end).unwrap_or(usize::MAX);
    let asked = bytes.get(start..end.min(bytes.len()));
    Ok(asked.ok_or(Status::INVALID_FIELD)?.to_vec())
}
