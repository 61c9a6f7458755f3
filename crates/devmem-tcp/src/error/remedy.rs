//! What to do about an error.

use std::borrow::Cow;
use std::fmt;

use devmem_uapi::text::printable_lines;

/// What to change or type next. `Display` prints it for programs in Rust, in one or more lines; an interface to another language has
/// its own words for the remedies that name calls of this library.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// Words in which no call of this library is named: what to type, or what to change outside of the program.
    Text(Cow<'static, str>),
    /// Write the link in one of its forms.
    WriteLink,
    /// Give the NIC an address.
    GiveAddress,
    /// Give the in-memory wire another name, or drop one of its two NICs.
    OtherWire,
    /// Open both NICs of the wire with the same number of shards.
    SameShards,
    /// Open the NIC with one shard, or on a link that can have several.
    OneShard,
    /// Make the memory in a way that a NIC of the kernel can use.
    ExportableMemory,
    /// Bind the memory to the stream's NIC, and send from that binding.
    BindToStreamsNic,
    /// Bind the target to the stream's NIC.
    BindTargetToStreamsNic,
    /// Copy what was received to its place.
    GatherInstead,
    /// Connect to an address in a network of the NIC, or name a router.
    NameRouter,
    /// Correct the address of the router, or check that it is there.
    CorrectRouter,
    /// Close the NIC instead, which waits for all streams.
    CloseNic,
    /// Release what was received and is held.
    ReleaseFrags,
    /// Release what was received and is held, or bind more memory; meanwhile the peer may not send.
    ReleaseOrBindMore,
    /// Accept bytes in host memory, too.
    AcceptHostMemory,
    /// The same, where the NIC is set up as it should be.
    DeliverFromHostMemory,
    /// Bind device memory, and steer the flow to its queue, before the peer connects.
    BindBeforeConnecting,
    /// Use a wire in real time.
    RealTime,
    /// Make a poller for each shard of the NIC.
    PollerForEachShard,
    /// Watch the stream with a poller of its shard.
    PollerOfItsShard,
}

impl Remedy {
    /// All that an interface may have its own words for, for its tests.
    #[doc(hidden)]
    pub const NAMED: [Self; 20] = [
        Self::WriteLink,
        Self::GiveAddress,
        Self::OtherWire,
        Self::SameShards,
        Self::OneShard,
        Self::ExportableMemory,
        Self::BindToStreamsNic,
        Self::BindTargetToStreamsNic,
        Self::GatherInstead,
        Self::NameRouter,
        Self::CorrectRouter,
        Self::CloseNic,
        Self::ReleaseFrags,
        Self::ReleaseOrBindMore,
        Self::AcceptHostMemory,
        Self::DeliverFromHostMemory,
        Self::BindBeforeConnecting,
        Self::RealTime,
        Self::PollerForEachShard,
        Self::PollerOfItsShard,
    ];
}

impl From<&'static str> for Remedy {
    fn from(text: &'static str) -> Self {
        Self::Text(text.into())
    }
}

impl From<Cow<'static, str>> for Remedy {
    fn from(text: Cow<'static, str>) -> Self {
        match text {
            Cow::Borrowed(text) => text.into(),
            Cow::Owned(text) => text.into(),
        }
    }
}

/// The text may have some from outside: what a terminal obeys is escaped.
impl From<String> for Remedy {
    fn from(text: String) -> Self {
        Self::Text(printable_lines(text).into())
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text(text) => text,
            Self::WriteLink => {
                "write tap:NAME (a TAP interface, NAME at most 15 bytes), packet:NAME or macvtap:NAME (an Ethernet interface), \
                 unix:PATH (the socket of an emulated NIC, or of another process), unix-listen:PATH (the same, listening) or \
                 mem:NAME (a wire inside this process)"
            }
            Self::GiveAddress => "give it one, as in `.address(\"10.77.0.2/24\")`",
            Self::OtherWire => "choose another name, or drop one of its NICs",
            Self::SameShards => "open both with the same `NetdevBuilder::shards`",
            Self::OneShard => {
                "leave the shards at 1, or open packet:NAME, tap:NAME, macvtap:NAME or mem:NAME with neither `tap_queues` nor a \
                 capture"
            }
            Self::ExportableMemory => {
                "make it with `devmem_tcp::memory::udmabuf`, `devmem_tcp::memory::dma_heap` or `Dmabuf::memfd`"
            }
            Self::BindToStreamsNic => {
                "bind the memory to the stream's NIC, too, with its `bind_tx`, and send from that binding"
            }
            Self::BindTargetToStreamsNic => "bind it with `bind_target` of the NIC of the stream",
            Self::GatherInstead => "copy what was received with `RxBatch::gather_into`",
            Self::NameRouter => {
                "connect to an address in a network of this NIC, or name a router with `NetdevBuilder::gateway`"
            }
            Self::CorrectRouter => {
                "correct the address of the router (`NetdevBuilder::gateway`), or check that it is up and on this link"
            }
            Self::CloseNic => {
                "call `Netdev::close` at the end, which waits for all streams, or set a linger time of 0 or none"
            }
            Self::ReleaseFrags => "release the batches, or drop the frags, that the program holds",
            Self::ReleaseOrBindMore => {
                "release the batches, or drop the frags and tensors, that the program holds, or bind more memory: until then the \
                 peer may not send more"
            }
            Self::AcceptHostMemory => {
                "the flow is not steered to a bound queue, or the NIC left payload with the headers; \
                 `set_placement(Placement::Mixed)` delivers them"
            }
            Self::DeliverFromHostMemory => "`set_placement(Placement::Mixed)` delivers them",
            Self::BindBeforeConnecting => {
                "call `Netdev::bind_rx`, and apply a plan of `plan_receive` that steers the flow, before the peer connects"
            }
            Self::RealTime => "use a wire in real time, as `Netdev::user(\"mem:NAME\", ...)`",
            Self::PollerForEachShard => "make a poller for each NIC that `Netdev::shards` returns",
            Self::PollerOfItsShard => {
                "watch it with a poller of its shard, which `Stream::shard` returns"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of a remedy in [`Remedy::NAMED`]. Another variant has its arm here, and its place there.
    fn number(remedy: &Remedy) -> Option<usize> {
        Some(match remedy {
            Remedy::Text(_) => return None,
            Remedy::WriteLink => 0,
            Remedy::GiveAddress => 1,
            Remedy::OtherWire => 2,
            Remedy::SameShards => 3,
            Remedy::OneShard => 4,
            Remedy::ExportableMemory => 5,
            Remedy::BindToStreamsNic => 6,
            Remedy::BindTargetToStreamsNic => 7,
            Remedy::GatherInstead => 8,
            Remedy::NameRouter => 9,
            Remedy::CorrectRouter => 10,
            Remedy::CloseNic => 11,
            Remedy::ReleaseFrags => 12,
            Remedy::ReleaseOrBindMore => 13,
            Remedy::AcceptHostMemory => 14,
            Remedy::DeliverFromHostMemory => 15,
            Remedy::BindBeforeConnecting => 16,
            Remedy::RealTime => 17,
            Remedy::PollerForEachShard => 18,
            Remedy::PollerOfItsShard => 19,
        })
    }

    #[test]
    fn remedies_name_no_option_of_the_tool() {
        for (index, remedy) in Remedy::NAMED.iter().enumerate() {
            assert_eq!(number(remedy), Some(index), "{remedy:?}");
            assert!(!remedy.to_string().contains("--"), "{remedy}");
        }
    }
}
