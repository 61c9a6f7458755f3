//! The terminal of the live view: full screen and raw mode while it is shown, restored afterwards, also after a panic.

use std::fmt;
use std::io::{self, BufWriter, Stderr, Write};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::crossterm::{cursor, execute};
use ratatui::{Frame, Terminal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A pressed key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// Ends the run: q, Escape or Ctrl-C, which is no signal in raw mode.
    End,
    /// No meaning.
    Other,
}

/// A terminal in full-screen mode.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stderr>>>,
    _restored: Restored,
}

impl fmt::Debug for Screen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Screen").finish_non_exhaustive()
    }
}

impl Screen {
    /// Changes the terminal of this process to raw mode and its alternate screen.
    ///
    /// # Errors
    ///
    /// There is no terminal, or it refuses.
    pub fn open() -> io::Result<Self> {
        restore_in_panics();
        enable_raw_mode()?;
        IS_SHOWN.store(true, Ordering::Release);
        let restored = Restored;
        execute!(io::stderr(), EnterAlternateScreen, cursor::Hide)?;
        let backend = CrosstermBackend::new(BufWriter::new(io::stderr()));
        Ok(Self {
            terminal: Terminal::new(backend)?,
            _restored: restored,
        })
    }

    /// Draws a frame of the terminal's current size.
    ///
    /// # Errors
    ///
    /// The terminal cannot be written to.
    pub fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(draw)?;
        self.terminal.backend_mut().flush()
    }

    /// Returns the next pressed key, `None` if there is none. A terminal that has gone ends the run.
    pub fn key(&mut self) -> Option<Key> {
        if has_gone() {
            return Some(Key::End);
        }
        let is_ready = event::poll(Duration::ZERO).unwrap_or(false);
        match is_ready.then(event::read)?.ok()? {
            Event::Key(key) => Some(meaning(key)),
            _ => Some(Key::Other),
        }
    }
}

/// Returns whether the terminal has gone: nobody sees the view, and crossterm would read the end of its input for ever.
fn has_gone() -> bool {
    let terminal = io::stderr();
    let mut terminal = [PollFd::new(&terminal, PollFlags::empty())];
    let polled = poll(&mut terminal, Some(&Timespec::default()));
    polled.is_ok() && terminal[0].revents().contains(PollFlags::HUP)
}

fn meaning(key: KeyEvent) -> Key {
    let KeyEvent {
        code,
        modifiers,
        kind,
        state: _,
    } = key;
    let ends = match code {
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => true,
        KeyCode::Char('c') => modifiers.contains(KeyModifiers::CONTROL),
        _ => false,
    };
    match ends && kind != KeyEventKind::Release {
        true => Key::End,
        false => Key::Other,
    }
}

/// Whether the terminal is in full-screen mode.
static IS_SHOWN: AtomicBool = AtomicBool::new(false);

/// Restores the terminal when it is dropped.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal, if it is in full-screen mode.
fn restore() {
    if IS_SHOWN.swap(false, Ordering::AcqRel) {
        // A terminal that has gone needs no restoring.
        let _ = execute!(io::stderr(), LeaveAlternateScreen, cursor::Show);
        let _ = disable_raw_mode();
    }
}

/// Makes panics restore the terminal before they print their message, which the alternate screen would hide.
fn restore_in_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            previous(panic);
        }));
    });
}
