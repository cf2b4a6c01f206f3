//! A timeline of this process's threads: a [`span`] marks work, and a [`Recording`] collects the
//! spans. Without a recording, a span costs one atomic load.
//!
//! Out of scope: trace files, which the Trainer writes, and profiles of a device
//! (`fulmen_pjrt::Profile`).

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The number of latest events that are kept.
const KEPT: usize = 1 << 18;

/// The track of the programs that run on the devices.
const DEVICES: u64 = 1;

/// The number of active recordings.
static RECORDINGS: AtomicUsize = AtomicUsize::new(0);

static TRACKS: Mutex<Tracks> = Mutex::new(Tracks::new());

thread_local! {
    /// The id of this thread's track; 0 before its first span.
    static TRACK: Cell<u64> = const { Cell::new(0) };
}

/// A finished or open span, or a program run.
#[derive(Clone, Debug)]
struct Interval {
    track: u64,
    name: Cow<'static, str>,
    number: Option<u64>,
    start: Instant,
    end: Instant,
}

/// The state of all recordings.
struct Tracks {
    finished: VecDeque<Interval>,
    /// Open spans by id. Their `end` is not valid yet.
    open: BTreeMap<u64, Interval>,
    names: BTreeMap<u64, String>,
    last_span_id: u64,
    /// The number of dropped events.
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
            last_span_id: 0,
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

fn tracks() -> MutexGuard<'static, Tracks> {
    TRACKS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_recording() -> bool {
    RECORDINGS.load(Ordering::Relaxed) > 0
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

/// A guard: the span lasts until it is dropped, on the thread that made it. Spans of a thread nest.
#[derive(Debug)]
#[must_use = "a span ends when it is dropped"]
pub struct Span(Option<u64>);

/// Starts a span on this thread.
///
/// ```
/// use fulmen_tensor::timeline::{Recording, named, numbered, span};
///
/// let recording = Recording::start();
/// {
///     let _file = named(|| "a.csv".to_owned());
///     let _reading = span("read");
///     drop(numbered("row", 7));
/// }
/// let names: Vec<_> = recording.timeline().events.into_iter().map(|event| event.name).collect();
/// assert_eq!(names, ["a.csv", "read", "row"]);
/// ```
pub fn span(name: &'static str) -> Span {
    begin(|| (name.into(), None))
}

/// Like [`span`], with the number of a step, batch or file.
pub fn numbered(name: &'static str, number: u64) -> Span {
    begin(|| (name.into(), Some(number)))
}

/// Like [`span`], with a name that is only computed during a recording.
pub fn named(name: impl FnOnce() -> String) -> Span {
    begin(|| (name().into(), None))
}

fn begin(label: impl FnOnce() -> (Cow<'static, str>, Option<u64>)) -> Span {
    if !is_recording() {
        return Span(None);
    }
    let (name, number) = label();
    let mut tracks = tracks();
    let track = own_track(&mut tracks);
    tracks.last_span_id += 1;
    let id = tracks.last_span_id;
    let start = Instant::now();
    tracks.open.insert(id, Interval { track, name, number, start, end: start });
    Span(Some(id))
}

impl Drop for Span {
    fn drop(&mut self) {
        let Some(id) = self.0 else { return };
        let mut tracks = tracks();
        // There is no such span if the recording has ended.
        if let Some(open) = tracks.open.remove(&id) {
            tracks.push(Interval { end: Instant::now(), ..open });
        }
    }
}

/// A program that was launched on the devices.
pub(crate) struct ProgramLaunch {
    name: String,
    start: Instant,
}

/// Marks the launch of a program, if there is a recording.
pub(crate) fn record_launch(name: &str) -> Option<ProgramLaunch> {
    is_recording().then(|| ProgramLaunch { name: name.to_owned(), start: Instant::now() })
}

impl ProgramLaunch {
    /// Marks the end of the program. It ran from its launch, or from the end of the program before
    /// it.
    pub(crate) fn finish(self) {
        let mut tracks = tracks();
        if !is_recording() {
            return;
        }
        let end = Instant::now();
        let start = tracks.devices_free.map_or(self.start, |free| free.max(self.start)).min(end);
        tracks.devices_free = Some(end);
        tracks.names.entry(DEVICES).or_insert_with(|| "devices".to_owned());
        tracks.push(Interval { track: DEVICES, name: self.name.into(), number: None, start, end });
    }
}

/// Records the events of this process while it lives: the latest 262,144, in about 30 MB. Several
/// recordings can overlap.
#[derive(Debug)]
pub struct Recording {
    since: Instant,
    lost: u64,
}

impl Recording {
    /// Starts a recording. Spans that started earlier are not recorded.
    pub fn start() -> Recording {
        let tracks = tracks();
        RECORDINGS.fetch_add(1, Ordering::Relaxed);
        Recording { since: Instant::now(), lost: tracks.lost }
    }

    /// The events since the start. Open spans end now.
    pub fn timeline(&self) -> Timeline {
        let (intervals, mut tracks, lost) = {
            let tracks = tracks();
            let now = Instant::now();
            let open = tracks.open.values().map(|open| Interval { end: now, ..open.clone() });
            let all = tracks
                .finished
                .iter()
                .cloned()
                .chain(open)
                .filter(|interval| interval.end >= self.since);
            (all.collect::<Vec<Interval>>(), tracks.names.clone(), tracks.lost - self.lost)
        };
        // The lock is released here, so other threads continue during the sort.
        let events = intervals.into_iter().map(|Interval { track, name, number, start, end }| {
            let start = start.max(self.since);
            Event {
                track,
                name,
                number,
                start: start - self.since,
                duration: end.saturating_duration_since(start),
            }
        });
        let mut events: Vec<Event> = events.collect();
        // An outer span comes before its inner spans.
        events.sort_by_key(|event| (event.start, std::cmp::Reverse(event.duration)));
        tracks.retain(|track, _| events.iter().any(|event| event.track == *track));
        Timeline { tracks, events, lost }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let mut tracks = tracks();
        if RECORDINGS.fetch_sub(1, Ordering::Relaxed) == 1 {
            let Tracks { last_span_id, lost, .. } = *tracks;
            *tracks = Tracks { last_span_id, lost, ..Tracks::new() };
        }
    }
}

/// The recorded events.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// The names of the tracks by id: one track per thread, and the track `devices` for programs.
    pub tracks: BTreeMap<u64, String>,
    /// The events, sorted by start. Events of one track nest.
    pub events: Vec<Event>,
    /// The number of early events that were dropped because there were too many.
    pub lost: u64,
}

/// A span of a thread, or a program that ran on the devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The id of the event's track.
    pub track: u64,
    /// The name of the span or program.
    pub name: Cow<'static, str>,
    /// The number of the step, batch or file, if there is one.
    pub number: Option<u64>,
    /// The start, from the start of the recording.
    pub start: Duration,
    /// The duration.
    pub duration: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The events of one thread, because other tests run in this process too.
    fn of_thread<'a>(timeline: &'a Timeline, thread: &str) -> Vec<&'a Event> {
        let tracks: Vec<u64> = timeline
            .tracks
            .iter()
            .filter(|(_, name)| *name == thread)
            .map(|(track, _)| *track)
            .collect();
        timeline.events.iter().filter(|event| tracks.contains(&event.track)).collect()
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

