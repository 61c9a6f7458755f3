//! A broker and its clients without a NIC: what is bound is one end of a socket pair, whose other end sees when it is closed.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use devmem_uapi::{DmabufId, Errno};
use peer_socket::{Descriptors as Passing, ListenOptions, PeerSocket, SocketFile};
use rustix::io::Errno as RawErrno;
use rustix::net::{
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg,
};
use tempfile::TempDir;

use super::message::{Answer, MAX_BYTES, Refusal, Request};
use super::packet::{self, Descriptors};
use super::{Broker, BrokerError, Event, Grant, Outcome, bind_rx};
use crate::netdev::KernelRxQueueId;
use crate::netlink::NetlinkSocket;
use crate::test_util::in_netns;

/// Long enough for a busy machine; no test waits as long unless it fails.
const LIMIT: Duration = Duration::from_secs(60);

/// What the tests' broker does in place of bind-rx.
type Bind = dyn Fn(&Request, BorrowedFd<'_>) -> Result<(DmabufId, OwnedFd), Refusal> + Send + Sync;

/// A broker that runs in a thread. Dropping it ends it.
struct Running {
    folder: TempDir,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    events: Receiver<Event>,
}

impl Running {
    fn start(grants: &[&str], bind: Arc<Bind>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let grants = grants.iter().map(|text| text.parse().unwrap()).collect();
        let broker = Broker::listen(&folder.path().join("socket"), grants).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (tell, events) = channel();
        let must_stop = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let tell = Mutex::new(tell);
            let tell = move |event: &Event| {
                let tell: &Sender<Event> = &tell.lock().unwrap();
                let _ = tell.send(event.clone());
            };
            broker
                .serve_by(bind, Arc::new(tell), || must_stop.load(Ordering::Relaxed))
                .unwrap();
        });
        Self {
            folder,
            stop,
            thread: Some(thread),
            events,
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }

    fn event(&self) -> Event {
        self.events.recv_timeout(LIMIT).expect("the broker tells")
    }

    /// Connects, and takes the greeting.
    fn greeted(&self) -> PeerSocket {
        let socket = connect(&self.path());
        assert_eq!(answer(&socket).0, Answer::Hello);
        socket
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

fn connect(path: &Path) -> PeerSocket {
    let mut socket = peer_socket::connect(path, SocketType::SEQPACKET, LIMIT).unwrap();
    socket.take_descriptors().unwrap();
    socket
}

fn answer(socket: &PeerSocket) -> (Answer, Descriptors) {
    let packet = packet::receive(socket, LIMIT).unwrap();
    let packet = packet.expect("the broker answers before it closes");
    (Answer::parse(&packet.bytes).unwrap(), packet.descriptors)
}

fn refusal(socket: &PeerSocket) -> Refusal {
    match answer(socket) {
        (Answer::Refused(refusal), Descriptors::None) => refusal,
        other => panic!("{other:?}"),
    }
}

/// A grant of queues 1 and 2 of dm0 to this user.
fn to_us() -> String {
    format!("uid={}:dm0:1-2", rustix::process::geteuid().as_raw())
}

fn request(queues: &[u32]) -> Vec<u8> {
    let request = Request {
        interface: "dm0".to_owned(),
        queues: queues.iter().copied().map(KernelRxQueueId).collect(),
        niov_bytes: None,
    };
    request.emit().unwrap()
}

/// What stands for a dma-buf.
fn file() -> File {
    File::open("/dev/null").unwrap()
}

/// Returns what binds by keeping the other end of each binding in `witnesses`.
fn witnessed(witnesses: &Arc<Mutex<Vec<UnixStream>>>) -> Arc<Bind> {
    let witnesses = Arc::clone(witnesses);
    Arc::new(move |_, _| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        witnesses.lock().unwrap().push(ours);
        Ok((DmabufId(7), theirs.into()))
    })
}

/// Returns what must not be called.
fn never() -> Arc<Bind> {
    Arc::new(|request, _| panic!("{request:?} must not reach the kernel"))
}

/// Returns whether the other end of a witness is closed everywhere, once it is.
fn is_closed(mut witness: &UnixStream) -> bool {
    witness.set_read_timeout(Some(LIMIT)).unwrap();
    matches!(witness.read(&mut [0]), Ok(0))
}

fn is_open(mut witness: &UnixStream) -> bool {
    witness.set_nonblocking(true).unwrap();
    let read = witness.read(&mut [0]);
    witness.set_nonblocking(false).unwrap();
    read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

#[test]
fn a_granted_request_is_bound_once_with_the_descriptor_of_the_client() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let bind: Arc<Bind> = Arc::new(move |request, dmabuf| {
        let file = rustix::fs::fstat(dmabuf).unwrap();
        seen.lock()
            .unwrap()
            .push((request.clone(), (file.st_dev, file.st_ino)));
        Ok((DmabufId(7), NetlinkSocket::generic().unwrap().into()))
    });
    let broker = Running::start(&[&to_us()], bind);
    let dmabuf = tempfile::tempfile().unwrap();
    let queues = [2, 1].map(KernelRxQueueId);
    let bound = bind_rx(&broker.path(), "dm0", dmabuf.as_fd(), &queues, Some(16384)).unwrap();
    assert_eq!((bound.id(), bound.queues()), (DmabufId(7), &queues[..]));
    let wanted = Request {
        interface: "dm0".to_owned(),
        queues: queues.to_vec(),
        niov_bytes: Some(16384),
    };
    let file = rustix::fs::fstat(&dmabuf).unwrap();
    assert_eq!(
        *asked.lock().unwrap(),
        [(wanted, (file.st_dev, file.st_ino))]
    );
    let event = broker.event();
    assert_eq!(event.client.pid, std::process::id());
    assert!(
        matches!(event.outcome, Outcome::Bound { id: 7, .. }),
        "{event}"
    );
}

#[test]
fn a_binding_ends_with_the_descriptor_of_its_client_and_not_with_the_broker() {
    let witnesses = Arc::default();
    let mut broker = Running::start(&[&to_us()], witnessed(&witnesses));
    let bind = || {
        let socket = broker.greeted();
        packet::send(&socket, &request(&[1]), Some(file().as_fd())).unwrap();
        match answer(&socket) {
            (Answer::Bound(DmabufId(7)), Descriptors::One(binding)) => binding,
            other => panic!("{other:?}"),
        }
    };
    let [first, second] = [bind(), bind()];
    for _ in 0..2 {
        assert!(matches!(broker.event().outcome, Outcome::Bound { .. }));
    }
    let seen: Vec<_> = witnesses.lock().unwrap().drain(..).collect();
    drop(first);
    assert!(is_closed(&seen[0]));
    assert!(is_open(&seen[1]));
    broker.stop();
    assert!(!broker.path().exists());
    assert!(is_open(&seen[1]));
    drop(second);
    assert!(is_closed(&seen[1]));
}

#[test]
fn a_client_that_leaves_before_its_answer_leaves_no_binding() {
    let witnesses: Arc<Mutex<Vec<UnixStream>>> = Arc::default();
    let (go, may_go) = channel();
    let may_go = Mutex::new(may_go);
    let inner = witnessed(&witnesses);
    let bind: Arc<Bind> = Arc::new(move |request, dmabuf| {
        may_go.lock().unwrap().recv_timeout(LIMIT).unwrap();
        inner(request, dmabuf)
    });
    let broker = Running::start(&[&to_us()], bind);
    let socket = broker.greeted();
    packet::send(&socket, &request(&[1]), Some(file().as_fd())).unwrap();
    socket.close_here();
    go.send(()).unwrap();
    assert!(matches!(broker.event().outcome, Outcome::Left { .. }));
    let seen: Vec<_> = witnesses.lock().unwrap().drain(..).collect();
    assert!(is_closed(&seen[0]));
}

#[test]
fn a_user_without_a_grant_is_refused_before_it_can_ask() {
    let other = format!("uid={}:dm0:1", rustix::process::geteuid().as_raw() + 1);
    let broker = Running::start(&[&other], never());
    let error = bind_rx(
        &broker.path(),
        "dm0",
        file().as_fd(),
        &[KernelRxQueueId(1)],
        None,
    )
    .unwrap_err();
    assert_eq!(error.errno(), Errno::EPERM);
    assert!(
        error.to_string().contains("may not ask for any queue"),
        "{error}"
    );
    assert!(
        error.remedy().unwrap().contains("--allow uid="),
        "{error:?}"
    );
    // It has not asked for a descriptor, so none is taken, where the kernel can refuse them.
    let socket = connect(&broker.path());
    let sent = packet::send(&socket, &request(&[1]), Some(file().as_fd()));
    assert!(
        matches!(
            sent,
            Err(RawErrno::PERM | RawErrno::PIPE | RawErrno::CONNRESET)
        ) || socket.may_have_descriptors(),
        "{sent:?}"
    );
}

#[test]
fn a_queue_or_an_interface_that_is_not_granted_is_refused() {
    let broker = Running::start(&[&to_us()], never());
    for (interface, queues) in [("dm0", &[1, 3][..]), ("dm0", &[0]), ("eth0", &[1])] {
        let queues: Vec<_> = queues.iter().copied().map(KernelRxQueueId).collect();
        let error = bind_rx(&broker.path(), interface, file().as_fd(), &queues, None);
        let error = error.unwrap_err();
        assert_eq!(error.errno(), Errno::EPERM, "{interface} {queues:?}");
        assert!(error.remedy().unwrap().ends_with(&to_us()), "{error:?}");
        assert!(matches!(broker.event().outcome, Outcome::Refused { .. }));
    }
}

#[test]
fn what_is_no_request_is_refused_and_binds_nothing() {
    let broker = Running::start(&[&to_us()], never());
    let valid = request(&[1]);
    let cut = &valid[..valid.len() - 1];
    let packets: [(&[u8], Errno); 4] = [
        (cut, Errno::EPROTO),
        (b"x", Errno::EPROTO),
        (&vec![0; MAX_BYTES + 1], Errno::EPROTO),
        (&Answer::Hello.emit(), Errno::EPROTO),
    ];
    for (bytes, errno) in packets {
        let socket = broker.greeted();
        packet::send(&socket, bytes, Some(file().as_fd())).unwrap();
        assert_eq!(refusal(&socket).errno, errno, "{bytes:?}");
    }
    // Without a descriptor, with two, and with as many as one message can have.
    let files: Vec<_> = (0..253).map(|_| file()).collect();
    for count in [0, 2, 253] {
        let socket = broker.greeted();
        send_with(&socket, &valid, &files[..count]);
        assert_eq!(refusal(&socket).errno, Errno::EBADF, "{count} descriptors");
    }
}

/// Sends a packet with any number of descriptors.
fn send_with(socket: &PeerSocket, bytes: &[u8], files: &[File]) {
    let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    let mut space = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    }
    let parts = [std::io::IoSlice::new(bytes)];
    let sent = sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL);
    assert_eq!(sent, Ok(bytes.len()));
}

