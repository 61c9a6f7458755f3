//! Packets with their payload, in a file that Wireshark opens.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use nic::{Direction, FrameSink};
use pcap_file::DataLink;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{PcapNgBlock, PcapNgWriter};
use wire::Instant;

/// Longest frame that Wireshark takes (its `WTAP_MAX_PACKET_SIZE_STANDARD`). What comes in is a quarter of that; of a longer
/// one that goes out, this much is kept.
const SNAP_LEN: u32 = 256 << 10;
/// `if_tsresol`: timestamps count 10^-9 seconds.
const NANOSECONDS: u8 = 9;
/// `epb_flags`, direction bits: inbound and outbound (draft-ietf-opsawg-pcapng, 4.3.1).
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;
/// Bytes written to the file at once.
const BUFFER_BYTES: usize = 1 << 20;

/// A capture file under way. Clones write to the same file.
#[derive(Clone)]
pub struct Capture(Arc<Mutex<State<File>>>);

struct State<W: Write> {
    writer: PcapNgWriter<BufWriter<W>>,
    /// Wall-clock time at the zero of the stack's clock.
    start: Duration,
    frames: u64,
    /// The first error; nothing is written after it.
    error: Option<io::Error>,
}

impl Capture {
    /// Starts a capture file for the interface `name`.
    ///
    /// # Errors
    ///
    /// The file cannot be made or written.
    pub fn create(path: &Path, name: &str) -> io::Result<Self> {
        Ok(Self(Arc::new(Mutex::new(State::new(
            File::create(path)?,
            name,
        )?))))
    }

    /// Writes out what is left. Returns how many packets the file has.
    ///
    /// # Errors
    ///
    /// The first error of the whole capture.
    pub fn finish(&self) -> io::Result<u64> {
        self.state().finish()
    }

    fn state(&self) -> MutexGuard<'_, State<File>> {
        // A writer that panicked left a block unfinished at worst; the count stays right.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FrameSink for Capture {
    fn frame(&mut self, now: Instant, direction: Direction, frame: &[u8]) {
        self.state().frame(now, direction, frame);
    }
}

impl<W: Write> State<W> {
    fn new(file: W, name: &str) -> io::Result<Self> {
        let buffered = BufWriter::with_capacity(BUFFER_BYTES, file);
        let mut writer = PcapNgWriter::new(buffered).map_err(io::Error::other)?;
        let interface = InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: SNAP_LEN,
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Owned(name.to_owned())),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ],
        };
        writer
            .write_block(&interface.into_block())
            .map_err(io::Error::other)?;
        let start = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Ok(Self {
            writer,
            start,
            frames: 0,
            error: None,
        })
    }

    fn frame(&mut self, now: Instant, direction: Direction, frame: &[u8]) {
        if self.error.is_some() {
            return;
        }
        let flags = match direction {
            Direction::Rx => INBOUND,
            Direction::Tx => OUTBOUND,
        };
        let packet = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: self.start + Duration::from_nanos(now.as_nanos()),
            original_len: u32::try_from(frame.len()).unwrap_or(u32::MAX),
            data: Cow::Borrowed(&frame[..frame.len().min(SNAP_LEN as usize)]),
            options: vec![EnhancedPacketOption::Flags(flags)],
        };
        match self.writer.write_block(&packet.into_block()) {
            Ok(_) => self.frames += 1,
            Err(error) => self.error = Some(io::Error::other(error)),
        }
    }

    fn finish(&mut self) -> io::Result<u64> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        self.writer.get_mut().flush()?;
        Ok(self.frames)
    }
}

#[cfg(test)]
mod tests {
    use pcap_file::pcapng::{Block, PcapNgReader};

    use super::*;

    #[test]
    fn what_was_captured_reads_back_with_time_direction_and_payload() {
        let mut file = Vec::new();
        let mut state = State::new(&mut file, "dm0").unwrap();
        state.frame(Instant::from_nanos(1), Direction::Rx, &[7; 60]);
        state.frame(Instant::from_nanos(1_500_000_001), Direction::Tx, &[8; 61]);
        let longer = vec![9; SNAP_LEN as usize + 1];
        state.frame(Instant::from_nanos(2_000_000_000), Direction::Tx, &longer);
        assert_eq!(state.finish().unwrap(), 3);
        let start = state.start;
        drop(state);

        let mut reader = PcapNgReader::new(&file[..]).unwrap();
        let mut packets = Vec::new();
        while let Some(block) = reader.next_block() {
            if let Block::EnhancedPacket(packet) = block.unwrap() {
                packets.push(packet.into_owned());
            }
        }
        assert_eq!(packets.len(), 3);
        assert_eq!(&packets[2].data[..], &longer[1..]);
        assert_eq!(packets[2].original_len, SNAP_LEN + 1);
        assert_eq!(packets[0].data, vec![7; 60]);
        assert_eq!(packets[1].data, vec![8; 61]);
        assert_eq!(packets[0].timestamp, start + Duration::from_nanos(1));
        assert_eq!(
            packets[1].timestamp - packets[0].timestamp,
            Duration::from_millis(1500)
        );
        assert_eq!(packets[0].options, [EnhancedPacketOption::Flags(INBOUND)]);
        assert_eq!(packets[1].options, [EnhancedPacketOption::Flags(OUTBOUND)]);
    }

    #[test]
    fn a_full_disk_is_reported_at_the_end_and_once() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut state = State::new(Full, "dm0").unwrap();
        for _ in 0..3 {
            state.frame(Instant::ZERO, Direction::Rx, &vec![0; BUFFER_BYTES]);
        }
        assert!(state.finish().is_err());
    }
}
