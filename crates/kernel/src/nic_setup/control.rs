//! The operations that a set-up needs of a NIC, implemented by the kernel, and by a model in tests.

use devmem_uapi::IfIndex;

use crate::ethtool::{
    Ethtool, EthtoolError, Feature, InstalledRule, Rings, RingsChange, RssContext, RuleAction,
    TcpFlow,
};
use crate::netdev::{KernelRxQueueId, LeaseError, Netdev, QueueUser};
use crate::netif::{self, Interface, NewNetkit};

/// A NIC's settings. The methods are those of [`Ethtool`] and [`Netdev`].
pub(super) trait NicControl {
    fn name(&self) -> &str;
    fn index(&self) -> IfIndex;
    fn driver(&mut self) -> Option<String>;
    fn has_xdp_program(&mut self) -> bool;
    fn rx_queues(&mut self) -> Result<Vec<(KernelRxQueueId, Option<QueueUser>)>, EthtoolError>;
    fn feature(&mut self, name: &str) -> Result<Option<Feature>, EthtoolError>;
    fn set_feature(&mut self, name: &str, on: bool) -> Result<(), EthtoolError>;
    fn rings(&mut self) -> Result<Rings, EthtoolError>;
    fn set_rings(&mut self, change: RingsChange) -> Result<(), EthtoolError>;
    fn rss(&mut self) -> Result<RssContext, EthtoolError>;
    fn set_rss_table(&mut self, table: &[u32]) -> Result<(), EthtoolError>;
    fn reset_rss_table(&mut self) -> Result<(), EthtoolError>;
    fn rss_contexts(&mut self) -> Result<Vec<RssContext>, EthtoolError>;
    fn create_rss_context(&mut self, table: &[u32]) -> Result<u32, EthtoolError>;
    fn delete_rss_context(&mut self, context: u32) -> Result<(), EthtoolError>;
    fn rules(&mut self) -> Result<Vec<InstalledRule>, EthtoolError>;
    fn insert_rule(&mut self, flow: &TcpFlow, action: RuleAction) -> Result<u32, EthtoolError>;
    fn delete_rule(&mut self, location: u32) -> Result<(), EthtoolError>;
    /// Returns whether this kernel can lease queues.
    fn can_lease(&mut self) -> bool;
    /// Lists the netkits of this network namespace, by index and name.
    fn netkits(&mut self) -> Result<Vec<(u32, String)>, EthtoolError>;
    /// Makes a netkit pair and returns the index of its primary end.
    fn make_netkit(&mut self, new: &NewNetkit<'_>) -> Result<u32, EthtoolError>;
    fn remove_netkit(&mut self, index: u32) -> Result<(), EthtoolError>;
    /// Leases a queue to the netkit `peer`, and returns the netkit's number of it.
    fn lease(&mut self, queue: KernelRxQueueId, peer: &str) -> Result<KernelRxQueueId, LeaseError>;
}

/// The NIC of a kernel interface.
#[derive(Debug)]
pub(super) struct KernelNic {
    ethtool: Ethtool,
    netdev: Netdev,
}

impl KernelNic {
    pub(super) fn by_name(name: &str) -> Result<Self, EthtoolError> {
        let ethtool = Ethtool::by_name(name)?;
        let netdev = Netdev::with_index(name, ethtool.index())?;
        Ok(Self { ethtool, netdev })
    }

    pub(super) fn by_index(name: &str, index: IfIndex) -> Result<Self, EthtoolError> {
        Ok(Self {
            ethtool: Ethtool::with_index(name, index)?,
            netdev: Netdev::with_index(name, index)?,
        })
    }
}

impl NicControl for KernelNic {
    fn name(&self) -> &str {
        self.ethtool.name()
    }

    fn index(&self) -> IfIndex {
        self.ethtool.index()
    }

    fn driver(&mut self) -> Option<String> {
        self.ethtool.driver().ok().map(|info| info.driver)
    }

    fn has_xdp_program(&mut self) -> bool {
        netif::has_xdp_program(self.ethtool.index().0).unwrap_or(false)
    }

    fn rx_queues(&mut self) -> Result<Vec<(KernelRxQueueId, Option<QueueUser>)>, EthtoolError> {
        Ok(self.netdev.rx_queues()?)
    }

    fn feature(&mut self, name: &str) -> Result<Option<Feature>, EthtoolError> {
        self.ethtool.feature(name)
    }

    fn set_feature(&mut self, name: &str, on: bool) -> Result<(), EthtoolError> {
        self.ethtool.set_feature(name, on)
    }

    fn rings(&mut self) -> Result<Rings, EthtoolError> {
        self.ethtool.rings()
    }

    fn set_rings(&mut self, change: RingsChange) -> Result<(), EthtoolError> {
        self.ethtool.set_rings(change)
    }

    fn rss(&mut self) -> Result<RssContext, EthtoolError> {
        self.ethtool.rss()
    }

    fn set_rss_table(&mut self, table: &[u32]) -> Result<(), EthtoolError> {
        let main = crate::ethtool::MAIN_CONTEXT;
        self.ethtool.set_rss_table(main, table)
    }

    fn reset_rss_table(&mut self) -> Result<(), EthtoolError> {
        self.ethtool.reset_rss_table()
    }

    fn rss_contexts(&mut self) -> Result<Vec<RssContext>, EthtoolError> {
        self.ethtool.rss_contexts()
    }

    fn create_rss_context(&mut self, table: &[u32]) -> Result<u32, EthtoolError> {
        self.ethtool.create_rss_context(table)
    }

    fn delete_rss_context(&mut self, context: u32) -> Result<(), EthtoolError> {
        self.ethtool.delete_rss_context(context)
    }

    fn rules(&mut self) -> Result<Vec<InstalledRule>, EthtoolError> {
        self.ethtool.rules()
    }

    fn insert_rule(&mut self, flow: &TcpFlow, action: RuleAction) -> Result<u32, EthtoolError> {
        self.ethtool.insert_rule(flow, action)
    }

    fn delete_rule(&mut self, location: u32) -> Result<(), EthtoolError> {
        self.ethtool.delete_rule(location)
    }

    fn can_lease(&mut self) -> bool {
        self.netdev.can_lease()
    }

    fn netkits(&mut self) -> Result<Vec<(u32, String)>, EthtoolError> {
        Ok(netif::netkits()?)
    }

    fn make_netkit(&mut self, new: &NewNetkit<'_>) -> Result<u32, EthtoolError> {
        let (primary, _peer) = Interface::create_netkit(new)?;
        Ok(primary.index())
    }

    fn remove_netkit(&mut self, index: u32) -> Result<(), EthtoolError> {
        let all = netif::netkits()?;
        let found = all.iter().find(|(found, _)| *found == index);
        // It may have ended with its pod.
        if let Some((_, name)) = found {
            Interface::by_name(name)?.delete()?;
        }
        Ok(())
    }

    fn lease(&mut self, queue: KernelRxQueueId, peer: &str) -> Result<KernelRxQueueId, LeaseError> {
        self.netdev.lease_queue_to(queue, peer)
    }
}
