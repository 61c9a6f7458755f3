//! The server (`-l`): receives one connection into device memory.

use std::io::{self, StdoutLock, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};

use anyhow::Context;
use devmem_linux::dmabuf::{CpuAccess, DmabufFd};
use devmem_linux::netdev::{BoundRx, Netdev};
use devmem_linux::nic_setup::Flow;
use devmem_linux::socket::{Content, FragReturns, Frags, RecvBuffer, RecvError, RxFrag};
use devmem_uapi::{DmabufCmsg, Errno, MsgFlags};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

use super::flags::ServerPlan;
use super::validate::Validator;
use super::{memory, setup};
use tool::output::{Failure, say};
use tool::signals::StopPipe;

/// Maximum number of bytes and of frags of one receive.
const RECV_BYTES: usize = 800 << 10;
const RECV_FRAGS: usize = 2000;

/// Receives one connection to its end. The settings of the NIC are restored in any case.
///
/// # Errors
///
/// A refused step, data that arrived in host memory, wrong bytes, or a signal.
pub fn run(netdev: Netdev, plan: &ServerPlan) -> Result<(), Failure> {
    let stop = StopPipe::install().context("install signal handlers")?;
    let flow = Flow {
        local: plan.local,
        peer: plan.peer,
        peer_port: plan.peer.map(|_| plan.local.port()),
    };
    let setup = setup::apply(netdev.name(), &plan.binding, Some(flow))?;
    let served = serve(netdev, plan, &stop);
    // `serve` has dropped the binding.
    let restored = setup::put_back(setup);
    served.and(restored)
}

/// Binds the memory, listens, and receives.
fn serve(mut netdev: Netdev, plan: &ServerPlan, stop: &StopPipe) -> Result<(), Failure> {
    let memory = memory::make(plan.binding.rx_page_size)?;
    let bound = bind(&mut netdev, plan, &memory)?;
    let listener = listen(plan.local)?;
    say!("Waiting or connection on {}", mapped(plan.local));
    let stream = accept(&listener, stop)?;
    let mut receiver = DevmemReceiver {
        plan,
        memory: &memory,
        bound: &bound,
        validator: plan.validate.map(Validator::new),
        stdout: io::stdout().lock(),
        bytes: Vec::new(),
        total: 0,
        aligned: 0,
        unaligned: 0,
    };
    receiver.receive(&stream, stop)
}

fn bind(netdev: &mut Netdev, plan: &ServerPlan, memory: &DmabufFd) -> Result<BoundRx, Failure> {
    let queues = setup::queue_ids(plan.binding.first_queue, plan.binding.queue_count);
    let size = plan.binding.rx_page_size;
    let bound = netdev
        .bind_rx_sized(memory.as_fd(), &queues, size)
        .map_err(|error| refused_binding(&error))?;
    say!("got dmabuf id={}", bound.id());
    Ok(bound)
}

/// Returns the error for a refused binding.
pub fn refused_binding(error: &devmem_linux::netdev::BindError) -> Failure {
    let failure = Failure::failed(format!("Failed to bind: {error}"));
    match &error.cause.hint {
        Some(hint) => failure.with_remedy(hint.replace('\n', "; ")),
        None => failure,
    }
}

/// Listens with `SO_REUSEADDR` and `SO_REUSEPORT`, as netcat does.
fn listen(local: SocketAddr) -> Result<TcpListener, Failure> {
    say!("binding to address {}:{}", local.ip(), local.port());
    let socket = tcp_socket(local).context("Failed to create socket")?;
    net::bind(&socket, &local).with_context(|| format!("Failed to bind to {local}"))?;
    net::listen(&socket, 1).context("Failed to listen")?;
    let listener = TcpListener::from(socket);
    // Non-blocking, because a connection may be reset between poll and accept.
    listener.set_nonblocking(true).context("Failed to listen")?;
    Ok(listener)
}

/// Creates a TCP socket of the address family of `address` that may reuse addresses.
pub fn tcp_socket(address: SocketAddr) -> Result<OwnedFd, rustix::io::Errno> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    Ok(socket)
}

fn accept(listener: &TcpListener, stop: &StopPipe) -> Result<TcpStream, Failure> {
    loop {
        if !stop.wait_readable(listener.as_fd()).context("poll")? {
            return Err(Failure::failed("interrupted"));
        }
        match listener.accept() {
            Ok((stream, peer)) => {
                say!("Got connection from {}", mapped(peer));
                return Ok(stream);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("Failed to accept")?,
        }
    }
}

/// Formats an address as the selftest does: IPv4 addresses as mapped IPv6 ones, without brackets.
fn mapped(address: SocketAddr) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    format!("{ip}:{}", address.port())
}

/// A connection with its buffers.
struct DevmemReceiver<'a> {
    plan: &'a ServerPlan,
    memory: &'a DmabufFd,
    bound: &'a BoundRx,
    validator: Option<Validator>,
    stdout: StdoutLock<'static>,
    /// Copy of the bytes of one frag.
    bytes: Vec<u8>,
    total: u64,
    aligned: u64,
    unaligned: u64,
}

