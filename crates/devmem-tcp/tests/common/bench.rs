//! A receiver with device memory on one end of a wire in memory, and the NIC of its peers on the other.

use devmem_tcp::{BoundRx, Dmabuf, Listener, Netdev, Setup, Stream};

use crate::common::PATIENCE;

/// Where the receiver listens.
pub const LOCAL: &str = "10.77.0.2:5201";

pub struct Bench {
    pub sender: Netdev,
    pub receiver: Netdev,
    pub memory: Dmabuf,
    pub setup: Setup,
    pub bound: BoundRx,
    pub listener: Listener,
}

impl Bench {
    /// On a separate wire, in real time.
    pub fn new(wire: &str) -> Self {
        let link = format!("mem:{wire}");
        let sender = Netdev::user(&link, "10.77.0.1/24").unwrap();
        let receiver = Netdev::user(&link, "10.77.0.2/24").unwrap();
        Self::on(sender, receiver)
    }

    pub fn on(sender: Netdev, receiver: Netdev) -> Self {
        let memory = Dmabuf::anonymous(16 << 20).unwrap();
        let plan = receiver.plan_receive(LOCAL.parse().unwrap());
        let setup = plan.apply().unwrap();
        let bound = receiver.bind_rx(&memory, setup.queues()).unwrap();
        let listener = receiver.listen(LOCAL).unwrap();
        listener.set_timeout(Some(PATIENCE));
        Self {
            sender,
            receiver,
            memory,
            setup,
            bound,
            listener,
        }
    }

    /// Returns the sending and the receiving end of a connection.
    pub fn connection(&self) -> (Stream, Stream) {
        let sender = self.sender.connect(LOCAL).unwrap();
        let (receiver, peer) = self.listener.accept().unwrap();
        assert_eq!(peer, sender.local_addr().unwrap());
        sender.set_timeout(Some(PATIENCE));
        receiver.set_timeout(Some(PATIENCE));
        (sender, receiver)
    }

    /// Undoes everything and checks that all memory is back.
    pub fn finish(self) {
        drop(self.listener);
        let count = self.bound.unbind().net_iovs();
        assert_eq!(count.home, count.total, "net_iovs that are not home");
        drop(self.setup);
    }
}
