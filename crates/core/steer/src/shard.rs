//! The shard of a flow: which of several queue pairs, each with a separate NIC half and stack, has its connection.
//!
//! The hash is symmetric, so both directions of a flow have the same one, and it has no secret, so two ends with as many
//! shards agree on it: what one sends on its queue `n`, the other receives on its queue `n`. As with the published RSS keys of
//! hardware, a peer can choose ports for which all its flows are on one shard.

use std::net::{IpAddr, SocketAddr};

use wire::FourTuple;

/// Number of a shard of a NIC, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

impl ShardId {
    /// Returns the number as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl std::fmt::Display for ShardId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Returns the shard, of `count`, that has the connection of a packet with this four-tuple. Shard 0 if `count` is 0.
///
/// The hash uses only operations on 32 bits that classic BPF has: the kernel computes the same to deliver a packet to the
/// socket of its shard (`packet/spread.rs` of `devmem-linux`).
pub fn shard_of(tuple: &FourTuple, count: u16) -> ShardId {
    let source = endpoint_hash(SocketAddr::new(tuple.src_ip, tuple.src_port));
    let destination = endpoint_hash(SocketAddr::new(tuple.dst_ip, tuple.dst_port));
    // The sum is the same for both directions.
    let hash = mix(source.wrapping_add(destination));
    // Less than `count`, and evenly distributed, as the upper half of the hash is.
    ShardId((((hash >> 16) * u32::from(count)) >> 16) as u16)
}

fn endpoint_hash(endpoint: SocketAddr) -> u32 {
    let port = mix(endpoint.port().into());
    let add = |hash, word| mix(hash ^ word);
    match endpoint.ip() {
        IpAddr::V4(ip) => add(port, ip.to_bits()),
        IpAddr::V6(ip) => {
            let bits = ip.to_bits();
            // The casts take 32 bits each.
            let words = [96, 64, 32, 0].map(|shift| (bits >> shift) as u32);
            words.into_iter().fold(port, add)
        }
    }
}

/// Distributes the bits of a word over all bits.
fn mix(word: u32) -> u32 {
    let hash = (word ^ word >> 16).wrapping_mul(GOLDEN_RATIO);
    let hash = (hash ^ hash >> 15).wrapping_mul(GOLDEN_RATIO);
    hash ^ hash >> 16
}

/// 2^32 divided by the golden ratio: a multiplication by it distributes neighbouring numbers evenly (Knuth, The Art of
/// Computer Programming 3, 6.4).
const GOLDEN_RATIO: u32 = 0x9e37_79b9;

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(source: &str, destination: &str) -> FourTuple {
        let [source, destination] = [source, destination].map(|text| {
            let address: SocketAddr = text.parse().expect("an address");
            address
        });
        FourTuple {
            src_ip: source.ip(),
            dst_ip: destination.ip(),
            src_port: source.port(),
            dst_port: destination.port(),
        }
    }

    #[test]
    fn both_directions_of_a_flow_are_on_one_shard() {
        for port in 1..2000 {
            for (source, destination) in [
                (format!("10.0.0.1:{port}"), "10.0.0.2:80"),
                (format!("[fd77::1]:{port}"), "[fd77::2]:80"),
            ] {
                let tuple = tuple(&source, destination);
                for count in 1..9 {
                    let shard = shard_of(&tuple, count);
                    assert_eq!(shard_of(&tuple.reversed(), count), shard);
                    assert!(shard.0 < count);
                }
            }
        }
    }

    #[test]
    fn flows_that_differ_in_one_port_or_address_are_spread_evenly() {
        let by_port = |port: u16| tuple(&format!("10.0.0.1:{port}"), "10.0.0.2:5201");
        let by_port6 = |port: u16| tuple(&format!("[fd77::1]:{port}"), "[fd77::2]:5201");
        let by_address = |n: u16| tuple(&format!("10.1.{}.{}:9", n >> 8, n & 255), "10.0.0.2:80");
        for count in [2_u16, 3, 4, 8] {
            for flow in [by_port, by_port6, by_address] {
                let mut found = vec![0_u32; count.into()];
                (40_000..48_000).for_each(|n| found[shard_of(&flow(n), count).index()] += 1);
                let fair = 8000 / u32::from(count);
                let is_fair = |n: &u32| n.abs_diff(fair) < fair / 8;
                assert!(found.iter().all(is_fair), "{count}: {found:?}");
            }
        }
    }

    /// The tests of the kernel's program in `devmem-linux` have the same values.
    #[test]
    fn the_hash_is_the_one_that_the_kernel_computes() {
        let v4 = tuple("10.77.0.1:40000", "10.77.0.2:5201");
        let v6 = tuple("[fd77::1]:40001", "[fd77::2]:5202");
        let shards = [v4, v6].map(|tuple| shard_of(&tuple, 1 << 15));
        assert_eq!(shards, [ShardId(0xc350 >> 1), ShardId(0x8baf >> 1)]);
    }

    #[test]
    fn no_shards_are_as_one() {
        let tuple = tuple("10.0.0.1:1", "10.0.0.2:2");
        assert_eq!(
            (shard_of(&tuple, 0), shard_of(&tuple, 1)),
            Default::default()
        );
    }
}
