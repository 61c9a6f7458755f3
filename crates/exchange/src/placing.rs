//! The places of announced chunks, which the NIC is told before their bytes arrive.

use std::ops::Range;
use std::sync::Arc;

use devmem_tcp::{BoundTarget, Stream};

/// Most chunks whose places the NIC has at a time. Each new one makes it learn all of them again.
const MAX_CHUNKS: usize = 32;

/// What the NIC knows about the places of a stream's next bytes.
#[derive(Debug, Default)]
pub(crate) struct Placing {
    /// The memory that all places are in.
    target: Option<Arc<BoundTarget>>,
    /// Number of announced chunks, from the first one on, that the NIC has places for.
    chunks: usize,
}

impl Placing {
    /// Adds the places of chunks that were announced meanwhile. `places` are those of all `announced` chunks, in order. Places
    /// in another memory wait until those before them are full.
    pub(crate) fn extend<'a>(
        &mut self,
        stream: &mut Stream,
        places: impl Iterator<Item = Option<(&'a Arc<BoundTarget>, Range<usize>)>>,
        announced: usize,
    ) {
        if announced.min(MAX_CHUNKS) <= self.chunks {
            return;
        }
        let mut target = self.target.clone().filter(|_| self.chunks > 0);
        let mut ranges = Vec::new();
        for (it, range) in places.map_while(|place| place).take(MAX_CHUNKS) {
            match &target {
                Some(target) if !Arc::ptr_eq(target, it) => break,
                Some(_) => {}
                None => target = Some(Arc::clone(it)),
            }
            ranges.push(range);
        }
        if ranges.len() <= self.chunks {
            return;
        }
        let Some(target) = target else { return };
        // If it is refused, because the connection has ended, the bytes are copied to their place.
        let _ = stream.place_next(&target, &ranges);
        self.chunks = ranges.len();
        self.target = Some(target);
    }

    /// Notes that the first announced chunk has arrived.
    pub(crate) fn finish_first(&mut self) {
        self.chunks = self.chunks.saturating_sub(1);
    }

    /// Ends the placement: the memory may be used for something else.
    pub(crate) fn stop(&mut self, stream: &mut Stream) {
        if let Some(target) = self.target.take().filter(|_| self.chunks > 0) {
            // Refused only if there is no connection any more.
            let _ = stream.place_next(&target, &[]);
        }
        self.chunks = 0;
    }
}
