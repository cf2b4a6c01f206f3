//! gcloud's JSON for TPU VMs, queued resources and disks, reduced to the fields in use.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use fulmen_tpu::Slice;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::gcloud_commands::{DEADLINE_LABEL, LIMIT_LABEL, OWNER_LABEL};
use crate::{Error, Result};

/// A TPU VM.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) state: String,
    pub(crate) health: String,
    accelerator_type: String,
    accelerator_config: AcceleratorConfig,
    pub(crate) create_time: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) data_disks: Vec<AttachedDisk>,
    scheduling_config: Scheduling,
    network_endpoints: Vec<Endpoint>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AttachedDisk {
    pub(crate) source_disk: String,
}

/// How a TPU VM was requested whose shape has no accelerator type.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct AcceleratorConfig {
    r#type: String,
    topology: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Scheduling {
    preemptible: bool,
    spot: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Endpoint {
    ip_address: Option<String>,
    access_config: Option<AccessConfig>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AccessConfig {
    external_ip: Option<String>,
}

/// A request that waits for a TPU, or has one.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct QueuedResource {
    pub(crate) name: String,
    pub(crate) create_time: String,
    state: QueuedState,
    tpu: QueuedTpu,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct QueuedState {
    state: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct QueuedTpu {
    node_spec: Vec<NodeSpec>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NodeSpec {
    node: Node,
}

/// A disk of the project.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Disk {
    pub(crate) name: String,
    pub(crate) zone: String,
    pub(crate) r#type: String,
    pub(crate) size_gb: String,
    pub(crate) status: String,
    pub(crate) creation_timestamp: String,
    pub(crate) users: Vec<String>,
    pub(crate) provisioned_iops: String,
    pub(crate) provisioned_throughput: String,
}

/// A machine of Compute Engine.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Instance {
    pub(crate) name: String,
    pub(crate) zone: String,
    pub(crate) machine_type: String,
    pub(crate) status: String,
    pub(crate) creation_timestamp: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) scheduling: InstanceScheduling,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct InstanceScheduling {
    pub(crate) provisioning_model: String,
    pub(crate) max_run_duration: Seconds,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Seconds {
    pub(crate) seconds: String,
}

/// An external address of the project.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Address {
    pub(crate) name: String,
    pub(crate) region: String,
    pub(crate) address: String,
    pub(crate) address_type: String,
    pub(crate) status: String,
    pub(crate) creation_timestamp: String,
}

/// A snapshot of a disk.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Snapshot {
    pub(crate) name: String,
    pub(crate) source_disk: String,
    pub(crate) storage_bytes: String,
    pub(crate) status: String,
    pub(crate) creation_timestamp: String,
}

/// A bucket, as `gcloud storage` prints it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Bucket {
    pub(crate) name: String,
    pub(crate) location: String,
    pub(crate) default_storage_class: String,
    pub(crate) creation_time: String,
}

/// Parses gcloud's output.
///
/// # Errors
/// The output has an unexpected form.
pub(crate) fn parse<T: DeserializeOwned>(json: &str) -> Result<T> {
    serde_json::from_str(json).map_err(|e| Error::new(format!("cannot parse gcloud's answer: {e}")))
}

/// The last component of a path or an address.
pub(crate) fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The zone within a full resource name, if the name is full.
pub(crate) fn zone_of(name: &str) -> Option<&str> {
    name.split('/').skip_while(|&part| part != "locations").nth(1)
}

/// Parses a time of Google's, in RFC 3339.
pub(crate) fn parse_time(text: &str) -> Option<DateTime<Utc>> {
    DateTime::parse_from_rfc3339(text).ok().map(|time| time.to_utc())
}

impl Node {
    /// The accelerator type, or the generation and the chips along each axis.
    pub(crate) fn slice_name(&self) -> String {
        let AcceleratorConfig { r#type, topology } = &self.accelerator_config;
        if !self.accelerator_type.is_empty() || r#type.is_empty() {
            return self.accelerator_type.clone();
        }
        let generation = match r#type.as_str() {
            "V5LITE_POD" => "v5e".to_owned(),
            name => name.to_lowercase(),
        };
        format!("{generation}:{topology}")
    }

    pub(crate) fn slice(&self) -> Option<Slice> {
        self.slice_name().parse().ok()
    }

    /// Whether a state is billed at list price. Unknown states count as billed.
    pub(crate) fn is_billed(&self) -> bool {
        !["STOPPED", "PREEMPTED", "TERMINATED", "HIDDEN"].contains(&self.state.as_str())
    }

    pub(crate) fn is_spot(&self) -> bool {
        self.scheduling_config.spot || self.scheduling_config.preemptible
    }

    pub(crate) fn owner(&self) -> Option<&str> {
        self.labels.get(OWNER_LABEL).map(String::as_str)
    }

    /// When it deletes itself.
    pub(crate) fn deadline(&self) -> Option<DateTime<Utc>> {
        let number = |label: &str| self.labels.get(label)?.parse::<i64>().ok();
        let changed =
            number(DEADLINE_LABEL).and_then(|seconds| DateTime::from_timestamp(seconds, 0));
        let planned = || {
            Some(
                parse_time(&self.create_time)?
                    + chrono::TimeDelta::try_seconds(number(LIMIT_LABEL)?)?,
            )
        };
        changed.or_else(planned)
    }

    /// The external address of each host, or its internal one if it has none.
    ///
    /// # Errors
    /// The TPU is not ready, or a host has no address.
    pub(crate) fn hosts(&self) -> Result<Vec<String>, String> {
        if self.state != "READY" {
            let state = if self.state.is_empty() { "in an unknown state" } else { &self.state };
            return Err(format!("is {state}, not READY; wait until it is"));
        }
        let address = |endpoint: &Endpoint| {
            let external =
                endpoint.access_config.as_ref().and_then(|access| access.external_ip.clone());
            external.or_else(|| endpoint.ip_address.clone())
        };
        match self.network_endpoints.iter().map(address).collect::<Option<Vec<_>>>() {
            Some(hosts) if !hosts.is_empty() => Ok(hosts),
            _ => Err("has a host without an address".into()),
        }
    }
}

impl QueuedResource {
    pub(crate) fn state(&self) -> &str {
        &self.state.state
    }

    fn node(&self) -> Option<&Node> {
        self.tpu.node_spec.first().map(|spec| &spec.node)
    }

    pub(crate) fn slice_name(&self) -> String {
        self.node().map(Node::slice_name).unwrap_or_default()
    }

    pub(crate) fn owner(&self) -> Option<&str> {
        self.node()?.owner()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_of_a_tpu_are_its_endpoints_in_order() {
        let json = r#"{"name": "projects/p/locations/us-central2-b/nodes/n", "state": "READY", "networkEndpoints": [
            {"accessConfig": {"externalIp": "34.1.2.3"}, "ipAddress": "10.130.0.5", "port": 8470},
            {"accessConfig": {}, "ipAddress": "10.130.0.6", "port": 8470}]}"#;
        let hosts = |json: &str| parse::<Node>(json).map_err(|e| e.to_string())?.hosts();
        assert_eq!(hosts(json).unwrap(), ["34.1.2.3", "10.130.0.6"]);
        let error = hosts(&json.replace("READY", "PREEMPTED")).unwrap_err();
        assert!(error.starts_with("is PREEMPTED, not READY"), "{error}");
        assert!(hosts(r#"{"state": "READY"}"#).unwrap_err().contains("without an address"));
        assert!(hosts("ERROR").unwrap_err().contains("cannot parse"));
    }
}
