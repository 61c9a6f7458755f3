//! The wire of a device: port, impairments and capture.

use gve::{
    Backend, ChecksumState, GuestMemory, Offload, RxFrame, TxFrame, TxOutcome, WireFeatures,
};
use nic::{Conditioner, Direction, FrameSink, Impairment, Written, complete_checksum};
use rustix::io::Errno;
use wire::Instant;

use super::port::{FRAME_BUFFER_BYTES, OpenPort};
use tool::capture::Capture;

/// Maximum number of frames read from the port in one call.
pub const BATCH_FRAMES: usize = 64;

/// The device's side of a wire.
pub struct DeviceWire {
    port: OpenPort,
    /// Impairments of frames to the device, and of those from it.
    impairment: Option<[Conditioner; 2]>,
    capture: Option<Capture>,
    /// The time of the current round; the device's send call has no time argument.
    now: Instant,
    /// Buffer of the frame being sent.
    outgoing: Vec<u8>,
    /// If `late_waits`: a frame from the impairment for which the port had no room.
    late: Vec<u8>,
    late_waits: bool,
    /// The port was full at the last attempt.
    full: bool,
    stats: WireStats,
}

/// Buffers for received frames, separate from the wire, because the device also sends during a receive.
#[derive(Debug)]
pub struct IncomingBuffers {
    read: Box<[u8]>,
    due: Vec<u8>,
}

/// Counters of frames at the port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct WireStats {
    /// Received frames.
    pub rx_frames: u64,
    /// Bytes of them.
    pub rx_bytes: u64,
    /// Super-packets among them.
    pub rx_super: u64,
    /// Frames longer than the maximum.
    pub rx_too_long: u64,
    /// Sent frames.
    pub tx_frames: u64,
    /// Bytes of them.
    pub tx_bytes: u64,
    /// Super-packets among them.
    pub tx_super: u64,
    /// Number of times that a frame had to wait because the port was full.
    pub tx_full: u64,
    /// Frames lost because the other end was not connected or refused them.
    pub tx_lost: u64,
}

impl IncomingBuffers {
    pub fn new() -> Self {
        Self {
            read: vec![0; FRAME_BUFFER_BYTES].into_boxed_slice(),
            due: Vec::new(),
        }
    }
}

impl DeviceWire {
    /// Returns a wire at `port`.
    pub fn new(port: OpenPort, impairment: Impairment, capture: Option<Capture>) -> Self {
        // Each direction has a different seed.
        let other = Impairment {
            seed: !impairment.seed,
            ..impairment
        };
        let both = || [Conditioner::new(impairment), Conditioner::new(other)];
        Self {
            port,
            impairment: (!impairment.is_none()).then(both),
            capture,
            now: Instant::ZERO,
            outgoing: Vec::new(),
            late: Vec::new(),
            late_waits: false,
            full: false,
            stats: WireStats::default(),
        }
    }

    pub fn port(&self) -> &OpenPort {
        &self.port
    }

    pub fn stats(&self) -> WireStats {
        self.stats
    }

    /// Returns the impairments of frames to the device, and of those from it.
    pub fn impairment(&self) -> Option<&[Conditioner; 2]> {
        self.impairment.as_ref()
    }

    /// Returns whether frames wait for room in the port.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Returns the next deadline of the wire.
    pub fn next_due(&self) -> Option<Instant> {
        let [rx, tx] = match &self.impairment {
            // A frame that waits for room has no deadline: the port becomes writable.
            Some([rx, tx]) => [rx.next_due(), tx.next_due().filter(|_| !self.late_waits)],
            None => [None, None],
        };
        [rx, tx, self.port.next_due()].into_iter().flatten().min()
    }

    /// Begins a round at `now`: sends delayed frames that are due, and tries to connect a port without a peer.
    pub fn begin(&mut self, now: Instant) {
        self.now = now;
        self.port.serve(now);
        self.let_out();
    }

    /// Clears the full state: the port may have room again.
    pub fn port_has_room(&mut self) {
        self.full = false;
        self.let_out();
    }

