//! Reasons and remedies of errors, as values: no remedy is read from the text of an error.

use std::error::Error;
use std::io;
use std::sync::OnceLock;

use devmem_linux::broker::BrokerError;
use devmem_linux::macvtap::MacvtapError;
use devmem_linux::netlink::NetlinkError;
use devmem_linux::netns::NetnsError;
use devmem_linux::nic_setup::StateError;
use devmem_linux::packet::PacketError;
use devmem_linux::tap::TapError;
use devmem_tcp::Remedy;
use rustix::io::Errno;

use crate::remedy::words;

/// Reason and remedy of an error, in the words of a program.
pub type Explained = (String, Option<String>);

/// Explains an error, if it is one that the program knows.
pub type Explainer = fn(&(dyn Error + 'static)) -> Option<Explained>;

static EXPLAINER: OnceLock<Explainer> = OnceLock::new();

/// Sets what explains errors of libraries that this one does not know, before the first failure.
pub fn set_explainer(explainer: Explainer) {
    // A second call would be a mistake without consequences.
    let _ = EXPLAINER.set(explainer);
}

/// Returns the reason of an error, without its remedy.
pub fn reason(error: &(dyn Error + 'static)) -> String {
    explain(error).0
}

/// Returns the reason of an error, and its remedy if that is known.
pub(crate) fn explain(error: &(dyn Error + 'static)) -> Explained {
    // The text of an I/O error is that of the error in it.
    let io = error.downcast_ref::<io::Error>();
    if let Some(inner) = io.and_then(io::Error::get_ref) {
        return explain(inner);
    }
    let known = of_library(error)
        .or_else(|| of_system(error))
        .or_else(|| EXPLAINER.get().and_then(|explain| explain(error)));
    known.unwrap_or_else(|| (error.to_string(), None))
}

/// An error of the library, or of the memory of devices.
fn of_library(error: &(dyn Error + 'static)) -> Option<Explained> {
    let remedy = Remedy::of(error)?;
    Some((error.to_string(), Some(words(remedy))))
}

fn of_system(error: &(dyn Error + 'static)) -> Option<Explained> {
    macro_rules! first_of {
        ($($kind:ty),*) => {$(
            if let Some(error) = error.downcast_ref::<$kind>() {
                return Some((error.to_string(), error.remedy().map(Into::into)));
            }
        )*};
    }
    first_of!(
        TapError,
        NetnsError,
        StateError,
        PacketError,
        MacvtapError,
        BrokerError
    );
    let error = error.downcast_ref::<NetlinkError>()?;
    let remedy = match error.errno {
        Errno::PERM | Errno::ACCESS => {
            Some("run as root: setting up an interface needs CAP_NET_ADMIN")
        }
        Errno::NODEV => Some("`ip link` lists the interfaces of this network namespace"),
        _ => None,
    };
    Some((error.to_string(), remedy.map(Into::into)))
}
