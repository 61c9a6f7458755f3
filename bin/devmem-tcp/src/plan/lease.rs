//! A run of `lease`.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use devmem_linux::nic_setup::{Flow, NewLease, QueueChoice, SetupRequest};

use crate::args;
use tool::output::Failure;
use tool::parse::{OutputArgs, check_interface_name};

/// What the name of the peer has, until it is in the pod, after that of the netkit.
const PEER_SUFFIX: &str = "p";
/// Default name of the interface in a pod, and of the netkit's other end, before the number of the pod.
const POD_INTERFACE: &str = "dm0";
const NETKIT: &str = "dm-pod";

/// A run of `lease`.
#[derive(Clone, Debug)]
pub struct LeasePlan {
    /// The settings of the NIC, and the netkits, one for each pod.
    pub request: SetupRequest,
    /// The pods.
    pub pods: Vec<PodPlan>,
    /// Print the changes, and exit.
    pub dry_run: bool,
    /// How to print the result.
    pub form: OutputArgs,
}

/// A pod and its interface.
#[derive(Clone, Debug)]
pub struct PodPlan {
    /// Its network namespace.
    pub netns: String,
    /// Name of the interface there.
    pub interface: String,
    /// Address of the interface.
    pub address: IpAddr,
    /// The netkit and its queues.
    pub lease: NewLease,
}

impl LeasePlan {
    /// Validates the command line.
    ///
    /// # Errors
    ///
    /// A usage error that names the option.
    pub fn new(args: args::Lease) -> Result<Self, Failure> {
        let args::Lease {
            interface,
            pod,
            dry_run,
            output,
        } = args;
        check_interface_name("IFNAME", &interface)?;
        let pods = (0..).zip(&pod);
        let pods = pods.map(|(number, text)| PodPlan::parse(number, text));
        let pods = pods.collect::<Result<Vec<_>, _>>()?;
        check_apart(&pods)?;
        let leases: Vec<_> = pods.iter().map(|pod| pod.lease.clone()).collect();
        let queues = leases.iter().map(|lease| lease.queues);
        Ok(Self {
            request: SetupRequest {
                interface,
                queues: QueueChoice::Count(queues.fold(0, u32::saturating_add)),
                flows: Vec::new(),
                leases,
                state_folder: None,
            },
            pods,
            dry_run,
            form: output,
        })
    }
}

/// Refuses pods that share a netkit or an address.
fn check_apart(pods: &[PodPlan]) -> Result<(), Failure> {
    let (mut netkits, mut addresses) = (HashSet::new(), HashSet::new());
    for pod in pods {
        let netkit = &pod.lease.netkit;
        if !netkits.insert(netkit) {
            return Err(Failure::usage(format!("--pod: two have netkit={netkit}")));
        }
        if !addresses.insert(pod.address) {
            let address = pod.address;
            return Err(Failure::usage(format!("--pod: two have addr={address}")));
        }
    }
    Ok(())
}

/// The settings of a pod as they are read.
struct Settings {
    netns: Option<String>,
    address: Option<IpAddr>,
    ports: Vec<u16>,
    peers: Vec<SocketAddr>,
    queues: u16,
    interface: String,
    netkit: String,
}

impl PodPlan {
    /// Parses the settings of pod `number`.
    fn parse(number: usize, text: &str) -> Result<Self, Failure> {
        let mut settings = Settings {
            netns: None,
            address: None,
            ports: Vec::new(),
            peers: Vec::new(),
            queues: 1,
            interface: POD_INTERFACE.to_owned(),
            netkit: format!("{NETKIT}{number}"),
        };
        for part in text.split(',') {
            settings.set(part)?;
        }
        settings.check(text)
    }
}

impl Settings {
    fn set(&mut self, part: &str) -> Result<(), Failure> {
        let bad = |what: &str| Failure::usage(format!("--pod: {part:?}: {what}"));
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        match name {
            "netns" if !value.is_empty() => self.netns = Some(value.to_owned()),
            "addr" => {
                let address = value.parse().map_err(|_| bad("write addr=10.0.0.9"))?;
                self.address = Some(address);
            }
            "port" => {
                let port = value.parse().ok().filter(|port| *port != 0);
                self.ports.push(port.ok_or_else(|| {
                    bad("a port from 1 to 65535: without one, all TCP of the pod would be steered")
                })?);
            }
            "peer" => {
                let peer = value.parse().ok();
                let peer = peer.filter(|peer: &SocketAddr| peer.port() != 0);
                self.peers
                    .push(peer.ok_or_else(|| bad("write peer=10.0.0.1:80 or peer=[fd77::1]:80"))?);
            }
            "queues" => {
                let queues = value.parse().ok();
                let queues = queues.filter(|queues| (1..=super::nic::MAX_QUEUES).contains(queues));
                self.queues = queues.ok_or_else(|| bad("1 to 64 queues"))?;
            }
            "name" => value.clone_into(&mut self.interface),
            "netkit" => value.clone_into(&mut self.netkit),
            _ => {
                return Err(bad(
                    "the settings are netns=, addr=, port=, peer=, queues=, name= and netkit=",
                ));
            }
        }
        Ok(())
    }

