//! Choice of a backend: the kernel's stack if it supports device memory on the interface, else the user-space stack.

use std::fmt;

use devmem_linux::doctor::Doctor;

use crate::error::Error;
use crate::netdev::Netdev;
use crate::open::NetdevBuilder;

/// A backend: a TCP/IP stack and the NIC that it drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BackendKind {
    /// The stack in this process ([`Netdev::user`]).
    User,
    /// The kernel's stack, with one of its interfaces ([`Netdev::kernel`]).
    Kernel,
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::User => "user",
            Self::Kernel => "kernel",
        })
    }
}

/// Direction in which a program uses device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Receiving into it: `bind_rx`, which needs privilege, header split and a free queue.
    Receive,
    /// Sending from it: `bind_tx`.
    Send,
}

/// The backend chosen for an interface, with the reason. `Display` prints it as a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    interface: String,
    purpose: Purpose,
    obstacles: Vec<String>,
}

impl Choice {
    /// Examines the kernel, its interface `interface` and the privileges of this process. Changes nothing. Kernel support
    /// is probed with requests that cannot succeed, not derived from the version.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no such interface.
    pub fn examine(interface: &str, purpose: Purpose) -> Result<Self, Error> {
        let doctor = Doctor::examine(Some(interface))
            .map_err(|error| Error::no_interface(interface, &error))?;
        let obstacles = match purpose {
            Purpose::Receive => doctor.obstacles_to_receiving(),
            Purpose::Send => doctor.obstacles_to_sending(),
        };
        Ok(Self {
            interface: interface.to_owned(),
            purpose,
            obstacles,
        })
    }

    /// Returns the chosen backend: the kernel if there is no obstacle.
    pub fn backend(&self) -> BackendKind {
        match self.obstacles.is_empty() {
            true => BackendKind::Kernel,
            false => BackendKind::User,
        }
    }

    /// Returns the obstacles to using the kernel, the most general first; empty if the kernel was chosen.
    pub fn obstacles(&self) -> &[String] {
        &self.obstacles
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            interface,
            purpose,
            obstacles,
        } = self;
        let what = match purpose {
            Purpose::Receive => "receive into",
            Purpose::Send => "send from",
        };
        let backend = self.backend();
        match backend {
            BackendKind::Kernel => {
                write!(
                    f,
                    "the {backend} backend: {interface} can {what} device memory"
                )
            }
            BackendKind::User => write!(
                f,
                "the {backend} backend: {interface} cannot {what} device memory: {}; `devmem-tcp doctor {interface}` says more",
                obstacles.join("; ")
            ),
        }
    }
}

impl Netdev {
    /// Opens the kernel's interface `interface` if it supports device memory for `purpose`, else the user-space NIC `user`.
    /// Returns the NIC and the choice with its reason.
    ///
    /// ```
    /// use devmem_tcp::{choice::{BackendKind, Purpose}, Dmabuf, Netdev};
    ///
    /// let user = Netdev::builder("mem:auto")?.address("10.77.0.2/24")?;   // "tap:dm0" is a TAP interface
    /// let (nic, choice) = Netdev::auto("lo", Purpose::Receive, user)?;    // lo has no device memory; eth1 may
    /// eprintln!("{choice}");                                              // the user backend: lo cannot receive into ...
    /// assert_eq!(choice.backend(), BackendKind::User);
    /// let memory = Dmabuf::memfd(1 << 20)?;                               // for both: a kernel NIC binds it as a udmabuf
    /// # assert_eq!((nic.interface(), memory.size()), (None, 1 << 20));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The backend never changes after this call: if the kernel refuses something later, that call returns the error.
    /// The two NICs have different addresses: [`addresses`](Self::addresses) returns those of the chosen one.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no such interface; otherwise the reason why the user-space NIC, if chosen, cannot
    /// be opened.
    pub fn auto(
        interface: &str,
        purpose: Purpose,
        user: NetdevBuilder,
    ) -> Result<(Self, Choice), Error> {
        let choice = Choice::examine(interface, purpose)?;
        let nic = match choice.backend() {
            BackendKind::Kernel => Self::kernel(interface)?,
            BackendKind::User => user.open()?,
        };
        Ok((nic, choice))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lo_is_never_chosen_and_the_reason_is_said() {
        for (purpose, words) in [
            (Purpose::Receive, "lo cannot receive into device memory: "),
            (Purpose::Send, "lo cannot send from device memory: "),
        ] {
            let choice = Choice::examine("lo", purpose).expect("every machine has it");
            assert_eq!(choice.backend(), BackendKind::User);
            assert!(!choice.obstacles().is_empty());
            let said = choice.to_string();
            let expected = format!("the user backend: {words}{}", choice.obstacles().join("; "));
            assert!(said.starts_with(&expected), "{said}");
        }
    }

    #[test]
    fn without_obstacles_it_is_the_kernels() {
        let choice = Choice {
            interface: "eth1".to_owned(),
            purpose: Purpose::Send,
            obstacles: Vec::new(),
        };
        assert_eq!(choice.backend(), BackendKind::Kernel);
        let said = "the kernel backend: eth1 can send from device memory";
        assert_eq!(choice.to_string(), said);
    }

    #[test]
    fn an_interface_that_does_not_exist_is_an_error_and_not_a_choice() {
        let user = Netdev::builder("mem:auto-nosuch").expect("a link");
        let error = Netdev::auto("nosuch0", Purpose::Receive, user).expect_err("it is not there");
        assert!(
            error
                .to_string()
                .starts_with("there is no interface nosuch0")
        );
    }
}
