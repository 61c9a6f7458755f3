//! The files of a guest: our tool, busybox and other programs, the driver's modules, the job, and what the user puts there.

use std::path::Path;

use anyhow::Context as _;
use tool::output::Failure;

use crate::initramfs::Initramfs;
use crate::job::{INIT_PATH, JOB_PATH, Job, TOOL_PATH};
use crate::kit::Kit;
use crate::machine_plan::MachinePlan;

/// Start-up file of the interactive shell, which is busybox's, because it has line editing.
const SHELL_SETTINGS: &[u8] = b"for name in /usr/local/bin/*; do alias ${name##*/}=$name; done
PS1='\\w \\$ '
";
/// Process 1: the tool with the word that makes it run [`crate::guest`]. What the kernel passes on follows the word.
const INIT: &[u8] = b"#!/bin/devmem-tcp __guest\n";
/// Maximum bytes of the guest's root file system: below the limit of the archive format.
const INITRAMFS_MAX: usize = 2 << 30;
/// Returns the archive of a guest's root file system.
///
/// # Errors
///
/// A file cannot be read, or does not fit.
pub fn pack(kit: &Kit, plan: &MachinePlan, job: &Job) -> Result<Vec<u8>, Failure> {
    // Half of the memory: while booting, the guest stores both the archive and the unpacked files.
    let limit = usize::try_from(u64::from(plan.memory_mib) << 19).unwrap_or(usize::MAX);
    let mut archive = Initramfs::new(limit.min(INITRAMFS_MAX));
    archive
        .copy(&kit.busybox, "/bin/busybox")
        .context("pack busybox")?;
    // The shell of this machine, because busybox's prefers its built-in commands to those in the path.
    archive
        .program(Path::new("/bin/sh"), "/bin/sh")
        .context("pack the shell")?;
    archive.file("/etc/shrc", 0o644, SHELL_SETTINGS);
    archive
        .program(&plan.tool, TOOL_PATH)
        .with_context(|| format!("pack {}", plan.tool.display()))?;
    archive.file(INIT_PATH, 0o755, INIT);
    if let Some(root) = &kit.tools {
        for (name, from) in &kit.programs {
            let place = format!("/usr/local/bin/{name}");
            archive
                .packaged_program(root, from, &place)
                .with_context(|| format!("pack {name}"))?;
        }
    }
    let mut job = job.clone();
    for module in kit.kernel.modules_for(&plan.extra_drivers()) {
        let name = module
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let place = format!("/lab/modules/{name}");
        archive
            .copy(module, &place)
            .with_context(|| format!("pack {name}"))?;
        job.modules.push(place);
    }
    for (from, to) in &plan.put {
        archive
            .put(from, to)
            .with_context(|| format!("--put {}", from.display()))?;
    }
    for (from, to) in &plan.trees {
        archive
            .tree(from, to)
            .with_context(|| format!("pack {}", from.display()))?;
    }
    archive.file(
        "/etc/passwd",
        0o644,
        b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/sh\n",
    );
    archive.file("/etc/group", 0o644, b"root:x:0:\nnogroup:x:65534:\n");
    archive.file("/etc/hosts", 0o644, b"127.0.0.1 localhost\n::1 localhost\n");
    archive.file(JOB_PATH, 0o644, &serde_json::to_vec(&job)?);
    Ok(archive.finish())
}