    fn check(self, text: &str) -> Result<PodPlan, Failure> {
        let Self {
            netns,
            address,
            ports,
            peers,
            queues,
            interface,
            netkit,
        } = self;
        let missing = |what: &str| Failure::usage(format!("--pod {text}: {what} is missing"));
        let netns = netns.ok_or_else(|| missing("netns=NAME"))?;
        let address = address.ok_or_else(|| missing("addr=ADDR"))?;
        if address.is_unspecified() || address.is_multicast() || address.is_loopback() {
            return Err(Failure::usage(format!(
                "--pod: {address} is not the address of one pod"
            )));
        }
        if ports.is_empty() && peers.is_empty() {
            return Err(missing("port=PORT or peer=ADDR:PORT"));
        }
        let other = |peer: &&SocketAddr| peer.is_ipv4() != address.is_ipv4();
        if let Some(peer) = peers.iter().find(other) {
            return Err(Failure::usage(format!(
                "--pod: peer={peer} has another IP version than addr={address}"
            )));
        }
        check_interface_name("--pod: name=", &interface)?;
        let peer = format!("{netkit}{PEER_SUFFIX}");
        check_interface_name("--pod: netkit=", &netkit)?;
        check_interface_name("--pod: the peer of netkit=, ", &peer)?;
        Ok(PodPlan {
            netns,
            interface,
            address,
            lease: NewLease {
                netkit,
                peer,
                queues: queues.into(),
                flows: flows(address, &ports, &peers),
            },
        })
    }
}

/// Returns the flows of a pod: to its ports, and from its servers.
fn flows(pod: IpAddr, ports: &[u16], peers: &[SocketAddr]) -> Vec<Flow> {
    let to_pod = ports
        .iter()
        .map(|port| Flow::to(SocketAddr::new(pod, *port)));
    let from_peers = peers.iter().map(|peer| Flow {
        peer: Some(peer.ip()),
        peer_port: Some(peer.port()),
        ..Flow::to(SocketAddr::new(pod, 0))
    });
    to_pod.chain(from_peers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_read_with_its_queues_and_flows() {
        let text = "netns=pid:7,addr=10.0.0.9,port=5201,port=5202,peer=10.0.0.1:80,queues=2";
        let pod = PodPlan::parse(3, text).unwrap();
        assert_eq!(
            (pod.netns.as_str(), pod.interface.as_str()),
            ("pid:7", "dm0")
        );
        let NewLease {
            netkit,
            peer,
            queues,
            flows,
        } = pod.lease;
        assert_eq!((netkit.as_str(), peer.as_str()), ("dm-pod3", "dm-pod3p"));
        assert_eq!(queues, 2);
        assert_eq!(flows.len(), 3);
        assert_eq!((flows[2].peer_port, flows[2].local.port()), (Some(80), 0));
    }

    #[test]
    fn settings_of_a_pod_that_are_wrong_or_missing_are_named() {
        let good = "netns=p,addr=10.0.0.9,port=1";
        for (text, words) in [
            ("addr=10.0.0.9,port=1", "netns=NAME is missing"),
            ("netns=p,port=1", "addr=ADDR is missing"),
            (
                "netns=p,addr=10.0.0.9",
                "port=PORT or peer=ADDR:PORT is missing",
            ),
            ("netns=p,addr=0.0.0.0,port=1", "not the address of one pod"),
            (
                "netns=p,addr=127.0.0.1,port=1",
                "not the address of one pod",
            ),
            ("netns=p,addr=10.0.0.9,port=0", "1 to 65535"),
            ("netns=p,addr=10.0.0.9,peer=10.0.0.1:0", "write peer="),
            (
                "netns=p,addr=10.0.0.9,peer=[fd77::1]:80",
                "another IP version",
            ),
            (&format!("{good},queues=0"), "1 to 64 queues"),
            (&format!("{good},name=a/b"), "name of an interface"),
            (
                &format!("{good},netkit=a-name-of-15-by"),
                "the peer of netkit=",
            ),
            (&format!("{good},cpu=1"), "the settings are"),
            ("", "the settings are"),
        ] {
            let refused = PodPlan::parse(0, text).unwrap_err().to_string();
            assert!(refused.contains(words), "{text}: {refused}");
        }
        let twice = [PodPlan::parse(0, good), PodPlan::parse(1, good)];
        let twice: Vec<_> = twice.into_iter().map(Result::unwrap).collect();
        let refused = check_apart(&twice).unwrap_err().to_string();
        assert!(refused.contains("two have addr=10.0.0.9"), "{refused}");
    }
}
