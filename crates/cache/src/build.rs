//! Fills the missing parts of a cache, with threads that read samples.
//!
//! Every sample has a fixed position in the files, so threads write in any order and the files are
//! the same for any number of threads. At most two parts are filled at a time; a full part is
//! hashed, synced and renamed while the threads continue with the next.
//!
//! Out of scope: locking (`lock`), and checking the free space (`builder`).

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmen_pjrt::HostBuffer;
use parking_lot::{Condvar, Mutex};

use super::arrow::Frame;
use super::atomic_file::{Disk, NewFile};
use super::event::CacheEvent;
use super::manifest::{self, BadRow, PartEntry, Plan, part_name};
use fulmen_data::internal::Layout;
use fulmen_data::internal::SampleKey;
use fulmen_data::internal::panicked;
use fulmen_data::{Dataset, Error, Result, Sample};

/// The number of parts that are filled or finished at the same time.
const MAX_OPEN: usize = 2;
/// A thread reads about this many bytes of samples before it writes them.
const PIECE_BYTES: usize = 1 << 20;
const MAX_PIECE_ROWS: usize = 4096;
/// The minimum time between progress reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// The inputs of a build.
pub(crate) struct Build<'a> {
    pub(crate) dataset: &'a dyn Dataset,
    pub(crate) dir: &'a Path,
    pub(crate) disk: &'a Disk,
    pub(crate) workers: usize,
    /// The number of samples that may fail.
    pub(crate) allowed_bad: usize,
}

/// A part that is being filled.
struct OpenPart {
    part: usize,
    rows: usize,
    frame: Frame,
    file: NewFile,
}

/// Some rows of a part.
struct Piece {
    open: Arc<OpenPart>,
    first: usize,
    rows: usize,
}

/// The state that the threads share.
struct State {
    /// Parts that have not been started.
    todo: VecDeque<usize>,
    /// The part whose rows are being handed out to threads, and its next row.
    current: Option<(Arc<OpenPart>, usize)>,
    /// Parts with unwritten rows, and the number of these rows.
    missing: Vec<(usize, usize)>,
    /// Parts whose rows are all written.
    full: VecDeque<Arc<OpenPart>>,
    /// Parts that are started but not renamed.
    open: usize,
    done: usize,
    bad: Vec<BadRow>,
    error: Option<Error>,
}

/// What the threads of a build share.
struct BuildContext<'a> {
    build: &'a Build<'a>,
    plan: &'a Plan,
    piece_rows: usize,
    state: Mutex<State>,
    changed: Condvar,
}

impl Build<'_> {
    /// Fills the parts that are missing in the plan, and writes the plan's manifest after each
    /// part. After an error, the finished parts stay.
    pub(crate) fn run(&self, plan: &mut Plan, on_event: &mut dyn FnMut(CacheEvent)) -> Result<()> {
        let todo: VecDeque<usize> =
            (0..plan.num_parts()).filter(|&part| !plan.is_finished(part)).collect();
        let finished = (0..plan.num_parts()).filter(|&part| plan.is_finished(part));
        let done = finished.map(|part| plan.rows_of(part)).sum();
        let sample_bytes: usize =
            plan.fields.iter().map(|field| field.sample_bytes().unwrap_or(0)).sum();
        let piece_rows = (PIECE_BYTES / sample_bytes.max(1)).clamp(1, MAX_PIECE_ROWS);
        let state = State {
            todo,
            current: None,
            missing: Vec::new(),
            full: VecDeque::new(),
            open: 0,
            done,
            bad: plan.manifest.bad.clone(),
            error: None,
        };
        let snapshot = plan.clone();
        let shared = BuildContext {
            build: self,
            plan: &snapshot,
            piece_rows,
            state: Mutex::new(state),
            changed: Condvar::new(),
        };
        let mut reporter = ProgressReporter {
            on_event,
            total: plan.rows,
            sample_bytes: sample_bytes as u64,
            last: None,
        };
        std::thread::scope(|scope| {
            for i in 0..self.workers {
                let thread = std::thread::Builder::new().name(format!("fulmen-cache-{i}"));
                if let Err(source) = thread.spawn_scoped(scope, || shared.work()) {
                    shared.fail(Error::usage(format!(
                        "cannot start thread {i} of {}: {source}; use fewer workers",
                        self.workers
                    )));
                    break;
                }
            }
            shared.coordinate(plan, &mut reporter);
        });
        let state = shared.state.into_inner();
        reporter.report(state.done);
        // A partly filled file is removed when it is dropped.
        state.error.map_or(Ok(()), Err)
    }
}

