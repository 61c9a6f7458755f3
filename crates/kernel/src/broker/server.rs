//! The broker's side: admits clients, and binds for them.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use devmem_uapi::{DmabufId, Errno};
use peer_socket::{Descriptors as Passing, ListenError, ListenOptions, PeerSocket, SocketFile};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno as RawErrno;
use rustix::net::{SocketFlags, SocketType};

use super::event::{Event, Outcome, Quota};
use super::grant::{self, Client, Grant};
use super::message::{Answer, BadMessage, Refusal, Request};
use super::packet::{self, Descriptors, Packet};
use super::peer::{client_of, namespace_of};
use crate::netdev::Netdev;
use crate::netlink::NetlinkSocket;

/// Clients of one grant that are served at a time.
const CLIENTS_PER_GRANT: u32 = 8;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// Longest wait for the request of a client.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// Time between two looks whether to stop, and the pause where the process has no descriptors left.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Longest wait for clients at the end.
const END_LIMIT: Duration = Duration::from_millis(500);
/// Anybody may connect: who may ask is decided by the credentials of the connection.
const SOCKET_MODE: u32 = 0o666;

/// Binds memory to queues; returns the id, and the netlink socket that is the binding.
type Bind = dyn Fn(&Request, BorrowedFd<'_>) -> Result<(DmabufId, OwnedFd), Refusal> + Send + Sync;

/// A broker that listens. It binds in the network namespace of the thread that makes it, for clients of the same namespace.
#[derive(Debug)]
pub struct Broker {
    listener: Arc<PeerSocket>,
    file: SocketFile,
    rules: Rules,
}

/// Who may ask, and where.
#[derive(Clone, Debug)]
struct Rules {
    grants: Vec<Grant>,
    /// The network namespace, by its cookie.
    namespace: u64,
}

impl Broker {
    /// Listens at `path`, where anybody may connect who may enter its folder. A socket that a broker has left there is replaced.
    ///
    /// # Errors
    ///
    /// Another process listens there, the path is something else, or a system call failed.
    pub fn listen(path: &Path, grants: Vec<Grant>) -> Result<Self, ListenError> {
        let system = |error: io::Error| ListenError::System {
            path: path.to_owned(),
            error,
        };
        let namespace = NetlinkSocket::generic()
            .map_err(|error| system(error.errno.into()))
            .and_then(|socket| {
                namespace_of(socket).map_err(|errno| system(io::Error::from_raw_os_error(errno.0)))
            })?;
        let options = ListenOptions {
            kind: SocketType::SEQPACKET,
            backlog: BACKLOG,
            descriptors: Passing::Refused,
        };
        let (listener, file) = SocketFile::listen(path, options)?;
        fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE)).map_err(system)?;
        Ok(Self {
            listener,
            file,
            rules: Rules { grants, namespace },
        })
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Serves clients until `must_stop` returns true, which is asked ten times in a second. Bindings that were made stay: they are
    /// their clients'. `tell` gets each event, from any thread.
    ///
    /// # Errors
    ///
    /// accept(2) failed for good.
    pub fn serve(
        &self,
        tell: impl Fn(&Event) + Send + Sync + 'static,
        must_stop: impl Fn() -> bool,
    ) -> io::Result<()> {
        self.serve_by(Arc::new(bind), Arc::new(tell), must_stop)
    }

    pub(super) fn serve_by(
        &self,
        bind: Arc<Bind>,
        tell: Arc<dyn Fn(&Event) + Send + Sync>,
        must_stop: impl Fn() -> bool,
    ) -> io::Result<()> {
        let shared = Arc::new(Shared {
            served: Mutex::new(vec![0; self.rules.grants.len()]),
            rules: self.rules.clone(),
            bind,
            tell,
            quota: Mutex::default(),
        });
        while !must_stop() {
            if !self.has_client()? {
                continue;
            }
            match self.listener.accept(SocketFlags::NONBLOCK) {
                Ok(connection) => admit(&shared, connection),
                // The client has left again.
                Err(RawErrno::AGAIN | RawErrno::INTR | RawErrno::CONNABORTED) => {}
                Err(RawErrno::MFILE | RawErrno::NFILE | RawErrno::NOMEM | RawErrno::NOBUFS) => {
                    thread::sleep(LOOK_INTERVAL);
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        shared.await_end();
        Ok(())
    }

    /// Waits for a client, for one interval.
    fn has_client(&self) -> io::Result<bool> {
        let interval = Timespec::try_from(LOOK_INTERVAL).map_err(io::Error::other)?;
        let mut polled = [PollFd::new(&*self.listener, PollFlags::IN)];
        match poll(&mut polled, Some(&interval)) {
            Ok(ready) => Ok(ready > 0),
            Err(RawErrno::INTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// What the threads of the clients share.
struct Shared {
    rules: Rules,
    bind: Arc<Bind>,
    tell: Arc<dyn Fn(&Event) + Send + Sync>,
    /// Number of clients that are served now, for each grant.
    served: Mutex<Vec<u32>>,
    quota: Mutex<Quota>,
}

impl Shared {
    fn served(&self) -> MutexGuard<'_, Vec<u32>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits a moment for clients that are being served: their requests may be about to be answered or told.
    fn await_end(&self) {
        let started = Instant::now();
        while self.served().iter().any(|count| *count > 0) && started.elapsed() < END_LIMIT {
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn tell(&self, client: Client, outcome: Outcome) {
        let mut quota = self.quota.lock().unwrap_or_else(PoisonError::into_inner);
        let suppressed = quota.admit(&outcome);
        drop(quota);
        if let Some(suppressed) = suppressed {
            (self.tell)(&Event {
                client,
                outcome,
                suppressed,
            });
        }
    }

    /// Returns the number of the first grant of a client, whose clients it is counted among.
    fn grant_of(&self, connection: &PeerSocket, client: Client) -> Result<usize, Refusal> {
        let namespace = namespace_of(connection);
        if namespace != Ok(self.rules.namespace) {
            let reason = format!("{client} is in another network namespace than the broker");
            return Err(Refusal::new(Errno::EPERM, reason).with_remedy(
                "a broker binds in one namespace alone: start it with --netns for that of the program",
            ));
        }
        let mut grants = self.rules.grants.iter();
        grants
            .position(|grant| grant.is_for(client))
            .ok_or_else(|| {
                let reason = format!("{client} may not ask for any queue");
                Refusal::new(Errno::EPERM, reason).with_remedy(format!(
                    "start the broker with --allow uid={}:INTERFACE:QUEUES",
                    client.uid
                ))
            })
    }
}

/// A client that is being served. Dropping it makes room for another.
struct Place {
    shared: Arc<Shared>,
    grant: usize,
}

impl Place {
    fn take(shared: &Arc<Shared>, grant: usize) -> Result<Self, Refusal> {
        let mut served = shared.served();
        match served.get_mut(grant) {
            Some(count) if *count < CLIENTS_PER_GRANT => *count += 1,
            _ => {
                let reason = format!("the broker serves {CLIENTS_PER_GRANT} others of this user");
                return Err(Refusal::new(Errno::EBUSY, reason).with_remedy("try again"));
            }
        }
        Ok(Self {
            shared: Arc::clone(shared),
            grant,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(count) = self.shared.served().get_mut(self.grant) {
            *count -= 1;
        }
    }
}

/// Starts a thread for a client that may ask; refuses all others at once, which never waits.
fn admit(shared: &Arc<Shared>, connection: PeerSocket) {
    // Only a socket that is none of a UNIX connection has no credentials.
    let Ok(client) = client_of(&connection) else {
        return;
    };
    let place = shared
        .grant_of(&connection, client)
        .and_then(|grant| Place::take(shared, grant));
    let place = match place {
        Ok(place) => place,
        Err(refusal) => return refuse(shared, &connection, client, refusal),
    };
    let serving = Serving {
        client,
        connection,
        place,
    };
    let name = format!("client {}", client.pid);
    // If there is no thread, the closure is dropped, and the client sees the end of the connection.
    let spawned = thread::Builder::new().name(name).spawn(|| serving.run());
    if let Err(error) = spawned {
        let reason = format!("no thread for it: {error}");
        shared.tell(client, Outcome::Left { reason });
    }
}

/// Tells of a refusal, and refuses the client: what it has seen is in the log.
fn refuse(shared: &Shared, connection: impl AsFd, client: Client, refusal: Refusal) {
    let answer = Answer::Refused(refusal.clone()).emit();
    shared.tell(client, refusal.into());
    // A client that has left does not need the reason.
    let _ = packet::send(connection, &answer, None);
}

/// A connection to a client that may ask.
struct Serving {
    client: Client,
    connection: PeerSocket,
    place: Place,
}

impl Serving {
    /// Answers one request, in a thread of the client's own: only this thread waits for it, and for whatever the files want that it
    /// sends. The place is free again when all of them are closed.
    fn run(self) {
        let Self {
            client,
            mut connection,
            place,
        } = self;
        let shared = &place.shared;
        match converse(shared, client, &mut connection) {
            Ok(outcome) => shared.tell(client, outcome),
            Err(Ended::Refused(refusal)) => refuse(shared, &connection, client, refusal),
            Err(Ended::Left(reason)) => shared.tell(client, Outcome::Left { reason }),
        }
        connection.close_here();
        drop(place);
    }
}

/// How a conversation ends without a binding.
enum Ended {
    Refused(Refusal),
    /// Without an answer.
    Left(String),
}

impl From<Refusal> for Ended {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Greets a client, and answers its request.
fn converse(
    shared: &Shared,
    client: Client,
    connection: &mut PeerSocket,
) -> Result<Outcome, Ended> {
    let left = |what: &str, errno: RawErrno| Ended::Left(format!("{what}: {errno}"));
    connection
        .take_descriptors()
        .map_err(|error| Ended::Left(error.to_string()))?;
    packet::send(&*connection, &Answer::Hello.emit(), None)
        .map_err(|errno| left("greet it", errno))?;
    let packet = match packet::receive(&*connection, REQUEST_LIMIT) {
        Ok(Some(packet)) => packet,
        Ok(None) => return Err(Ended::Left("it asked for nothing".to_owned())),
        Err(RawErrno::TIMEDOUT) => {
            let reason = format!("no request within {REQUEST_LIMIT:?}");
            return Err(Refusal::new(Errno::ETIMEDOUT, reason).into());
        }
        Err(RawErrno::MSGSIZE) => return Err(not_a_request(BadMessage::Length).into()),
        Err(errno) => return Err(left("receive its request", errno)),
    };
    let (request, dmabuf) = judge(shared, client, packet)?;
    let (id, netlink) = (shared.bind)(&request, dmabuf.as_fd())?;
    // If it is not received, the socket is closed with the message, and the queues are unbound.
    packet::send(
        &*connection,
        &Answer::Bound(id).emit(),
        Some(netlink.as_fd()),
    )
    .map_err(|errno| left("pass it its binding", errno))?;
    Ok(Outcome::Bound {
        interface: request.interface,
        queues: request.queues,
        id: id.0,
    })
}

/// Reads a request, and checks that it is granted.
fn judge(shared: &Shared, client: Client, packet: Packet) -> Result<(Request, OwnedFd), Refusal> {
    let request = Request::parse(&packet.bytes).map_err(not_a_request)?;
    grant::check(&shared.rules.grants, client, &request)?;
    match packet.descriptors {
        Descriptors::One(dmabuf) => Ok((request, dmabuf)),
        Descriptors::None | Descriptors::Several => Err(Refusal::new(
            Errno::EBADF,
            "a request has one descriptor, that of the dma-buf",
        )),
    }
}

fn not_a_request(bad: BadMessage) -> Refusal {
    Refusal::new(Errno::EPROTO, format!("the request is {bad}"))
        .with_remedy("start broker and program from the same version of devmem-tcp")
}

/// Asks the kernel to bind.
fn bind(request: &Request, dmabuf: BorrowedFd<'_>) -> Result<(DmabufId, OwnedFd), Refusal> {
    let Request {
        interface,
        queues,
        niov_bytes,
    } = request;
    let netdev = Netdev::by_name(interface).map_err(|error| {
        let errno = Errno(error.errno.raw_os_error());
        Refusal::new(errno, format!("there is no interface {interface}: {error}"))
    });
    match netdev?.bind_rx_sized(dmabuf, queues, *niov_bytes) {
        Ok(bound) => Ok((bound.id(), bound.into_netlink())),
        Err(refused) => {
            let refusal = Refusal::new(refused.errno, refused.to_string());
            Err(match refused.cause.hint {
                Some(hint) => refusal.with_remedy(hint),
                None => refusal,
            })
        }
    }
}
