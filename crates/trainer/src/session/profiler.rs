//! [`RunProfiler`]: writes traces of a run: one of the whole run with the option `profiler`, and
//! those that `fulmen profile` requests while it runs.
//!
//! The request and the answer are files in the run's folder. A separate thread looks for requests.
//! The training loop is not involved, so a run between steps answers too.
//!
//! The recording itself is in [`Recording`] and `fulmen_pjrt::Profile`.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fs, io};

use fulmen_pjrt::{Plugin, Profile};
use fulmen_tensor::Runtime;
use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::environment::host_name;
use crate::console::{inform, note, warning};
use crate::executor::progress_file::finished_steps;
use crate::{Profiler, Recording, Result};

/// The file that requests a profile, and the answer in the profile's folder.
const REQUEST: &str = "profile.request";
const ANSWER: &str = "profile.json";
/// Where TensorBoard looks for profiles in a run's folder.
const PROFILES: &str = "plugins/profile";
/// The time between two checks for a request.
const POLL: Duration = Duration::from_millis(500);
/// The time between two checks whether enough is recorded.
const TICK: Duration = Duration::from_millis(5);
/// The longest time that a request can ask for, in seconds.
const MAX_SECONDS: f64 = 3600.0;
/// The number of steps in the profile of the option `xla`, and the number of steps before it. The
/// first steps are skipped because they are not typical.
const XLA_STEPS: u64 = 10;
const FIRST_STEPS: u64 = 3;

/// A requested profile, as in the request file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    /// The name of its folder.
    id: String,
    /// The maximum number of steps to record; fewer if the time ends first.
    steps: Option<u64>,
    seconds: f64,
}

impl Request {
    fn read(text: &str) -> Result<Request, String> {
        let request: Request = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        if request.id.is_empty() || !request.id.chars().all(is_plain) {
            return Err(format!(
                "`{}` is not a valid name of a folder; use letters, digits, - and _",
                request.id
            ));
        }
        if !(0.0..=MAX_SECONDS).contains(&request.seconds) {
            return Err(format!(
                "{} is not a valid time; use seconds from 0 to {MAX_SECONDS}",
                request.seconds
            ));
        }
        Ok(request)
    }
}

/// The thread that writes the traces of a run. When this is dropped, the thread writes the trace of
/// the whole run and ends.
pub(super) struct RunProfiler {
    ended: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl RunProfiler {
    /// Starts to record, if the option says so, and to look for requests in the folder of a run.
    ///
    /// # Errors
    /// The option says so, and the subscriber of this process has no layer for it.
    pub(super) fn start(
        run_dir: &Path,
        option: Profiler,
        runtime: &Runtime,
    ) -> Result<RunProfiler> {
        let recording = (option != Profiler::None).then(Recording::start).transpose();
        let (sender, ended) = channel();
        let steps = Request { id: "xla".into(), steps: Some(XLA_STEPS), seconds: MAX_SECONDS };
        let profiler = ProfilerThread {
            run_dir: run_dir.to_owned(),
            plugin: runtime.client().plugin().clone(),
            run_recording: recording.map_err(|e| e.context("profiler"))?,
            planned: (option == Profiler::Xla).then_some(steps),
            steps_before: finished_steps(),
            ended,
        };
        let thread = thread::Builder::new()
            .name("fulmen-profiler".into())
            .spawn(move || profiler.run())
            .inspect_err(|e| warning!("cannot start the thread for traces: {e}"))
            .ok();
        Ok(RunProfiler { ended: Some(sender), thread })
    }
}

impl Drop for RunProfiler {
    fn drop(&mut self) {
        self.ended = None;
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, there is no trace.
            let _ = thread.join();
        }
    }
}

struct ProfilerThread {
    run_dir: PathBuf,
    plugin: Plugin,
    /// The recording of the whole run.
    run_recording: Option<Recording>,
    /// The profile of the option `xla`, until it is recorded.
    planned: Option<Request>,
    /// The number of steps that had finished before the run.
    steps_before: u64,
    ended: Receiver<()>,
}

