//! The probe, without an address: checks that valid requests succeed and invalid ones are refused.

use std::os::fd::AsFd;

use anyhow::Context;
use devmem_linux::dmabuf::DmabufFd;
use devmem_linux::ethtool::{Channels, ChannelsChange, Ethtool};
use devmem_linux::netdev::{DriverSupport, Netdev};
use devmem_linux::nic_setup::NicSetup;

use super::flags::{BindPlan, ProbePlan};
use super::server::refused_binding;
use super::{memory, setup};
use tool::output::{Failure, say};
use tool::signals::StopPipe;

/// Probes a NIC. Its settings are restored in any case.
///
/// # Errors
///
/// The first unexpected result.
pub fn run(mut netdev: Netdev, plan: &ProbePlan) -> Result<(), Failure> {
    // Signals only set a flag, so that the settings are restored; no step takes long.
    let _until_the_end = StopPipe::install().context("install signal handlers")?;
    let memory = memory::make(plan.binding.rx_page_size)?;
    let mut setup = setup::apply(netdev.name(), &plan.binding, None)?;
    let probed = probe(&mut netdev, &plan.binding, &memory, setup.as_mut());
    let restored = setup::put_back(setup);
    probed.and(restored)
}

fn probe(
    netdev: &mut Netdev,
    binding: &BindPlan,
    memory: &DmabufFd,
    setup: Option<&mut NicSetup>,
) -> Result<(), Failure> {
    must_be_refused(
        "Binding empty queues array",
        netdev.bind_rx(memory.as_fd(), &[]).err(),
    )?;
    // A request with a queue that has neither id nor type.
    if let DriverSupport::No { reason } | DriverSupport::Unknown { reason } = netdev.probe_bind_rx()
    {
        return Err(Failure::failed(format!("Failed to bind: {reason}")));
    }
    let queues = setup::queue_ids(binding.first_queue, binding.queue_count);
    if let Some(setup) = setup {
        let bound = setup.without_split(|| netdev.bind_rx(memory.as_fd(), &queues));
        let bound = bound.context("Failed to configure header split")?;
        must_be_refused("Configure dmabuf with header split off", bound.err())?;
        say!("TCP header split: on");
    }
    let bound = netdev
        .bind_rx_sized(memory.as_fd(), &queues, binding.rx_page_size)
        .map_err(|error| refused_binding(&error))?;
    say!("got dmabuf id={}", bound.id());
    deactivating_is_refused(netdev.name(), binding.first_queue)
}

fn must_be_refused(
    what: &str,
    refused: Option<devmem_linux::netdev::BindError>,
) -> Result<(), Failure> {
    match refused {
        Some(error) => {
            say!("netdev_bind_rx: {error}, as expected");
            Ok(())
        }
        None => Err(Failure::failed(format!("{what} should have failed"))),
    }
}

/// Tries to remove the bound queues, which the kernel must refuse. If it does not, restores them.
fn deactivating_is_refused(interface: &str, first_queue: u32) -> Result<(), Failure> {
    let mut ethtool = Ethtool::by_name(interface)?;
    let before = ethtool.channels().context("read the channels")?;
    let fewer = first_queue.max(1);
    say!("setting channel count rx:{fewer} tx:{fewer}");
    match ethtool.set_channels(change_to(&before, fewer)) {
        Err(error) => {
            say!("set channels: {error}, as expected");
            Ok(())
        }
        Ok(()) => {
            let back = ethtool.set_channels(ChannelsChange {
                rx: Some(before.rx),
                tx: Some(before.tx),
                combined: Some(before.combined),
            });
            back.context("restore the channels")?;
            Err(Failure::failed(
                "Deactivating a bound queue should be illegal",
            ))
        }
    }
}

/// Returns the change to this number of RX and TX queues, in the kind of channels that the NIC has.
fn change_to(now: &Channels, queues: u32) -> ChannelsChange {
    match now.combined_max {
        0 => ChannelsChange {
            rx: Some(queues),
            tx: Some(queues),
            combined: None,
        },
        _ => ChannelsChange {
            rx: (now.rx > 0).then_some(0),
            tx: (now.tx > 0).then_some(0),
            combined: Some(queues),
        },
    }
}
