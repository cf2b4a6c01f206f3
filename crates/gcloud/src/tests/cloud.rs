//! A fake gcloud with a fake cloud behind it. It checks each call against the grammar, keeps
//! machines, and can fail at each step in several ways.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::Sender;
use std::time::Duration;

use fulmen_signals::Signal;
use serde_json::{Value, json};

use super::grammar::Call;
use crate::command_runner::{CommandOutput, CommandRunner};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallOutcome {
    Works,
    /// The call does nothing, and fails.
    Fails,
    /// The call takes effect, but fails.
    FailsAfter,
    /// The call takes effect, and the answer is garbage.
    Garbage,
    /// The call succeeds, but does nothing.
    Dropped,
    /// The call fails, and takes effect some calls later.
    Late,
    /// The call takes effect, and Ctrl-C arrives during the call.
    Interrupted,
}

pub(super) const FAULTS: [CallOutcome; 6] = [
    CallOutcome::Fails,
    CallOutcome::FailsAfter,
    CallOutcome::Garbage,
    CallOutcome::Dropped,
    CallOutcome::Late,
    CallOutcome::Interrupted,
];

#[derive(Clone, Debug)]
struct Machine {
    zone: String,
    state: &'static str,
    labels: Value,
    accelerator: String,
    disks: Vec<String>,
}

#[derive(Debug, Default)]
struct State {
    nodes: BTreeMap<String, Machine>,
    /// The state of each queued resource, with the requested machine.
    queued: BTreeMap<String, (&'static str, Machine)>,
    calls: Vec<Vec<String>>,
    late_calls: Vec<(usize, Vec<String>)>,
    /// Whether gcloud is of the summer of 2025.
    is_old: bool,
}

pub(super) struct Cloud {
    state: RefCell<State>,
    /// The outcomes of calls, by number. All other calls work.
    pub(super) outcomes: BTreeMap<usize, CallOutcome>,
    /// The number of the call from which on all calls fail.
    pub(super) outage: usize,
    pub(super) signals: Option<Sender<Signal>>,
    /// A signal, and the number of the call with which it arrives.
    pub(super) signal_after: Option<(usize, Signal)>,
    /// Whether hosts may not delete their TPU.
    pub(super) forbidden: bool,
    /// The number of answers that list nothing.
    pub(super) empty_answers: usize,
}

impl Cloud {
    pub(super) fn new() -> Cloud {
        Cloud {
            state: RefCell::default(),
            outcomes: BTreeMap::new(),
            outage: usize::MAX,
            signals: None,
            signal_after: None,
            forbidden: false,
            empty_answers: 0,
        }
    }

    /// Adds a machine of another owner.
    pub(super) fn with_node(
        self,
        name: &str,
        zone: &str,
        accelerator: &str,
        labels: Value,
    ) -> Cloud {
        let zone = zone.to_owned();
        let accelerator = accelerator.to_owned();
        let disks = vec!["projects/p/zones/z/disks/data".to_owned()];
        let machine = Machine { zone, state: "READY", labels, accelerator, disks };
        self.state.borrow_mut().nodes.insert(name.into(), machine);
        self
    }

    pub(super) fn old() -> Cloud {
        let cloud = Cloud::new();
        cloud.state.borrow_mut().is_old = true;
        cloud
    }

    /// Whether anything exists that costs money, or will cost money.
    pub(super) fn has_costs(&self) -> bool {
        let mut state = self.state.borrow_mut();
        for (_, words) in std::mem::take(&mut state.late_calls) {
            let _ = state.apply(&words);
        }
        !state.nodes.is_empty() || !state.queued.is_empty()
    }

