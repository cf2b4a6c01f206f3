//! `--tui`: training on a full screen.
//!
//! The training loop sends events to a channel and never waits. A thread draws them, reads queues
//! and memory, and reads the keys. The Trainer carries out the requests of keys like those of any
//! callback.
//!
//! `screen.rs` has the content of the screen, and `fulmen-tui` the terminal.

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

use crate::failure::Failure;
use crate::output::print_message;
use screen::{Memory, Queue, Resources, Screen};
use watcher::Watcher;

/// The time between two draws.
const TICK: Duration = Duration::from_millis(100);
/// The time between two reads of queues and memory.
const READ_INTERVAL: Duration = Duration::from_secs(1);

/// An update of the screen.
type Event = Box<dyn FnOnce(&mut Screen) + Send>;

/// Sends events to the screen.
#[derive(Clone)]
struct ScreenSender(Sender<Event>);

impl ScreenSender {
    /// Does nothing if the screen is closed.
    fn send(&self, event: impl FnOnce(&mut Screen) + Send + 'static) {
        let _ = self.0.send(Box::new(event));
    }
}

/// Requests of the user's keys to the Trainer.
#[derive(Default)]
struct Requests {
    save: AtomicBool,
    stop: AtomicBool,
}

/// A screen before its run.
pub(crate) struct Tui {
    title: String,
    screen: ScreenSender,
    events: Receiver<Event>,
    requests: Arc<Requests>,
}

/// An open screen. It closes when this is dropped, or when the user closes it.
pub(crate) struct OpenScreen {
    terminal: Arc<Terminal>,
    thread: Option<JoinHandle<()>>,
}

impl Tui {
    /// Makes a screen with this title.
    pub(crate) fn new(title: &str) -> Result<Tui, Failure> {
        let (sender, events) = mpsc::channel();
        Ok(Tui {
            title: title.to_owned(),
            screen: ScreenSender(sender),
            events,
            requests: Arc::default(),
        })
    }

    /// Adds the callback that sends the Trainer's events to the screen.
    pub(crate) fn attach(&self, builder: TrainerBuilder) -> TrainerBuilder {
        builder.callback(Watcher::new(self.screen.clone(), self.requests.clone()))
    }

    /// Opens the screen, in process 0 only, if there is a terminal.
    pub(crate) fn start(
        self,
        trainer: &Trainer,
        loader: Option<&DataLoader>,
    ) -> Option<OpenScreen> {
        if trainer.process_index() > 0 {
            return None;
        }
        let devices: Vec<Device> = trainer.runtime().local_devices().cloned().collect();
        let loader = loader.cloned();
        let read_resources =
            move || read_resources(loader.as_ref().map(DataLoader::report).as_ref(), &devices);
        self.show(read_resources).unwrap_or_else(|error| {
            print_message(&format!("warning: no full screen: {error}"));
            None
        })
    }

    fn show(
        self,
        read_resources: impl Fn() -> Resources + Send + 'static,
    ) -> io::Result<Option<OpenScreen>> {
        let Tui { title, screen, events, requests } = self;
        let on_line = move |line: String| screen.send(move |screen| screen.line(line));
        let Some(terminal) = Terminal::take(on_line)?.map(Arc::new) else { return Ok(None) };
        let end = TerminalGuard(terminal.clone());
        let work = move || {
            let result = run(&end.0, Screen::new(title), &events, &requests, read_resources);
            drop(end);
            if let Err(error) = result {
                print_message(&format!("warning: the full screen ended: {error}"));
            }
        };
        let thread = thread::Builder::new().name("fulmen-tui".into()).spawn(work)?;
        Ok(Some(OpenScreen { terminal, thread: Some(thread) }))
    }
}

impl Drop for OpenScreen {
    fn drop(&mut self) {
        self.terminal.give_back();
        // The thread must not read a device's memory while the program ends.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Gives the terminal back when the thread ends, even after a panic.
struct TerminalGuard(Arc<Terminal>);

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

/// Runs until the terminal is given back, or the user closes the screen.
fn run(
    terminal: &Terminal,
    mut screen: Screen,
    events: &Receiver<Event>,
    requests: &Requests,
    read_resources: impl Fn() -> Resources,
) -> io::Result<()> {
    let mut last_read: Option<Instant> = None;
    loop {
        events.try_iter().for_each(|event| event(&mut screen));
        if last_read.is_none_or(|time| time.elapsed() >= READ_INTERVAL) {
            screen.set_resources(read_resources());
            last_read = Some(Instant::now());
        }
        if !terminal.draw(|frame| screen.draw(frame))? {
            return Ok(());
        }
        if let Some(key) = key(TICK)?
            && press(key, &mut screen, requests)
        {
            return Ok(());
        }
    }
}

/// Handles a key. Returns true if the key closes the screen.
fn press(key: KeyEvent, screen: &mut Screen, requests: &Requests) -> bool {
    match key.code {
        // In raw mode, the terminal sends no signal for Ctrl-C.
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
            Signal::Interrupt.raise()
        }
        KeyCode::Char('s') if screen.is_fitting() => {
            requests.save.store(true, Ordering::Relaxed);
            screen.notice("saving after this step");
        }
        KeyCode::Char('x') if screen.is_fitting() => {
            requests.stop.store(true, Ordering::Relaxed);
            screen.notice("stopping after this step");
        }
        KeyCode::Right | KeyCode::Tab => screen.next_chart(),
        KeyCode::Left | KeyCode::BackTab => screen.previous_chart(),
        KeyCode::Char('q') | KeyCode::Esc => return true,
        _ => {}
    }
    false
}

/// The current queues and memory.
fn read_resources(report: Option<&LoaderReport>, devices: &[Device]) -> Resources {
    let queue = |name, depth: &fulmen_data::QueueDepth| Queue {
        name,
        ready: depth.mean,
        capacity: depth.capacity,
    };
    let queues = report.iter().flat_map(|report| {
        let device =
            report.transfer.as_ref().map(|transfer| queue("device queue", &transfer.queue));
        [Some(queue("host queue", &report.host_queue)), device].into_iter().flatten()
    });
    let memory = devices.iter().filter_map(|device| {
        let stats = device.memory_stats().ok()?;
        let limit = stats.bytes_limit.and_then(|bytes| u64::try_from(bytes).ok());
        Some(Memory {
            name: format!("device {}", device.id()),
            used: stats.bytes_in_use.try_into().ok()?,
            limit,
        })
    });
    let host =
        resident_memory().map(|used| Memory { name: "this process".into(), used, limit: None });
    Resources {
        waiting: report.filter(|report| report.steps > 0).map(LoaderReport::waiting_share),
        queues: queues.filter(|queue| queue.capacity > 0).collect(),
        memory: memory.chain(host).collect(),
    }
}