/// Reports progress, but not too often.
struct ProgressReporter<'a> {
    on_event: &'a mut dyn FnMut(CacheEvent),
    total: usize,
    sample_bytes: u64,
    last: Option<Instant>,
}

impl ProgressReporter<'_> {
    fn report_if_due(&mut self, done: usize) {
        if self.last.is_none_or(|last| last.elapsed() >= REPORT_INTERVAL) {
            self.report(done);
        }
    }

    fn report(&mut self, done: usize) {
        self.last = Some(Instant::now());
        (self.on_event)(CacheEvent::Progress {
            done,
            total: self.total,
            sample_bytes: self.sample_bytes,
        });
    }
}

/// Stops all threads if one of them panics, because they would wait for it.
struct PanicGuard<'a>(&'a BuildContext<'a>);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(Error::panic("a thread that makes the cache panicked"));
        }
    }
}

impl BuildContext<'_> {
    fn fail(&self, error: Error) {
        let mut state = self.state.lock();
        // The first error is the cause; later ones may be consequences.
        state.error.get_or_insert(error);
        self.changed.notify_all();
    }

    /// The loop of the main thread: it finishes full parts, reports progress, and reads samples if
    /// there are no workers.
    fn coordinate(&self, plan: &mut Plan, reporter: &mut ProgressReporter<'_>) {
        let _guard = PanicGuard(self);
        let mut reader = match self.build.workers {
            0 => match Reader::new(self) {
                Ok(reader) => Some(reader),
                Err(error) => return self.fail(error),
            },
            _ => None,
        };
        loop {
            // The lock is released first, because the callback is user code and may take long.
            let done = self.state.lock().done;
            reporter.report_if_due(done);
            let mut state = self.state.lock();
            if state.error.is_some() {
                return;
            }
            if let Some(full) = state.full.pop_front() {
                let bad = state.bad.clone();
                drop(state);
                if let Err(error) = self.finish_part(&full, bad, plan) {
                    return self.fail(error);
                }
                self.state.lock().open -= 1;
                self.changed.notify_all();
                continue;
            }
            if state.open == 0 && state.todo.is_empty() {
                return;
            }
            match &mut reader {
                Some(reader) => {
                    drop(state);
                    if let Some(piece) = self.next_piece(false) {
                        reader.fill(self, piece);
                    }
                }
                None => drop(self.changed.wait_for(&mut state, REPORT_INTERVAL)),
            }
        }
    }

    /// Finishes a full part and adds it to the manifest.
    fn finish_part(&self, full: &OpenPart, mut bad: Vec<BadRow>, plan: &mut Plan) -> Result<()> {
        let &OpenPart { part, ref frame, ref file, .. } = full;
        file.write_at(&frame.tail, frame.tail_start)?;
        let entry = PartEntry { number: part, bytes: frame.file_bytes(), sha256: file.finish()? };
        let parts = &mut plan.manifest.parts;
        let index = parts.partition_point(|entry| entry.number < part);
        parts.insert(index, entry);
        // The bad rows of unfinished parts are not stored, because the next run reads these parts
        // again.
        bad.retain(|row| plan.is_finished(row.row / plan.manifest.rows_per_part));
        bad.sort_by_key(|row| row.row);
        plan.manifest.bad = bad;
        manifest::save(self.build.dir, &plan.manifest)
    }

    /// The loop of a worker thread.
    fn work(&self) {
        let _guard = PanicGuard(self);
        let mut reader = match Reader::new(self) {
            Ok(reader) => reader,
            Err(error) => return self.fail(error),
        };
        while let Some(piece) = self.next_piece(true) {
            reader.fill(self, piece);
        }
    }

    /// The next rows to read. Returns `None` at the end and after an error. Without `wait`, also
    /// returns `None` if no rows are available now.
    fn next_piece(&self, wait: bool) -> Option<Piece> {
        let mut state = self.state.lock();
        loop {
            if state.error.is_some() {
                return None;
            }
            if let Some((open, first)) = state.current.take() {
                let rows = self.piece_rows.min(open.rows - first);
                if first + rows < open.rows {
                    state.current = Some((Arc::clone(&open), first + rows));
                }
                return Some(Piece { open, first, rows });
            }
            if state.open < MAX_OPEN
                && let Some(part) = state.todo.pop_front()
            {
                state.open += 1;
                match self.begin(part) {
                    Ok(open) => {
                        state.missing.push((part, open.rows));
                        state.current = Some((Arc::new(open), 0));
                    }
                    Err(error) => {
                        state.error.get_or_insert(error);
                    }
                }
                self.changed.notify_all();
                continue;
            }
            if state.todo.is_empty() || !wait {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    fn begin(&self, part: usize) -> Result<OpenPart> {
        let frame = self.plan.frame(part)?;
        let path = self.build.dir.join(part_name(part));
        let file = NewFile::create(&path, frame.file_bytes(), self.build.disk)?;
        file.write_at(&frame.head, 0)?;
        Ok(OpenPart { part, rows: self.plan.rows_of(part), frame, file })
    }
}

/// A thread's buffer for samples.
struct Reader {
    layout: Layout,
    memory: HostBuffer,
    written: Vec<bool>,
}

impl Reader {
    fn new(shared: &BuildContext<'_>) -> Result<Reader> {
        let layout = Layout::new(shared.plan.fields.clone(), shared.piece_rows)?;
        let memory = HostBuffer::zeroed(layout.size()).map_err(|source| {
            Error::runtime("allocating memory for the samples of a cache", source)
        })?;
        Ok(Reader { written: vec![false; layout.fields().len()], layout, memory })
    }

    /// Reads some rows and writes them to their positions.
    fn fill(&mut self, shared: &BuildContext<'_>, piece: Piece) {
        let result =
            self.read(shared, &piece).and_then(|bad| self.write(shared, &piece).map(|()| bad));
        let Piece { open, rows, .. } = piece;
        let mut state = shared.state.lock();
        match result {
            Ok(bad) => state.bad.extend(bad),
            Err(error) => {
                state.error.get_or_insert(error);
            }
        }
        if state.bad.len() > shared.build.allowed_bad && state.error.is_none() {
            state.error = Some(too_many_bad(shared, &state.bad));
        }
        if state.error.is_none() {
            state.done += rows;
            if let Some(index) = state.missing.iter().position(|(part, _)| *part == open.part) {
                state.missing[index].1 -= rows;
                if state.missing[index].1 == 0 {
                    state.missing.swap_remove(index);
                    state.full.push_back(open);
                }
            }
        }
        shared.changed.notify_all();
    }

    /// Reads rows and returns those that could not be read and may stay empty.
    fn read(&mut self, shared: &BuildContext<'_>, piece: &Piece) -> Result<Vec<BadRow>> {
        let manifest = &shared.plan.manifest;
        let mut bad = Vec::new();
        for slot in 0..piece.rows {
            let row = piece.open.part * manifest.rows_per_part + piece.first + slot;
            let variant = row / manifest.samples;
            let index = row % manifest.samples;
            let epoch = variant as u64;
            let number = index as u64;
            let key = SampleKey { seed: manifest.seed, epoch, random_epoch: epoch, index: number };
            let mut sample =
                Sample::new(&self.layout, &mut self.memory, slot, &mut self.written, key);
            let dataset = shared.build.dataset;
            // After a panic, at most a half-written row is left, which is cleared or dropped.
            let read = catch_unwind(AssertUnwindSafe(|| dataset.read(index, &mut sample)))
                .unwrap_or_else(|payload| Err(panicked("the dataset panicked", payload)))
                .and_then(|()| sample.check_complete());
            let Err(error) = read else { continue };
            // The origin is only for the message, so a panic in it is ignored.
            let origin =
                catch_unwind(AssertUnwindSafe(|| dataset.origin(index))).unwrap_or_default();
            let error = error.at_sample(number, origin);
            if shared.build.allowed_bad == 0 {
                return Err(error);
            }
            for field in 0..self.layout.fields().len() {
                self.memory[self.layout.row(field, slot)].fill(0);
            }
            bad.push(BadRow { row, message: error.to_string() });
        }
        Ok(bad)
    }

    fn write(&self, shared: &BuildContext<'_>, piece: &Piece) -> Result<()> {
        for (field, column) in piece.open.frame.columns.iter().enumerate() {
            let bytes = self.layout.row(field, 0).len();
            let start = self.layout.row(field, 0).start;
            let rows = &self.memory[start..start + piece.rows * bytes];
            piece.open.file.write_at(rows, column.start + (piece.first * bytes) as u64)?;
        }
        // In a build, the plan changes only in its list of finished parts.
        debug_assert!(piece.first + piece.rows <= shared.plan.rows_of(piece.open.part));
        Ok(())
    }
}

fn too_many_bad(shared: &BuildContext<'_>, bad: &[BadRow]) -> Error {
    let mut first: Vec<&BadRow> = bad.iter().collect();
    first.sort_by_key(|row| row.row);
    let messages: Vec<&str> = first.iter().take(3).map(|row| row.message.as_str()).collect();
    Error::usage(format!(
        "more than {} samples could not be read, the limit of allow_bad_samples; among them: {}",
        shared.build.allowed_bad,
        messages.join("; ")
    ))
}
