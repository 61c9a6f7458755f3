//! The queue of a device, with the fences that tell how far it is.
//!
// UNSAFETY: a pool, command buffers and fences that exist until `destroy`, used by one thread at a time; copies between
// checked ranges of memory whose owners wait for the queue before they free it.
#![allow(unsafe_code)]

use ash::vk;
use netmem::DeviceError;

use super::copies::RawCopies;
use super::instance::check;

/// Number of submissions that can be in flight; one more waits for the oldest.
const SLOTS: u32 = 64;

/// Longer than any copy takes.
const FOR_EVER: u64 = u64::MAX;

/// Invariant: all handles are of one device, and exist until `destroy`.
pub(crate) struct Queue {
    raw: vk::Queue,
    pool: vk::CommandPool,
    /// Those of submission n are at n % [`SLOTS`].
    commands: Vec<vk::CommandBuffer>,
    fences: Vec<vk::Fence>,
    /// Number of the last submission.
    pub(crate) submitted: u64,
    /// All submissions up to this number are done; at least `submitted` - [`SLOTS`].
    done: u64,
}

impl Queue {
    /// Takes the first queue of a family of `device`.
    pub(crate) fn create(device: &ash::Device, family: u32) -> Result<Self, DeviceError> {
        let info = vk::CommandPoolCreateInfo::default()
            .queue_family_index(family)
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER);
        // SAFETY: the device exists and has the family.
        let pool = check("vkCreateCommandPool", unsafe {
            device.create_command_pool(&info, None)
        })?;
        // SAFETY: the device was created with one queue of the family.
        let raw = unsafe { device.get_device_queue(family, 0) };
        let mut queue = Self {
            raw,
            pool,
            commands: Vec::new(),
            fences: Vec::new(),
            submitted: 0,
            done: 0,
        };
        match queue.fill(device) {
            Ok(()) => Ok(queue),
            Err(error) => {
                queue.destroy(device);
                Err(error)
            }
        }
    }

    fn fill(&mut self, device: &ash::Device) -> Result<(), DeviceError> {
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(self.pool)
            .level(vk::CommandBufferLevel::PRIMARY)
            .command_buffer_count(SLOTS);
        // SAFETY: the pool exists.
        let commands = unsafe { device.allocate_command_buffers(&info) };
        self.commands = check("vkAllocateCommandBuffers", commands)?;
        for _ in 0..SLOTS {
            let info = vk::FenceCreateInfo::default();
            // SAFETY: the device exists.
            let fence = unsafe { device.create_fence(&info, None) };
            self.fences.push(check("vkCreateFence", fence)?);
        }
        Ok(())
    }

    /// Returns the command buffer and the fence of a submission.
    fn slot(&self, number: u64) -> (vk::CommandBuffer, vk::Fence) {
        // Below `SLOTS`, the length of both.
        let index = (number % u64::from(SLOTS)) as usize;
        (self.commands[index], self.fences[index])
    }

    /// Starts copies, after those of earlier submissions. Returns the number of the submission.
    pub(crate) fn submit(
        &mut self,
        device: &ash::Device,
        copies: &RawCopies<'_>,
    ) -> Result<u64, DeviceError> {
        let number = self.submitted + 1;
        if let Some(oldest) = number.checked_sub(u64::from(SLOTS)) {
            self.wait(device, oldest)?;
        }
        let (commands, fence) = self.slot(number);
        record(device, commands, copies)?;
        // SAFETY: the fence is that of a submission that is done (`wait`), or of none.
        check("vkResetFences", unsafe { device.reset_fences(&[fence]) })?;
        let buffers = [commands];
        let info = vk::SubmitInfo::default().command_buffers(&buffers);
        // SAFETY: (1) the command buffer is recorded, and not in use; (2) the fence is reset; (3) `&mut self`: no other thread
        // uses the queue.
        let submitted = unsafe { device.queue_submit(self.raw, &[info], fence) };
        check("vkQueueSubmit", submitted)?;
        self.submitted = number;
        Ok(number)
    }

    /// Returns whether a submission is done; then, all before it are.
    pub(crate) fn is_done(
        &mut self,
        device: &ash::Device,
        number: u64,
    ) -> Result<bool, DeviceError> {
        let number = number.min(self.submitted);
        if self.done >= number {
            return Ok(true);
        }
        let (_, fence) = self.slot(number);
        // SAFETY: the fence exists (invariant).
        let status = unsafe { device.get_fence_status(fence) };
        let is_done = check("vkGetFenceStatus", status)?;
        if is_done {
            self.done = number;
        }
        Ok(is_done)
    }

    /// Waits until a submission is done.
    pub(crate) fn wait(&mut self, device: &ash::Device, number: u64) -> Result<(), DeviceError> {
        let number = number.min(self.submitted);
        if self.done >= number {
            return Ok(());
        }
        let (_, fence) = self.slot(number);
        // SAFETY: the fence exists (invariant), and was submitted.
        let waited = unsafe { device.wait_for_fences(&[fence], true, FOR_EVER) };
        check("vkWaitForFences", waited)?;
        self.done = number;
        Ok(())
    }

    /// Destroys what the queue has. No copy is running.
    pub(crate) fn destroy(&mut self, device: &ash::Device) {
        for fence in self.fences.drain(..) {
            // SAFETY: created by `fill`, destroyed here only, and not in use.
            unsafe { device.destroy_fence(fence, None) };
        }
        self.commands.clear();
        let pool = std::mem::take(&mut self.pool);
        // SAFETY: created by `create`, and replaced by none, which is ignored; its command buffers are not in use.
        unsafe { device.destroy_command_pool(pool, None) };
    }
}

/// Records copies: one command with a region for each.
fn record(
    device: &ash::Device,
    commands: vk::CommandBuffer,
    copies: &RawCopies<'_>,
) -> Result<(), DeviceError> {
    let once =
        vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
    // SAFETY: the command buffer is not in use, and its pool lets it be recorded again.
    let begun = unsafe { device.begin_command_buffer(commands, &once) };
    check("vkBeginCommandBuffer", begun)?;
    // Copies of earlier submissions are done before these begin.
    let copying = vk::AccessFlags::TRANSFER_READ | vk::AccessFlags::TRANSFER_WRITE;
    let earlier = vk::MemoryBarrier::default()
        .src_access_mask(vk::AccessFlags::TRANSFER_WRITE)
        .dst_access_mask(copying);
    let (copy_stage, host_stage) = (
        vk::PipelineStageFlags::TRANSFER,
        vk::PipelineStageFlags::HOST,
    );
    let none = vk::DependencyFlags::empty();
    // SAFETY: recording has begun.
    unsafe {
        device.cmd_pipeline_barrier(commands, copy_stage, copy_stage, none, &[earlier], &[], &[])
    };
    // SAFETY: (1) recording has begun; (2) there are regions, inside both buffers and at least a byte long, which do not overlap
    // (`RawCopies`); (3) both buffers have memory until the queue is done with them.
    unsafe { device.cmd_copy_buffer(commands, copies.from, copies.to, copies.regions()) };
    // The CPU, and the kernel for it, read and write the bytes when the fence is done.
    let host = vk::MemoryBarrier::default()
        .src_access_mask(copying)
        .dst_access_mask(vk::AccessFlags::HOST_READ | vk::AccessFlags::HOST_WRITE);
    // SAFETY: recording has begun.
    unsafe {
        device.cmd_pipeline_barrier(commands, copy_stage, host_stage, none, &[host], &[], &[])
    };
    // SAFETY: recording has begun.
    check("vkEndCommandBuffer", unsafe {
        device.end_command_buffer(commands)
    })
}
