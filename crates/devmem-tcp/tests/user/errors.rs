//! Errors as a program sees them: by their kind, in a box, as `io::Error`, and as the last words of `main`.

use std::error::Error as StdError;
use std::io;

use devmem_tcp::{
    BindError, Dmabuf, Errno, Error, ErrorKind, LinkSpec, Netdev, RecvError, Remedy, RxBatch,
    RxQueueId,
};

/// One error of each of several operations, with its kind. `wire` is the name of a wire that no other test has: two NICs on one
/// wire cannot have the same address.
fn samples(wire: &str) -> Vec<(Box<dyn StdError>, ErrorKind)> {
    let nic = Netdev::user(format!("mem:errors-{wire}"), "10.77.0.2/24").unwrap();
    let memory = Dmabuf::anonymous(4 << 20).unwrap();
    let lo = Netdev::kernel("lo").unwrap();
    let local = "10.77.0.2:5201".parse().unwrap();
    let listener = nic.listen(local).unwrap();
    let boxed = |error: Error| -> Box<dyn StdError> { Box::new(error) };
    let samples: Vec<(Box<dyn StdError>, ErrorKind)> = vec![
        (
            boxed(Netdev::user("eth0", "10.77.0.2/24").unwrap_err()),
            ErrorKind::InvalidInput,
        ),
        (
            boxed(Netdev::user("mem:x", "10.77.0.2").unwrap_err()),
            ErrorKind::InvalidInput,
        ),
        (
            boxed(Netdev::kernel("nosuch0").unwrap_err()),
            ErrorKind::NotFound,
        ),
        (
            boxed(Netdev::user("unix:/nosuch/wire", "10.77.0.2/24").unwrap_err()),
            ErrorKind::NotFound,
        ),
        (
            Box::new(nic.bind_rx(&memory, &[RxQueueId(1)]).unwrap_err()),
            ErrorKind::NotSetUp,
        ),
        (
            Box::new(lo.bind_rx(&memory, &[RxQueueId(1)]).unwrap_err()),
            ErrorKind::InvalidInput,
        ),
        (
            Box::new(nic.plan_receive(local).queues(9).apply().unwrap_err()),
            ErrorKind::InvalidInput,
        ),
        (
            Box::new(nic.listen(local).unwrap_err()),
            ErrorKind::AddrInUse,
        ),
        (
            Box::new(lo.connect("127.0.0.1:1").unwrap_err()),
            ErrorKind::ConnectionRefused,
        ),
        (
            Box::new(nic.connect("192.0.2.1:1").unwrap_err()),
            ErrorKind::NetworkUnreachable,
        ),
    ];
    drop(listener);
    samples
}

#[test]
fn every_error_has_its_kind_behind_a_box_and_its_text_is_the_reason_in_one_line() {
    for (error, kind) in samples("errors-1") {
        assert_eq!(ErrorKind::of(&*error), Some(kind), "{error}");
        let text = error.to_string();
        assert!(!text.is_empty() && text.lines().count() == 1, "{text}");
        // Nothing is said twice where a chain is printed.
        assert!(error.source().is_none(), "{text}");
    }
    assert_eq!(ErrorKind::of(&io::Error::other("none of ours")), None);
}

#[test]
fn debug_prints_the_remedy_below_the_reason_so_that_main_shows_it() {
    for (error, _) in samples("errors-2") {
        let text = format!("{error:?}");
        let (reason, remedy) = text.split_once("\n  ").unwrap_or_else(|| panic!("{text}"));
        assert_eq!(reason, error.to_string());
        assert!(!remedy.is_empty(), "{text}");
    }
    // What the runtime prints for `fn main() -> Result<(), Box<dyn StdError>>`.
    fn of_main() -> Result<(), Box<dyn StdError>> {
        Netdev::kernel("nosuch0")?;
        Ok(())
    }
    let last_words = format!("Error: {:?}", of_main().unwrap_err());
    assert!(last_words.contains("\n  `ip link` lists"), "{last_words}");
}

