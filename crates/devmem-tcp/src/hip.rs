//! Memory of AMD GPUs, with the feature `hip`: as [`cuda`](crate::cuda), with ROCm's library (6.0 or newer), which
//! is loaded when it is first used. It has not run on a GPU yet.
//!
//! With a user-space NIC, payload passes through pinned host memory, and the GPU copies it. A NIC of the kernel is refused:
//! Linux moves memory of AMD GPUs to the host while a NIC is attached, and the GPU does not see what the NIC writes.
//!
//! ```no_run
//! use devmem_tcp::{Netdev, hip};
//!
//! let memory = hip::alloc(0, 256 << 20)?;
//! let nic = Netdev::user("tap:devmem0", "10.77.0.2/24")?;
//! let setup = nic.plan_receive("10.77.0.2:5201".parse()?).queues(1).apply()?;
//! let rx = nic.bind_rx(&memory, setup.queues())?;
//! # drop(rx);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use devmem_hip::{
    Allocation, Device, DeviceInfo, GpuError, LoadError, PLATFORM, Platform, Version, alloc,
    devices, open,
};
