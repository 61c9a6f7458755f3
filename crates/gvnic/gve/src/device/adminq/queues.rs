//! Commands that create and destroy queues and their interrupts.

use gve_defs::adminq::{
    AdminqStatus, ConfigureDeviceResources, CreateRxQueue, CreateTxQueue, DestroyQueue,
    QUEUE_FORMAT_DQO_RDA, QueueResources, RAW_ADDRESSING_QPL_ID,
};
use gve_defs::desc_dqo::{
    RX_BUFFER_DESC_BYTES, RX_COMPLETION_BYTES, RX_HEADER_LEN_MASK, TX_COMPLETION_BYTES,
    TX_DESC_BYTES,
};
use gve_defs::device_option::{MIN_PACKET_BUFFER_BYTES, PACKET_BUFFER_BYTES};
use gve_defs::doorbell::{IRQ_DOORBELLS, RX_DOORBELLS, TX_DOORBELLS};
use zerocopy::IntoBytes;

use super::answer;
use crate::device::Gve;
use crate::env::{GuestAddr, GuestMemory};
use crate::ring::Ring;
use crate::rx::{RxQueue, RxQueueParts};
use crate::tx::{TxQueue, TxQueueParts};

impl Gve {
    pub(super) fn configure_resources(
        &mut self,
        command: &ConfigureDeviceResources,
        memory: &dyn GuestMemory,
    ) -> Result<(), AdminqStatus> {
        let blocks = u16::try_from(command.num_irq_dbs.get()).unwrap_or(u16::MAX);
        let first_vector = u16::try_from(command.ntfy_blk_msix_base_idx.get()).unwrap_or(u16::MAX);
        let stride = u64::from(command.irq_db_stride.get());
        // The last vector is for management.
        let vectors = first_vector.saturating_add(blocks);
        let fits = (1..=self.config.blocks()).contains(&blocks) && vectors <= self.config.blocks();
        if command.queue_format != QUEUE_FORMAT_DQO_RDA || !fits || stride < 4 {
            return Err(AdminqStatus::INVALID_ARGUMENT);
        }
        if self.configured {
            return Err(AdminqStatus::ALREADY_EXISTS);
        }
        for block in 0..blocks {
            // Below 2^48: no overflow.
            let offset = u64::from(block) * stride;
            let addr = GuestAddr(command.irq_db_addr.get()).checked_add(offset);
            let GuestAddr(addr) = addr.ok_or(AdminqStatus::INVALID_ARGUMENT)?;
            let doorbell = IRQ_DOORBELLS + u32::from(block);
            answer(memory, addr, &doorbell.to_be_bytes())?;
        }
        self.notify.configure(blocks, first_vector);
        self.configured = true;
        Ok(())
    }

    pub(super) fn deconfigure_resources(&mut self) -> Result<(), AdminqStatus> {
        if self.tx.iter().any(Option::is_some) || self.rx.iter().any(Option::is_some) {
            return Err(AdminqStatus::FAILED_PRECONDITION);
        }
        self.notify.clear();
        self.configured = false;
        Ok(())
    }

    pub(super) fn create_tx_queue(
        &mut self,
        command: &CreateTxQueue,
        memory: &dyn GuestMemory,
    ) -> Result<(), AdminqStatus> {
        let id = free_place(&self.tx, command.queue_id.get())?;
        let block = self.block(command.ntfy_id.get())?;
        raw_addressing(command.queue_page_list_id.get())?;
        let ring = checked_ring(
            command.tx_ring_addr.get(),
            command.tx_ring_size.get(),
            TX_DESC_BYTES,
            memory,
        )?;
        let completions = checked_ring(
            command.tx_comp_ring_addr.get(),
            command.tx_comp_ring_size.get(),
            TX_COMPLETION_BYTES,
            memory,
        )?;
        let doorbell = TX_DOORBELLS + u32::from(id);
        answer_resources(memory, command.queue_resources_addr.get(), doorbell)?;
        let parts = TxQueueParts {
            id,
            block,
            ring,
            completions,
            // A few thousand bytes.
            max_frame: self.max_frame() as u32,
        };
        self.tx[usize::from(id)] = Some(TxQueue::new(parts));
        Ok(())
    }

