//! Packet capture with payload, in a pcapng file for Wireshark.

mod annotation;

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use devmem_tcp::RxBatch;
use nic::{Direction, FrameSink};
use rustix::io::Errno;
use wire::Instant;

use crate::output::{Failure, note};
use crate::pcapng::{self, Packet};
use annotation::Annotated;

/// Maximum frame length in Wireshark (`WTAP_MAX_PACKET_SIZE_STANDARD`). Received frames are at most a quarter of that;
/// longer sent frames are truncated to it.
const SNAP_LEN: u32 = 256 << 10;
/// Captured bytes that are buffered before all of them are written.
const BUFFERED_BYTES: usize = 1 << 20;
/// The same if tokens will be added to the packets: the newest ones are kept back, because the tokens of their payload are
/// issued only when it is read.
const KEPT_BYTES: usize = 8 << 20;
/// How many of [`KEPT_BYTES`] are then written, the oldest first.
const WRITTEN_BYTES: usize = 4 << 20;

/// An open capture file. Clones write to the same file.
#[derive(Clone)]
pub struct Capture(Arc<Mutex<CaptureFile>>);

struct CaptureFile {
    path: PathBuf,
    file: File,
    /// Blocks to write: at first those before the first packet.
    blocks: Vec<u8>,
    /// End of each packet in `blocks`.
    ends: Vec<usize>,
    /// Packets that are not in the file yet, oldest first, and the sum of their bytes.
    kept: VecDeque<Annotated>,
    kept_bytes: usize,
    /// Size of a net_iov of the bound memory.
    niov_bytes: Option<usize>,
    /// Wall-clock time at instant 0 of the stack's clock.
    start: Duration,
    /// Bytes of whole blocks in the file.
    written: u64,
    /// Packets in the file.
    packets: u64,
    /// The first error; nothing is written after it.
    error: Option<io::Error>,
}

impl Capture {
    /// Creates a capture file for the interface `name`.
    ///
    /// # Errors
    ///
    /// The file cannot be created.
    pub fn create(path: &Path, name: &str) -> Result<Self, Failure> {
        let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
        let state = CaptureFile::new(path, file, name);
        Ok(Self(Arc::new(Mutex::new(state))))
    }

    /// Creates the capture file of a run, if the run has one, for the interface `name`.
    ///
    /// # Errors
    ///
    /// The file cannot be created.
    pub fn open(path: Option<&Path>, name: &str) -> Result<Option<Self>, Failure> {
        path.map(|path| Self::create(path, name)).transpose()
    }

    /// Sets the size of a net_iov, by which comments number them.
    pub fn set_net_iovs(&self, bytes: usize) {
        self.state().niov_bytes = Some(bytes);
    }

    /// Adds the tokens to the comments of the packets that brought their bytes: a range of the bound memory, and its token.
    pub fn lent(&self, tokens: impl Iterator<Item = (Range<usize>, u32)>) {
        let mut state = self.state();
        for (range, token) in tokens {
            annotation::add_token(&mut state.kept, &range, token);
        }
    }

