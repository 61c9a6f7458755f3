//! The NIC settings that receiving into device memory needs: plan, apply, restore.

use std::fmt;
use std::net::SocketAddr;

use steer::RxQueueId;

use crate::backend::{Nic, Prepared, Steered};
use crate::error::Error;
use crate::flows::Flows;
use crate::restore::{Drift, RestoreReport};

/// The settings that a receiver needs, not applied yet. `Display` lists them, one per line.
///
/// They are: header split on with threshold 0; no device-memory queue in the RSS indirection table; rules that steer TCP for
/// the local address and port to the device-memory queues. These are the last queues of the NIC, never queue 0.
#[derive(Debug)]
#[must_use = "nothing changes until `apply`"]
pub struct ReceivePlan {
    nic: Nic,
    flows: Flows,
    queues: u16,
}

impl ReceivePlan {
    pub(crate) fn new(nic: Nic, local: SocketAddr) -> Self {
        Self {
            nic,
            flows: Flows {
                local,
                peers: Vec::new(),
            },
            queues: 1,
        }
    }

    /// Sets the number of queues for device memory, 1 by default. Flows are spread over them by a hash of their addresses and
    /// ports (RSS).
    pub fn queues(mut self, queues: u16) -> Self {
        self.queues = queues;
        self
    }

    /// Steers only segments from this address and port: for connections that are made to it, the local port of which is not
    /// known before and given as 0. May be repeated for further peers.
    ///
    /// An interface of the kernel needs the local port or a peer: otherwise the segments of all programs would be steered.
    pub fn from_peer(mut self, peer: SocketAddr) -> Self {
        self.flows.peers.push(peer);
        self
    }

    /// Returns the changes: for an interface of the kernel as `ethtool` commands, for a user-space NIC as text. Changes nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind) if the interface does not support a setting.
    pub fn commands(&self) -> Result<Vec<String>, Error> {
        self.nic.commands(&self.flows, self.queues)
    }

    /// Applies the settings. Dropping the returned value restores the previous ones. On an interface that an agent has
    /// [configured](crate::Netdev::configured) it writes nothing: it finds the agent's queues and checks what it can see.
    ///
    /// For an interface of the kernel, each setting is written to a state file before it is made, and read back afterwards.
    /// If the process is killed, `devmem-tcp restore` restores the previous settings from that file.
    ///
    /// # Errors
    /// The NIC has too few queues, or refuses a setting. Settings that were already made are restored.
    pub fn apply(self) -> Result<Setup, Error> {
        let (settings, queues) = self.nic.prepare(&self.flows, self.queues)?;
        Ok(Setup { queues, settings })
    }
}

impl fmt::Display for ReceivePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.flows.settings(self.queues).join("\n"))
    }
}

/// The applied settings of a receiver. The previous settings are restored exactly when this and every binding of its queues are
/// dropped, in whatever order: a binding keeps the settings that its queues need.
///
/// So memory that is bound to the queues of a set-up that was dropped still receives the payload:
///
/// ```
/// # use devmem_tcp::{Dmabuf, Netdev, Placement, RxBatch};
/// # use std::io::Write;
/// # let (a, nic) = Netdev::pair("seed=1".parse()?)?;
/// # let memory = Dmabuf::anonymous(1 << 20)?;
/// # let local = "10.77.0.2:5201".parse()?;
/// let rx = nic.bind_rx(&memory, nic.plan_receive(local).apply()?.queues())?;
/// # let listener = nic.listen(local)?;
/// # a.connect(local)?.write_all(b"payload")?;
/// # let (mut stream, _) = listener.accept()?;
/// stream.set_placement(Placement::Strict);                      // accepts no bytes in host memory
/// # let mut batch = RxBatch::with_capacity(4);
/// assert_eq!(stream.recv(&mut batch)?, 7);
/// # drop(rx);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// In a child of fork(2), dropping it changes nothing.
#[derive(Debug)]
#[must_use = "dropping it restores the previous settings, unless a binding needs them"]
pub struct Setup {
    queues: Vec<RxQueueId>,
    settings: Prepared,
}

