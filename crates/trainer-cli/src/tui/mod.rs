//! `--tui`: training on a full screen.
//!
//! The loop hands what happens to a channel and waits for nothing. A thread draws it, looks at queues and memory, and reads the
//! keys. What a key asks for, the Trainer does as for any callback.
//!
//! Not here: what is drawn (`screen.rs`), and the terminal (`fulmen-tui`).

mod screen;
#[cfg(test)]
mod tests;
mod watcher;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fulmen_data::{DataLoader, LoaderReport};
use fulmen_pjrt::Device;
use fulmen_trainer::internal::resident_memory;
use fulmen_trainer::{Signal, Trainer, TrainerBuilder};
use fulmen_tui::{Terminal, key};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::fail::Failure;
use crate::output::say;
use screen::{Memory, Queue, Resources, Screen};
use watcher::Watcher;

/// Between two draws.
const TICK: Duration = Duration::from_millis(100);
/// Between two looks at queues and memory.
const LOOK: Duration = Duration::from_secs(1);

/// Something that happened, as the screen takes it up.
type Event = Box<dyn FnOnce(&mut Screen) + Send>;

/// Where to tell what happens.
#[derive(Clone)]
struct Teller(Sender<Event>);

impl Teller {
    /// Without a screen there is nobody to tell.
    fn tell(&self, event: impl FnOnce(&mut Screen) + Send + 'static) {
        let _ = self.0.send(Box::new(event));
    }
}

/// What keys have asked the Trainer for.
#[derive(Default)]
struct Asked {
    save: AtomicBool,
    stop: AtomicBool,
}

/// A screen before its run.
pub(crate) struct Tui {
    title: String,
    teller: Teller,
    events: Receiver<Event>,
    asked: Arc<Asked>,
}

/// A screen that is shown until this is dropped, or the user closes it.
pub(crate) struct Shown {
    terminal: Arc<Terminal>,
    thread: Option<JoinHandle<()>>,
}

impl Tui {
    /// A screen with this title.
    pub(crate) fn new(title: &str) -> Result<Tui, Failure> {
        let (sender, events) = mpsc::channel();
        Ok(Tui { title: title.to_owned(), teller: Teller(sender), events, asked: Arc::default() })
    }

    /// Has the Trainer tell the screen what happens.
    pub(crate) fn attach(&self, builder: TrainerBuilder) -> TrainerBuilder {
        builder.callback(Watcher::new(self.teller.clone(), self.asked.clone()))
    }

    /// Shows it, in one process, if there is a terminal.
    pub(crate) fn start(self, trainer: &Trainer, loader: Option<&DataLoader>) -> Option<Shown> {
        if trainer.process_index() > 0 {
            return None;
        }
        let devices: Vec<Device> = trainer.runtime().local_devices().cloned().collect();
        let loader = loader.cloned();
        let look = move || look(loader.as_ref().map(DataLoader::report).as_ref(), &devices);
        self.show(look).unwrap_or_else(|error| {
            say(&format!("warning: no full screen: {error}"));
            None
        })
    }

    fn show(self, look: impl Fn() -> Resources + Send + 'static) -> io::Result<Option<Shown>> {
        let Tui { title, teller, events, asked } = self;
        let told = move |line: String| teller.tell(move |screen| screen.line(line));
        let Some(terminal) = Terminal::take(told)?.map(Arc::new) else { return Ok(None) };
        let end = End(terminal.clone());
        let work = move || {
            let result = run(&end.0, Screen::new(title), &events, &asked, look);
            drop(end);
            if let Err(error) = result {
                say(&format!("warning: the full screen ended: {error}"));
            }
        };
        let thread = thread::Builder::new().name("fulmen-tui".into()).spawn(work)?;
        Ok(Some(Shown { terminal, thread: Some(thread) }))
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.terminal.give_back();
        // It must not ask a device for its memory while the program ends.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Gives the terminal back when the thread ends, also by a panic.
struct End(Arc<Terminal>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

/// Until the terminal is given back, or the user closes the screen.
fn run(
    terminal: &Terminal,
    mut screen: Screen,
    events: &Receiver<Event>,
    asked: &Asked,
    look: impl Fn() -> Resources,
) -> io::Result<()> {
    let mut looked: Option<Instant> = None;
    loop {
        events.try_iter().for_each(|event| event(&mut screen));
        if looked.is_none_or(|at| at.elapsed() >= LOOK) {
            screen.set_resources(look());
            looked = Some(Instant::now());
        }
        if !terminal.draw(|frame| screen.draw(frame))? {
            return Ok(());
        }
        if let Some(key) = key(TICK)?
            && press(key, &mut screen, asked)
        {
            return Ok(());
        }
    }
}

/// Does what a key is for; true if it closes the screen.
fn press(key: KeyEvent, screen: &mut Screen, asked: &Asked) -> bool {
    match key.code {
        // In raw mode the terminal makes no signal of it.
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Signal::Interrupt.raise(),
        KeyCode::Char('s') if screen.is_fitting() => {
            asked.save.store(true, Ordering::Relaxed);
            screen.notice("saving after this step");
        }
        KeyCode::Char('x') if screen.is_fitting() => {
            asked.stop.store(true, Ordering::Relaxed);
            screen.notice("stopping after this step");
        }
        KeyCode::Right | KeyCode::Tab => screen.next_chart(),
        KeyCode::Left | KeyCode::BackTab => screen.previous_chart(),
        KeyCode::Char('q') | KeyCode::Esc => return true,
        _ => {}
    }
    false
}

/// Queues and memory as they are now.
fn look(report: Option<&LoaderReport>, devices: &[Device]) -> Resources {
    let queue = |name, depth: &fulmen_data::QueueDepth| Queue { name, ready: depth.mean, capacity: depth.capacity };
    let queues = report.iter().flat_map(|report| {
        let device = report.transfer.as_ref().map(|transfer| queue("device queue", &transfer.queue));
        [Some(queue("host queue", &report.host_queue)), device].into_iter().flatten()
    });
    let memory = devices.iter().filter_map(|device| {
        let stats = device.memory_stats().ok()?;
        let limit = stats.bytes_limit.and_then(|bytes| u64::try_from(bytes).ok());
        Some(Memory { name: format!("device {}", device.id()), used: stats.bytes_in_use.try_into().ok()?, limit })
    });
    let host = resident_memory().map(|used| Memory { name: "this process".into(), used, limit: None });
    Resources {
        waiting: report.filter(|report| report.steps > 0).map(LoaderReport::waiting_share),
        queues: queues.filter(|queue| queue.capacity > 0).collect(),
        memory: memory.chain(host).collect(),
    }
}
