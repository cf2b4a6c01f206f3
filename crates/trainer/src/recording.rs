//! [`Recording`]: what the threads of this process and its devices did, as a trace. The spans come
//! from `tracing`, through [`run_layer`].
//!
//! Out of scope: profiles of a device (`fulmen_pjrt::Profile`).

use std::borrow::Cow;
use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value as Json, json};
use tracing::callsite::rebuild_interest_cache;
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Metadata, Subscriber, dispatcher, trace_span};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use crate::console::{Fields, is_message, is_own, log_line};
use crate::{Error, Result};

/// The number of latest spans that are kept.
const KEPT: usize = 1 << 18;

/// The target of the spans of programs on the devices, and their track.
const ON_DEVICES: &str = "fulmen::devices";
const DEVICES: u64 = 1;

/// The number of active recordings.
static RECORDINGS: AtomicUsize = AtomicUsize::new(0);

static TRACKS: Mutex<Tracks> = Mutex::new(Tracks::new());

thread_local! {
    /// The id of this thread's track; 0 before its first span.
    static TRACK: Cell<u64> = const { Cell::new(0) };
}

/// The layer of a subscriber that serves the runs of a Trainer: it records spans for `trace.json`
/// and for [`Recording`], and copies messages to `run.log`. A Trainer needs it in the subscriber of
/// a program that sets its own. Without a recording, it takes no spans.
///
/// ```standalone_crate
/// use fulmen_trainer::Recording;
/// use tracing_subscriber::prelude::*;
///
/// // A real program adds layers of its own, each with its own filter, before or after this one.
/// tracing_subscriber::registry().with(fulmen_trainer::run_layer()).init();
///
/// let recording = Recording::start()?;
/// tracing::info_span!("augment", number = 3).in_scope(|| { /* work */ });
/// # let folder = std::env::temp_dir().join(format!("fulmen-trace-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// recording.write(&folder.join("trace.json"))?;
/// # assert!(std::fs::read_to_string(folder.join("trace.json"))?.contains(r#""name":"augment""#));
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn run_layer<S: Subscriber + for<'a> LookupSpan<'a>>() -> impl Layer<S> {
    RunLayer.with_filter(filter_fn(is_wanted))
}

/// The spans of other crates are often too many, except those of the program for its user.
fn is_wanted(metadata: &Metadata<'_>) -> bool {
    let is_span = metadata.is_span() && (is_own(metadata) || *metadata.level() <= Level::INFO);
    is_message(metadata) || (is_span && is_recording())
}

fn is_recording() -> bool {
    RECORDINGS.load(Ordering::Relaxed) > 0
}

struct RunLayer;

impl<S> Layer<S> for RunLayer
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        log_line(&Fields::of(|visitor| event.record(visitor)).line(*event.metadata().level()));
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            span.extensions_mut().replace(Label::new(attributes));
        }
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        let label = context.span(id).and_then(|span| span.extensions().get::<Label>().cloned());
        let mut tracks = TRACKS.lock();
        if let Some(label) = label.filter(|_| is_recording()) {
            let track = own_track(&mut tracks);
            let start = Instant::now();
            tracks
                .open
                .insert((track, id.into_u64()), Interval { track, label, start, end: start });
        }
    }

    fn on_exit(&self, id: &Id, _: Context<'_, S>) {
        let mut tracks = TRACKS.lock();
        // There is no such span if the recording has ended.
        if let Some(open) = tracks.open.remove(&(TRACK.get(), id.into_u64())) {
            tracks.push(Interval { end: Instant::now(), ..open });
        }
    }

    /// A program ran from its launch, or from the end of the program before it.
    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let span = context.span(&id).filter(|span| span.metadata().target() == ON_DEVICES);
        let label = span.and_then(|span| span.extensions_mut().remove::<Label>());
        let mut tracks = TRACKS.lock();
        if let Some(label) = label.filter(|_| is_recording()) {
            let end = Instant::now();
            let launch = label.made;
            let start = tracks.devices_free.map_or(launch, |free| free.max(launch)).min(end);
            tracks.devices_free = Some(end);
            tracks.names.entry(DEVICES).or_insert_with(|| "devices".to_owned());
            tracks.push(Interval { track: DEVICES, label, start, end });
        }
    }
}

/// What a trace says about a span.
#[derive(Clone, Debug)]
struct Label {
    name: Cow<'static, str>,
    /// Its other fields, as JSON.
    args: Option<String>,
    made: Instant,
}

impl Label {
    /// A span with the field `program` has the program in its name.
    fn new(attributes: &Attributes<'_>) -> Label {
        let metadata = attributes.metadata();
        let Fields(mut fields) = Fields::of(|visitor| attributes.record(visitor));
        let name = match fields.remove("program") {
            Some(Json::String(program)) if metadata.target() == ON_DEVICES => program.into(),
            Some(Json::String(program)) => format!("{} {program}", metadata.name()).into(),
            _ => metadata.name().into(),
        };
        let args = (!fields.is_empty()).then(|| Json::Object(fields).to_string());
        Label { name, args, made: Instant::now() }
    }
}

