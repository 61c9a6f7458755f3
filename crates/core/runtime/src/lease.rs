//! Addresses that were leased to a NIC, while it is open.

use std::sync::{Arc, Weak};

use lease::{Acquired, AddressEvent, LeaseKeeper};

use crate::driven::Driven;
use crate::driver::Driver;

/// Starts to renew addresses, and changes those of the stacks of a NIC with them; `shards` are its drivers.
///
/// # Errors
/// The thread or its eventfd cannot be made.
pub fn keep_lease<D: Driven + 'static>(
    acquired: Acquired,
    shards: &[Arc<Driver<D>>],
) -> std::io::Result<LeaseKeeper> {
    // Not kept alive: a shard may be closed before the others.
    let shards: Vec<Weak<Driver<D>>> = shards.iter().map(Arc::downgrade).collect();
    LeaseKeeper::start(acquired, move |news| {
        let open = shards.iter().filter_map(Weak::upgrade);
        open.for_each(|shard| tell(news, &shard));
    })
}

/// Changes an address of the stacks of a shard.
fn tell<D: Driven>(news: &AddressEvent, shard: &Driver<D>) {
    shard.call(|driven, now| {
        for stack in driven.stacks_mut() {
            match news {
                AddressEvent::Has(address) => {
                    let added = stack.add_address(address, now);
                    // The clients accept only addresses of hosts, and routers on the link.
                    debug_assert!(added.is_ok(), "{news:?}");
                }
                AddressEvent::Lost(address) => stack.remove_address(*address, now),
            }
        }
    });
}
