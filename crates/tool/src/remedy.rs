//! Remedies of the library's errors in the words of a program.

use devmem_tcp::Remedy;

/// Returns a remedy with the options of a program instead of calls of the library.
pub fn words(remedy: Remedy) -> String {
    let words = match remedy {
        Remedy::WriteLink => {
            "write tap:NAME, packet:NAME or macvtap:NAME, the interface's name of at most 15 bytes, unix:PATH or unix-listen:PATH"
        }
        Remedy::GiveAddress => "give it one: --addr 10.77.0.2/24",
        Remedy::SameShards => "open both of its NICs with the same number of shards",
        Remedy::OneShard => "leave the shards at 1, or open packet:NAME, tap:NAME or macvtap:NAME",
        Remedy::ExportableMemory => "use memory that is a dma-buf: udmabuf, or that of a GPU",
        Remedy::BindToStreamsNic => "bind the memory for sending to the NIC of the stream, too",
        Remedy::BindTargetToStreamsNic => "bind the place to the NIC of the stream, too",
        Remedy::GatherInstead => "copy what was received to its place",
        Remedy::NameRouter => {
            "connect to an address in a network of this NIC, or name a router: --gateway ADDR"
        }
        Remedy::CorrectRouter => {
            "correct the address of the router (--gateway), or check that it is up and on this link"
        }
        Remedy::CloseNic => "end the streams before the NIC",
        Remedy::AcceptHostMemory => {
            "the flow is not steered to a bound queue, or the NIC left payload with the headers: `devmem-tcp doctor` shows its settings"
        }
        Remedy::DeliverFromHostMemory => {
            "--strict refuses such bytes: leave it out to receive them"
        }
        Remedy::BindBeforeConnecting => {
            "start the receiver, with its flow rule, before the peer connects"
        }
        Remedy::RealTime => "use a link in real time",
        Remedy::PollerForEachShard | Remedy::PollerOfItsShard => "use one shard",
        // Its words are those of people.
        other => return other.to_string(),
    };
    words.to_owned()
}

/// Returns whether a text names calls of a library in Rust or Python, for tests of words.
#[doc(hidden)]
pub fn names_a_call(text: &str) -> bool {
    let calls = ["::", "()", "`.", "(\"", "devmem_tcp"];
    let is_argument = |word: &str| {
        word.split_once('=').is_some_and(|(name, _)| {
            !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase())
        })
    };
    calls.iter().any(|call| text.contains(call)) || text.split_whitespace().any(is_argument)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedies_name_no_call() {
        for remedy in Remedy::NAMED {
            let text = words(remedy);
            assert!(!names_a_call(&text), "{text}");
        }
        for call in [
            "call `Netdev::close`",
            "give it one, as in `.address(\"10.77.0.2/24\")`",
            "call wait()",
            "leave out shards=2",
        ] {
            assert!(names_a_call(call), "{call}");
        }
    }
}
