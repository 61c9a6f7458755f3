//! The order of frames from the guest on the control port. The guest is not trusted: its frames take no more memory than
//! one frame, and one text for each requested file.

use std::time::Duration;

use super::frame::FrameKind;

/// Times since the guest's kernel started, by the guest's clock, at which its process 1 had done a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BootTimes {
    /// Process 1 has started.
    pub init: Duration,
    /// The control port is open.
    pub port: Duration,
    /// File systems, modules and commands are in place.
    pub files: Duration,
    /// The NICs are set up.
    pub nics: Duration,
}

impl BootTimes {
    /// Returns the payload of a Ready frame: milliseconds as decimal numbers, separated by spaces.
    pub fn to_text(self) -> String {
        let Self {
            init,
            port,
            files,
            nics,
        } = self;
        let numbers = [init, port, files, nics].map(|time| time.as_millis().to_string());
        numbers.join(" ")
    }

    /// Parses the payload of a Ready frame; `None` if it is anything else, or the times are not in order.
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(payload).ok()?;
        let mut times = text.split(' ').map(|number| {
            let millis: u32 = number.parse().ok()?;
            Some(Duration::from_millis(millis.into()))
        });
        let mut next = || times.next().flatten();
        let found = Self {
            init: next()?,
            port: next()?,
            files: next()?,
            nics: next()?,
        };
        let in_order =
            found.init <= found.port && found.port <= found.files && found.files <= found.nics;
        (times.next().is_none() && in_order).then_some(found)
    }
}

