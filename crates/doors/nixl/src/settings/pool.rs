//! Memory of a GPU that a NIC receives payload into.

use super::given::{Given, bad};
use super::number;
use super::require::Require;
use crate::status::Failure;

/// Pages of drivers, and of bindings to NICs.
const PAGE_BYTES: u64 = 4096;

/// Twice the data of the largest rings, and room for what is being gathered.
const DEFAULT_BYTES: usize = 64 << 20;

/// The memory, and where it is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolSettings {
    pub(crate) bytes: usize,
    /// RX queues of the NIC.
    pub(crate) queues: u16,
    /// `None`: the GPU that is current in the thread that makes the agent, else the first one.
    pub(crate) gpu: Option<u32>,
    /// Whether bytes that did not arrive in it are an error.
    pub(crate) is_strict: bool,
}

impl PoolSettings {
    /// Reads the parameters. There is a pool if one is given or required.
    pub(super) fn parse(require: Require, given: &Given<'_>) -> Result<Option<Self>, Failure> {
        let is_strict = require == Require::Device;
        let bytes = match given.get("pool") {
            None if !is_strict => {
                given.refuse(
                    &["queues", "gpu"],
                    "there is no pool; give its bytes by pool=67108864",
                )?;
                return Ok(None);
            }
            None => DEFAULT_BYTES,
            Some(value) => bytes(value)?,
        };
        let queues = given.get("queues");
        let queues = queues.map(|value| number("queues", value, 1..=u64::from(u16::MAX)));
        let gpu = given.get("gpu");
        let gpu = gpu.map(|value| number("gpu", value, 0..=u64::from(u16::MAX)));
        Ok(Some(Self {
            bytes,
            queues: queues.transpose()?.unwrap_or(1),
            gpu: gpu.transpose()?.map(u32::from),
            is_strict,
        }))
    }
}

fn bytes(value: &str) -> Result<usize, Failure> {
    let parsed = value.parse::<u64>().ok();
    let parsed = parsed.filter(|bytes| *bytes > 0 && bytes.is_multiple_of(PAGE_BYTES));
    let parsed = parsed.and_then(|bytes| usize::try_from(bytes).ok());
    parsed.ok_or_else(|| {
        let remedy =
            "use a number of bytes that is a multiple of 4096, such as 67108864; or leave it out";
        bad("pool", value, remedy)
    })
}
