//! What the program insists on.

use std::fmt;

use super::given::bad;
use crate::status::Failure;

/// What the program insists on. A way that does less is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Require {
    /// Whatever works.
    Any,
    /// Payload is received straight into registered memory, and sent from there.
    Direct,
    /// No CPU copies payload: the NIC moves it from and to memory of a GPU, which gathers what was received.
    Device,
}

impl fmt::Display for Require {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Any => "any",
            Self::Direct => "direct",
            Self::Device => "device",
        })
    }
}

impl Require {
    pub(super) fn parse(value: &str) -> Result<Self, Failure> {
        match value {
            "any" => Ok(Self::Any),
            "direct" => Ok(Self::Direct),
            "device" => Ok(Self::Device),
            _ => Err(bad("require", value, "use any, direct or device")),
        }
    }
}
