//! The choice of the stack that a run uses: the requested one, or one that the machine supports.

use devmem_tcp::choice::{BackendKind, Choice, Purpose};

use crate::args::BackendChoice;
use crate::plan::LinkPlan;
use tool::output::{Failure, note};

/// Name of the kernel's sockets in reports.
pub const SOCKETS: &str = "sockets";

/// The stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Our stack, on a TAP.
    User,
    /// The kernel's stack, on this interface.
    Kernel(String),
    /// The kernel's sockets, without device memory.
    Sockets,
}

/// Refuses the kernel's sockets for a command that needs device memory on the way.
///
/// # Errors
///
/// Always.
pub fn no_sockets<T>(command: &str) -> Result<T, Failure> {
    let text = format!("--backend sockets: only load has it, and {command} uses device memory");
    Err(Failure::usage(text))
}

/// Chooses the backend. `users_alone` is a given option that only our NIC supports. If there was a choice, prints it with its
/// reason.
///
/// # Errors
///
/// If options conflict, or the interface does not exist.
pub fn choose(
    link: &LinkPlan,
    users_alone: Option<&str>,
    purpose: Purpose,
) -> Result<Backend, Failure> {
    match (link.backend, &link.interface, users_alone) {
        (BackendChoice::User, None, _) => Ok(Backend::User),
        (BackendChoice::User, Some(_), _) => Err(Failure::usage(
            "--if: the user backend does not use it; use --link",
        )),
        (BackendChoice::Sockets, _, None) => Ok(Backend::Sockets),
        (BackendChoice::Sockets, _, Some(option)) => Err(Failure::usage(format!(
            "{option}: --backend sockets has no link of ours"
        ))),
        (BackendChoice::Kernel, _, Some(option)) => Err(Failure::usage(format!(
            "{option}: only the user backend supports it"
        ))),
        (BackendChoice::Kernel, Some(name), None) => Ok(Backend::Kernel(name.clone())),
        (BackendChoice::Auto | BackendChoice::Kernel, None, _) => {
            note("the user backend: --if does not name an interface of the kernel");
            Ok(Backend::User)
        }
        (BackendChoice::Auto, Some(_), Some(option)) => {
            note(format_args!("the user backend: only it supports {option}"));
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