impl DevmemReceiver<'_> {
    fn receive(&mut self, stream: &TcpStream, stop: &StopPipe) -> Result<(), Failure> {
        let mut buffer = RecvBuffer::new(RECV_BYTES, RECV_FRAGS);
        let mut returns = FragReturns::new();
        loop {
            if !stop.wait_readable(stream.as_fd()).context("poll")? {
                return Err(Failure::failed("interrupted"));
            }
            let received = match buffer.recv(stream.as_fd(), MsgFlags::DONTWAIT) {
                Err(RecvError::WouldBlock | RecvError::Interrupted) => continue,
                Err(error) => return Err(broken(error)),
                Ok(received) => received,
            };
            say!("recvmsg ret={}", received.bytes);
            match received.content {
                Content::End => return self.end(),
                Content::Readable(bytes) => return Err(missteered(bytes.len(), self.bound)),
                Content::Devmem(frags) => {
                    let taken = self.take(frags, &mut returns);
                    let freed = returns.flush(stream.as_fd());
                    taken?;
                    let freed = freed.context("SO_DEVMEM_DONTNEED")?;
                    if freed.missing() != 0 {
                        return Err(Failure::failed("SO_DEVMEM_DONTNEED not enough tokens"));
                    }
                }
            }
            self.stdout.flush().context("write to stdout")?;
            say!("total_received={}", self.total);
        }
    }

    /// Checks or prints the frags of one receive, and returns them.
    fn take(&mut self, frags: Frags<'_>, returns: &mut FragReturns) -> Result<(), Failure> {
        let mut stderr = io::BufWriter::new(io::stderr().lock());
        for frag in frags {
            match frag {
                RxFrag::Device(cmsg) => {
                    returns.push(cmsg.frag_token);
                    self.device(&cmsg, &mut stderr)?;
                }
                RxFrag::Linear(bytes) => {
                    let size = bytes.len();
                    writeln!(stderr, "SCM_DEVMEM_LINEAR. dmabuf_cmsg->frag_size={size}")?;
                    if self.plan.fail_on_linear {
                        return Err(Failure::failed(format!(
                            "received SCM_DEVMEM_LINEAR but --fail-on-linear (-L) set: {size} bytes of payload landed in \
                             host memory, the NIC has not split them off"
                        )));
                    }
                    self.total += size as u64;
                    pass_on(&mut self.validator, &mut self.stdout, bytes)?;
                }
            }
        }
        Ok(())
    }

    fn device(&mut self, cmsg: &DmabufCmsg, stderr: &mut impl Write) -> Result<(), Failure> {
        let DmabufCmsg {
            frag_offset,
            frag_size,
            frag_token,
            dmabuf_id,
            flags: _,
        } = *cmsg;
        let page = rustix::param::page_size() as u64;
        self.total += u64::from(frag_size);
        writeln!(
            stderr,
            "received frag_page={}, in_page_offset={}, frag_offset={frag_offset}, frag_size={frag_size}, \
             token={}, total_received={}, dmabuf_id={dmabuf_id}",
            frag_offset / page,
            frag_offset % page,
            frag_token.0,
            self.total,
        )?;
        if dmabuf_id != self.bound.id() {
            return Err(Failure::failed(
                "received on wrong dmabuf_id: flow steering error",
            ));
        }
        match u64::from(frag_size) % page {
            0 => self.aligned += 1,
            _ => self.unaligned += 1,
        }
        let (offset, size) = (frag_offset as usize, frag_size as usize);
        if size > self.memory.size() {
            return Err(Failure::failed(format!(
                "a frag of {size} bytes is larger than the memory"
            )));
        }
        self.bytes.resize(size, 0);
        let access = self.memory.cpu_view(CpuAccess::Read)?;
        access.copy_out(offset, &mut self.bytes)?;
        access.end()?;
        pass_on(&mut self.validator, &mut self.stdout, &self.bytes)
    }

    fn end(&mut self) -> Result<(), Failure> {
        say!("ncdevmem: client exited");
        if let Some(validator) = &self.validator {
            validator.finish()?;
        }
        say!("ncdevmem: ok");
        say!(
            "page_aligned_frags={}, non_page_aligned_frags={}",
            self.aligned,
            self.unaligned
        );
        Ok(())
    }
}

/// Checks or prints bytes.
fn pass_on(
    validator: &mut Option<Validator>,
    stdout: &mut StdoutLock<'static>,
    bytes: &[u8],
) -> Result<(), Failure> {
    match validator {
        Some(validator) => validator.check(bytes, stdout),
        None => Ok(stdout.write_all(bytes).context("write to stdout")?),
    }
}

/// Returns the error for a failed receive.
fn broken(error: RecvError) -> Failure {
    say!("recvmsg ret=-1");
    match error.errno() {
        Errno::EFAULT => Failure::from(error).within("received EFAULT, won't recover"),
        _ => error.into(),
    }
}

fn missteered(bytes: usize, bound: &BoundRx) -> Failure {
    let queues: Vec<_> = bound.queues().iter().map(ToString::to_string).collect();
    Failure::failed(format!(
        "flow steering error: {bytes} bytes arrived in host memory, not through queue {}",
        queues.join(", ")
    ))
}
