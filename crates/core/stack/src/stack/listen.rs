//! Calls of listeners: listen, accept, and what their connections inherit.

use std::net::{IpAddr, SocketAddr};

use super::Stack;
use crate::bind_addr::BindAddr;
use crate::config::MAX_BACKLOG;
use crate::socket::connection::Owner;
use crate::socket::error::{AcceptError, BadSocket, ListenError};
use crate::socket::id::SocketId;
use crate::socket::listener::Listener;

impl Stack {
    /// Listens on `local`: a local address, or the unspecified address for all local addresses of the family (IPv6: of
    /// both families). Port 0 chooses a free port. At most `backlog` connections wait to be accepted, and as many are
    /// half-open; further SYNs are answered with SYN cookies.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn listen(&mut self, local: SocketAddr, backlog: usize) -> Result<SocketId, ListenError> {
        let settings = self.tcp.config().settings;
        self.listen_with(local, backlog, &settings)
    }

    /// As [`Stack::listen`], with settings of TCP for the connections of this listener, and with socket options of the
    /// address ([`BindAddr`]).
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn listen_with(
        &mut self,
        local: impl Into<BindAddr>,
        backlog: usize,
        settings: &tcp::Settings,
    ) -> Result<SocketId, ListenError> {
        if self.is_link_gone() {
            return Err(ListenError::LinkGone);
        }
        let mut local: BindAddr = local.into();
        let (ip, limit) = (local.address.ip(), self.sockets.limit());
        if !ip.is_unspecified() && !self.network.routes().may_bind(ip) {
            return Err(ListenError::AddrNotAvailable(ip));
        }
        if self.sockets.is_full() {
            return Err(ListenError::TooManySockets { limit });
        }
        let port = local.address.port();
        if port != 0 && !self.sockets.local_ports.contains(port) {
            return Err(ListenError::PortNotOurs(port));
        }
        if port == 0 {
            let is_free = |stack: &Self, address| stack.is_free_to_listen(address, &local);
            let port = self.free_port(ip, is_free);
            local.address.set_port(port.ok_or(ListenError::NoFreePort)?);
        }
        let backlog = backlog.clamp(1, MAX_BACKLOG);
        // A listener for both families repeats SYN-ACKs with the MSS of IPv6, which is smaller and fits both.
        let link = self.network.link_limits(&self.nic, ip);
        let half_open = self.tcp.backlog(settings.rcv_space_initial, backlog);
        let listener = Listener::new(local.address, half_open, backlog, link, settings);
        self.sockets
            .insert_listener(local, listener)
            .map_err(|_| ListenError::AddrInUse(local.address))
    }

    /// Returns a port at `ip` for which `is_free` returns true.
    fn free_port(
        &mut self,
        ip: IpAddr,
        is_free: impl Fn(&Self, SocketAddr) -> bool,
    ) -> Option<u16> {
        let begin = self.first_port(ip);
        let ports = self.sockets.local_ports.to_choose();
        (begin..=*ports.end())
            .chain(*ports.start()..begin)
            .find(|port| is_free(self, SocketAddr::new(ip, *port)))
    }

    /// Returns whether neither a listener nor a connection has an overlapping address with the same port.
    fn is_free_to_listen(&self, address: SocketAddr, like: &BindAddr) -> bool {
        let local = BindAddr { address, ..*like };
        let names = &self.sockets.names;
        !names.is_listened_on(&local) && !names.is_port_in_use(&local)
    }

    /// Changes the backlog of a listener; see [`Stack::listen`].
    ///
    /// # Errors
    /// [`BadSocket`], also if the socket is a connection.
    pub fn set_backlog(&mut self, id: SocketId, backlog: usize) -> Result<(), BadSocket> {
        let mut listener = self.sockets.listener_mut(id)?.ok_or(BadSocket(id))?;
        listener.set_backlog(backlog.clamp(1, MAX_BACKLOG));
        Ok(())
    }

    /// Sets the largest segment that connections of a listener announce and send (TCP_MAXSEG); one that exists keeps
    /// its own.
    ///
    /// # Errors
    /// [`BadSocket`].
    pub fn set_user_mss(&mut self, id: SocketId, mss: Option<u16>) -> Result<(), BadSocket> {
        if let Some(mut listener) = self.sockets.listener_mut(id)? {
            listener.options.tcp.user_mss = mss;
        }
        Ok(())
    }

    /// Changes what a listener does about TCP Fast Open; a queue length above 0 allows it (TCP_FASTOPEN).
    ///
    /// # Errors
    /// [`BadSocket`], also if the socket is a connection.
    pub fn change_fast_open(
        &mut self,
        id: SocketId,
        change: impl FnOnce(&mut tcp::FastOpenListener),
    ) -> Result<(), BadSocket> {
        let mut listener = self.sockets.listener_mut(id)?.ok_or(BadSocket(id))?;
        listener.half_open.fast_open_mut().map(change);
        Ok(())
    }

    /// Returns the connection that has waited longest to be accepted, and the address of its peer.
    ///
    /// # Errors
    /// [`AcceptError`].
    pub fn accept(&mut self, listener: SocketId) -> Result<(SocketId, SocketAddr), AcceptError> {
        while let Some(id) = self.pop_accepted(listener)? {
            let Ok(Some(mut connection)) = self.sockets.connection_mut(id) else {
                continue;
            };
            connection.hand_to(Owner::Program);
            let (_, remote) = connection.addresses();
            return Ok((id, remote));
        }
        let queue = self.sockets.get(listener)?.listener();
        Err(queue.map_or(AcceptError::WouldBlock, Listener::why_empty))
    }

    pub(super) fn pop_accepted(
        &mut self,
        listener: SocketId,
    ) -> Result<Option<SocketId>, AcceptError> {
        match self.sockets.listener_mut(listener)? {
            Some(mut queue) => Ok(queue.pop()),
            None => Err(AcceptError::NotListening { id: listener }),
        }
    }
}