    #[test]
    fn spans_of_a_thread_nest_and_open_spans_end_now() {
        let recording = Recording::start();
        let mut while_open = Timeline::default();
        on_thread("nesting", || {
            let _outer = numbered("outer", 7);
            drop(span("first"));
            let _second = named(|| "second".to_owned());
            while_open = recording.timeline();
        });
        for timeline in [while_open, recording.timeline()] {
            let events = of_thread(&timeline, "nesting");
            let names: Vec<&str> = events.iter().map(|event| &*event.name).collect();
            assert_eq!(names, ["outer", "first", "second"]);
            assert_eq!((events[0].number, events[1].number), (Some(7), None));
            let end = |event: &Event| event.start + event.duration;
            assert!(events[0].start <= events[1].start && end(events[1]) <= events[2].start);
            assert!(end(events[2]) <= end(events[0]));
        }
    }

    #[test]
    fn each_recording_has_the_events_since_its_start() {
        let whole = Recording::start();
        on_thread("before", || drop(span("work")));
        let later = Recording::start();
        on_thread("after", || drop(span("work")));
        let counts =
            |timeline: &Timeline| ["before", "after"].map(|name| of_thread(timeline, name).len());
        assert_eq!((counts(&whole.timeline()), counts(&later.timeline())), ([1, 1], [0, 1]));
        drop(whole);
        on_thread("after", || drop(span("work")));
        assert_eq!(counts(&later.timeline()), [0, 2]);
    }

    #[test]
    fn programs_on_the_devices_do_not_overlap() {
        let recording = Recording::start();
        let names = ["of the test: a", "of the test: b"];
        let launches: Vec<ProgramLaunch> =
            names.iter().filter_map(|name| record_launch(name)).collect();
        launches.into_iter().for_each(ProgramLaunch::finish);
        let timeline = recording.timeline();
        let of_devices = of_thread(&timeline, "devices");
        let events: Vec<_> =
            of_devices.into_iter().filter(|event| names.contains(&&*event.name)).collect();
        assert_eq!(events.len(), 2);
        assert!(events[0].start + events[0].duration <= events[1].start);
    }
}
