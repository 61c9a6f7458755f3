//! bind-tx: dma-bufs that programs send from.
//!
//! The NIC does not change: a binding gives the memory an id, under which sends name ranges of it. Ids are shared with
//! receive bindings, as in the kernel; an id of the wrong kind is refused.

use devmem_uapi::Errno;
use netmem::GeometryError;
use thiserror::Error;

/// Why memory was not bound for sending; nothing has changed then.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BindTxError {
    /// The size of the dma-buf is not a multiple of the page size.
    #[error("the dma-buf is not made of whole pages: {0}")]
    Geometry(GeometryError),
    /// Every id is in use.
    #[error("every dma-buf id is in use")]
    NoId,
    /// There is no host memory through which payload of a device could be sent.
    #[error("no host memory to stage the device's payload in: {0}")]
    Staging(String),
}

impl BindTxError {
    /// Returns the errno of the same refusal by the kernel.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::Geometry(_) => Errno::EINVAL,
            Self::NoId => Errno::ENOSPC,
            Self::Staging(_) => Errno::ENOMEM,
        }
    }

    /// Returns what to do about it.
    pub const fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::NoId => Some("unbind some"),
            Self::Geometry(error) => Some(error.remedy()),
            Self::Staging(_) => None,
        }
    }
}

impl From<GeometryError> for BindTxError {
    fn from(error: GeometryError) -> Self {
        Self::Geometry(error)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Bindings, Bound};
    use super::*;
    use std::net::IpAddr;

    use devmem_uapi::DmabufId;
    use netmem::{Dmabuf, FragSource};
    use wire::MacAddr;

    use crate::route::Routes;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn bindings() -> Bindings {
        let mut bindings = Bindings::default();
        let memory = FragSource::new(&Dmabuf::anonymous(4096).unwrap(), DmabufId(1)).unwrap();
        bindings.insert(DmabufId(1), Bound::Sending(memory));
        bindings
    }

    #[test]
    fn a_peer_without_a_route_is_ehostunreach() {
        let routes =
            Routes::new(MacAddr([2, 0, 0, 0, 0, 1]), &[(ip("10.0.0.1"), 24)], &[]).unwrap();
        let bindings = bindings();
        let send = |remote| bindings.tx(DmabufId(1), &routes, ip(remote)).map(drop);
        assert_eq!(send("10.0.0.2"), Ok(()));
        assert_eq!(send("10.0.0.1"), Ok(()), "our own address");
        let refused = send("10.9.0.2").unwrap_err();
        assert_eq!(refused.errno(), Errno::EHOSTUNREACH);
    }

    #[test]
    fn receive_and_send_bindings_share_the_ids() {
        let bindings = bindings();
        assert_eq!(bindings.next_id(), Some(DmabufId(2)));
    }
}