/// A finished or open span of a thread, or a program that ran on the devices.
#[derive(Clone, Debug)]
struct Interval {
    track: u64,
    label: Label,
    start: Instant,
    end: Instant,
}

/// The state of all recordings.
struct Tracks {
    finished: VecDeque<Interval>,
    /// Open spans by track and id. Their `end` is not valid yet.
    open: BTreeMap<(u64, u64), Interval>,
    names: BTreeMap<u64, String>,
    /// The number of dropped spans.
    lost: u64,
    /// When the devices finished their latest program.
    devices_free: Option<Instant>,
}

impl Tracks {
    const fn new() -> Tracks {
        Tracks {
            finished: VecDeque::new(),
            open: BTreeMap::new(),
            names: BTreeMap::new(),
            lost: 0,
            devices_free: None,
        }
    }

    fn push(&mut self, interval: Interval) {
        if self.finished.len() == KEPT {
            self.finished.pop_front();
            self.lost += 1;
        }
        self.finished.push_back(interval);
    }
}

/// The id of this thread's track.
fn own_track(tracks: &mut Tracks) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(DEVICES + 1);
    let mut track = TRACK.get();
    if track == 0 {
        track = NEXT.fetch_add(1, Ordering::Relaxed);
        TRACK.set(track);
    }
    tracks.names.entry(track).or_insert_with(|| {
        std::thread::current().name().map_or_else(|| format!("thread {track}"), str::to_owned)
    });
    track
}

/// Records the spans of this process while it lives: the latest 262,144, in about 50 MB. Several
/// recordings can overlap. See [`run_layer`] for an example.
#[derive(Debug)]
pub struct Recording {
    since: Instant,
    lost: u64,
}

impl Recording {
    /// Starts a recording. Spans that started earlier are not recorded.
    ///
    /// # Errors
    /// The subscriber of the process has no [`run_layer`], or filters its spans out.
    pub fn start() -> Result<Recording> {
        if !dispatcher::get_default(|subscriber| subscriber.is::<RunLayer>()) {
            return Err(Error::usage(
                "this process has a subscriber of `tracing` that records no spans for traces; add the layer \
                 fulmen_trainer::run_layer() to it: tracing_subscriber::registry().with(fulmen_trainer::run_layer())",
            ));
        }
        let (recording, is_first) = {
            let tracks = TRACKS.lock();
            let is_first = RECORDINGS.fetch_add(1, Ordering::Relaxed) == 0;
            (Recording { since: Instant::now(), lost: tracks.lost }, is_first)
        };
        if is_first {
            rebuild_interest_cache();
        }
        if trace_span!("is recorded").is_disabled() {
            return Err(Error::usage(
                "a filter of this process's subscriber of `tracing` hides the spans of Fulmen from \
                 fulmen_trainer::run_layer(); give the filter to another layer, with Layer::with_filter",
            ));
        }
        Ok(recording)
    }

    /// Writes the spans since the start, in Chrome's trace event format, which Perfetto
    /// (ui.perfetto.dev) and `chrome://tracing` open: one track per thread, and the track `devices`
    /// for programs. Open spans end now.
    ///
    /// Returns the number of first spans that the trace lacks because there were too many.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> io::Result<u64> {
        let trace = self.trace();
        trace.save(path)?;
        Ok(trace.lost)
    }

    pub(crate) fn trace(&self) -> Trace {
        let (mut spans, names, lost) = {
            let tracks = TRACKS.lock();
            let now = Instant::now();
            let open = tracks.open.values().map(|open| Interval { end: now, ..open.clone() });
            let all = tracks.finished.iter().cloned().chain(open);
            let spans: Vec<Interval> = all.filter(|span| span.end >= self.since).collect();
            (spans, tracks.names.clone(), tracks.lost - self.lost)
        };
        // The lock is released here, so other threads continue during the sort.
        spans.iter_mut().for_each(|span| span.start = span.start.max(self.since));
        // An outer span comes before its inner spans.
        spans.sort_by_key(|span| (span.start, Reverse(span.end)));
        Trace { since: self.since, names, spans, lost }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let is_last = {
            let mut tracks = TRACKS.lock();
            let is_last = RECORDINGS.fetch_sub(1, Ordering::Relaxed) == 1;
            if is_last {
                *tracks = Tracks { lost: tracks.lost, ..Tracks::new() };
            }
            is_last
        };
        if is_last {
            rebuild_interest_cache();
        }
    }
}

/// The recorded spans, sorted by start. Those of one track nest.
pub(crate) struct Trace {
    since: Instant,
    /// The names of the tracks.
    names: BTreeMap<u64, String>,
    spans: Vec<Interval>,
    pub(crate) lost: u64,
}

