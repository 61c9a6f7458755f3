//! Interfaces of the kernel: set-up and bindings. The sockets are those of libc.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use devmem_tcp::{BindError, BindOptions, BoundRx, BoundTx, Netdev, NiovSize, Setup};
use devmem_uapi::Errno;
use netmem::Dmabuf;

use crate::failure::Failure;
use crate::handles::Handles;

/// An interface of the kernel with its bindings. They are dropped before the set-up, which restores the previous settings.
#[derive(Debug)]
pub(crate) struct KernelNic {
    bindings: Mutex<BTreeMap<u32, KernelBinding>>,
    setup: Option<Setup>,
    netdev: Netdev,
    options: BindOptions,
}

/// A binding, which ends when it is dropped.
#[derive(Debug)]
#[expect(dead_code, reason = "held for their Drop")]
enum KernelBinding {
    Rx(BoundRx),
    Tx(BoundTx),
}

static NICS: Handles<KernelNic> = Handles::new();

/// Settings of `dmt_nic_open`.
#[derive(Debug, PartialEq, Eq)]
struct NicSettings {
    /// Local address and port to receive on; `None` changes no setting of the interface.
    receive: Option<SocketAddr>,
    queues: u16,
    rights: Rights,
    /// Size of the net_iovs; `None` for a page.
    niov: Option<NiovSize>,
}

/// What this process may do with the interface.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Rights {
    /// Set it up.
    All,
    /// Bind to queues that its agent has set up.
    Bind,
    /// As `Bind`, by the broker at this path.
    Ask(PathBuf),
}

fn parse(text: &str) -> Result<NicSettings, Failure> {
    let mut settings = NicSettings {
        receive: None,
        queues: 1,
        rights: Rights::All,
        niov: None,
    };
    let parts = text.split(',').map(str::trim);
    for part in parts.filter(|part| !part.is_empty()) {
        let invalid = |what: &str| Failure::new(Errno::EINVAL, format!("{part:?}: {what}"));
        match part.split_once('=') {
            Some(("receive", address)) => {
                let address = address.parse();
                let address = address
                    .map_err(|_| invalid("write receive=10.77.0.2:5201 or receive=[fd77::2]:5201"));
                settings.receive = Some(address?);
            }
            Some(("queues", number)) => {
                let number = number.parse();
                settings.queues = number.map_err(|_| invalid("write queues=1"))?;
            }
            Some(("configured", "yes")) if settings.rights == Rights::All => {
                settings.rights = Rights::Bind;
            }
            // A broker is of a configured interface.
            Some(("configured", "yes")) => {}
            Some(("broker", path)) if !path.is_empty() => {
                settings.rights = Rights::Ask(path.into());
            }
            Some(("niov", bytes)) => {
                let size = bytes
                    .parse()
                    .ok()
                    .and_then(|bytes| NiovSize::new(bytes).ok());
                let size = size.ok_or_else(|| {
                    invalid("a net_iov has a power of two of bytes from 4096 to 2097152")
                });
                settings.niov = Some(size?);
            }
            _ => {
                return Err(invalid(
                    "there are the settings receive=ADDRESS:PORT, queues=N, niov=BYTES, configured=yes and broker=PATH",
                ));
            }
        }
    }
    Ok(settings)
}

/// Opens an interface, makes the settings for receiving, and returns its number.
pub(crate) fn open(interface: &str, settings: &str) -> Result<usize, Failure> {
    let NicSettings {
        receive,
        queues,
        rights,
        niov,
    } = parse(settings)?;
    let netdev = match rights {
        Rights::All => Netdev::kernel(interface),
        Rights::Bind => Netdev::configured(interface),
        Rights::Ask(broker) => Netdev::brokered(interface, broker),
    };
    let netdev = netdev.map_err(|error| Failure::of_open(&error))?;
    let plan = receive.map(|local| netdev.plan_receive(local).queues(queues));
    let setup = plan.map(devmem_tcp::ReceivePlan::apply).transpose();
    let setup = setup.map_err(|error| Failure::of(error.errno(), &error))?;
    Ok(NICS.insert(KernelNic {
        bindings: Mutex::default(),
        setup,
        netdev,
        options: niov.map_or_else(BindOptions::new, |size| BindOptions::new().niov_size(size)),
    }))
}

