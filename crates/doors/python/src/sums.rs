//! The checksums that servers have of the files of a checkpoint.

use devmem_tcp::{Dmabuf as Memory, Errno, ErrorKind};
use devmem_transfer::load::{CancelCheck, Checkpoint, Compared, ComparedFile, Loader};

use crate::error::Error;

/// Checks that the tensors in `memory` have the checksums of their files.
///
/// # Errors
/// One has another checksum, or has none to compare.
pub(crate) fn check(
    checkpoint: &Checkpoint,
    loader: &Loader,
    memory: &Memory,
    cancel_check: &mut CancelCheck<'_>,
) -> Result<(), Error> {
    for ComparedFile { file, outcome, .. } in checkpoint.compare(loader, memory, cancel_check)? {
        match outcome {
            Ok(compared) if compared.is_equal() => {}
            Ok(Compared {
                kind,
                stored,
                loaded,
                ..
            }) => {
                let reason = format!(
                    "the {kind} of what was loaded of {file} is {loaded}, and the server has {stored}"
                );
                let remedy = "load it again; if the server's file is damaged, the same checksum comes again: upload it again from a good copy";
                let (kind, errno) = (ErrorKind::DataLost, Errno::EIO.0);
                return Err(Error::of_load(kind, errno, reason, Some(remedy.into())));
            }
            Err(why) => {
                let reason = format!("{file} cannot be compared with a checksum: {why}");
                let remedy = "store it with one, or leave out checksums=";
                let (kind, errno) = (ErrorKind::Unsupported, Errno::EOPNOTSUPP.0);
                return Err(Error::of_load(kind, errno, reason, Some(remedy.into())));
            }
        }
    }
    Ok(())
}
