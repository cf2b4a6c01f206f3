//! Writes a trace in Chrome's trace event format, which Perfetto (ui.perfetto.dev) and
//! `chrome://tracing` open.

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use fulmen_tensor::timeline::Timeline;
use serde_json::json;

/// Writes the spans of `timeline` to a file.
pub(super) fn write(path: &Path, timeline: &Timeline) -> io::Result<()> {
    fulmen_durable::write_unsynced(path, None, |file| write_events(timeline, file))
}

fn write_events(timeline: &Timeline, out: &mut impl Write) -> io::Result<()> {
    let process = std::process::id();
    let metadata = |kind: &str, track: u64, name: &str| {
        let args = json!({ "name": name });
        json!({ "ph": "M", "pid": process, "tid": track, "name": kind, "args": args })
    };
    out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")?;
    serde_json::to_writer(&mut *out, &metadata("process_name", 1, "fulmen"))?;
    for (track, name) in &timeline.tracks {
        out.write_all(b",\n")?;
        serde_json::to_writer(&mut *out, &metadata("thread_name", *track, name))?;
    }
    for event in &timeline.events {
        let mut line = json!({
            "ph": "X",
            "pid": process,
            "tid": event.track,
            "name": event.name,
            "ts": microseconds(event.start),
            "dur": microseconds(event.duration),
        });
        if let Some(number) = event.number {
            line["args"] = json!({ "number": number });
        }
        out.write_all(b",\n")?;
        serde_json::to_writer(&mut *out, &line)?;
    }
    out.write_all(b"\n]}\n")
}

fn microseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use fulmen_tensor::timeline::Event;
    use serde_json::Value;

    use super::*;

    #[test]
    fn each_event_has_its_track_and_microseconds() {
        let event = |track, name: &'static str, number, start| Event {
            track,
            name: name.into(),
            number,
            start: Duration::from_nanos(start),
            duration: Duration::from_millis(2),
        };
        let timeline = Timeline {
            tracks: BTreeMap::from([(2, "a \"name\"".to_owned())]),
            events: vec![event(2, "step", Some(3), 1500), event(2, "read", None, 2000)],
            lost: 0,
        };
        let mut text = Vec::new();
        write_events(&timeline, &mut text).unwrap();
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
