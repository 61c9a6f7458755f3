//! Remedies of errors in the words of Python.

use devmem_tcp::Remedy;
use devmem_transfer::load::{Remedy as LoadRemedy, Setting};
use pyo3::prelude::*;

/// Returns the remedy of an error of the library in the words of Python.
pub(crate) fn words(remedy: Remedy) -> String {
    let words = match remedy {
        Remedy::GiveAddress => "give it one, as in Netdev.user(LINK, \"10.77.0.2/24\")",
        Remedy::OtherWire => "choose another name, or close one of its NICs",
        Remedy::SameShards => {
            "open both with the same number of shards: Netdev.user(..., shards=2)"
        }
        Remedy::OneShard => {
            "leave out shards=, or open packet:NAME, tap:NAME, macvtap:NAME or mem:NAME"
        }
        Remedy::ExportableMemory => "make it with Dmabuf.udmabuf, Dmabuf.dma_heap or Dmabuf.memfd",
        Remedy::BindToStreamsNic => {
            "bind the memory to the stream's NIC, too, with its bind_tx, and send from that binding"
        }
        Remedy::BindTargetToStreamsNic => "bind it to the NIC of the stream",
        Remedy::GatherInstead => "copy what was received with Batch.gather",
        Remedy::NameRouter => {
            "connect to an address in a network of this NIC, or name a router: Netdev.user(..., gateway=\"10.77.0.1\")"
        }
        Remedy::CorrectRouter => {
            "correct the address of the router (gateway= of Netdev.user), or check that it is up and on this link"
        }
        Remedy::CloseNic => "call Netdev.close at the end, which waits for all streams",
        Remedy::ReleaseFrags => {
            "release the batches, or delete the frags and tensors, that the program holds"
        }
        Remedy::ReleaseOrBindMore => {
            "release the batches, or drop the frags and tensors, that the program holds, or bind more memory: until then the peer \
             may not send more"
        }
        Remedy::AcceptHostMemory => {
            "the flow is not steered to a bound queue, or the NIC left payload with the headers; set_strict(False) delivers them"
        }
        Remedy::DeliverFromHostMemory => "set_strict(False) delivers them",
        Remedy::BindBeforeConnecting => {
            "call bind_rx, and apply a plan of plan_receive that steers the flow, before the peer connects"
        }
        Remedy::RealTime => "use a wire in real time: Netdev.user(\"mem:NAME\", ...)",
        Remedy::PollerForEachShard => "wait for the streams of each NIC that Netdev.shards returns",
        Remedy::PollerOfItsShard => "wait for it with streams of its shard",
        other => return other.to_string(),
    };
    words.to_owned()
}

/// Returns the remedy of an error of a load or a store in the words of Python.
pub(crate) fn of_load(remedy: &LoadRemedy) -> String {
    remedy.worded(argument, words)
}

/// Returns the arguments or the function that set it.
fn argument(setting: Setting) -> &'static str {
    match setting {
        Setting::Authorities => "cacert=\"FILE\"",
        Setting::Certificate => "cert=\"FILE\", key=\"FILE\"",
        Setting::Connections => "connections=1",
        Setting::IdleLimit => "idle_limit=SECONDS",
        Setting::PieceBytes => "load(URL, at=..., nbytes=...) of a part",
        Setting::MemoryLimit => "memory_limit=",
        Setting::Subsystems => "list_subsystems(\"nvme://HOST\")",
    }
}

/// Returns all remedies that have words of Python, for the tests.
#[pyfunction]
pub(crate) fn _remedies() -> Vec<String> {
    let of_settings = Setting::ALL.map(|setting| LoadRemedy::Set(LoadRemedy::SETTING, setting));
    let of_library = Remedy::NAMED.map(LoadRemedy::Library);
    of_settings.iter().chain(&of_library).map(of_load).collect()
}
