//! A pseudoterminal with a program on it, and the text on its screen.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// Time limit for each text that a test waits for.
const LIMIT: Duration = Duration::from_secs(60);

/// A pseudoterminal.
pub struct Pty {
    master: File,
    /// Everything that the program wrote.
    pub output: Vec<u8>,
    columns: u16,
    rows: u16,
}

impl Pty {
    /// Opens a pseudoterminal of this size.
    pub fn open(columns: u16, rows: u16) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
            .expect("the system has pseudoterminals");
        grantpt(&master)
            .and_then(|()| unlockpt(&master))
            .expect("it is new");
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&master, size).expect("it is a terminal");
        Self {
            master: File::from(master),
            output: Vec::new(),
            columns,
            rows,
        }
    }

    /// Starts a program with this terminal as its controlling terminal, standard input and error; stdout is that of `command`.
    /// `None`: setsid(1) is missing.
    pub fn start(&self, command: &Command) -> Option<Child> {
        let mut setsid = Command::new("setsid");
        setsid.arg("--ctty").arg(command.get_program());
        setsid.args(command.get_args());
        for (name, value) in command.get_envs() {
            setsid.env(name, value.expect("no variable is removed"));
        }
        setsid.stdin(self.terminal()).stderr(self.terminal());
        setsid.stdout(std::process::Stdio::piped());
        setsid.spawn().ok()
    }

    fn terminal(&self) -> OwnedFd {
        let name = ptsname(&self.master, Vec::new()).expect("it has a name");
        rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty())
            .expect("it is unlocked")
    }

    /// Presses keys.
    pub fn press(&mut self, keys: &str) {
        self.master
            .write_all(keys.as_bytes())
            .expect("the program reads");
    }

    /// Returns whether the terminal is in raw mode: it neither collects lines nor makes signals of keys.
    pub fn is_raw(&self) -> bool {
        let modes = tcgetattr(&self.master)
            .expect("it is a terminal")
            .local_modes;
        !modes.intersects(LocalModes::ICANON | LocalModes::ISIG | LocalModes::ECHO)
    }

    /// Reads until the screen meets a condition; returns its lines.
    #[track_caller]
    pub fn until(&mut self, what: &str, is_met: impl Fn(&[String]) -> bool) -> Vec<String> {
        let start = Instant::now();
        loop {
            let screen = self.screen();
            if is_met(&screen) {
                return screen;
            }
            let limit = LIMIT.checked_sub(start.elapsed());
            let more = limit.is_some_and(|limit| self.read(limit));
            assert!(more, "no {what} on the screen:\n{}", screen.join("\n"));
        }
    }

    /// Reads until no program has the terminal open.
    pub fn read_to_end(&mut self) {
        while self.read(LIMIT) {}
    }

    /// Reads once; returns false at the end, and at the limit.
    fn read(&mut self, limit: Duration) -> bool {
        let limit = Timespec::try_from(limit).expect("a short time");
        let mut fds = [PollFd::from_borrowed_fd(self.master.as_fd(), PollFlags::IN)];
        if poll(&mut fds, Some(&limit)) != Ok(1) {
            return false;
        }
        let mut bytes = [0; 8192];
        // EIO: the last program has closed the terminal.
        let read = self.master.read(&mut bytes).unwrap_or(0);
        self.output.extend_from_slice(&bytes[..read]);
        read > 0
    }

    /// Returns the lines that the output leaves on the screen. Understands what a full-screen program needs: cursor positions
    /// and clearing (ECMA-48 CUP, ED); other sequences are skipped.
    pub fn screen(&self) -> Vec<String> {
        let (columns, rows) = (usize::from(self.columns), usize::from(self.rows));
        let mut cells = vec![vec![' '; columns]; rows];
        let (mut row, mut column) = (0, 0);
        let text = String::from_utf8_lossy(&self.output);
        let mut rest = text.chars();
        while let Some(c) = rest.next() {
            match c {
                '\x1b' => match control(&mut rest) {
                    ('H', numbers) => {
                        let at = |i: usize| numbers.get(i).copied().unwrap_or(1).max(1) - 1;
                        (row, column) = (at(0), at(1));
                    }
                    ('J', _) => cells.iter_mut().for_each(|line| line.fill(' ')),
                    _ => {}
                },
                '\r' => column = 0,
                '\n' => row += 1,
                c => {
                    if let Some(cell) = cells.get_mut(row).and_then(|line| line.get_mut(column)) {
                        *cell = c;
                    }
                    column += 1;
                }
            }
        }
        let lines = cells
            .into_iter()
            .map(|line| line.into_iter().collect::<String>());
        lines.map(|line| line.trim_end().to_owned()).collect()
    }
}

/// Reads a control sequence behind its ESC: its final character, and its numbers.
fn control(rest: &mut std::str::Chars<'_>) -> (char, Vec<usize>) {
    if rest.clone().next() != Some('[') {
        return (rest.next().unwrap_or(' '), Vec::new());
    }
    rest.next();
    let mut numbers = String::new();
    for c in rest {
        if ('@'..='~').contains(&c) {
            let numbers = numbers.split(';').filter_map(|number| number.parse().ok());
            return (c, numbers.collect());
        }
        numbers.push(c);
    }
    (' ', Vec::new())
}