    /// The calls of a command.
    pub(super) fn calls(&self, command: &str) -> Vec<String> {
        let state = self.state.borrow();
        state
            .calls
            .iter()
            .map(|words| words.join(" "))
            .filter(|line| line.contains(command))
            .collect()
    }
}

fn output(result: Result<String, String>) -> CommandOutput {
    match result {
        Ok(out) => CommandOutput { ok: true, out, err: String::new() },
        Err(err) => {
            CommandOutput { ok: false, out: String::new(), err: format!("WARNING: old\n{err}\n") }
        }
    }
}

impl CommandRunner for Cloud {
    fn call(
        &self,
        words: &[String],
        _: Duration,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> CommandOutput {
        let mut state = self.state.borrow_mut();
        let count = state.calls.len();
        let late = std::mem::take(&mut state.late_calls);
        let (due, later): (Vec<_>, Vec<_>) = late.into_iter().partition(|(call, _)| *call <= count);
        state.late_calls = later;
        for (_, words) in due {
            let _ = state.apply(&words);
        }
        state.calls.push(words.to_vec());
        for path in words
            .iter()
            .filter_map(|word| word.strip_prefix("--metadata-from-file=startup-script="))
        {
            assert!(std::path::Path::new(path).exists(), "{path}");
        }
        let outcome = if count >= self.outage {
            CallOutcome::Fails
        } else {
            *self.outcomes.get(&count).unwrap_or(&CallOutcome::Works)
        };
        let unavailable = || output(Err("ERROR: (gcloud) UNAVAILABLE: try again".into()));
        if let (Some((call, signal)), Some(signals)) = (self.signal_after, &self.signals)
            && call == count
        {
            signals.send(signal).unwrap();
        }
        if count < self.empty_answers {
            return output(Ok("[]".into()));
        }
        if self.forbidden && words.iter().any(|word| word == "ssh") {
            let err = "ERROR: the service account lacks the permission tpu.nodes.delete\nERROR: (gcloud) exit code 1";
            return output(Err(err.into()));
        }
        match outcome {
            CallOutcome::Works => output(state.apply(words)),
            CallOutcome::Fails if interrupted() => output(Err("interrupted".into())),
            CallOutcome::Fails => unavailable(),
            CallOutcome::FailsAfter => {
                let _ = state.apply(words);
                unavailable()
            }
            CallOutcome::Garbage => {
                let _ = state.apply(words);
                output(Ok("<html>502</html>".into()))
            }
            // An answer to a list is never dropped.
            CallOutcome::Dropped if words.iter().any(|word| word == "list") => {
                output(state.apply(words))
            }
            CallOutcome::Dropped => output(Ok(String::new())),
            CallOutcome::Late => {
                state.late_calls.push((count + 2, words.to_vec()));
                unavailable()
            }
            CallOutcome::Interrupted => {
                if let Some(signals) = &self.signals {
                    signals.send(Signal::Interrupt).unwrap();
                }
                let result = output(state.apply(words));
                if interrupted() { output(Err("interrupted".into())) } else { result }
            }
        }
    }

    fn call_attached(&self, words: &[String]) -> io::Result<u8> {
        Call::parse(words).map(|_| 0).map_err(io::Error::other)
    }
}

impl State {
    fn apply(&mut self, words: &[String]) -> Result<String, String> {
        let call = Call::parse(words)
            .unwrap_or_else(|error| panic!("gcloud would refuse {words:?}: {error}"));
        let zone = call.flag("--zone=").to_owned();
        let missing = || {
            format!("ERROR: NOT_FOUND: Resource 'projects/p/locations/{zone}/nodes/{}'", call.name)
        };
        match call.command {
            "compute tpus tpu-vm create" | "alpha compute tpus tpu-vm create" => {
                if self.nodes.contains_key(&call.name) {
                    return Err(format!("ERROR: ALREADY_EXISTS: {}", call.name));
                }
                self.nodes.insert(call.name.clone(), machine(&call));
                Ok(String::new())
            }
            "compute tpus queued-resources create" | "alpha compute tpus queued-resources create" => {
                self.queued.insert(call.name.clone(), ("WAITING_FOR_RESOURCES", machine(&call)));
                Ok(String::new())
            }
            "compute tpus tpu-vm list" => {
                let in_zone = |machine: &Machine| zone == "-" || machine.zone == zone;
                let nodes: Vec<Value> =
                    self.nodes.iter().filter(|(_, node)| in_zone(node)).map(|(name, node)| node.json(name)).collect();
                self.nodes.values_mut().filter(|node| node.state == "CREATING").for_each(|node| node.state = "READY");
                Ok(Value::from(nodes).to_string())
            }
            "compute tpus queued-resources list" => {
                let json = |(name, (state, machine)): (&String, &(&str, Machine))| {
                    let node = json!({"acceleratorType": machine.accelerator, "labels": machine.labels});
                    json!({
                        "name": format!("projects/p/locations/{}/queuedResources/{name}", machine.zone),
                        "createTime": "2026-11-22T10:00:00.5Z", "state": {"state": state},
                        "tpu": {"nodeSpec": [{"nodeId": name, "node": node, "parent": "projects/1/locations/z"}]},
                    })
                };
                let all: Vec<Value> = self.queued.iter().map(json).collect();
                for (name, (state, machine)) in &mut self.queued {
                    if *state != "ACTIVE" {
                        *state = "ACTIVE";
                        self.nodes.insert(name.clone(), machine.clone());
                    }
                }
                Ok(Value::from(all).to_string())
            }
            "compute tpus tpu-vm delete" => self.nodes.remove(&call.name).map(|_| String::new()).ok_or_else(missing),
            "compute tpus queued-resources delete" => {
                self.nodes.remove(&call.name);
                self.queued.remove(&call.name).map(|_| String::new()).ok_or_else(missing)
            }
            "compute tpus tpu-vm describe" | "compute tpus tpu-vm ssh" | "compute tpus tpu-vm update" => {
                let node = self.nodes.get(&call.name).ok_or_else(missing)?;
                Ok(node.json(&call.name).to_string())
            }
            "compute disks list" => Ok(json!([
                {"name": "data", "zone": "https://www.googleapis.com/compute/v1/projects/p/zones/us-west4-a",
                 "type": "https://www.googleapis.com/compute/v1/projects/p/zones/us-west4-a/diskTypes/pd-balanced",
                 "sizeGb": "730", "status": "READY", "creationTimestamp": "2026-11-20T12:00:00.000-08:00"},
                {"name": "fast", "zone": "zones/us-west4-a", "type": "diskTypes/hyperdisk-ml", "sizeGb": "10",
                 "status": "READY", "creationTimestamp": "2026-11-20T12:00:00.000-08:00", "users": ["instances/vm"]},
            ])
            .to_string()),
            "compute instances list" => Ok(json!([
                {"name": "prep", "zone": "zones/us-west4-a", "machineType": "machineTypes/n2-standard-8",
                 "status": "RUNNING", "creationTimestamp": "2026-11-20T12:00:00.000-08:00",
                 "scheduling": {"provisioningModel": "STANDARD", "maxRunDuration": {"seconds": "7200"}}},
            ])
            .to_string()),
            "compute addresses list" => Ok(json!([
                {"name": "idle", "region": "regions/us-west4", "address": "34.5.6.7", "status": "RESERVED",
                 "addressType": "EXTERNAL", "creationTimestamp": "2026-11-20T12:00:00.000-08:00"},
                {"name": "busy", "region": "regions/us-west4", "address": "34.5.6.8", "status": "IN_USE",
                 "creationTimestamp": "2026-11-20T12:00:00.000-08:00"},
            ])
            .to_string()),
            "compute snapshots list" => Ok(json!([
                {"name": "saved", "sourceDisk": "zones/us-west4-a/disks/data", "storageBytes": "1073741824",
                 "status": "READY", "creationTimestamp": "2026-11-20T12:00:00.000-08:00"},
            ])
            .to_string()),
            "storage buckets list" => Ok(json!([
                {"name": "shards", "location": "US-WEST4", "default_storage_class": "STANDARD",
                 "creation_time": "2026-11-20T12:00:00+0000"},
            ])
            .to_string()),
            "compute disks create" | "compute disks delete" | "compute instances create" | "compute scp" => {
                Ok(String::new())
            }
            // Versions of gcloud before `quotas` left beta.
            "quotas info list" if self.is_old => {
                Err("ERROR: (gcloud) Invalid choice: 'quotas'.\nThis command is available in alpha, beta".into())
            }
            "quotas info list" | "beta quotas info list" => Ok(json!([
                {"quotaId": "TPUV5sLitepodPerProjectPerZone", "quotaDisplayName": "TPU v5 lite pod cores",
                 "dimensionsInfos": [
                    {"applicableLocations": ["us-west4-a"], "details": {"value": "16"}},
                    {"applicableLocations": ["us-west4-b"], "details": {}}]},
                {"quotaId": "Requests", "quotaDisplayName": "Requests",
                 "dimensionsInfos": [{"applicableLocations": ["global"], "details": {"value": "-1"}}]},
            ])
            .to_string()),
            other => Err(format!("ERROR: the stand-in has no answer to {other}")),
        }
    }
}

fn machine(call: &Call) -> Machine {
    let labels = call
        .flag("--labels=")
        .split(',')
        .filter_map(|pair| pair.split_once('='))
        .map(|(key, value)| (key.to_owned(), Value::from(value)))
        .collect();
    Machine {
        zone: call.flag("--zone=").to_owned(),
        state: "CREATING",
        labels,
        accelerator: call.flag("--accelerator-type=").to_owned(),
        disks: Vec::new(),
    }
}

impl Machine {
    /// The machine as `gcloud compute tpus tpu-vm describe --format=json` prints it.
    fn json(&self, name: &str) -> Value {
        let disks: Vec<Value> = self
            .disks
            .iter()
            .map(|disk| json!({"mode": "READ_WRITE", "sourceDisk": disk}))
            .collect();
        json!({
            "acceleratorConfig": {"topology": "2x4", "type": "V5LITE_POD"}, "acceleratorType": self.accelerator,
            "apiVersion": "V2", "createTime": "2026-11-22T10:00:00.123456789Z", "dataDisks": disks, "health": "HEALTHY",
            "id": "42", "labels": self.labels, "name": format!("projects/p/locations/{}/nodes/{name}", self.zone),
            "networkEndpoints": [
                {"accessConfig": {"externalIp": "34.1.2.3"}, "ipAddress": "10.0.0.2", "port": 8470}],
            "runtimeVersion": "v2-alpha-tpuv5-lite", "schedulingConfig": {"spot": true}, "state": self.state,
        })
    }
}