/// Meaning of one frame from the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuestMessage<'a> {
    /// The command starts; when the steps before it were done.
    Ready(BootTimes),
    /// Bytes of the command's standard output.
    Stdout(&'a [u8]),
    /// Bytes of the command's standard error.
    Stderr(&'a [u8]),
    /// Start of the file with this index in the `--get` list.
    File(usize),
    /// More bytes of that file.
    FileBytes(&'a [u8]),
    /// The next file of the list could not be read; the reason.
    FileMissing(String),
    /// The command has ended.
    Exit,
    /// The last frame; the command's exit code.
    Bye(i32),
}

/// State of a conversation.
#[derive(Clone, Debug)]
pub struct Conversation {
    /// Number of requested files.
    files_wanted: usize,
    /// Number of files that the guest has sent or could not read, in the order of the list.
    files_told: usize,
    /// A file has started, and its bytes may follow.
    file_is_open: bool,
    is_ready: bool,
    exit_code: Option<i32>,
}

impl Conversation {
    /// Returns the initial state of a conversation with `files_wanted` requested files.
    pub fn new(files_wanted: usize) -> Self {
        Self {
            files_wanted,
            files_told: 0,
            file_is_open: false,
            is_ready: false,
            exit_code: None,
        }
    }

    /// Returns whether the guest has booted.
    pub fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Processes one frame.
    ///
    /// # Errors
    ///
    /// A message for the user: the guest reported a failure, or sent an invalid frame or one in the wrong order.
    pub fn take<'a>(
        &mut self,
        kind: FrameKind,
        payload: &'a [u8],
    ) -> Result<GuestMessage<'a>, String> {
        let text = || String::from_utf8_lossy(payload).into_owned();
        match kind {
            // Each Ready frame starts a thread.
            FrameKind::Ready if self.is_ready => {
                Err("the guest sent a second Ready frame".to_owned())
            }
            FrameKind::Ready => {
                let times = BootTimes::parse(payload);
                let times =
                    times.ok_or("the guest sent a Ready frame without the times of its boot")?;
                self.is_ready = true;
                Ok(GuestMessage::Ready(times))
            }
            FrameKind::Stdout => Ok(GuestMessage::Stdout(payload)),
            FrameKind::Stderr => Ok(GuestMessage::Stderr(payload)),
            FrameKind::Exit if self.exit_code.is_some() => {
                Err("the guest sent a second exit code".to_owned())
            }
            FrameKind::Exit => {
                let code = text().parse();
                self.exit_code =
                    Some(code.map_err(|error| format!("the guest's exit code: {error}"))?);
                Ok(GuestMessage::Exit)
            }
            FrameKind::File => self.begin_file(&text()),
            FrameKind::FileBytes if self.file_is_open => Ok(GuestMessage::FileBytes(payload)),
            FrameKind::FileBytes => Err("the guest sent file data without a file".to_owned()),
            FrameKind::FileError => {
                self.next_file()?;
                self.file_is_open = false;
                Ok(GuestMessage::FileMissing(text()))
            }
            FrameKind::Trouble => Err(format!("the guest failed: {}", text())),
            FrameKind::Stdin => {
                Err("the guest sent a frame that only the host may send".to_owned())
            }
            FrameKind::Bye => match self.exit_code {
                Some(code) => Ok(GuestMessage::Bye(code)),
                None => Err("the guest ended without an exit code".to_owned()),
            },
        }
    }

    fn begin_file(&mut self, number: &str) -> Result<GuestMessage<'static>, String> {
        let named: usize = number
            .parse()
            .map_err(|error| format!("the guest sent an invalid file number: {error}"))?;
        let next = self.next_file()?;
        if named != next {
            return Err(format!(
                "the guest sent file {named} instead of file {next}"
            ));
        }
        self.file_is_open = true;
        Ok(GuestMessage::File(next))
    }

    /// Counts one more file of the list and returns its index.
    fn next_file(&mut self) -> Result<usize, String> {
        let place = self.files_told;
        if place >= self.files_wanted {
            return Err("the guest sent a file that was not requested".to_owned());
        }
        self.files_told += 1;
        Ok(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_in_the_right_order_are_accepted() {
        let mut guest = Conversation::new(2);
        assert!(!guest.is_ready());
        let times = BootTimes {
            init: Duration::from_secs(2),
            port: Duration::from_millis(2100),
            files: Duration::from_millis(2200),
            nics: Duration::from_millis(2600),
        };
        let said: [(FrameKind, &[u8], GuestMessage<'_>); 8] = [
            (
                FrameKind::Ready,
                b"2000 2100 2200 2600",
                GuestMessage::Ready(times),
            ),
            (FrameKind::Stdout, b"out", GuestMessage::Stdout(b"out")),
            (FrameKind::Stderr, b"", GuestMessage::Stderr(b"")),
            (
                FrameKind::FileError,
                b"gone",
                GuestMessage::FileMissing("gone".to_owned()),
            ),
            (FrameKind::File, b"1", GuestMessage::File(1)),
            (
                FrameKind::FileBytes,
                b"bytes",
                GuestMessage::FileBytes(b"bytes"),
            ),
            (FrameKind::Exit, b"-3", GuestMessage::Exit),
            (FrameKind::Bye, b"", GuestMessage::Bye(-3)),
        ];
        for (kind, payload, word) in said {
            assert_eq!(guest.take(kind, payload), Ok(word));
        }
        assert!(guest.is_ready());
    }

    #[test]
    fn the_times_of_a_boot_are_milliseconds_in_both_directions_and_anything_else_is_refused() {
        let times = BootTimes::parse(b"1 20 20 4294967295").unwrap();
        assert_eq!(times.port, Duration::from_millis(20));
        assert_eq!(BootTimes::parse(times.to_text().as_bytes()), Some(times));
        let wrong: [&[u8]; 8] = [
            b"",
            b"1 2 3",
            b"1 2 3 4 5",
            b"1  2 3 4",
            b"1 2 3 4294967296",
            b"1.5 2 3 4",
            b"4 3 2 1",
            b"\xff",
        ];
        for payload in wrong {
            let refused = Conversation::new(0).take(FrameKind::Ready, payload);
            assert!(refused.unwrap_err().contains("times"), "{payload:?}");
        }
    }

    #[test]
    fn each_file_that_could_not_be_read_is_reported_once() {
        let mut guest = Conversation::new(2);
        for _ in 0..2 {
            assert!(guest.take(FrameKind::FileError, b"why").is_ok());
        }
        for _ in 0..3 {
            let refused = guest.take(FrameKind::FileError, b"why").unwrap_err();
            assert!(refused.contains("not requested"), "{refused}");
        }
    }

    #[test]
    fn frames_in_the_wrong_order_are_refused() {
        let wrong: [&[(FrameKind, &[u8])]; 9] = [
            &[
                (FrameKind::Ready, b"1 2 3 4"),
                (FrameKind::Ready, b"1 2 3 4"),
            ],
            &[(FrameKind::Bye, b"")],
            &[(FrameKind::Exit, b"0"), (FrameKind::Exit, b"0")],
            &[(FrameKind::Exit, b"99999999999")],
            &[(FrameKind::FileBytes, b"x")],
            &[(FrameKind::File, b"1")],
            &[(FrameKind::File, b"0"), (FrameKind::File, b"0")],
            &[(FrameKind::Stdin, b"x")],
            &[(FrameKind::Trouble, b"no disk")],
        ];
        for frames in wrong {
            let mut guest = Conversation::new(2);
            let taken: Vec<_> = frames
                .iter()
                .map(|(kind, payload)| guest.take(*kind, payload).is_ok())
                .collect();
            let expected: Vec<_> = (1..=frames.len()).map(|at| at < frames.len()).collect();
            assert_eq!(taken, expected, "{frames:?}");
        }
    }
}
