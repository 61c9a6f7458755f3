//! Why bytes did not land in device memory.

use devmem_uapi::DmabufId;

use super::Remedy;

/// Why bytes are in host memory although device memory is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misplacement {
    /// The interface.
    pub interface: String,
    /// The binding into which they should have been received, if there is one.
    pub dmabuf: Option<DmabufId>,
    /// The reason, in one line.
    pub reason: String,
    /// What to do about it.
    pub remedy: Remedy,
}

/// Returns the reason of a receive that met such bytes.
pub(super) fn reason(bytes: usize, cause: Option<&Misplacement>) -> String {
    let Some(cause) = cause else {
        return format!("{bytes} bytes arrived in host memory, not in device memory");
    };
    let Misplacement {
        interface,
        dmabuf,
        reason,
        ..
    } = cause;
    let memory = match dmabuf {
        Some(dmabuf) => format!("dma-buf {dmabuf}"),
        None => "device memory".to_owned(),
    };
    format!("recv on {interface}: {bytes} bytes arrived in host memory, not in {memory}: {reason}")
}

/// Returns what to do about it.
pub(super) fn remedy(cause: Option<&Misplacement>) -> Remedy {
    cause.map_or(Remedy::AcceptHostMemory, |cause| cause.remedy.clone())
}
