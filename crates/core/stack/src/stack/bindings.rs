//! Calls that bind memory for receiving and for sending.

use std::sync::Arc;

use devmem_uapi::DmabufId;
use netmem::{Dmabuf, FragSource, MemoryProvider};

use super::Stack;
use crate::binding::{BindRx, BindRxError, BindTxError, Bound, BoundMemory, RxPart, UnbindRxError};
use crate::memory::StackMemory;
use crate::socket::error::UnknownBinding;

impl Stack {
    /// Attaches a dma-buf to receive queues: payload that is steered to them is placed there from now on.
    ///
    /// Memory can have one binding at a time. It can be bound again, on this or another stack, as soon as the earlier
    /// binding has ended and the last of its net_iovs has been given back.
    ///
    /// All connections on the queues share the memory, and nothing limits the share of one reader: a token keeps its
    /// net_iov, and the memory of a reader that keeps tokens for every net_iov is used up. Then the other connections
    /// receive nothing until it gives tokens back, as with the kernel; their peers see closed windows. Readers that must
    /// not affect each other need bindings on different queues.
    ///
    /// # Errors
    /// [`BindRxError`]. Nothing has changed then: queues that were restarted already have host memory again.
    pub fn bind_rx(&mut self, request: BindRx) -> Result<DmabufId, BindRxError> {
        let range = 0..request.dmabuf.size();
        let part = RxPart {
            range,
            memory: None,
        };
        self.bind_rx_part(request, part).map(|(id, _)| id)
    }

    /// As [`Stack::bind_rx`], to a part of the memory: other shards of the NIC bind the other parts. Returns the claim
    /// for the next shard, too.
    ///
    /// # Errors
    /// As [`Stack::bind_rx`].
    pub fn bind_rx_part(
        &mut self,
        request: BindRx,
        part: RxPart,
    ) -> Result<(DmabufId, Arc<BoundMemory>), BindRxError> {
        let StackMemory {
            windows, bindings, ..
        } = &mut self.memory;
        bindings.bind_rx(request, part, &self.network, &mut self.nic, windows)
    }

    /// Returns the id that the next binding will get, for receiving or for sending.
    pub fn next_dmabuf_id(&self) -> Option<DmabufId> {
        self.memory.bindings.next_id()
    }

    /// Makes `id` the next binding's, unless it is taken: the shards of a NIC give the parts of one memory the same id.
    pub fn skip_to_dmabuf_id(&mut self, id: DmabufId) {
        self.memory.bindings.last = id.0.saturating_sub(1);
    }

    /// Detaches a dma-buf: its queues continue with host memory, other queues are not affected. Frags in use stay
    /// valid; the memory is freed when the last of them is given back.
    ///
    /// # Errors
    /// [`UnbindRxError`]; with [`UnbindRxError::Restart`] the binding stays.
    pub fn unbind_rx(&mut self, id: DmabufId) -> Result<(), UnbindRxError> {
        let StackMemory {
            windows, bindings, ..
        } = &mut self.memory;
        bindings.unbind_rx(id, &mut self.nic, windows)
    }

    /// Returns the memory provider of a binding, which counts its net_iovs, also after the binding has ended.
    pub fn provider(&self, id: DmabufId) -> Option<Arc<MemoryProvider>> {
        let binding = self.memory.bindings.rx(id);
        binding.map(|binding| Arc::clone(&binding.provider))
    }

    /// Binds a dma-buf for sending: [`SendMsg::device`](crate::SendMsg::device) may name ranges of it.
    ///
    /// # Errors
    /// [`BindTxError`]. Nothing has changed then.
    pub fn bind_tx(&mut self, dmabuf: &Dmabuf) -> Result<DmabufId, BindTxError> {
        let bindings = &mut self.memory.bindings;
        let id = bindings.next_id().ok_or(BindTxError::NoId)?;
        let memory = FragSource::new(dmabuf, id)?;
        if let Some(engine) = dmabuf.copy_engine() {
            let prepared = self.nic.prepare_tx(engine);
            prepared.map_err(|error| BindTxError::Staging(error.to_string()))?;
        }
        bindings.insert(id, Bound::Sending(memory));
        Ok(id)
    }

    /// Removes a binding. Sends that are in progress continue; the memory is freed when the last of them is complete.
    ///
    /// # Errors
    /// [`UnknownBinding`].
    pub fn unbind_tx(&mut self, id: DmabufId) -> Result<(), UnknownBinding> {
        self.memory.bindings.source(id)?;
        self.memory.bindings.remove(id);
        Ok(())
    }

    /// Returns the number of sends from a binding that are not complete, of all sockets including closed ones; `None`
    /// for an id that is not bound for sending. At 0 the program may change all of the memory.
    pub fn sends_in_flight(&self, id: DmabufId) -> Option<usize> {
        let memory = self.memory.bindings.source(id).ok()?;
        Some(memory.in_flight())
    }
}