/// Segments from a peer are steered to the queues of a [`Setup`]. Dropping it ends that, except for other values of the same peer.
#[derive(Debug)]
#[must_use = "dropping it ends the steering"]
pub struct SteeredPeer {
    _steered: Steered,
}

impl Setup {
    /// Steers segments from this address and port to the same queues, too: for connections that are made to it, by a program that learns
    /// of its peers one after another. Call it before a connection is made, and keep the returned value as long as the connection;
    /// meanwhile the settings are not restored by a drop.
    ///
    /// ```
    /// # use devmem_tcp::{Dmabuf, Netdev, RxBatch};
    /// # use std::io::Write;
    /// # let (a, nic) = Netdev::pair("seed=1".parse()?)?;
    /// # let memory = Dmabuf::anonymous(1 << 20)?;
    /// # let listener = a.listen("10.77.0.1:5201")?;
    /// let setup = nic.plan_receive("10.77.0.2:5201".parse()?).apply()?;
    /// let rx = nic.bind_rx(&memory, setup.queues())?;
    /// let peer = "10.77.0.1:5201".parse()?;
    /// let steered = setup.steer_from(peer)?;
    /// let mut stream = nic.connect(peer)?;
    /// # listener.accept()?.0.write_all(b"payload")?;
    /// # let mut batch = RxBatch::with_capacity(4);
    /// # stream.recv(&mut batch)?;
    /// assert_eq!(batch.device_bytes(), 7);
    /// # drop((batch, stream, steered, rx));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// On an interface that an agent has set up it does nothing: the agent's rules count.
    ///
    /// # Errors
    /// The NIC has no room for a rule, or cannot match it.
    pub fn steer_from(&self, peer: SocketAddr) -> Result<SteeredPeer, Error> {
        let _steered = self.settings.steer_from(peer)?;
        Ok(SteeredPeer { _steered })
    }

    /// Returns the queues to bind device memory to.
    pub fn queues(&self) -> &[RxQueueId] {
        &self.queues
    }

    /// Returns the changes made to an interface of the kernel, as commands. Empty for a user-space NIC.
    pub fn changes(&self) -> Vec<String> {
        self.settings.changes()
    }

    /// Returns what the agent of a [configured](crate::Netdev::configured) interface must have set where it cannot be checked from
    /// here: the settings of the NIC that a pod's queues are leased from. Empty for all other NICs.
    pub fn unseen(&self) -> Vec<String> {
        self.settings.unseen()
    }

    /// Returns which of these settings have changed since, by another program or a device reset. Always empty for a
    /// user-space NIC.
    pub fn verify(&self) -> Vec<Drift> {
        self.settings.drifts()
    }

    /// Restores the previous settings now and returns a report; dropping restores them without one. Drop bindings of the
    /// queues first: while one exists, header split stays on.
    pub fn restore(self) -> RestoreReport {
        self.settings.restore()
    }
}

#[cfg(test)]
mod tests {
    use crate::backend::Nic;
    use crate::netdev::Netdev;

    /// Returns the settings of the software NIC.
    fn settings(netdev: &Netdev) -> String {
        let Nic::User(nic) = netdev.nic() else {
            panic!("it is in user space");
        };
        nic.first().with(|stack, _| {
            let nic = stack.nic();
            let rules: Vec<_> = nic.rules().iter().map(|(at, rule)| (at, *rule)).collect();
            format!("{:?} {:?} {rules:?}", nic.rings(), nic.rss())
        })
    }

    #[test]
    fn a_dropped_setup_puts_every_setting_back() {
        let nic = Netdev::user("mem:setup", "10.77.0.2/24").expect("a NIC");
        let plan = |queues| {
            let local = "10.77.0.2:5201".parse().expect("an address");
            nic.plan_receive(local).queues(queues)
        };
        let before = settings(&nic);
        let setup = plan(2).apply().expect("the NIC has them");
        assert_eq!(setup.queues().len(), 2);
        assert_ne!(settings(&nic), before);
        drop(setup);
        assert_eq!(settings(&nic), before);
        let refused = plan(4).apply().expect_err("too many").to_string();
        assert!(refused.contains("keeps queue 0"), "{refused}");
        assert_eq!(settings(&nic), before);
    }
}