impl ProfilerThread {
    fn run(mut self) {
        while !self.ends_within(if self.planned.is_some() { POLL / 10 } else { POLL }) {
            if let Some(planned) =
                self.planned.take_if(|_| finished_steps() >= self.steps_before + FIRST_STEPS)
            {
                let answer = self.answer(&planned);
                if let Some(error) = answer["plugin_error"].as_str() {
                    note!("profiler: xla records only the threads of this process: {error}");
                }
            }
            if let Some(request) = self.take_request() {
                self.answer(&request);
            }
        }
        if self.planned.is_some() {
            note!("profiler: the run ended before step {FIRST_STEPS}, where xla starts to record");
        }
        if let Some(recording) = self.run_recording.take() {
            let path = self.run_dir.join("trace.json");
            match recording.write(&path) {
                Ok(lost) => {
                    inform!(
                        "The trace of the run is {}; open it in ui.perfetto.dev",
                        path.display()
                    );
                    if lost > 0 {
                        note!("the trace lacks its first {lost} spans; it keeps the latest");
                    }
                }
                Err(error) => warning!("cannot write {}: {error}", path.display()),
            }
        }
    }

    /// Waits for this time. Returns true if the run ends meanwhile.
    fn ends_within(&self, time: Duration) -> bool {
        self.ended.recv_timeout(time) != Err(RecvTimeoutError::Timeout)
    }

    /// Takes the request from the run's folder, if there is one.
    fn take_request(&self) -> Option<Request> {
        let path = self.run_dir.join(REQUEST);
        let text = fulmen_durable::read_text(&path).ok()?;
        // Remove the request, so that it is answered only once.
        fs::remove_file(&path).ok()?;
        let warn = |error: &String| warning!("{}: not a valid request: {error}", path.display());
        Request::read(&text).inspect_err(warn).ok()
    }

    /// Records a profile. The file with the answer is written last.
    fn answer(&self, request: &Request) -> Json {
        let folder = self.run_dir.join(PROFILES).join(&request.id);
        let answer = self
            .profile(&folder, request)
            .unwrap_or_else(|error| json!({ "error": error.to_string() }));
        let written = fulmen_durable::write_unsynced(&folder.join(ANSWER), None, |file| {
            io::Write::write_all(file, format!("{answer:#}\n").as_bytes())
        });
        if let Err(error) = written {
            warning!("cannot write a profile to {}: {error}", folder.display());
        }
        answer
    }

    fn profile(&self, folder: &Path, request: &Request) -> io::Result<Json> {
        fs::create_dir_all(folder)?;
        let recording = Recording::start().map_err(io::Error::other)?;
        let plugin_profile = self.plugin.start_profile();
        let first = finished_steps();
        let start = Instant::now();
        let is_complete = || {
            request.steps.is_some_and(|steps| finished_steps() - first >= steps)
                || start.elapsed().as_secs_f64() >= request.seconds
        };
        while !is_complete() && !self.ends_within(TICK) {}
        let steps = finished_steps() - first;
        let seconds = start.elapsed().as_secs_f64();
        let trace = recording.trace();
        drop(recording);
        let plugin_profile = plugin_profile.and_then(Profile::finish);
        let mut files = vec!["trace.json".to_owned()];
        trace.save(&folder.join(&files[0]))?;
        if let Ok(bytes) = &plugin_profile {
            let name = format!("{}.xplane.pb", host_name().unwrap_or_else(|| "host".into()));
            fulmen_durable::write_unsynced(
                &folder.join(&name),
                Some(bytes.len() as u64),
                |file| io::Write::write_all(file, bytes),
            )?;
            files.push(name);
        }
        Ok(json!({
            "files": files,
            "steps": steps,
            "seconds": seconds,
            "lost_events": trace.lost,
            "plugin_error": plugin_profile.err().map(|error| error.to_string()),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_a_folder_name_and_a_time() {
        let request =
            Request::read(r#"{ "id": "1700-a_b", "steps": 20, "seconds": 2.5 }"#).unwrap();
        assert_eq!(
            (request.id.as_str(), request.steps, request.seconds),
            ("1700-a_b", Some(20), 2.5)
        );
        assert_eq!(Request::read(r#"{ "id": "a", "seconds": 0 }"#).unwrap().steps, None);
        for (text, expected) in [
            (r#"{ "id": "../a", "seconds": 1 }"#, "not a valid name of a folder"),
            (r#"{ "id": "", "seconds": 1 }"#, "not a valid name of a folder"),
            (r#"{ "id": "a", "seconds": -1 }"#, "from 0 to 3600"),
            (r#"{ "id": "a", "seconds": 1e9 }"#, "from 0 to 3600"),
            (r#"{ "id": "a", "seconds": 1, "step": 1 }"#, "unknown field"),
            ("", "EOF"),
        ] {
            let error = Request::read(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
