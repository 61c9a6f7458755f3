//! Commands to a running device, one per line on standard input.

use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd};

use gve::{Faults, LinkState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read};

/// Maximum length of a line; a longer line is not a command.
const MAX_LINE_BYTES: usize = 256;

/// A command to a running device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlCommand {
    /// Request a reset from the driver.
    Reset,
    /// Plug the cable in or out.
    Link(LinkState),
    /// Print the counters.
    Stats,
    /// Leave this many payload bytes in the header buffer.
    Linear(u16),
    /// Do not split every Nth packet.
    UnsplitEvery(Option<NonZeroU32>),
    /// Leave this many buffers posted.
    KeepBuffers(u16),
    /// End.
    Quit,
}

/// The line is not a command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a command: write reset, link up, link down, stats, linear N, unsplit-every N, keep-buffers N or quit"
)]
pub struct NoCommand(String);

impl std::str::FromStr for ControlCommand {
    type Err = NoCommand;

    fn from_str(line: &str) -> Result<Self, NoCommand> {
        let none = || NoCommand(line.to_owned());
        let words: Vec<&str> = line.split_whitespace().collect();
        Ok(match words[..] {
            ["reset"] => Self::Reset,
            ["link", "up"] => Self::Link(LinkState::Up),
            ["link", "down"] => Self::Link(LinkState::Down),
            ["stats"] => Self::Stats,
            ["quit"] => Self::Quit,
            ["linear", bytes] => Self::Linear(bytes.parse().map_err(|_| none())?),
            ["unsplit-every", packets] => {
                let packets: u32 = packets.parse().map_err(|_| none())?;
                Self::UnsplitEvery(NonZeroU32::new(packets))
            }
            ["keep-buffers", buffers] => Self::KeepBuffers(buffers.parse().map_err(|_| none())?),
            _ => return Err(none()),
        })
    }
}

impl ControlCommand {
    /// Applies the command to `faults`, if it sets one.
    pub fn apply_to(self, faults: &mut Faults) {
        match self {
            Self::Linear(bytes) => faults.linear_bytes = bytes,
            Self::UnsplitEvery(packets) => faults.unsplit_every = packets,
            Self::KeepBuffers(buffers) => faults.rx_buffers_kept = buffers,
            Self::Reset | Self::Link(_) | Self::Stats | Self::Quit => {}
        }
    }
}

/// Standard input as a source of commands.
#[derive(Debug)]
pub struct Control {
    stdin: std::io::Stdin,
    line: Vec<u8>,
    /// The end of the input is not reached.
    open: bool,
}

impl Control {
    pub fn new() -> Self {
        Self {
            stdin: std::io::stdin(),
            line: Vec::new(),
            open: true,
        }
    }

    /// Returns the descriptor to poll for reading, `None` at the end of the input.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.open.then(|| self.stdin.as_fd())
    }

    /// Reads the available commands without blocking.
    pub fn take(&mut self) -> Vec<Result<ControlCommand, NoCommand>> {
        let mut commands = Vec::new();
        let mut bytes = [0; 1024];
        let mut ready = [PollFd::new(&self.stdin, PollFlags::IN)];
        // One read only: remaining input makes the descriptor ready again.
        let got = match poll(&mut ready, Some(&Timespec::default())) {
            Ok(1) => read(&self.stdin, &mut bytes),
            _ => return commands,
        };
        match got {
            Ok(0) => self.open = false,
            Ok(len) => self.split(&bytes[..len], &mut commands),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.open = false,
        }
        commands
    }

    fn split(&mut self, bytes: &[u8], commands: &mut Vec<Result<ControlCommand, NoCommand>>) {
        for &byte in bytes {
            if byte == b'\n' {
                let line = String::from_utf8_lossy(&self.line).trim().to_owned();
                self.line.clear();
                if !line.is_empty() {
                    commands.push(line.parse());
                }
            } else if self.line.len() < MAX_LINE_BYTES {
                self.line.push(byte);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_commands_or_are_refused_with_the_list() {
        let commands = [
            ("reset", ControlCommand::Reset),
            (" link  down ", ControlCommand::Link(LinkState::Down)),
            ("linear 64", ControlCommand::Linear(64)),
            (
                "unsplit-every 500",
                ControlCommand::UnsplitEvery(NonZeroU32::new(500)),
            ),
            ("unsplit-every 0", ControlCommand::UnsplitEvery(None)),
            ("keep-buffers 3", ControlCommand::KeepBuffers(3)),
        ];
        for (line, command) in commands {
            assert_eq!(line.parse(), Ok(command));
        }
        for line in [
            "",
            "link",
            "linear",
            "linear x",
            "linear 65536",
            "reset now",
        ] {
            let error = line.parse::<ControlCommand>().unwrap_err().to_string();
            assert!(error.contains("link down, stats"), "{error}");
        }
    }

    #[test]
    fn lines_may_come_in_pieces_and_long_ones_are_not_stored() {
        let mut control = Control::new();
        let mut commands = Vec::new();
        control.split(b"li", &mut commands);
        assert!(commands.is_empty());
        control.split(b"nk up\n\nreset\n", &mut commands);
        assert_eq!(
            commands,
            [
                Ok(ControlCommand::Link(LinkState::Up)),
                Ok(ControlCommand::Reset)
            ]
        );
        commands.clear();
        control.split(&[b'x'; 100_000], &mut commands);
        assert!(control.line.len() <= MAX_LINE_BYTES);
        control.split(b"\nquit\n", &mut commands);
        assert!(commands[0].is_err());
        assert_eq!(commands[1], Ok(ControlCommand::Quit));
    }

    #[test]
    fn a_command_changes_only_its_knob() {
        let mut faults = Faults::default();
        ControlCommand::Linear(8).apply_to(&mut faults);
        ControlCommand::UnsplitEvery(NonZeroU32::new(5)).apply_to(&mut faults);
        ControlCommand::Reset.apply_to(&mut faults);
        assert_eq!(faults.linear_bytes, 8);
        assert_eq!(faults.unsplit_every, NonZeroU32::new(5));
        assert_eq!(faults.rx_buffers_kept, 0);
    }
}
