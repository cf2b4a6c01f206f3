//! What the threads of this process do, and when: a [`span`] where something is done, a [`Recording`] where someone wants to
//! know. Without a recording a span costs a look at one number.
//!
//! Not here: files (the Trainer writes them), and what happens within a device (`fulmen_pjrt::Profile`).

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How many events are kept, the latest.
const KEPT: usize = 1 << 18;

/// The track of the programs that run on the devices.
const DEVICES: u64 = 1;

/// How many recordings there are.
static RECORDINGS: AtomicUsize = AtomicUsize::new(0);

static TRACKS: Mutex<Tracks> = Mutex::new(Tracks::new());

thread_local! {
    /// The number of this thread's track; 0 before its first span.
    static TRACK: Cell<u64> = const { Cell::new(0) };
}

/// Something that a thread did.
#[derive(Clone, Debug)]
struct Done {
    track: u64,
    name: Cow<'static, str>,
    number: Option<u64>,
    start: Instant,
    end: Instant,
}

/// What is kept while there is a recording.
struct Tracks {
    done: VecDeque<Done>,
    /// Spans that have not ended, by their numbers; their ends are not known yet.
    open: BTreeMap<u64, Done>,
    names: BTreeMap<u64, String>,
    spans: u64,
    /// Events that were let go for later ones.
    lost: u64,
    /// When the devices finished their latest program.
    devices_free: Option<Instant>,
}

impl Tracks {
    const fn new() -> Tracks {
        Tracks {
            done: VecDeque::new(),
            open: BTreeMap::new(),
            names: BTreeMap::new(),
            spans: 0,
            lost: 0,
            devices_free: None,
        }
    }

    fn push(&mut self, done: Done) {
        if self.done.len() == KEPT {
            self.done.pop_front();
            self.lost += 1;
        }
        self.done.push_back(done);
    }
}

fn tracks() -> MutexGuard<'static, Tracks> {
    TRACKS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_recording() -> bool {
    RECORDINGS.load(Ordering::Relaxed) > 0
}

/// The track of this thread.
fn own_track(tracks: &mut Tracks) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(DEVICES + 1);
    let mut track = TRACK.get();
    if track == 0 {
        track = NEXT.fetch_add(1, Ordering::Relaxed);
        TRACK.set(track);
    }
    tracks
        .names
        .entry(track)
        .or_insert_with(|| std::thread::current().name().map_or_else(|| format!("thread {track}"), str::to_owned));
    track
}

/// A time in which a thread does something, until it is dropped, on the thread that made it. Spans of a thread nest.
#[derive(Debug)]
#[must_use = "a span ends when it is dropped"]
pub struct Span(Option<u64>);

/// Begins a span of this thread.
///
/// ```
/// use fulmen_tensor::trace::{Recording, named, numbered, span};
///
/// let recording = Recording::start();
/// {
///     let _file = named(|| "a.csv".to_owned());
///     let _reading = span("read");
///     drop(numbered("row", 7));
/// }
/// let names: Vec<_> = recording.trace().events.into_iter().map(|event| event.name).collect();
/// assert_eq!(names, ["a.csv", "read", "row"]);
/// ```
pub fn span(name: &'static str) -> Span {
    begin(|| (name.into(), None))
}

/// As [`span`], of the step, batch or file of this number.
pub fn numbered(name: &'static str, number: u64) -> Span {
    begin(|| (name.into(), Some(number)))
}

/// As [`span`], with a name that is only made while there is a recording.
pub fn named(name: impl FnOnce() -> String) -> Span {
    begin(|| (name().into(), None))
}

