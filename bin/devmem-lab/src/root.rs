//! In a guest: the root file system made of packages, for programs that are started there by chroot(1), or as the root of this process.

use std::fs;

use anyhow::Context as _;
use rustix::mount::{mount_bind, mount_bind_recursive, mount_move};
use rustix::process::{chdir, chroot};

use crate::places::ROOT;

/// The file systems of the guest that are mounted there.
const SHARED: &[&str] = &["proc", "sys", "dev", "run", "tmp"];
/// Our own files, which a process in that root still needs.
const OURS: &str = "/lab";
const BUSYBOX: &str = "/bin/busybox";

/// Makes the root file system of packages usable for chroot(1).
///
/// # Errors
///
/// A file system cannot be mounted.
pub fn set_up_root() -> anyhow::Result<()> {
    // `ip netns exec` changes the mounts at /, which must therefore be a mount.
    mount_bind(ROOT, ROOT).context("make the root file system a mount")?;
    for name in SHARED {
        let place = format!("{ROOT}/{name}");
        fs::create_dir_all(&place)?;
        mount_bind_recursive(format!("/{name}"), &place)
            .with_context(|| format!("mount {place}"))?;
    }
    Ok(())
}

/// Makes the root file system of packages the root of this process and its children, for good; our files are at /lab there, too. Unlike in
/// a chroot, user namespaces can be made in it: the kernel compares a process' root with that of its mount namespace (linux fs/namespace.c
/// `current_chrooted`).
///
/// # Errors
///
/// A file system cannot be mounted or moved.
pub fn enter_root() -> anyhow::Result<()> {
    set_up_root()?;
    let place = format!("{ROOT}{OURS}");
    fs::create_dir_all(&place)?;
    mount_bind(OURS, &place).context("mount our files")?;
    // What the links in /lab/busybox lead to. The packages have no mount(8).
    fs::copy(BUSYBOX, format!("{ROOT}{BUSYBOX}")).context("copy busybox")?;
    chdir(ROOT)?;
    mount_move(".", "/").context("move the root file system to /")?;
    chroot(".")?;
    chdir("/")?;
    Ok(())
}
