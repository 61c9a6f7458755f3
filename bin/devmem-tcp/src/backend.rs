//! Whose stack a run uses: as it was told, or by what the machine can.

use devmem_tcp::{BackendKind, Choice, Purpose};

use crate::args::BackendChoice;
use crate::plan::LinkPlan;
use tool::output::{Failure, note};

/// Whose stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Ours, on a TAP.
    User,
    /// The kernel's, on this interface.
    Kernel(String),
}

/// Decides. `users_alone` is an option that was given and that only our own NIC has. Where there was a choice, says
/// what was chosen and why.
///
/// # Errors
///
/// Options that do not go together; no such interface.
pub fn choose(
    link: &LinkPlan,
    users_alone: Option<&str>,
    purpose: Purpose,
) -> Result<Backend, Failure> {
    match (link.backend, &link.interface, users_alone) {
        (BackendChoice::User, None, _) => Ok(Backend::User),
        (BackendChoice::User, Some(_), _) => Err(Failure::usage(
            "--if: the user backend has interfaces of its own; --link names them",
        )),
        (BackendChoice::Kernel, _, Some(option)) => Err(Failure::usage(format!(
            "{option}: only the user backend has it"
        ))),
        (BackendChoice::Kernel, Some(name), None) => Ok(Backend::Kernel(name.clone())),
        (BackendChoice::Auto | BackendChoice::Kernel, None, _) => {
            note("the user backend: --if names no interface of the kernel");
            Ok(Backend::User)
        }
        (BackendChoice::Auto, Some(_), Some(option)) => {
            note(format_args!("the user backend: only it has {option}"));
            Ok(Backend::User)
        }
        (BackendChoice::Auto, Some(name), None) => {
            let choice = Choice::examine(name, purpose)?;
            note(&choice);
            Ok(match choice.backend() {
                BackendKind::User => Backend::User,
                BackendKind::Kernel => Backend::Kernel(name.clone()),
            })
        }
    }
}
