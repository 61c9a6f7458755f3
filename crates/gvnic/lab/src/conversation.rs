//! The order of frames from the guest on the control port. The guest is not trusted: its frames take no more memory than
//! one frame, and one text for each requested file.

use super::frame::FrameKind;

/// Meaning of one frame from the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word<'a> {
    /// The command starts.
    Ready,
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
    pub fn take<'a>(&mut self, kind: FrameKind, payload: &'a [u8]) -> Result<Word<'a>, String> {
        let text = || String::from_utf8_lossy(payload).into_owned();
        match kind {
            // Each Ready frame starts a thread.
            FrameKind::Ready if self.is_ready => {
                Err("the guest sent a second Ready frame".to_owned())
            }
            FrameKind::Ready => {
                self.is_ready = true;
                Ok(Word::Ready)
            }
            FrameKind::Stdout => Ok(Word::Stdout(payload)),
            FrameKind::Stderr => Ok(Word::Stderr(payload)),
            FrameKind::Exit if self.exit_code.is_some() => {
                Err("the guest sent a second exit code".to_owned())
            }
            FrameKind::Exit => {
                let code = text().parse();
                self.exit_code =
                    Some(code.map_err(|error| format!("the guest's exit code: {error}"))?);
                Ok(Word::Exit)
            }
            FrameKind::File => self.begin_file(&text()),
            FrameKind::FileBytes if self.file_is_open => Ok(Word::FileBytes(payload)),
            FrameKind::FileBytes => Err("the guest sent file data without a file".to_owned()),
            FrameKind::FileError => {
                self.next_file()?;
                self.file_is_open = false;
                Ok(Word::FileMissing(text()))
            }
            FrameKind::Trouble => Err(format!("the guest failed: {}", text())),
            FrameKind::Stdin => {
                Err("the guest sent a frame that only the host may send".to_owned())
            }
            FrameKind::Bye => match self.exit_code {
                Some(code) => Ok(Word::Bye(code)),
                None => Err("the guest ended without an exit code".to_owned()),
            },
        }
    }

    fn begin_file(&mut self, number: &str) -> Result<Word<'static>, String> {
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
        Ok(Word::File(next))
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
        let said: [(FrameKind, &[u8], Word<'_>); 8] = [
            (FrameKind::Ready, b"1.5", Word::Ready),
            (FrameKind::Stdout, b"out", Word::Stdout(b"out")),
            (FrameKind::Stderr, b"", Word::Stderr(b"")),
            (
                FrameKind::FileError,
                b"gone",
                Word::FileMissing("gone".to_owned()),
            ),
            (FrameKind::File, b"1", Word::File(1)),
            (FrameKind::FileBytes, b"bytes", Word::FileBytes(b"bytes")),
            (FrameKind::Exit, b"-3", Word::Exit),
            (FrameKind::Bye, b"", Word::Bye(-3)),
        ];
        for (kind, payload, word) in said {
            assert_eq!(guest.take(kind, payload), Ok(word));
        }
        assert!(guest.is_ready());
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
            &[(FrameKind::Ready, b""), (FrameKind::Ready, b"")],
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