#[test]
fn an_io_error_keeps_the_kind_the_text_and_the_error() {
    let listening = Netdev::user("mem:errors-io", "10.77.0.2/24").unwrap();
    let _first = listening.listen("10.77.0.2:5201").unwrap();
    let refused = listening.listen("10.77.0.2:5201").unwrap_err();
    assert_eq!(refused.errno(), Errno::EADDRINUSE);
    assert!(
        refused
            .remedy()
            .is_some_and(|remedy| remedy.to_string().contains("another port"))
    );
    let text = refused.to_string();
    let io = io::Error::from(refused);
    assert_eq!(
        (io.kind(), io.to_string()),
        (io::ErrorKind::AddrInUse, text)
    );
    let inner = io.get_ref().unwrap();
    assert_eq!(ErrorKind::of(inner), Some(ErrorKind::AddrInUse));
    let spec = "eth0".parse::<LinkSpec>().unwrap_err();
    assert_eq!(io::Error::from(spec).kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn an_error_comes_back_out_of_an_io_error_with_its_fields() {
    let nic = Netdev::user("mem:errors-back", "10.77.0.2/24").unwrap();
    let refused = nic.connect("192.0.2.1:1").unwrap_err();
    let (text, remedy) = (refused.to_string(), refused.remedy());
    assert_eq!(remedy, Some(Remedy::NameRouter));
    let back = Error::from(io::Error::from(refused));
    assert_eq!((back.to_string(), back.remedy()), (text, remedy));
    assert_eq!(back.errno(), Errno::ENETUNREACH);
    let foreign = Error::from(io::Error::from_raw_os_error(Errno::EMFILE.0));
    assert_eq!(foreign.kind(), ErrorKind::OutOfResources);
    assert_eq!(foreign.errno(), Errno::EMFILE);
    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] io::Error);
    let foreign = io::Error::other(Outer(io::ErrorKind::NotFound.into()));
    let foreign = Error::from(foreign);
    assert_eq!(foreign.to_string(), "outer");
    let source = foreign
        .source()
        .unwrap()
        .downcast_ref::<io::Error>()
        .unwrap();
    assert_eq!(source.kind(), io::ErrorKind::NotFound);
}

#[test]
fn the_fields_are_shown_by_alternate_debug() {
    let missing = Netdev::kernel("nosuch0").unwrap_err();
    let fields = format!("{missing:#?}");
    for part in [
        "kind: NotFound",
        "errno: ENODEV",
        "remedy: Some",
        "foreign: None",
    ] {
        assert!(fields.contains(part), "{fields}");
    }
}

#[test]
fn a_refusal_has_the_facts_as_values() {
    let nic = Netdev::user("mem:errors-facts", "10.77.0.2/24").unwrap();
    let memory = Dmabuf::anonymous(4 << 20).unwrap();
    let refused = nic.bind_rx(&memory, &[RxQueueId(1)]).unwrap_err();
    let BindError::Failed(facts) = &refused else {
        panic!("{refused}");
    };
    assert_eq!(facts.queue(), Some(RxQueueId(1)));
    assert_eq!((facts.interface(), facts.errno()), (None, Errno::EINVAL));
    assert!(refused.to_string().starts_with(facts.reason()), "{refused}");
}

#[test]
fn both_backends_end_a_connection_with_the_same_error() {
    let wire = Netdev::user("mem:errors-end", "10.77.0.1/24").unwrap();
    let far = Netdev::user("mem:errors-end", "10.77.0.2/24").unwrap();
    let lo = Netdev::kernel("lo").unwrap();
    let ends = [(&wire, &far, "10.77.0.2:0"), (&lo, &lo, "127.0.0.1:0")];
    let said = ends.map(|(from, to, at)| {
        let listener = to.listen(at).unwrap();
        let mut stream = from.connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        peer.set_linger(Some(std::time::Duration::ZERO)).unwrap();
        drop(peer);
        let error = stream.recv(&mut RxBatch::with_capacity(1)).unwrap_err();
        assert!(matches!(error, RecvError::Failed(_)), "{error}");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        error.to_string()
    });
    assert_eq!(said[0], said[1]);
}

#[test]
fn keepalive_without_pauses_is_refused_when_the_nic_is_opened() {
    let mut tcp = devmem_tcp::tcp::TcpOptions::default();
    tcp.keepalive = Some(devmem_tcp::tcp::Keepalive {
        idle: std::time::Duration::ZERO,
        ..devmem_tcp::tcp::Keepalive::default()
    });
    let builder = Netdev::builder("mem:errors-keepalive").unwrap();
    let builder = builder.address("10.77.0.2/24").unwrap().tcp(tcp);
    let refused = builder.open().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert!(
        refused
            .remedy()
            .is_some_and(|remedy| remedy.to_string().contains("one second")),
        "{refused}"
    );
}
