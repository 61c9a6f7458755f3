//! Parsing of an admin queue entry.

use gve_defs::adminq::{
    AdminqEntry, AdminqStatus, ConfigureDeviceResources, ConfigureRss, CreateRxQueue,
    CreateTxQueue, DescribeDevice, DestroyQueue, ExtendedCommand, GetPtypeMap, QueryFlowRules,
    QueryRss, ReportLinkSpeed, ReportStats, SetDriverParameter, VerifyDriverCompatibility, opcode,
};
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// An admin command of the driver.
#[derive(Clone, Copy, Debug)]
pub(super) enum AdminqCommand {
    DescribeDevice(DescribeDevice),
    ConfigureDeviceResources(ConfigureDeviceResources),
    DeconfigureDeviceResources,
    CreateTxQueue(CreateTxQueue),
    CreateRxQueue(CreateRxQueue),
    DestroyTxQueue(DestroyQueue),
    DestroyRxQueue(DestroyQueue),
    ConfigureRss(ConfigureRss),
    QueryRss(QueryRss),
    SetDriverParameter(SetDriverParameter),
    ReportStats(ReportStats),
    ReportLinkSpeed(ReportLinkSpeed),
    GetPtypeMap(GetPtypeMap),
    VerifyDriverCompatibility(VerifyDriverCompatibility),
    QueryFlowRules(QueryFlowRules),
    Extended(ExtendedCommand),
}

impl AdminqCommand {
    /// Parses an entry. Unsupported commands (such as those for queue page lists and the NIC's clock) are
    /// [`AdminqStatus::UNIMPLEMENTED`].
    pub(super) fn parse(entry: &AdminqEntry) -> Result<Self, AdminqStatus> {
        Ok(match entry.opcode.get() {
            opcode::DESCRIBE_DEVICE => Self::DescribeDevice(body(entry)?),
            opcode::CONFIGURE_DEVICE_RESOURCES => Self::ConfigureDeviceResources(body(entry)?),
            opcode::DECONFIGURE_DEVICE_RESOURCES => Self::DeconfigureDeviceResources,
            opcode::CREATE_TX_QUEUE => Self::CreateTxQueue(body(entry)?),
            opcode::CREATE_RX_QUEUE => Self::CreateRxQueue(body(entry)?),
            opcode::DESTROY_TX_QUEUE => Self::DestroyTxQueue(body(entry)?),
            opcode::DESTROY_RX_QUEUE => Self::DestroyRxQueue(body(entry)?),
            opcode::CONFIGURE_RSS => Self::ConfigureRss(body(entry)?),
            opcode::QUERY_RSS => Self::QueryRss(body(entry)?),
            opcode::SET_DRIVER_PARAMETER => Self::SetDriverParameter(body(entry)?),
            opcode::REPORT_STATS => Self::ReportStats(body(entry)?),
            opcode::REPORT_LINK_SPEED => Self::ReportLinkSpeed(body(entry)?),
            opcode::GET_PTYPE_MAP => Self::GetPtypeMap(body(entry)?),
            opcode::VERIFY_DRIVER_COMPATIBILITY => Self::VerifyDriverCompatibility(body(entry)?),
            opcode::QUERY_FLOW_RULES => Self::QueryFlowRules(body(entry)?),
            opcode::EXTENDED_COMMAND => Self::Extended(body(entry)?),
            _ => return Err(AdminqStatus::UNIMPLEMENTED),
        })
    }
}

/// Reads the struct of a command from the start of an entry's body.
fn body<T: FromBytes + KnownLayout + Immutable>(entry: &AdminqEntry) -> Result<T, AdminqStatus> {
    match T::read_from_prefix(&entry.body) {
        Ok((value, _)) => Ok(value),
        Err(_) => Err(AdminqStatus::INVALID_ARGUMENT),
    }
}
