//! Compile-time check that the target architecture uses the generic uAPI numbers.

// alpha and parisc have no Rust target today, so the compiler does not know their names; the check
// is ready for the day they have one.
#![allow(unexpected_cfgs)]

#[cfg(any(
    target_arch = "alpha",
    target_arch = "hppa",
    target_arch = "parisc",
    target_arch = "mips",
    target_arch = "mips32r6",
    target_arch = "mips64",
    target_arch = "mips64r6",
    target_arch = "sparc",
    target_arch = "sparc64",
))]
compile_error!(
    "this architecture numbers socket options and errnos differently \
     (linux arch/*/include/uapi/asm/socket.h); devmem-uapi only knows the generic numbers"
);

#[cfg(any(target_arch = "powerpc", target_arch = "powerpc64"))]
compile_error!(
    "this architecture numbers ioctls differently (linux arch/powerpc/include/uapi/asm/ioctl.h); devmem-uapi only \
     knows the generic numbers"
);