#[test]
fn clients_that_say_nothing_fill_the_places_of_their_grant_until_they_leave() {
    let witnesses = Arc::default();
    let broker = Running::start(&[&to_us()], witnessed(&witnesses));
    let silent: Vec<_> = (0..8).map(|_| broker.greeted()).collect();
    let refused = refusal(&connect(&broker.path()));
    assert_eq!(refused.errno, Errno::EBUSY, "{refused}");
    drop(silent);
    // They are noticed one after another; then there is room again.
    for _ in 0..8 {
        while !matches!(broker.event().outcome, Outcome::Left { .. }) {}
    }
    let socket = loop {
        let socket = connect(&broker.path());
        match answer(&socket) {
            (Answer::Hello, _) => break socket,
            // The thread of the last one has told, and is about to end.
            (Answer::Refused(refused), _) => assert_eq!(refused.errno, Errno::EBUSY),
            (other, _) => panic!("{other:?}"),
        }
    };
    packet::send(&socket, &request(&[1]), Some(file().as_fd())).unwrap();
    assert!(matches!(answer(&socket).0, Answer::Bound(_)));
}

#[test]
fn a_client_of_another_network_namespace_is_refused() {
    const TEST: &str = "broker::tests::a_client_of_another_network_namespace_is_refused";
    in_netns(TEST, || {
        let broker = Running::start(&[&to_us()], never());
        let path = broker.path();
        let asked = thread::spawn(move || {
            crate::sys::namespace::unshare_network().unwrap();
            bind_rx(&path, "dm0", file().as_fd(), &[KernelRxQueueId(1)], None)
        });
        let error = asked.join().unwrap().unwrap_err();
        assert_eq!(error.errno(), Errno::EPERM);
        assert!(
            error.to_string().contains("another network namespace"),
            "{error}"
        );
    });
}

