//! The end of a wire at a UNIX socket: it listens for the other end or looks for it, one at a time, again and again.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gve::Offload;
use nic::{WireHello, set_wire_buffers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, accept_with, bind, connect, listen, recv, send, sendmsg, socket_with,
};
use vfio_user::{ListenError, SocketFile, is_shut_out};
use wire::Instant;

use super::port::{Written, read_packet};
use crate::output::{Failure, note};

/// How long to wait before looking for the other end again, or letting it in that could not be let in.
const RETRY: Duration = Duration::from_millis(200);
/// Ends of the wire that are let in, or sent away, in one go.
const BATCH_ENDS: usize = 16;
const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// One end of a UNIX wire.
#[derive(Debug)]
pub struct UnixPort {
    ours: WireHello,
    way: Way,
    peer: Option<Peer>,
}

#[derive(Debug)]
enum Way {
    /// The other end comes to us. The file goes with the port.
    Listen {
        listener: OwnedFd,
        file: SocketFile,
        /// It could not be let in, for want of descriptors or memory: not tried again before this time. Tried at once,
        /// it would fail without end.
        deaf_until: Option<Instant>,
    },
    /// We go to the other end, next at this time.
    Connect { path: PathBuf, at: Instant },
}

/// Who is at the other end.
#[derive(Debug)]
struct Peer {
    socket: OwnedFd,
    /// What it said first; until then there is no wire.
    hello: Option<WireHello>,
}

impl UnixPort {
    /// Listens at `path`.
    pub fn listen(path: &Path, offloads: bool, mtu: u16) -> Result<Self, Failure> {
        let made = SocketFile::bind(path, |path| -> io::Result<OwnedFd> {
            let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
            bind(&socket, &SocketAddrUnix::new(path)?)?;
            listen(&socket, 1)?;
            Ok(socket)
        });
        let (listener, file) = made.map_err(|error| {
            let remedy = match error {
                ListenError::InUse { .. } => "choose another path, or use unix:PATH to join it",
                ListenError::NotASocket { .. } => "choose another path, or move that file away",
                ListenError::System { .. } => {
                    "it names a file to be made, in a folder that you may write to"
                }
            };
            Failure::failed(format!("unix-listen: {error}")).with_remedy(remedy)
        })?;
        Ok(Self {
            ours: WireHello { offloads, mtu },
            way: Way::Listen {
                listener,
                file,
                deaf_until: None,
            },
            peer: None,
        })
    }

    /// Looks for somebody who listens at `path`, from the first [`tend`](Self::tend) on.
    pub fn connect(path: &Path, offloads: bool, mtu: u16) -> Self {
        Self {
            ours: WireHello { offloads, mtu },
            way: Way::Connect {
                path: path.to_owned(),
                at: Instant::ZERO,
            },
            peer: None,
        }
    }

    /// Tells whether the other end is there and has said what it takes.
    pub fn is_up(&self) -> bool {
        self.hello().is_some()
    }

    /// Tells whether both ends take super-packets and open checksums.
    pub fn offloads(&self) -> bool {
        self.ours.offloads && self.hello().is_some_and(|theirs| theirs.offloads)
    }

    fn hello(&self) -> Option<WireHello> {
        self.peer.as_ref().and_then(|peer| peer.hello)
    }

    /// What to poll for reading: who comes, and who is there.
    pub fn fds(&self) -> (Option<BorrowedFd<'_>>, Option<BorrowedFd<'_>>) {
        let listener = match &self.way {
            Way::Listen {
                listener,
                deaf_until: None,
                ..
            } => Some(listener.as_fd()),
            Way::Listen { .. } | Way::Connect { .. } => None,
        };
        (listener, self.peer.as_ref().map(|peer| peer.socket.as_fd()))
    }

    /// Returns when [`tend`](Self::tend) has to be called though nothing is readable.
    pub fn next_due(&self) -> Option<Instant> {
        match self.way {
            Way::Connect { at, .. } if self.peer.is_none() => Some(at),
            Way::Connect { .. } => None,
            Way::Listen { deaf_until, .. } => deaf_until,
        }
    }

