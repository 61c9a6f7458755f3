//! Why bytes did not land in device memory.

use devmem_uapi::DmabufId;

/// Why bytes are in host memory although device memory is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misplacement {
    /// The interface.
    pub interface: String,
    /// The binding into which they should have been received, if there is one.
    pub dmabuf: Option<DmabufId>,
    /// The reason, in one line.
    pub reason: String,
    /// The remedy.
    pub hint: String,
}

pub(super) fn words(bytes: usize, cause: Option<&Misplacement>) -> String {
    let Some(cause) = cause else {
        return format!(
            "{bytes} bytes arrived in host memory, not in device memory\n  the flow is not steered to a bound queue, or \
             the NIC left payload with the headers; `set_placement(Placement::Mixed)` delivers them"
        );
    };
    let Misplacement {
        interface,
        dmabuf,
        reason,
        hint,
    } = cause;
    let memory = match dmabuf {
        Some(dmabuf) => format!("dma-buf {dmabuf}"),
        None => "device memory".to_owned(),
    };
    format!(
        "recv on {interface}: {bytes} bytes arrived in host memory, not in {memory}\n  {reason}\n  {hint}"
    )
}
