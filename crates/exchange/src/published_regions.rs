//! The regions that an endpoint has published, by their keys: only its peer may name them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::sync::{Arc, Weak};

use crate::region::{RegionInner, RegionKey};

/// The regions that the peer of one endpoint may name.
#[derive(Default)]
pub(crate) struct PublishedRegions {
    regions: HashMap<RegionKey, Weak<RegionInner>>,
}

impl PublishedRegions {
    /// Returns the key of a region for this endpoint: a new one, unless it has one.
    pub(crate) fn publish(&mut self, region: &Arc<RegionInner>) -> io::Result<RegionKey> {
        self.regions.retain(|_, region| region.strong_count() > 0);
        let is_it = |other: &Weak<RegionInner>| std::ptr::eq(other.as_ptr(), Arc::as_ptr(region));
        let known = self.regions.iter().find(|(_, other)| is_it(other));
        if let Some((key, _)) = known {
            return Ok(*key);
        }
        loop {
            let key = RegionKey(random()?);
            if let Entry::Vacant(free) = self.regions.entry(key) {
                free.insert(Arc::downgrade(region));
                return Ok(key);
            }
        }
    }

    /// Returns the region that the peer names.
    pub(crate) fn find(&self, key: RegionKey) -> Option<Arc<RegionInner>> {
        self.regions.get(&key).and_then(Weak::upgrade)
    }

    pub(crate) fn clear(&mut self) {
        self.regions.clear();
    }
}

/// Returns a number that nobody can guess (getrandom(2)).
pub(crate) fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    let mut filled = 0;
    while filled < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        match rustix::rand::getrandom(&mut bytes[filled..], flags) {
            Ok(got) => filled += got,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::{Access, Buffer, Kind, NewRegion, Region};

    fn region() -> Region {
        let kind = Kind::Host(Buffer::new(vec![0; 8]));
        let new = NewRegion {
            access: Access::PUBLIC,
            fabric: 1,
        };
        Region::new(kind, None, new).unwrap()
    }

    #[test]
    fn a_key_belongs_to_one_endpoint_and_dies_with_its_region() {
        let (mut one, mut other) = (PublishedRegions::default(), PublishedRegions::default());
        let (first, second) = (region(), region());
        let key = one.publish(first.inner()).unwrap();
        assert_eq!(one.publish(first.inner()).unwrap(), key);
        let different = one.publish(second.inner()).unwrap();
        let elsewhere = other.publish(first.inner()).unwrap();
        assert!(key != different && key != elsewhere);
        assert!(one.find(key).is_some() && one.find(elsewhere).is_none());
        assert!(other.find(key).is_none() && other.find(elsewhere).is_some());
        drop(first);
        assert!(one.find(key).is_none() && one.find(different).is_some());
        one.clear();
        assert!(one.find(different).is_none());
    }

    #[test]
    fn keys_are_no_small_numbers_and_do_not_repeat() {
        let mut published = PublishedRegions::default();
        let regions: Vec<_> = (0..64).map(|_| region()).collect();
        let given: Vec<_> = regions
            .iter()
            .map(|region| published.publish(region.inner()).unwrap().0)
            .collect();
        let distinct: std::collections::HashSet<_> = given.iter().collect();
        assert_eq!(distinct.len(), given.len());
        // 64 keys of 64 random bits below 2^32 have a chance of 2^-26 to include even one.
        assert!(
            given.iter().all(|key| *key > u64::from(u32::MAX)),
            "{given:?}"
        );
    }
}