    /// Writes the buffered packets and prints how many packets the file has.
    ///
    /// # Errors
    ///
    /// The first error of the whole capture.
    pub fn finish(&self) -> Result<(), Failure> {
        let mut state = self.state();
        state.write_out(usize::MAX);
        state.outcome()?;
        let CaptureFile { path, packets, .. } = &*state;
        note(format_args!("{packets} packets in {}", path.display()));
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, CaptureFile> {
        // A panic in a writer leaves at most one incomplete block, which the count does not include.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the capture of a run, if it has one. If both failed, prints the error of the capture and returns that of the run.
///
/// # Errors
///
/// The error of the run, else that of the capture.
pub fn finish(capture: Option<Capture>, run: Result<(), Failure>) -> Result<(), Failure> {
    let captured = capture.map_or(Ok(()), |capture| capture.finish());
    match (run, captured) {
        (Ok(()), captured) => captured,
        (Err(error), Ok(())) => Err(error),
        (Err(error), Err(captured)) => {
            note(captured);
            Err(error)
        }
    }
}

/// Adds the tokens of a batch to the comments of its packets, if there is a capture.
pub fn lent(capture: Option<&Capture>, batch: &RxBatch) {
    if let Some(capture) = capture {
        capture.lent(batch.tokens());
    }
}

/// For links that this workspace opens itself.
impl FrameSink for Capture {
    fn frame(&mut self, now: Instant, direction: Direction, frame: &[u8]) {
        self.state().frame(now, direction, frame);
    }
}

/// For NICs of the library.
impl devmem_tcp::capture::FrameSink for Capture {
    fn frame(&mut self, at: Duration, direction: devmem_tcp::capture::Direction, frame: &[u8]) {
        let direction = match direction {
            devmem_tcp::capture::Direction::Rx => Direction::Rx,
            devmem_tcp::capture::Direction::Tx => Direction::Tx,
        };
        let nanos = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
        self.state()
            .frame(Instant::from_nanos(nanos), direction, frame);
    }

    fn payload(&mut self, payload: &devmem_tcp::capture::FramePayload) {
        if let Some(last) = self.state().kept.back_mut() {
            last.payload = Some(payload.clone());
        }
    }
}

impl CaptureFile {
    fn new(path: &Path, file: File, name: &str) -> Self {
        let mut blocks = Vec::new();
        pcapng::start(&mut blocks, name, SNAP_LEN);
        let start = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            path: path.to_owned(),
            file,
            blocks,
            ends: Vec::new(),
            kept: VecDeque::new(),
            kept_bytes: 0,
            niov_bytes: None,
            start,
            written: 0,
            packets: 0,
            error: None,
        }
    }

    fn frame(&mut self, now: Instant, direction: Direction, frame: &[u8]) {
        if self.error.is_some() {
            return;
        }
        let time = self.start + Duration::from_nanos(now.as_nanos());
        let data = frame[..frame.len().min(SNAP_LEN as usize)].to_vec();
        self.kept_bytes += data.len();
        self.kept.push_back(Annotated::from(Packet {
            time,
            direction,
            original_len: frame.len(),
            data,
        }));
        let (most, written) = match self.niov_bytes {
            Some(_) => (KEPT_BYTES, WRITTEN_BYTES),
            None => (BUFFERED_BYTES, usize::MAX),
        };
        if self.kept_bytes >= most {
            self.write_out(written);
        }
    }

    /// Encodes the oldest packets, of at most `most` bytes in all.
    fn encode(&mut self, most: usize) {
        let mut bytes = 0;
        while let Some(oldest) = self.kept.front() {
            bytes += oldest.packet.data.len();
            if bytes > most {
                break;
            }
            let comment = oldest.comment(self.niov_bytes);
            pcapng::packet(&mut self.blocks, &oldest.packet, &comment);
            self.ends.push(self.blocks.len());
            self.kept_bytes -= oldest.packet.data.len();
            self.kept.pop_front();
        }
    }

    /// Writes the oldest packets, of at most `most` bytes in all, to the file. After an error the file still ends with a whole packet.
    fn write_out(&mut self, most: usize) {
        if self.error.is_some() {
            return;
        }
        self.encode(most);
        let bytes = std::mem::take(&mut self.blocks);
        let ends = std::mem::take(&mut self.ends);
        let mut done = 0;
        let error = loop {
            match self.file.write(&bytes[done..]) {
                _ if done == bytes.len() => break None,
                Ok(0) => break Some(io::ErrorKind::WriteZero.into()),
                Ok(more) => done += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Some(error),
            }
        };
        let whole = ends.partition_point(|&end| end <= done);
        self.packets += whole as u64;
        match error {
            None => self.written += done as u64,
            Some(error) => {
                let end = ends[..whole].last().copied().unwrap_or(0);
                self.written += end as u64;
                // Some readers reject a file with an incomplete block. Truncation fails on a pipe.
                let _ = self.file.set_len(self.written);
                self.fail(error);
            }
        }
        // Reuses the memory.
        self.blocks = bytes;
        self.blocks.clear();
        self.ends = ends;
        self.ends.clear();
    }

    /// Prints that the capture has stopped; the run continues.
    fn fail(&mut self, error: io::Error) {
        note(format_args!(
            "write {}: {error}; the file has {} packets, and the run continues without a capture",
            self.path.display(),
            self.packets
        ));
        self.error = Some(error);
        self.kept.clear();
    }

    fn outcome(&mut self) -> Result<(), Failure> {
        let Some(error) = self.error.take() else {
            return Ok(());
        };
        let full = [Errno::NOSPC, Errno::DQUOT, Errno::FBIG];
        let is_full = Errno::from_io_error(&error).is_some_and(|errno| full.contains(&errno));
        let what = format!(
            "the capture is not complete, {} has its first {} packets: write",
            self.path.display(),
            self.packets
        );
        let failure = Failure::from(anyhow::Error::from(error).context(what));
        Err(match is_full {
            true => failure.with_remedy("make room there, or name a file elsewhere with --capture"),
            false => failure,
        })
    }
}

#[cfg(test)]
mod tests {
    use pcap_file::DataLink;
    use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
    use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
    use pcap_file::pcapng::{Block, PcapNgReader};

    use super::*;

    /// Temporary file of one test, removed on drop.
    struct Scratch(tempfile::NamedTempFile);

    impl Scratch {
        fn new() -> Self {
            Self(tempfile::NamedTempFile::new().unwrap())
        }

        fn packets(&self) -> Vec<EnhancedPacketBlock<'static>> {
            let file = std::fs::read(self.0.path()).unwrap();
            let mut reader = PcapNgReader::new(&file[..]).unwrap();
            let mut packets = Vec::new();
            while let Some(block) = reader.next_block() {
                if let Block::EnhancedPacket(packet) = block.unwrap() {
                    packets.push(packet.into_owned());
                }
            }
            let [interface] = reader.interfaces() else {
                panic!("one interface is described")
            };
            assert_eq!(
                (interface.linktype, interface.snaplen),
                (DataLink::ETHERNET, SNAP_LEN)
            );
            let name = InterfaceDescriptionOption::IfName("dm0".into());
            assert!(interface.options.contains(&name), "{interface:?}");
            packets
        }
    }

    #[test]
    fn captured_packets_have_time_direction_and_payload() {
        let scratch = Scratch::new();
        let mut capture = Capture::create(scratch.0.path(), "dm0").unwrap();
        FrameSink::frame(
            &mut capture,
            Instant::from_nanos(1),
            Direction::Rx,
            &[7; 60],
        );
        FrameSink::frame(
            &mut capture,
            Instant::from_nanos(1_500_000_001),
            Direction::Tx,
            &[8; 61],
        );
        let longer = vec![9; SNAP_LEN as usize + 1];
        FrameSink::frame(
            &mut capture,
            Instant::from_nanos(2_000_000_000),
            Direction::Tx,
            &longer,
        );
        capture.finish().unwrap();
        assert_eq!(capture.state().packets, 3);
        let start = capture.state().start;
        let packets = scratch.packets();
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
        assert_eq!(packets[0].options, [EnhancedPacketOption::Flags(1)]);
        assert_eq!(packets[1].options, [EnhancedPacketOption::Flags(2)]);
    }

    #[test]
    fn a_full_disk_is_an_error_with_the_file_and_its_packets() {
        let mut capture = Capture::create(Path::new("/dev/full"), "dm0").unwrap();
        for _ in 0..3 {
            FrameSink::frame(&mut capture, Instant::ZERO, Direction::Rx, &[0; 100]);
        }
        let said = capture.finish().unwrap_err().to_string();
        for words in [
            "/dev/full has its first 0 packets: write: No space left on device",
            "--capture",
        ] {
            assert!(said.contains(words), "no {words:?} in: {said}");
        }
        assert!(!said.contains("reading"), "{said}");
    }

    #[test]
    fn the_error_of_a_failed_run_precedes_that_of_its_capture() {
        let capture = || Capture::create(Path::new("/dev/full"), "dm0").unwrap();
        let failed = finish(Some(capture()), Err(Failure::failed("the run")));
        assert_eq!(failed.unwrap_err().to_string(), "the run");
        assert!(finish(Some(capture()), Ok(())).is_err());
        assert!(finish(None, Ok(())).is_ok());
    }
}