    /// Takes in who comes, looks for who does not, listens for the hello.
    pub fn tend(&mut self, now: Instant) {
        match &mut self.way {
            Way::Listen {
                deaf_until: Some(until),
                ..
            } if *until > now => {}
            Way::Listen {
                listener,
                file,
                deaf_until,
            } => {
                // One more while one is there: closed at once. The rest of a crowd waits for the next round.
                for _ in 0..BATCH_ENDS {
                    let socket = match accept_with(&*listener, FLAGS) {
                        Ok(socket) => socket,
                        Err(error) if is_shut_out(&*listener, &error.into()) => {
                            if deaf_until.replace(now + RETRY).is_none() {
                                note(format_args!(
                                    "{}: the other end of the wire could not be let in: {error}; it waits",
                                    file.path().display()
                                ));
                            }
                            break;
                        }
                        Err(_) => {
                            *deaf_until = None;
                            break;
                        }
                    };
                    *deaf_until = None;
                    if self.peer.as_ref().is_none_or(Peer::is_gone) {
                        self.peer = greet(socket, self.ours);
                    } else {
                        note(format_args!(
                            "{}: one more end of the wire, sent away",
                            file.path().display()
                        ));
                    }
                }
            }
            Way::Connect { path, at } if self.peer.is_none() && *at <= now => {
                *at = now + RETRY;
                // Nobody there yet: the link stays down until somebody is.
                self.peer = look_for(path)
                    .ok()
                    .and_then(|socket| greet(socket, self.ours));
            }
            Way::Connect { .. } => {}
        }
        if self.peer.is_some() && !self.is_up() {
            self.read_hello();
        }
    }

    fn read_hello(&mut self) {
        let Some(peer) = &mut self.peer else {
            return;
        };
        // Longer than a hello, so that a longer packet is seen to be none.
        let mut packet = [0; WireHello::LEN + 1];
        match recv(&peer.socket, &mut packet[..], RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok((len, _)) if let Ok(hello) = WireHello::parse(&packet[..len]) => {
                if hello.mtu != self.ours.mtu {
                    note(format_args!(
                        "the other end of the wire has an MTU of {}, this one {}: larger packets may be lost",
                        hello.mtu, self.ours.mtu
                    ));
                }
                peer.hello = Some(hello);
            }
            _ => {
                note("the other end of the wire does not speak as one, or left: sent away");
                self.peer = None;
            }
        }
    }

    /// Reads one frame.
    pub fn read(&mut self, frame: &mut [u8]) -> Option<(usize, Offload)> {
        let peer = self.peer.as_ref().filter(|peer| peer.hello.is_some())?;
        match read_packet(peer.socket.as_fd(), frame) {
            Ok(Some(packet)) => Some(packet),
            Err(Errno::AGAIN | Errno::INTR) => None,
            // Shorter than a header, or nothing: the other end is gone.
            Ok(None) | Err(_) => {
                self.peer = None;
                None
            }
        }
    }

    /// Writes one frame.
    pub fn write(&mut self, header: &[u8], frame: &[u8]) -> Written {
        let Some(peer) = self.peer.as_ref().filter(|peer| peer.hello.is_some()) else {
            return Written::Lost;
        };
        let parts = [IoSlice::new(header), IoSlice::new(frame)];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(
            &peer.socket,
            &parts,
            &mut SendAncillaryBuffer::default(),
            flags,
        ) {
            Ok(_) => Written::Done,
            Err(Errno::AGAIN | Errno::NOBUFS) => Written::Full,
            Err(Errno::PIPE | Errno::CONNRESET) => {
                self.peer = None;
                Written::Lost
            }
            Err(_) => Written::Lost,
        }
    }
}

impl Peer {
    /// Tells whether the other end has left, perhaps with frames still to be read.
    fn is_gone(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::empty())];
        let polled = poll(&mut fds, Some(&Timespec::default()));
        polled.is_ok() && fds[0].revents().contains(PollFlags::HUP)
    }
}

/// Connects without waiting.
fn look_for(path: &Path) -> Result<OwnedFd, Errno> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Says hello to who is new. `None` if that is gone already.
fn greet(socket: OwnedFd, ours: WireHello) -> Option<Peer> {
    set_wire_buffers(socket.as_fd());
    send(&socket, &ours.emit(), SendFlags::NOSIGNAL).ok()?;
    Some(Peer {
        socket,
        hello: None,
    })
}