fn begin(what: impl FnOnce() -> (Cow<'static, str>, Option<u64>)) -> Span {
    if !is_recording() {
        return Span(None);
    }
    let (name, number) = what();
    let mut tracks = tracks();
    let track = own_track(&mut tracks);
    tracks.spans += 1;
    let (id, start) = (tracks.spans, Instant::now());
    tracks.open.insert(id, Done { track, name, number, start, end: start });
    Span(Some(id))
}

impl Drop for Span {
    fn drop(&mut self) {
        let Some(id) = self.0 else { return };
        let mut tracks = tracks();
        // It is gone if the recording has ended meanwhile.
        if let Some(open) = tracks.open.remove(&id) {
            tracks.push(Done { end: Instant::now(), ..open });
        }
    }
}

/// A program that was handed to the devices.
pub(crate) struct Launched {
    name: String,
    start: Instant,
}

/// Notes that a program is handed to the devices, if there is a recording.
pub(crate) fn launched(name: &str) -> Option<Launched> {
    is_recording().then(|| Launched { name: name.to_owned(), start: Instant::now() })
}

impl Launched {
    /// The program has ended. It ran from its launch on, or from when the devices had finished the one before.
    pub(crate) fn finished(self) {
        let mut tracks = tracks();
        if !is_recording() {
            return;
        }
        let end = Instant::now();
        let start = tracks.devices_free.map_or(self.start, |free| free.max(self.start)).min(end);
        tracks.devices_free = Some(end);
        tracks.names.entry(DEVICES).or_insert_with(|| "devices".to_owned());
        tracks.push(Done { track: DEVICES, name: self.name.into(), number: None, start, end });
    }
}

/// While it lives, what the threads of this process do is kept: the latest 262 144 events, in some 30 MB. There can be
/// several at a time.
#[derive(Debug)]
pub struct Recording {
    since: Instant,
    lost: u64,
}

impl Recording {
    /// Begins to record. Spans that have begun before are not seen.
    pub fn start() -> Recording {
        let tracks = tracks();
        RECORDINGS.fetch_add(1, Ordering::Relaxed);
        Recording { since: Instant::now(), lost: tracks.lost }
    }

    /// What has happened since the beginning; spans that have not ended end now.
    pub fn trace(&self) -> Trace {
        let (done, mut tracks, lost) = {
            let tracks = tracks();
            let now = Instant::now();
            let open = tracks.open.values().map(|open| Done { end: now, ..open.clone() });
            let all = tracks.done.iter().cloned().chain(open).filter(|done| done.end >= self.since);
            (all.collect::<Vec<Done>>(), tracks.names.clone(), tracks.lost - self.lost)
        };
        // The threads go on while this is sorted.
        let events = done.into_iter().map(|Done { track, name, number, start, end }| {
            let start = start.max(self.since);
            Event { track, name, number, start: start - self.since, duration: end.saturating_duration_since(start) }
        });
        let mut events: Vec<Event> = events.collect();
        // What surrounds others comes before them.
        events.sort_by_key(|event| (event.start, std::cmp::Reverse(event.duration)));
        tracks.retain(|track, _| events.iter().any(|event| event.track == *track));
        Trace { tracks, events, lost }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let mut tracks = tracks();
        if RECORDINGS.fetch_sub(1, Ordering::Relaxed) == 1 {
            let Tracks { spans, lost, .. } = *tracks;
            *tracks = Tracks { spans, lost, ..Tracks::new() };
        }
    }
}

/// What was recorded.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The names of the tracks, by their numbers: a track a thread, and one of the devices, named `devices`.
    pub tracks: BTreeMap<u64, String>,
    /// By their beginnings. Those of a track nest.
    pub events: Vec<Event>,
    /// How many earlier events were let go because there were too many.
    pub lost: u64,
}

/// Something that a thread did, or a program that the devices ran.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The number of its track.
    pub track: u64,
    /// What was done.
    pub name: Cow<'static, str>,
    /// The number of the step, batch or file.
    pub number: Option<u64>,
    /// When it began, counted from the beginning of the recording.
    pub start: Duration,
    /// How long it took.
    pub duration: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The events of a thread of the test's own: other tests run in this process too.
    fn of_thread<'a>(trace: &'a Trace, thread: &str) -> Vec<&'a Event> {
        let tracks = trace.tracks.iter().filter(|(_, name)| *name == thread).map(|(track, _)| *track);
        let tracks: Vec<u64> = tracks.collect();
        trace.events.iter().filter(|event| tracks.contains(&event.track)).collect()
    }

    fn on_thread(name: &str, work: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            std::thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, work).unwrap().join().unwrap();
        });
    }

    #[test]
    fn spans_of_a_thread_nest_and_one_that_has_not_ended_ends_now() {
        let recording = Recording::start();
        let mut while_open = Trace::default();
        on_thread("nesting", || {
            let _outer = numbered("outer", 7);
            drop(span("first"));
            let _second = named(|| "second".to_owned());
            while_open = recording.trace();
        });
        for trace in [while_open, recording.trace()] {
            let events = of_thread(&trace, "nesting");
            let names: Vec<&str> = events.iter().map(|event| &*event.name).collect();
            assert_eq!(names, ["outer", "first", "second"]);
            assert_eq!((events[0].number, events[1].number), (Some(7), None));
            let end = |event: &Event| event.start + event.duration;
            assert!(events[0].start <= events[1].start && end(events[1]) <= events[2].start);
            assert!(end(events[2]) <= end(events[0]));
        }
    }

    #[test]
    fn each_recording_sees_what_has_happened_since_its_beginning() {
        let whole = Recording::start();
        on_thread("before", || drop(span("work")));
        let later = Recording::start();
        on_thread("after", || drop(span("work")));
        let counts = |trace: &Trace| ["before", "after"].map(|name| of_thread(trace, name).len());
        assert_eq!((counts(&whole.trace()), counts(&later.trace())), ([1, 1], [0, 1]));
        drop(whole);
        on_thread("after", || drop(span("work")));
        assert_eq!(counts(&later.trace()), [0, 2]);
    }

    #[test]
    fn programs_on_the_devices_come_one_after_the_other() {
        let recording = Recording::start();
        let names = ["of the test: a", "of the test: b"];
        let launches: Vec<Launched> = names.iter().filter_map(|name| launched(name)).collect();
        launches.into_iter().for_each(Launched::finished);
        let trace = recording.trace();
        let of_devices = of_thread(&trace, "devices");
        let events: Vec<_> = of_devices.into_iter().filter(|event| names.contains(&&*event.name)).collect();
        assert_eq!(events.len(), 2);
        assert!(events[0].start + events[0].duration <= events[1].start);
    }
}