    /// Returns the next frame for the device.
    ///
    /// # Errors
    ///
    /// The port failed for good.
    pub fn receive<'a>(
        &mut self,
        incoming: &'a mut IncomingBuffers,
    ) -> Result<Option<RxFrame<'a>>, Errno> {
        if self.impairment.is_some() {
            return self.receive_impaired(incoming);
        }
        let Some((len, offload)) = self.read(&mut incoming.read)? else {
            return Ok(None);
        };
        let bytes = &incoming.read[..len];
        self.show(Direction::Rx, bytes);
        Ok(Some(RxFrame { bytes, offload }))
    }

    fn receive_impaired<'a>(
        &mut self,
        incoming: &'a mut IncomingBuffers,
    ) -> Result<Option<RxFrame<'a>>, Errno> {
        for _ in 0..BATCH_FRAMES {
            let Some((len, offload)) = self.read(&mut incoming.read)? else {
                break;
            };
            let frame = &mut incoming.read[..len];
            if matches!(offload.checksum, ChecksumState::Partial(_)) {
                complete_checksum(frame);
            }
            if let Some([rx, _]) = &mut self.impairment {
                rx.push(frame, self.now);
            }
        }
        let due = match &mut self.impairment {
            Some([rx, _]) => rx.pop(self.now, &mut incoming.due),
            None => false,
        };
        if !due {
            return Ok(None);
        }
        self.show(Direction::Rx, &incoming.due);
        Ok(Some(RxFrame::plain(&incoming.due)))
    }

    /// Reads one frame. Frames that are too long are counted and dropped, a bounded number in one call.
    fn read(&mut self, frame: &mut [u8]) -> Result<Option<(usize, Offload)>, Errno> {
        for _ in 0..BATCH_FRAMES {
            let Some((len, offload)) = self.port.read(frame, self.now)? else {
                break;
            };
            if len >= frame.len() {
                self.stats.rx_too_long += 1;
                continue;
            }
            self.stats.rx_frames += 1;
            self.stats.rx_bytes += len as u64;
            self.stats.rx_super += u64::from(offload.gso.is_some());
            return Ok(Some((len, offload)));
        }
        Ok(None)
    }

    /// Writes delayed frames that are due to the port.
    fn let_out(&mut self) {
        while let Some([_, tx]) = &mut self.impairment {
            if !self.late_waits && !tx.pop(self.now, &mut self.late) {
                return;
            }
            let late = std::mem::take(&mut self.late);
            let written = self.write(&late, 0, Offload::default());
            self.late = late;
            self.late_waits = written == Written::Full;
            if self.late_waits {
                self.full = true;
                return;
            }
        }
    }

    /// Writes a frame to the port.
    fn write(&mut self, frame: &[u8], head_len: usize, offload: Offload) -> Written {
        let written = self.port.write(frame, head_len, offload);
        match written {
            Written::Done => {
                self.stats.tx_frames += 1;
                self.stats.tx_bytes += frame.len() as u64;
                self.stats.tx_super += u64::from(offload.gso.is_some());
            }
            Written::Full => self.stats.tx_full += 1,
            Written::Lost => self.stats.tx_lost += 1,
        }
        written
    }

    fn show(&mut self, direction: Direction, frame: &[u8]) {
        if let Some(capture) = &mut self.capture {
            capture.frame(self.now, direction, frame);
        }
    }
}

impl Backend for DeviceWire {
    fn features(&self) -> WireFeatures {
        match self.impairment {
            // Impairment needs single frames with complete checksums.
            Some(_) => WireFeatures::empty(),
            None => self.port.features(),
        }
    }

    fn send(&mut self, frame: &TxFrame<'_>, memory: &dyn GuestMemory) -> TxOutcome {
        let mut bytes = std::mem::take(&mut self.outgoing);
        bytes.clear();
        let sent = match frame.append_to(memory, &mut bytes) {
            Ok(()) => self.send_bytes(&bytes, frame),
            Err(_) => TxOutcome::BadAddress,
        };
        self.outgoing = bytes;
        sent
    }
}

impl DeviceWire {
    /// Sends `bytes`, the bytes of `frame`.
    fn send_bytes(&mut self, bytes: &[u8], frame: &TxFrame<'_>) -> TxOutcome {
        let written = match &mut self.impairment {
            Some([_, tx]) => {
                tx.push(bytes, self.now);
                self.let_out();
                Written::Done
            }
            None => self.write(bytes, frame.head.len(), frame.offload),
        };
        match written {
            Written::Done => {
                self.show(Direction::Tx, bytes);
                TxOutcome::Done
            }
            Written::Full => {
                self.full = true;
                TxOutcome::Busy
            }
            Written::Lost => TxOutcome::Lost,
        }
    }
}
