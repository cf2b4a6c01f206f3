//! Messages to the user, which are events of `tracing`; and [`init_logging`], which prints them on
//! standard error. A line that cannot be written is dropped: a closed terminal must not end training.

use std::fmt;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::ProgressBar;
use parking_lot::Mutex;
use serde_json::{Map, Value as Json};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use crate::recording::run_layer;
use crate::secret::without_secrets;

/// Tells the user something, at this level. Only process 0 of several prints it.
macro_rules! message {
    ($level:ident, { $($fields:tt)* }, $($text:tt)+) => {
        tracing::event!(
            tracing::Level::$level,
            $($fields)*
            "{}",
            $crate::secret::without_secrets(&format!($($text)+))
        )
    };
}

/// Warns the user.
macro_rules! warning {
    ($($text:tt)+) => { $crate::console::message!(WARN, {}, $($text)+) };
}

/// Tells the user what the run does.
macro_rules! inform {
    ($($text:tt)+) => { $crate::console::message!(INFO, {}, $($text)+) };
}

/// Tells the user what has no effect, or another than expected.
macro_rules! note {
    ($($text:tt)+) => { $crate::console::message!(INFO, { kind = "note", }, $($text)+) };
}

/// Tells the user what makes the run faster.
macro_rules! hint {
    ($($text:tt)+) => { $crate::console::message!(INFO, { kind = "hint", }, $($text)+) };
}

/// Like the others, for a message that each process prints.
macro_rules! from_each_process {
    ($level:ident, $($text:tt)+) => {
        $crate::console::message!($level, { each_process = true, }, $($text)+)
    };
}

pub(crate) use {from_each_process, hint, inform, message, note, warning};

/// Prints the messages of Fulmen on standard error, one a line, and records spans for a Trainer's
/// traces. Does nothing if the process has a subscriber of `tracing` already.
///
/// Building a Trainer calls this. To see messages and spans in a subscriber of your own, set it
/// before you build a Trainer; see [`run_layer`].
///
/// ```
/// fulmen_trainer::init_logging();
/// // The process has a subscriber now.
/// assert!(tracing::subscriber::set_global_default(tracing_subscriber::registry()).is_err());
/// ```
pub fn init_logging() {
    static INIT: Once = Once::new();
    INIT.call_once(|| {
        let console = Console.with_filter(filter_fn(is_message));
        let subscriber = tracing_subscriber::registry().with(run_layer()).with(console);
        // The program's own subscriber stays.
        let _ = tracing::subscriber::set_global_default(subscriber);
    });
}

/// Whether these events are messages of Fulmen.
pub(crate) fn is_message(metadata: &Metadata<'_>) -> bool {
    metadata.is_event() && is_own(metadata) && *metadata.level() <= Level::INFO
}

/// Whether this is an event or a span of Fulmen.
pub(crate) fn is_own(metadata: &Metadata<'_>) -> bool {
    metadata.target().starts_with("fulmen")
}

/// Prints messages.
struct Console;

impl<S: Subscriber> Layer<S> for Console {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::of(|visitor| event.record(visitor));
        let each_process = fields.0.remove("each_process").is_some();
        if each_process || !SILENCED.load(Ordering::Relaxed) {
            write_line(&fields.line(*event.metadata().level()));
        }
    }
}

/// The fields of an event or a span.
#[derive(Default)]
pub(crate) struct Fields(pub(crate) Map<String, Json>);

impl Fields {
    pub(crate) fn of(record: impl FnOnce(&mut dyn Visit)) -> Fields {
        let mut fields = Fields::default();
        record(&mut fields);
        fields
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).and_then(Json::as_str)
    }

    /// The text of a message, after its kind.
    pub(crate) fn line(&self, level: Level) -> String {
        let text = self.text("message").unwrap_or_default();
        match (self.text("kind"), level) {
            (Some(kind), _) => format!("{kind}: {text}"),
            (None, Level::ERROR) => format!("error: {text}"),
            (None, Level::WARN) => format!("warning: {text}"),
            (None, _) => text.to_owned(),
        }
    }
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().into(), format!("{value:?}").into());
    }
}

/// Set if another process reports for this one.
static SILENCED: AtomicBool = AtomicBool::new(false);

/// Prints only messages of each process from now on.
pub(crate) fn silence() {
    SILENCED.store(true, Ordering::Relaxed);
}

/// The live progress bar. It is drawn again below each line.
static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Keeps lines above this bar from now on.
pub(crate) fn set_bar(bar: Option<ProgressBar>) {
    *BAR.lock() = bar;
}

/// Writes a line to standard error and to the run's log.
pub(crate) fn print_line(line: &str) {
    write_line(line);
    log_line(line);
}

fn write_line(line: &str) {
    let write = || drop(writeln!(std::io::stderr(), "{}", without_secrets(line)));
    let bar = BAR.lock().clone();
    match bar {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// The log of this process's latest run.
static LOG: Mutex<Option<File>> = Mutex::new(None);

/// Copies lines to this file from now on.
pub(crate) fn log_to(path: &Path) {
    *LOG.lock() = File::create(path).ok();
}

/// Writes a line only to the run's log.
pub(crate) fn log_line(line: &str) {
    if let Some(file) = &mut *LOG.lock() {
        let _ = writeln!(file, "{}", without_secrets(line));
    }
}