impl Trace {
    pub(crate) fn save(&self, path: &Path) -> io::Result<()> {
        fulmen_durable::write_unsynced(path, None, |file| self.write(file))
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let pid = std::process::id();
        let metadata = |kind: &str, track: u64, name: &str| {
            let args = json!({ "name": name });
            json!({ "ph": "M", "pid": pid, "tid": track, "name": kind, "args": args })
        };
        out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")?;
        serde_json::to_writer(&mut *out, &metadata("process_name", 1, "fulmen"))?;
        let tracks: BTreeSet<u64> = self.spans.iter().map(|span| span.track).collect();
        for (track, name) in self.names.iter().filter(|(track, _)| tracks.contains(track)) {
            out.write_all(b",\n")?;
            serde_json::to_writer(&mut *out, &metadata("thread_name", *track, name))?;
        }
        for Interval { track, label, start, end } in &self.spans {
            let mut line = json!({
                "ph": "X",
                "pid": pid,
                "tid": track,
                "name": label.name,
                "ts": microseconds(*start - self.since),
                "dur": microseconds(end.saturating_duration_since(*start)),
            });
            if let Some(args) = &label.args {
                line["args"] = serde_json::from_str(args)?;
            }
            out.write_all(b",\n")?;
            serde_json::to_writer(&mut *out, &line)?;
        }
        out.write_all(b"\n]}\n")
    }
}

fn microseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tracing::debug_span;

    use super::*;
    use crate::init_logging;

    fn start() -> Recording {
        init_logging();
        Recording::start().unwrap()
    }

    /// The spans of one thread, because other tests run in this process too.
    fn of_thread<'a>(trace: &'a Trace, thread: &str) -> Vec<&'a Interval> {
        trace.spans.iter().filter(|span| trace.names[&span.track] == thread).collect()
    }

    fn on_thread(name: &str, work: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn_scoped(scope, work)
                .unwrap()
                .join()
                .unwrap();
        });
    }

    fn work() {
        trace_span!("work").in_scope(|| {});
    }

    #[test]
    fn spans_of_a_thread_nest_and_open_spans_end_now() {
        let recording = start();
        let mut while_open = None;
        on_thread("nesting", || {
            let _outer = debug_span!("outer", number = 7).entered();
            drop(trace_span!("first").entered());
            let _second = debug_span!("load", program = "second").entered();
            while_open = Some(recording.trace());
        });
        for trace in [while_open.unwrap(), recording.trace()] {
            let spans = of_thread(&trace, "nesting");
            let names: Vec<&str> = spans.iter().map(|span| &*span.label.name).collect();
            assert_eq!(names, ["outer", "first", "load second"]);
            let args = |i: usize| spans[i].label.args.as_deref();
            assert_eq!((args(0), args(1), args(2)), (Some(r#"{"number":7}"#), None, None));
            assert!(spans[0].start <= spans[1].start && spans[1].end <= spans[2].start);
            assert!(spans[2].end <= spans[0].end);
        }
    }

    #[test]
    fn each_recording_has_the_spans_since_its_start() {
        let whole = start();
        on_thread("before", work);
        let later = start();
        on_thread("after", work);
        let counts = |trace: &Trace| ["before", "after"].map(|name| of_thread(trace, name).len());
        assert_eq!((counts(&whole.trace()), counts(&later.trace())), ([1, 1], [0, 1]));
        drop(whole);
        on_thread("after", work);
        assert_eq!(counts(&later.trace()), [0, 2]);
    }

    #[test]
    fn programs_on_the_devices_do_not_overlap() {
        let recording = start();
        let names = ["of the test: a", "of the test: b"];
        let launch =
            |name| debug_span!(target: "fulmen::devices", parent: None, "program", program = name);
        let launched = names.map(launch);
        launched.into_iter().for_each(drop);
        let trace = recording.trace();
        let of_devices = of_thread(&trace, "devices");
        let spans: Vec<_> =
            of_devices.into_iter().filter(|span| names.contains(&&*span.label.name)).collect();
        assert_eq!(spans.len(), 2);
        assert!(spans[0].end <= spans[1].start);
    }

    #[test]
    fn each_line_of_a_trace_has_its_track_and_microseconds() {
        let since = Instant::now();
        let span = |track, name: &'static str, args: Option<&str>, start| {
            let start = since + Duration::from_nanos(start);
            let label = Label { name: name.into(), args: args.map(str::to_owned), made: start };
            Interval { track, label, start, end: start + Duration::from_millis(2) }
        };
        let trace = Trace {
            since,
            names: BTreeMap::from([(2, "a \"name\"".to_owned()), (3, "idle".to_owned())]),
            spans: vec![
                span(2, "step", Some(r#"{"number":3}"#), 1500),
                span(2, "read", None, 2000),
            ],
            lost: 0,
        };
        let mut text = Vec::new();
        trace.write(&mut text).unwrap();
        let written: Value = serde_json::from_slice(&text).unwrap();
        let [process, thread, step, read] = &written["traceEvents"].as_array().unwrap()[..] else {
            panic!("{written}")
        };
        assert_eq!((&process["name"], &process["ph"]), (&json!("process_name"), &json!("M")));
        assert_eq!((&thread["tid"], &thread["args"]["name"]), (&json!(2), &json!("a \"name\"")));
        let expected = json!({
            "ph": "X", "pid": std::process::id(), "tid": 2, "name": "step", "ts": 1.5, "dur": 2000.0,
            "args": { "number": 3 }
        });
        assert_eq!(step, &expected);
        assert_eq!((&read["name"], read.get("args")), (&json!("read"), None));
    }
}
