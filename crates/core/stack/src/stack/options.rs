//! Options of sockets, and settings of the stack.

use std::net::IpAddr;

use super::Stack;
use crate::socket::agenda::Mark;
use crate::socket::error::{BadSocket, OptionError};
use crate::socket::id::SocketId;
use crate::socket::kind::SocketKind;
use crate::socket::sockopt::SocketOption;
use crate::socket::timestamps::Timestamping;

impl Stack {
    /// Sets an option. Connections inherit the options of their listener.
    ///
    /// # Errors
    /// [`OptionError`].
    pub fn set_option(&mut self, id: SocketId, option: SocketOption) -> Result<(), OptionError> {
        let mut socket = self.sockets.get_mut(id)?;
        match &mut *socket {
            SocketKind::Connection(connection) => {
                let connection = &mut *connection;
                connection.options.set(option)?;
                connection.conn.on_settings(&connection.options.tcp);
                if option == SocketOption::NoDelay(true) {
                    connection.conn.flush();
                }
                if let SocketOption::Timestamping(Timestamping { ids, received, .. }) = option {
                    if !received {
                        connection.reader.forget_times();
                    }
                    let (acked, queued) = (
                        connection.conn.acked_offset(),
                        connection.conn.pushed_offset(),
                    );
                    connection.writer.errors.stamps.number(ids, acked, queued);
                }
            }
            SocketKind::Listener(listener) => listener.options.set(option)?,
            SocketKind::TimeWait(_) => return Err(BadSocket(id).into()),
        }
        socket.mark(Mark::Touched);
        Ok(())
    }

    /// Returns whether small segments are sent at once (TCP_NODELAY).
    ///
    /// # Errors
    /// [`BadSocket`].
    pub fn has_nodelay(&self, id: SocketId) -> Result<bool, BadSocket> {
        match self.sockets.get(id)? {
            SocketKind::Connection(connection) => Ok(connection.options.tcp.nodelay),
            SocketKind::Listener(listener) => Ok(listener.options.tcp.nodelay),
            SocketKind::TimeWait(_) => Err(BadSocket(id)),
        }
    }

    /// Returns whether received data is acknowledged at once (TCP_QUICKACK); `None` of a listener.
    ///
    /// # Errors
    /// [`BadSocket`].
    pub fn has_quick_acks(&self, id: SocketId) -> Result<Option<bool>, BadSocket> {
        let connection = self.sockets.connection(id)?;
        Ok(connection.map(|it| it.conn.has_quick_acks()))
    }

    /// Switches delayed ACKs off or on for the near future (TCP_QUICKACK).
    ///
    /// # Errors
    /// [`BadSocket`].
    pub fn set_quick_acks(&mut self, id: SocketId, quick: bool) -> Result<(), BadSocket> {
        if let Some(mut connection) = self.sockets.connection_mut(id)? {
            connection.conn.set_quick_acks(quick);
            connection.mark(Mark::Touched);
        }
        Ok(())
    }

    /// Returns the TCP configuration of new connections and listeners.
    pub fn tcp_config(&self) -> &tcp::Config {
        self.tcp.config()
    }

    /// Changes the TCP configuration of new connections and listeners.
    pub fn set_tcp_config(&mut self, config: tcp::Config) {
        self.tcp.set_config(config);
    }

    /// Returns whether a program may use `ip` as its local address.
    pub fn may_bind(&self, ip: IpAddr) -> bool {
        self.network.routes().may_bind(ip)
    }

    /// Returns whether every unicast address counts as local (`StackConfig::any_local`).
    pub fn has_any_local(&self) -> bool {
        self.network.routes().has_any_local()
    }

    /// Returns the ports that this stack chooses from for programs that name none.
    pub fn ports_to_choose(&self) -> std::ops::RangeInclusive<u16> {
        self.sockets.local_ports.to_choose()
    }

    /// Returns the port of [`ports_to_choose`](Self::ports_to_choose) at which to begin a search for a free port at `ip`: a different one each
    /// time.
    pub fn first_port(&mut self, ip: IpAddr) -> u16 {
        self.sockets.ports.begin(ip)
    }
}