    pub(super) fn create_rx_queue(
        &mut self,
        command: &CreateRxQueue,
        memory: &dyn GuestMemory,
    ) -> Result<(), AdminqStatus> {
        let id = free_place(&self.rx, command.queue_id.get())?;
        let block = self.block(command.ntfy_id.get())?;
        raw_addressing(command.queue_page_list_id.get())?;
        let packet_buffer_size = command.packet_buffer_size.get();
        let header_buffer_size = command.header_buffer_size.get();
        let packet_buffers = MIN_PACKET_BUFFER_BYTES..=PACKET_BUFFER_BYTES;
        if !packet_buffers.contains(&packet_buffer_size) || header_buffer_size > RX_HEADER_LEN_MASK
        {
            return Err(AdminqStatus::INVALID_ARGUMENT);
        }
        let completions = checked_ring(
            command.rx_desc_ring_addr.get(),
            command.rx_ring_size.get(),
            RX_COMPLETION_BYTES,
            memory,
        )?;
        let buffers = checked_ring(
            command.rx_data_ring_addr.get(),
            command.rx_buff_ring_size.get(),
            RX_BUFFER_DESC_BYTES,
            memory,
        )?;
        let doorbell = RX_DOORBELLS + u32::from(id);
        answer_resources(memory, command.queue_resources_addr.get(), doorbell)?;
        let parts = RxQueueParts {
            block,
            buffers,
            completions,
            packet_buffer_size,
            header_buffer_size,
            rsc: command.enable_rsc != 0,
            backlog_frames: self.config.backlog_frames,
            backlog_bytes: self.config.backlog_bytes,
        };
        self.rx[usize::from(id)] = Some(RxQueue::new(parts));
        Ok(())
    }

    pub(super) fn destroy_tx_queue(&mut self, command: &DestroyQueue) -> Result<(), AdminqStatus> {
        take(&mut self.tx, command.queue_id.get()).map(drop)
    }

    /// Destroys a queue with its backlog.
    pub(super) fn destroy_rx_queue(&mut self, command: &DestroyQueue) -> Result<(), AdminqStatus> {
        let id = command.queue_id.get();
        take(&mut self.rx, id)?;
        let stats = usize::try_from(id)
            .ok()
            .and_then(|id| self.rx_stats.get_mut(id));
        if let Some(stats) = stats {
            stats.drops += stats.backlog;
            stats.backlog = 0;
        }
        Ok(())
    }

    /// Returns the number of a notification block that the driver has configured.
    fn block(&self, id: u32) -> Result<u16, AdminqStatus> {
        if !self.configured {
            return Err(AdminqStatus::FAILED_PRECONDITION);
        }
        let block = u16::try_from(id).ok();
        let block = block.filter(|block| usize::from(*block) < self.notify.len());
        block.ok_or(AdminqStatus::INVALID_ARGUMENT)
    }
}

fn raw_addressing(page_list: u32) -> Result<(), AdminqStatus> {
    match page_list {
        RAW_ADDRESSING_QPL_ID => Ok(()),
        _ => Err(AdminqStatus::INVALID_ARGUMENT),
    }
}

fn checked_ring(
    addr: u64,
    entries: u16,
    entry_bytes: usize,
    memory: &dyn GuestMemory,
) -> Result<Ring, AdminqStatus> {
    // At most 32.
    let ring = Ring::new(GuestAddr(addr), entries, entry_bytes as u16, memory);
    ring.map_err(|_| AdminqStatus::INVALID_ARGUMENT)
}

fn answer_resources(
    memory: &dyn GuestMemory,
    addr: u64,
    doorbell: u32,
) -> Result<(), AdminqStatus> {
    let resources = QueueResources {
        db_index: doorbell.into(),
        counter_index: 0.into(),
    };
    answer(memory, addr, resources.as_bytes())
}

/// Returns the number of a queue that can be created.
fn free_place<T>(queues: &[Option<T>], id: u32) -> Result<u16, AdminqStatus> {
    let index = usize::try_from(id).unwrap_or(usize::MAX);
    match queues.get(index) {
        None => Err(AdminqStatus::INVALID_ARGUMENT),
        Some(Some(_)) => Err(AdminqStatus::ALREADY_EXISTS),
        Some(None) => u16::try_from(id).map_err(|_| AdminqStatus::INVALID_ARGUMENT),
    }
}

fn take<T>(queues: &mut [Option<T>], id: u32) -> Result<T, AdminqStatus> {
    let index = usize::try_from(id).unwrap_or(usize::MAX);
    let queue = queues.get_mut(index).and_then(Option::take);
    queue.ok_or(AdminqStatus::NOT_FOUND)
}