#[test]
fn the_refusal_of_the_kernel_reaches_the_client() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let uid = rustix::process::geteuid().as_raw();
    let grants = [format!("uid={uid}:lo:0"), format!("uid={uid}:nosuch0:0")];
    let grants: Vec<Grant> = grants.iter().map(|text| text.parse().unwrap()).collect();
    let broker = Broker::listen(&path, grants).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let must_stop = Arc::clone(&stop);
    let serving = thread::spawn(move || broker.serve(|_| {}, || must_stop.load(Ordering::Relaxed)));
    let ask = |interface: &str| {
        let queue = [KernelRxQueueId(0)];
        bind_rx(&path, interface, file().as_fd(), &queue, None).unwrap_err()
    };
    let [lo, nosuch] = [ask("lo"), ask("nosuch0")];
    stop.store(true, Ordering::Relaxed);
    serving.join().unwrap().unwrap();
    // Which one it is depends on the kernel and on our privilege.
    let BrokerError::Refused { refusal, .. } = &lo else {
        panic!("{lo}")
    };
    assert!(
        refusal
            .reason
            .starts_with("bind-rx on lo queue 0 refused: "),
        "{refusal}"
    );
    assert_ne!(lo.errno(), Errno(0));
    assert!(
        nosuch.to_string().contains("there is no interface nosuch0"),
        "{nosuch}"
    );
}

