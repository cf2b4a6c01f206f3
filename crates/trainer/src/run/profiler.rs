//! [`RunProfiler`]: traces of a run. One of the whole run with the option `profiler`, and those that `fulmen profile` asks for
//! while it goes on.
//!
//! Such a request is a file in the run's folder, and so is the answer. A thread of its own looks for requests: the loop knows
//! nothing of them, and a run that makes no steps answers too.
//!
//! Not here: what is recorded (`fulmen_tensor::trace`, `fulmen_pjrt::Profile`).

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fs, io};

use fulmen_pjrt::{Plugin, Profile};
use fulmen_tensor::Runtime;
use fulmen_tensor::trace::Recording;
use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::environment::host_name;
use super::progress_file::finished_steps;
use super::trace_file;
use crate::Profiler;
use crate::console::note;

/// The file that asks for a profile, and the one in the profile's folder that answers.
const REQUEST: &str = "profile.request";
const ANSWER: &str = "profile.json";
/// Where TensorBoard looks for profiles in a run's folder.
const PROFILES: &str = "plugins/profile";
/// Between two looks for a request.
const LOOK: Duration = Duration::from_millis(500);
/// Between two looks whether enough is recorded.
const TICK: Duration = Duration::from_millis(5);
/// The longest time that can be asked for, in seconds.
const LONGEST: f64 = 3600.0;
/// The profile of the option `xla`: this many steps after the first ones, which wait for what later ones find ready.
const XLA_STEPS: u64 = 10;
const FIRST_STEPS: u64 = 3;

/// A profile to make, as the file says it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    /// The name of its folder.
    id: String,
    /// Steps to record, if they come within the time.
    steps: Option<u64>,
    seconds: f64,
}

impl Request {
    fn read(text: &str) -> Result<Request, String> {
        let request: Request = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        if request.id.is_empty() || !request.id.chars().all(is_plain) {
            return Err(format!("`{}` is not a valid name of a folder; give letters, digits, - and _", request.id));
        }
        if !(0.0..=LONGEST).contains(&request.seconds) {
            return Err(format!("{} is not a time to record; give seconds from 0 to {LONGEST}", request.seconds));
        }
        Ok(request)
    }
}

/// The thread that makes the traces of a run, until it is dropped; then the trace of the whole run is written.
pub(super) struct RunProfiler {
    ended: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl RunProfiler {
    /// Begins to record, if that is chosen, and to look for requests in the folder of a run.
    pub(super) fn start(run_dir: &Path, chosen: Profiler, runtime: &Runtime) -> RunProfiler {
        let (sender, ended) = channel();
        let steps = Request { id: "xla".into(), steps: Some(XLA_STEPS), seconds: LONGEST };
        let thread_of_run = ProfilerThread {
            run_dir: run_dir.to_owned(),
            plugin: runtime.client().plugin().clone(),
            whole: (chosen != Profiler::None).then(Recording::start),
            planned: (chosen == Profiler::Xla).then_some(steps),
            begun: finished_steps(),
            ended,
        };
        let thread = thread::Builder::new().name("fulmen-profiler".into()).spawn(move || thread_of_run.run());
        let thread = thread.inspect_err(|e| note(&format!("warning: there is no thread for traces: {e}"))).ok();
        RunProfiler { ended: Some(sender), thread }
    }
}

impl Drop for RunProfiler {
    fn drop(&mut self) {
        self.ended = None;
        if let Some(thread) = self.thread.take() {
            // If it has panicked, there is no trace.
            let _ = thread.join();
        }
    }
}

struct ProfilerThread {
    run_dir: PathBuf,
    plugin: Plugin,
    /// Of the whole run.
    whole: Option<Recording>,
    /// The profile of the option `xla`, until it is made.
    planned: Option<Request>,
    /// Steps that had been finished before.
    begun: u64,
    ended: Receiver<()>,
}

impl ProfilerThread {
    fn run(mut self) {
        while !self.ends_within(if self.planned.is_some() { LOOK / 10 } else { LOOK }) {
            if let Some(planned) = self.planned.take_if(|_| finished_steps() >= self.begun + FIRST_STEPS) {
                let answer = self.answer(&planned);
                if let Some(error) = answer["plugin_error"].as_str() {
                    note(&format!("note: profiler: xla records the threads of this process alone: {error}"));
                }
            }
            if let Some(request) = self.requested() {
                self.answer(&request);
            }
        }
        if self.planned.is_some() {
            note(&format!("note: profiler: the run ended before its step {FIRST_STEPS}, from which on xla records"));
        }
        if let Some(whole) = self.whole.take() {
            let trace = whole.trace();
            drop(whole);
            let path = self.run_dir.join("trace.json");
            match trace_file::write(&path, &trace) {
                Ok(()) => {
                    note(&format!("The trace of the run is {}; open it in ui.perfetto.dev", path.display()));
                    if trace.lost > 0 {
                        note(&format!("note: the trace lacks its first {} spans; it keeps the latest", trace.lost));
                    }
                }
                Err(error) => note(&format!("warning: {} could not be written: {error}", path.display())),
            }
        }
    }

