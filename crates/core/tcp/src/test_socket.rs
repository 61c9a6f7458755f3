//! A connection and the settings of its socket, which own each other in a stack.

use core::ops::{Deref, DerefMut};

use wire::Instant;

use crate::connection::Connection;
use crate::disposition::Disposition;
use crate::fast_open::FastOpenStart;
use crate::info::Info;
use crate::segment::Segment;
use crate::seqnum::SeqNum;
use crate::settings::Settings;
use crate::test_config::TestConfig;
use crate::test_payload::Bytes;

/// A socket: each call of the connection gets the settings as they are.
#[derive(Debug)]
pub(crate) struct TestSocket {
    conn: Connection<Bytes>,
    pub settings: Settings,
}

impl TestSocket {
    pub fn new(conn: Connection<Bytes>, settings: Settings) -> Self {
        Self { conn, settings }
    }

    pub fn connect(config: &TestConfig, iss: SeqNum, now: Instant) -> Self {
        let conn = Connection::connect(config, &config.settings, iss, None, now);
        Self::new(conn, config.settings)
    }

    pub fn connect_early(
        config: &TestConfig,
        iss: SeqNum,
        start: FastOpenStart,
        now: Instant,
    ) -> Self {
        let conn = Connection::connect(config, &config.settings, iss, Some(start), now);
        Self::new(conn, config.settings)
    }

    /// Changes the settings, as setsockopt does.
    pub fn set(&mut self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.settings);
        self.conn.on_settings(&self.settings);
    }

    pub fn on_segment(&mut self, segment: Segment<Bytes>, now: Instant) -> Disposition {
        self.conn.on_segment(segment, &self.settings, now)
    }

    pub fn on_unplaced(&mut self, segment: Segment<Bytes>, now: Instant) -> Disposition {
        self.conn.on_unplaced(segment, &self.settings, now)
    }

    pub fn poll_send(&mut self, now: Instant) -> Option<Segment<Bytes>> {
        self.conn.poll_send(&self.settings, now)
    }

    pub fn on_timer(&mut self, now: Instant) -> Disposition {
        self.conn.on_timer(&self.settings, now)
    }

    pub fn on_mtu(&mut self, mss: u16, quoted: SeqNum, now: Instant) -> bool {
        self.conn.on_mtu(mss, quoted, &self.settings, now)
    }

    pub fn set_rcv_space(&mut self, bytes: u32) {
        self.conn.set_rcv_space(bytes, &self.settings);
    }

    pub fn may_gather(&self, now: Instant) -> bool {
        self.conn.may_gather(&self.settings, now)
    }

    pub fn write_room(&self) -> usize {
        self.conn.write_room(&self.settings)
    }

    pub fn admit(&mut self, wanted: usize) -> usize {
        self.conn.admit(wanted, &self.settings)
    }

    pub fn info(&self) -> Info {
        self.conn.info(&self.settings)
    }

    /// Returns whether everything was read, and the peer has ended its stream.
    pub fn is_at_end(&mut self) -> bool {
        self.conn.recv_queue().has_fin() && self.conn.readable_len() == 0
    }
}

impl Deref for TestSocket {
    type Target = Connection<Bytes>;

    fn deref(&self) -> &Connection<Bytes> {
        &self.conn
    }
}

impl DerefMut for TestSocket {
    fn deref_mut(&mut self) -> &mut Connection<Bytes> {
        &mut self.conn
    }
}
