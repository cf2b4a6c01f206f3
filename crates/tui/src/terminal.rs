//! [`Terminal`]: takes the terminal for a screen and restores it.
//!
//! Out of scope: the output of the program while a screen is shown (`output.rs`).

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal as _};
use std::os::fd::AsFd as _;
use std::panic;
use std::sync::Once;
use std::thread::{self, ThreadId};
use std::time::Duration;

use parking_lot::Mutex;
use ratatui::Frame;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyEvent};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};

use crate::output::Output;

/// The terminal of the program, while a [`Terminal`] holds it.
static ACTIVE_SCREEN: Mutex<Option<ActiveScreen>> = Mutex::new(None);

/// The thread that took the terminal. A panic of this thread restores the terminal.
static OWNER: Mutex<Option<ThreadId>> = Mutex::new(None);

/// How long a program that ends waits for a draw that blocks.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// The buffer is large, so that a screen is written in few pieces.
type Screen = ratatui::Terminal<CrosstermBackend<BufWriter<File>>>;

struct ActiveScreen {
    screen: Screen,
    output: Output,
}

/// The terminal of standard error, taken for a screen.
///
/// The terminal is in raw mode, in which Ctrl-C is a key. Its state is restored when this value is
/// dropped or [given back](Terminal::give_back), when the thread that took it panics, and before a
/// signal ends the program through `fulmen_signals`.
#[derive(Debug)]
pub struct Terminal {
    _private: (),
}

impl Terminal {
    /// Takes the terminal of standard error. From this call on, a separate thread passes each line
    /// that the program writes to `on_line`, without colors. Standard output is not captured if it
    /// is not a terminal. Returns `None` if standard error is not a terminal.
    ///
    /// # Errors
    /// The terminal cannot be opened or configured, or is already taken.
    pub fn take(on_line: impl FnMut(String) + Send + 'static) -> io::Result<Option<Terminal>> {
        if !io::stderr().is_terminal() {
            return Ok(None);
        }
        let mut active = ACTIVE_SCREEN.lock();
        if active.is_some() {
            return Err(io::Error::other("another screen has the terminal"));
        }
        set_hooks();
        let file = File::from(io::stderr().as_fd().try_clone_to_owned()?);
        let mut screen = ratatui::Terminal::new(CrosstermBackend::new(BufWriter::new(file)))?;
        enable_raw_mode()?;
        let output = execute!(screen.backend_mut(), EnterAlternateScreen)
            .and_then(|()| Output::capture(on_line));
        match output {
            Ok(output) => *active = Some(ActiveScreen { screen, output }),
            Err(error) => {
                reset(&mut screen);
                return Err(error);
            }
        }
        *OWNER.lock() = Some(thread::current().id());
        Ok(Some(Terminal { _private: () }))
    }

    /// Draws the screen. Returns false if the terminal has been given back.
    ///
    /// # Errors
    /// The terminal cannot be written.
    pub fn draw(&self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<bool> {
        match &mut *ACTIVE_SCREEN.lock() {
            Some(active) => active.screen.draw(draw).map(|_| true),
            None => Ok(false),
        }
    }

    /// Gives the terminal back now, and prints the captured output.
    pub fn give_back(&self) {
        // The lock is held meanwhile, because a caller that finds nothing to restore may end the
        // program.
        ACTIVE_SCREEN.lock().take().into_iter().for_each(restore);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// The next key, if one is pressed within this time. A change of the terminal's size also ends the
/// wait.
///
/// # Errors
/// The terminal cannot be read.
pub fn key(within: Duration) -> io::Result<Option<KeyEvent>> {
    if !event::poll(within)? {
        return Ok(None);
    }
    match event::read()? {
        Event::Key(key) if key.is_press() => Ok(Some(key)),
        _ => Ok(None),
    }
}

/// Resets the terminal. Errors are ignored: a terminal that cannot be configured is lost, and there
/// is no place to report it.
fn reset(screen: &mut Screen) {
    let _ = execute!(screen.backend_mut(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

fn restore(mut active: ActiveScreen) {
    reset(&mut active.screen);
    active.output.release();
}

/// Restores the terminal when the program ends, without waiting for a draw that blocks.
fn restore_at_end() {
    match ACTIVE_SCREEN.try_lock_for(LOCK_TIMEOUT) {
        Some(mut active) => active.take().into_iter().for_each(restore),
        None => drop(disable_raw_mode()),
    }
}

/// Installs, once, the hooks that restore the terminal if the [`Terminal`] is not dropped.
fn set_hooks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        fulmen_signals::before_exit(restore_at_end);
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            // A panic of another thread restores the terminal only if it ends the program.
            if cfg!(panic = "abort") || *OWNER.lock() == Some(thread::current().id()) {
                restore_at_end();
            }
            previous(info);
        }));
    });
}
