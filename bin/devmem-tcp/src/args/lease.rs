//! The command line of `lease`.

use clap::Args;

use tool::parse::OutputArgs;

/// Lease RX queues of a NIC to pods, as the agent of the machine
///
/// Sets the NIC up for the pods' connections (header split, RSS, flow rules), makes a netkit pair for each pod, whose peer has queues
/// leased from the NIC, and moves that peer into the pod's network namespace. There a program binds device memory to the queues, with
/// CAP_NET_ADMIN in the pod's user namespace alone: `devmem-tcp recv --backend kernel --if dm0 --configured`. The command runs until
/// SIGINT, SIGTERM or SIGHUP, or until the namespaces of all pods have ended; then the netkits are removed, and the NIC has its previous
/// settings. After a kill -9, `devmem-tcp restore` does both. Needs root of the machine, and Linux 7.2.
#[derive(Debug, Args)]
#[command(after_long_help = LEASE_EXAMPLES)]
pub struct Lease {
    /// The NIC
    #[arg(value_name = "IFNAME")]
    pub interface: String,
    /// A pod, as settings separated by commas; may be repeated. netns=NAME: its network namespace, a name of `ip netns`, a path, or
    /// pid:N. addr=ADDR: its address. port=PORT: steer TCP for this port of the pod to the queues, and peer=ADDR:PORT: TCP from this
    /// server, which the pod connects to; at least one of the two, and both may be repeated. queues=N [1]: queues to lease, unused ones of the NIC.
    /// name=NAME [dm0]: the interface in the pod. netkit=NAME [dm-pod0, dm-pod1, ...]: the end of the netkit pair outside the pod, at most 14 bytes
    #[arg(long, value_name = "SETTINGS", required = true)]
    pub pod: Vec<String>,
    /// Print the changes as commands on stdout, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

const LEASE_EXAMPLES: &str = "\
The pods' packets are routed: the machine must forward (sysctl net.ipv4.ip_forward=1), and the network must have routes to the
pods' addresses through it. `devmem-tcp doctor` lists which queue is leased to whom, here and in a pod.

Exit status: 0 if it ended as above and everything was restored; 3 if this kernel or the NIC cannot lease queues.

Examples:
  devmem-tcp lease eth1 --pod netns=pod,addr=10.0.0.9,port=5201
      for a server in the namespace pod of `ip netns`
  devmem-tcp lease eth1 --pod netns=a,addr=10.0.0.8,port=5201 --pod netns=b,addr=10.0.0.9,port=5201,queues=2
      for two pods, which cannot use each other's queues
  devmem-tcp lease eth1 --pod netns=pid:4711,addr=fd77::9,peer=[fd77::1]:80 --dry-run
      for a client in the namespace of process 4711: the changes, as commands";
