//! Receives through a NIC of the kernel into a udmabuf, and prints the changes of the NIC's settings first.
//!
//! `cargo run -p devmem-tcp --example kernel_nic -- eth1` needs root and a NIC that supports device memory TCP;
//! `devmem-tcp doctor eth1` tells what is missing.

use std::error::Error;
use std::net::SocketAddr;

use devmem_tcp::{
    Netdev, Placement, RxBatch,
    choice::{Choice, Purpose},
};

fn main() -> Result<(), Box<dyn Error>> {
    let interface = std::env::args()
        .nth(1)
        .ok_or("give the name of an interface")?;
    let listening = Listening::on(&interface)?;
    println!("{} bytes in device memory", listening.receive()?);
    Ok(())
}

/// A listener with device memory; the fields are dropped in this order.
pub struct Listening {
    listener: devmem_tcp::Listener,
    _rx: devmem_tcp::BoundRx,
    _nic: Netdev,
}

impl Listening {
    /// Sets the NIC up, and listens.
    pub fn on(interface: &str) -> Result<Self, Box<dyn Error>> {
        let choice = Choice::examine(interface, Purpose::Receive)?;
        if !choice.obstacles().is_empty() {
            return Err(choice.obstacles().join("\n").into());
        }
        let nic = Netdev::kernel(interface)?;
        let address = nic.addresses().into_iter().find(|ip| ip.is_ipv4());
        let address = SocketAddr::new(address.ok_or("the interface has no IPv4 address")?, 5201);
        let plan = nic.plan_receive(address);
        println!("{}", plan.commands()?.join("\n"));
        let setup = plan.apply()?;
        let memory = devmem_tcp::memory::udmabuf(16 << 20)?;
        // The binding keeps the settings; they are restored when it is dropped.
        let rx = nic.bind_rx(&memory, setup.queues())?;
        Ok(Self {
            listener: nic.listen(address)?,
            _rx: rx,
            _nic: nic,
        })
    }

    /// Receives one stream; returns its bytes in device memory.
    fn receive(&self) -> Result<u64, Box<dyn Error>> {
        let (mut stream, _) = self.listener.accept()?;
        // Bytes in host memory are an error, with its cause.
        stream.set_placement(Placement::Strict);
        let mut batch = RxBatch::with_capacity(1024);
        while stream.recv(&mut batch)? > 0 {}
        Ok(stream.stats().device_bytes)
    }
}

#[test]
fn an_unsupported_interface_is_refused_with_the_missing_features() {
    let refused = Listening::on("lo").err().expect("lo has no header split");
    assert!(!refused.to_string().is_empty());
}
