//! In a guest: the root file system made of packages, for programs that are started there by chroot(1).

use std::fs;

use anyhow::Context as _;
use rustix::mount::{mount_bind, mount_bind_recursive};

use crate::places::ROOT;

/// The file systems of the guest that are mounted there.
const SHARED: &[&str] = &["proc", "sys", "dev", "run", "tmp"];
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
