//! What to do about errors of the driver.

use devmem_gpu::driver::is_fatal;

pub(crate) fn remedy(call: &str, code: i32) -> &'static str {
    match (call, code) {
        ("cuMemGetHandleForAddressRange", 801) => {
            "dma-bufs need NVIDIA's open kernel module: `modinfo -F license nvidia` must say MIT/GPL"
        }
        ("cuModuleLoadData", 221) => {
            "libnvidia-ptxjitcompiler.so.1 is missing: install all of the driver, also in the container"
        }
        ("cuModuleLoadData", 223) => {
            "unset CUDA_DISABLE_PTX_JIT: the driver compiles the addition for the GPU"
        }
        ("cuModuleLoadData", 200 | 209 | 218 | 222) => {
            "the driver does not take this program's code for GPUs (PTX 6.0, sm_50): install a newer driver, or add on the CPU"
        }
        ("cuMemHostRegister", 712) => "the host memory is registered already; unregister it first",
        ("cuMemHostRegister", _) => {
            "raise the limit of locked memory (`ulimit -l`), or free host memory"
        }
        (_, 1) => {
            "a program error, or the driver does not know this request: install a newer driver"
        }
        (_, 2) => {
            "the device has less free memory than that: `nvidia-smi` shows which process uses it"
        }
        (_, 3) => {
            "CUDA does not work in a child by fork(2): start the process in another way (spawn)"
        }
        (_, 34) => "this libcuda is the development kit's stub: remove it from LD_LIBRARY_PATH",
        (_, 36 | 803) => {
            "library and kernel module of the driver differ: load the module again, or reboot"
        }
        (_, 46) => "another process uses the device exclusively: `nvidia-smi -q -d COMPUTE`",
        (_, 100 | 101) => {
            "no GPU is visible: see `nvidia-smi -L`, CUDA_VISIBLE_DEVICES and the container's devices"
        }
        (_, 802) => "start the fabric manager: `systemctl start nvidia-fabricmanager`",
        (_, 800 | 801) => "the device or its driver cannot do this: see `devmem-tcp doctor`",
        _ if is_fatal(code) => {
            "the device is lost for this process: read `dmesg` (lines with Xid), and restart the program"
        }
        _ => "see `devmem-tcp doctor` and `nvidia-smi`",
    }
}