/// Returns the interface with this number; EBADF if there is none, EOWNERDEAD if it belongs to the parent of this process.
pub(crate) fn nic(number: usize) -> Result<Arc<KernelNic>, Failure> {
    let nic = NICS.get(number);
    nic.map_err(|errno| Failure::of_handle(errno, "interface"))
}

/// Ends the bindings of an interface and restores its previous settings.
pub(crate) fn close(number: usize) -> Result<(), Failure> {
    let removed = NICS.remove(number);
    let nic = removed.map_err(|errno| Failure::of_handle(errno, "interface"))?;
    nic.bindings
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clear();
    Ok(())
}

impl KernelNic {
    /// Binds a memory to the queues of the set-up, and returns the id of the binding.
    pub(crate) fn bind_rx(&self, memory: &Dmabuf) -> Result<u32, Failure> {
        let setup = self.setup.as_ref().ok_or_else(|| {
            Failure::new(
                Errno::EINVAL,
                "the interface is not set up for receiving; open it with receive=ADDRESS:PORT in SETTINGS",
            )
        })?;
        let bound = self
            .netdev
            .bind_rx_with(memory, setup.queues(), self.options);
        let bound = bound.map_err(|error| match &error {
            BindError::InUse(in_use) => Failure::of_in_use(in_use),
            error => Failure::of_bind(error.errno(), error),
        })?;
        Ok(self.insert(bound.id().0, KernelBinding::Rx(bound)))
    }

    /// Binds a memory for sending, and returns the id of the binding.
    pub(crate) fn bind_tx(&self, memory: &Dmabuf) -> Result<u32, Failure> {
        let bound = self.netdev.bind_tx(memory);
        let bound = bound.map_err(|error| Failure::of_bind(error.errno(), &error))?;
        Ok(self.insert(bound.id().0, KernelBinding::Tx(bound)))
    }

    fn insert(&self, id: u32, binding: KernelBinding) -> u32 {
        let mut bindings = self.bindings.lock().unwrap_or_else(PoisonError::into_inner);
        bindings.insert(id, binding);
        id
    }

    /// Ends a binding.
    pub(crate) fn unbind(&self, id: u32) -> Result<(), Failure> {
        let mut bindings = self.bindings.lock().unwrap_or_else(PoisonError::into_inner);
        let bound = bindings.remove(&id);
        drop(bindings);
        bound.map(drop).ok_or_else(|| Failure::no_binding(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_an_interface_are_read_or_refused() {
        let read = parse("receive=10.77.0.2:5201, queues=2").expect("valid");
        assert_eq!(read.receive, "10.77.0.2:5201".parse().ok());
        assert_eq!(read.queues, 2);
        assert_eq!((read.rights, read.niov), (Rights::All, None));
        let read = parse("receive=10.77.0.2:5201,configured=yes,niov=16384").expect("valid");
        let size = read.niov.map(NiovSize::bytes);
        assert_eq!((read.rights, size), (Rights::Bind, Some(16384)));
        for text in [
            "broker=/run/b,configured=yes",
            "configured=yes,broker=/run/b",
        ] {
            let read = parse(text).expect("valid");
            assert_eq!(read.rights, Rights::Ask("/run/b".into()), "{text}");
        }
        assert_eq!(parse("").expect("valid").receive, None);
        for text in [
            "receive=10.77.0.2",
            "queues=-1",
            "queues",
            "mtu=1500",
            "niov=16383",
            "niov=4194304",
            "configured",
            "broker=",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
