//! The command line of `broker`.

use std::path::PathBuf;

use clap::Args;
use devmem_linux::broker::Grant;

use tool::parse::OutputArgs;

/// Bind device memory to RX queues for programs without privileges
///
/// Listens on a UNIX socket. A program connects to it and passes the descriptor of its dma-buf; the broker binds it to RX queues and
/// passes the netlink socket back, which is the binding. The binding lives as long as the program keeps that socket, whatever becomes of
/// the broker. Only users and queues of --allow are served, in one network namespace; the kernel tells who has connected (SO_PEERCRED). The
/// command runs until SIGINT, SIGTERM or SIGHUP. Needs CAP_NET_ADMIN in the user namespace of the network namespace (before Linux 7.2: in
/// the initial one), and CAP_SYS_ADMIN for --netns.
#[derive(Debug, Args)]
#[command(after_long_help = BROKER_EXAMPLES)]
pub struct Broker {
    /// The socket to listen on. Anybody may connect who may enter its folder
    #[arg(value_name = "PATH")]
    pub socket: PathBuf,
    /// Who may ask for which queues of which interface, as uid=1000:dm0:1 or gid=100:eth0:4-7; may be repeated. The ids are those that
    /// the broker's user namespace has for the client
    #[arg(long, value_name = "GRANT", required = true)]
    pub allow: Vec<Grant>,
    /// Bind in this network namespace, for programs in it: a name of `ip netns`, a path, or pid:N [default: that of the broker]
    #[arg(long, value_name = "NAME")]
    pub netns: Option<String>,
    #[command(flatten)]
    pub output: OutputArgs,
}

const BROKER_EXAMPLES: &str = "\
With --json, each request is one JSON object in a line on stdout, without it one line of text on stderr.

Examples:
  devmem-tcp broker /run/devmem/pod --netns pod --allow uid=1000:dm0:1
      for user 1000 in the pod, whose interface dm0 has the queue that `devmem-tcp lease` has leased to it
  devmem-tcp recv --backend kernel --if dm0 --broker /run/devmem/pod -l
      receives there, as user 1000
  devmem-tcp broker /run/devmem/eth1 --allow gid=100:eth1:12-15
      for the members of group 100 on this machine, whose NIC eth1 is set up for device memory";