#[test]
fn what_is_no_broker_is_named_and_gives_no_binding() {
    let bind = |path: &Path| {
        let error = bind_rx(path, "dm0", file().as_fd(), &[KernelRxQueueId(1)], None);
        error.unwrap_err()
    };
    let folder = tempfile::tempdir().unwrap();
    let nobody = bind(&folder.path().join("nobody"));
    assert_eq!(nobody.errno(), Errno::ENOENT);
    assert!(nobody.remedy().unwrap().contains("devmem-tcp broker"));

    let hello = || Answer::Hello.emit();
    let bound = || Answer::Bound(DmabufId(7)).emit();
    /// A second answer, and whether a file comes with it.
    type Second = Option<(Vec<u8>, bool)>;
    // The first answer, the second, and words of the error.
    let cases: [(Vec<u8>, Second, &str); 6] = [
        (Vec::new(), None, "it has closed the connection"),
        (b"SSH-2.0".to_vec(), None, "not a message of this protocol"),
        (bound(), None, "did not begin with its greeting"),
        (hello(), None, "it has closed the connection"),
        (
            hello(),
            Some((bound(), false)),
            "not a binding with its socket",
        ),
        (hello(), Some((bound(), true)), "not a netlink socket"),
    ];
    for (number, (first, second, words)) in cases.into_iter().enumerate() {
        let path = folder.path().join(number.to_string());
        let options = ListenOptions {
            kind: SocketType::SEQPACKET,
            backlog: 1,
            descriptors: Passing::Taken,
        };
        let (listener, _file) = SocketFile::listen(&path, options).unwrap();
        let other = thread::spawn(move || {
            let socket = loop {
                match listener.accept(SocketFlags::NONBLOCK) {
                    Ok(socket) => break socket,
                    Err(RawErrno::AGAIN) => thread::sleep(Duration::from_millis(1)),
                    Err(errno) => panic!("{errno}"),
                }
            };
            if first.is_empty() {
                return;
            }
            packet::send(&socket, &first, None).unwrap();
            let Some((second, with_file)) = second else {
                return;
            };
            packet::receive(&socket, LIMIT).unwrap();
            let file = file();
            packet::send(&socket, &second, with_file.then(|| file.as_fd())).unwrap();
        });
        let error = bind(&path);
        other.join().unwrap();
        assert_eq!(error.errno(), Errno::EPROTO, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
}