    /// Waits; true if the run ends meanwhile.
    fn ends_within(&self, time: Duration) -> bool {
        self.ended.recv_timeout(time) != Err(RecvTimeoutError::Timeout)
    }

    /// Takes the request from the run's folder, if there is one.
    fn requested(&self) -> Option<Request> {
        let path = self.run_dir.join(REQUEST);
        let text = fulmen_durable::read_text(&path).ok()?;
        // One that stays would be answered again and again.
        fs::remove_file(&path).ok()?;
        let refuse = |why: &String| note(&format!("warning: {} asks for no profile: {why}", path.display()));
        Request::read(&text).inspect_err(refuse).ok()
    }

    /// Makes a profile. The answer is its last file.
    fn answer(&self, request: &Request) -> Json {
        let folder = self.run_dir.join(PROFILES).join(&request.id);
        let answer = self.profile(&folder, request).unwrap_or_else(|error| json!({ "error": error.to_string() }));
        let written = fulmen_durable::write_unsynced(&folder.join(ANSWER), None, |file| {
            io::Write::write_all(file, format!("{answer:#}\n").as_bytes())
        });
        if let Err(error) = written {
            note(&format!("warning: a profile could not be written into {}: {error}", folder.display()));
        }
        answer
    }

    fn profile(&self, folder: &Path, request: &Request) -> io::Result<Json> {
        fs::create_dir_all(folder)?;
        let recording = Recording::start();
        let of_plugin = self.plugin.start_profile();
        let (first, began) = (finished_steps(), Instant::now());
        let enough = || {
            request.steps.is_some_and(|steps| finished_steps() - first >= steps)
                || began.elapsed().as_secs_f64() >= request.seconds
        };
        while !enough() && !self.ends_within(TICK) {}
        let (steps, seconds) = (finished_steps() - first, began.elapsed().as_secs_f64());
        let trace = recording.trace();
        drop(recording);
        let of_plugin = of_plugin.and_then(Profile::finish);
        let mut files = vec!["trace.json".to_owned()];
        trace_file::write(&folder.join(&files[0]), &trace)?;
        if let Ok(bytes) = &of_plugin {
            let name = format!("{}.xplane.pb", host_name().unwrap_or_else(|| "host".into()));
            fulmen_durable::write_unsynced(&folder.join(&name), Some(bytes.len() as u64), |file| {
                io::Write::write_all(file, bytes)
            })?;
            files.push(name);
        }
        Ok(json!({
            "files": files,
            "steps": steps,
            "seconds": seconds,
            "lost_events": trace.lost,
            "plugin_error": of_plugin.err().map(|error| error.to_string()),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_a_folder_of_its_own_and_a_time() {
        let request = Request::read(r#"{ "id": "1700-a_b", "steps": 20, "seconds": 2.5 }"#).unwrap();
        assert_eq!((request.id.as_str(), request.steps, request.seconds), ("1700-a_b", Some(20), 2.5));
        assert_eq!(Request::read(r#"{ "id": "a", "seconds": 0 }"#).unwrap().steps, None);
        for (text, why) in [
            (r#"{ "id": "../a", "seconds": 1 }"#, "not a valid name of a folder"),
            (r#"{ "id": "", "seconds": 1 }"#, "not a valid name of a folder"),
            (r#"{ "id": "a", "seconds": -1 }"#, "from 0 to 3600"),
            (r#"{ "id": "a", "seconds": 1e9 }"#, "from 0 to 3600"),
            (r#"{ "id": "a", "seconds": 1, "step": 1 }"#, "unknown field"),
            ("", "EOF"),
        ] {
            let error = Request::read(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
