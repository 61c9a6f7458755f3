//! What to do about errors of the library.

use devmem_gpu::driver::is_fatal;

pub(crate) fn remedy(call: &str, code: i32) -> &'static str {
    match (call, code) {
        ("hipMemGetHandleForAddressRange", _) => {
            "dma-bufs need ROCm 7.0, or libhsa-runtime64.so.1 of ROCm 5.3 or newer (DEVMEM_LIBHSA names its file), and a kernel with CONFIG_DMABUF_MOVE_NOTIFY; the user-space stack needs none"
        }
        ("hsa_amd_portable_export_dmabuf", 801) => {
            "before ROCm 7.0, whole allocations are exported: allocate a multiple of 2 MiB, and adopt none that is a part of a larger one"
        }
        ("hsa_amd_portable_export_dmabuf", _) => {
            "dma-bufs need a kernel with CONFIG_DMABUF_MOVE_NOTIFY and a kernel module amdgpu with KFD ioctls 1.12 or newer; the user-space stack needs none"
        }
        ("hipHostRegister", 712) => "the host memory is registered already: unregister it first",
        ("hipHostRegister", _) => "allow more locked memory (`ulimit -l unlimited`), or free some",
        (_, 1) => {
            "a program error, or the library does not know this request: install a newer ROCm"
        }
        (_, 2) => {
            "the device has less free memory than that: `rocm-smi --showmeminfo vram` shows it"
        }
        (_, 3) => {
            "HIP does not work in a child by fork(2): start the process in another way (spawn)"
        }
        (_, 35) => "the kernel's amdgpu module is too old for this ROCm: install a newer one",
        (_, 100 | 101) => {
            "no GPU is visible: /dev/kfd and /dev/dri/renderD* must be accessible (groups render and video), see `rocm-smi` and HIP_VISIBLE_DEVICES"
        }
        (_, 801) => "the device or its library cannot do this: see `devmem-tcp doctor`",
        _ if is_fatal(code) => {
            "the device is lost for this process: read `dmesg` (lines with amdgpu), and restart the program"
        }
        _ => "see `devmem-tcp doctor` and `rocm-smi`",
    }
}
