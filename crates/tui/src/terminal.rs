//! [`Terminal`]: the terminal, taken for a screen and given back.
//!
//! Not here: where the program's output goes meanwhile (`output.rs`).

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
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};

use crate::output::Output;

/// The one terminal of a program, while a [`Terminal`] has it.
static TAKEN: Mutex<Option<Taken>> = Mutex::new(None);

/// The thread whose panics end the program, as far as the terminal is concerned: the one that took it.
static OWNER: Mutex<Option<ThreadId>> = Mutex::new(None);

/// How long a program that ends waits for a draw that hangs.
const PATIENCE: Duration = Duration::from_secs(1);

/// A screen is written in few pieces.
type Screen = ratatui::Terminal<CrosstermBackend<BufWriter<File>>>;

struct Taken {
    screen: Screen,
    output: Output,
}

/// The terminal of standard error, taken for a screen.
///
/// It is in raw mode: Ctrl-C is a key. It is as before once this is dropped, or given back: also after a panic of the
/// thread that took it, and before a signal ends the program by way of `fulmen_signals`.
#[derive(Debug)]
pub struct Terminal {
    _private: (),
}

impl Terminal {
    /// Takes the terminal of standard error, and hands each line that the program writes from now on to `told`, without
    /// colours, on a thread of its own. Standard output is left alone if it is no terminal. None where standard error is no
    /// terminal.
    ///
    /// # Errors
    /// The terminal cannot be opened or set, or it is taken already.
    pub fn take(told: impl FnMut(String) + Send + 'static) -> io::Result<Option<Terminal>> {
        if !io::stderr().is_terminal() {
            return Ok(None);
        }
        let mut taken = TAKEN.lock();
        if taken.is_some() {
            return Err(io::Error::other("another screen has the terminal"));
        }
        set_hooks();
        let file = File::from(io::stderr().as_fd().try_clone_to_owned()?);
        let mut screen = ratatui::Terminal::new(CrosstermBackend::new(BufWriter::new(file)))?;
        enable_raw_mode()?;
        let output = execute!(screen.backend_mut(), EnterAlternateScreen).and_then(|()| Output::capture(told));
        match output {
            Ok(output) => *taken = Some(Taken { screen, output }),
            Err(error) => {
                reset(&mut screen);
                return Err(error);
            }
        }
        *OWNER.lock() = Some(thread::current().id());
        Ok(Some(Terminal { _private: () }))
    }

    /// Draws the screen; false if the terminal has been given back.
    ///
    /// # Errors
    /// The terminal cannot be written to.
    pub fn draw(&self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<bool> {
        match &mut *TAKEN.lock() {
            Some(taken) => taken.screen.draw(draw).map(|_| true),
            None => Ok(false),
        }
    }

    /// Gives the terminal back now. What was written meanwhile stands on it.
    pub fn give_back(&self) {
        // Under the lock: who finds nothing to give back may end the program.
        TAKEN.lock().take().into_iter().for_each(restore);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// The next key that is pressed, if one is within this time. A change of the terminal's size ends the waiting, too.
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

/// A terminal that cannot be set is not ours any more; there is nobody to tell.
fn reset(screen: &mut Screen) {
    let _ = execute!(screen.backend_mut(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

fn restore(mut taken: Taken) {
    reset(&mut taken.screen);
    taken.output.release();
}

/// As the program ends: a draw that hangs is not waited for.
fn restore_at_end() {
    match TAKEN.try_lock_for(PATIENCE) {
        Some(mut taken) => taken.take().into_iter().for_each(restore),
        None => drop(disable_raw_mode()),
    }
}

/// Sets what gives the terminal back where nothing is dropped, once.
fn set_hooks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        fulmen_signals::before_exit(restore_at_end);
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            // A panic of another thread is one line more, unless it ends the program.
            if cfg!(panic = "abort") || *OWNER.lock() == Some(thread::current().id()) {
                restore_at_end();
            }
            before(info);
        }));
    });
}
