//! Device memory beside [`Dmabuf`](crate::Dmabuf) itself: how it is made from the kernel, what providers of memory implement, how the
//! CPU and copy engines access it, who holds it, what is steered into it, why bytes did not land in it, and what can go wrong.

pub use netmem::{
    Chunks, CopyEngine, CopyError, CpuAccess, CpuView, DeviceError, DeviceGather, DeviceState,
    DmabufError, Exporter, Fence, GeometryError, InUse, InUseReason, Lane, LentMemory,
    MemoryObserver, NoRoom, OutOfBounds, PageKind, RangeCrc32c, RoomHolder, check_room,
};

pub use crate::batch::gather::BatchGather;
pub use crate::error::{HeldMemory, HeldUnit, Misplacement};
pub use crate::kernel::{dma_heap, import, udmabuf};
pub use crate::plan::SteeredPeer;
