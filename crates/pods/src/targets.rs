//! Which hosts, and how ssh reaches them.

use std::process::Command;

use serde::Deserialize;

use crate::arguments::Targets;
use crate::ssh::{Ssh, quote};
use crate::{Error, Result};

/// The key that gcloud makes for TPU VMs, in the home directory.
const GCLOUD_KEY: &str = ".ssh/google_compute_engine";

impl Targets {
    /// The hosts in the order of the workers.
    ///
    /// # Errors
    /// A name that ssh would take for an option, and whatever gcloud says.
    pub(crate) fn resolve(&self) -> Result<(Vec<String>, Ssh)> {
        let mut options: Vec<String> = self.ssh_options.iter().map(|option| format!("-o{option}")).collect();
        if let Some(path) = &self.ssh_config {
            options.insert(0, format!("-F{}", path.display()));
        }
        let hosts = match &self.tpu {
            None => self.hosts.clone(),
            Some(name) => {
                let key = std::env::home_dir().map(|home| home.join(GCLOUD_KEY)).filter(|key| key.exists());
                options.extend(key.map(|key| format!("-oIdentityFile={}", key.display())));
                hosts_of_tpu(name, self.zone.as_deref(), self.project.as_deref())?
            }
        };
        let wrong = |host: &&String| host.is_empty() || host.starts_with('-') || host.contains(char::is_whitespace);
        if let Some(host) = hosts.iter().find(wrong) {
            return Err(Error::usage(format!(
                "--hosts: `{host}` is not the name of a host; expected host-a,user@host-b say"
            )));
        }
        Ok((hosts, Ssh { options, ..Ssh::default() }))
    }

    /// The command that finds the hosts of a TPU.
    pub(crate) fn spell(&self) -> Option<String> {
        let words = gcloud_arguments(self.tpu.as_deref()?, self.zone.as_deref(), self.project.as_deref());
        Some(words.iter().fold("gcloud".to_owned(), |line, word| line + " " + &quote(word)))
    }
}

fn gcloud_arguments(name: &str, zone: Option<&str>, project: Option<&str>) -> Vec<String> {
    let words = ["compute", "tpus", "tpu-vm", "describe", name, "--format=json"].map(str::to_owned);
    let zone = zone.map(|zone| format!("--zone={zone}"));
    words.into_iter().chain(zone).chain(project.map(|project| format!("--project={project}"))).collect()
}

/// The addresses of a TPU VM's hosts, from `gcloud`.
pub(crate) fn hosts_of_tpu(name: &str, zone: Option<&str>, project: Option<&str>) -> Result<Vec<String>> {
    if name.starts_with('-') {
        return Err(Error::usage(format!("--tpu: `{name}` is not the name of a TPU")));
    }
    let absent = |e| Error::new(format!("the program gcloud: {e}; install the Google Cloud CLI, or give --hosts"));
    let output = Command::new("gcloud").args(gcloud_arguments(name, zone, project)).output().map_err(absent)?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(Error::new(format!("gcloud cannot describe the TPU {name}: {}", text.trim())));
    }
    addresses(&String::from_utf8_lossy(&output.stdout)).map_err(|why| Error::new(format!("the TPU {name} {why}")))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    #[serde(default)]
    state: String,
    #[serde(default)]
    network_endpoints: Vec<Endpoint>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Endpoint {
    ip_address: Option<String>,
    access_config: Option<AccessConfig>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AccessConfig {
    external_ip: Option<String>,
}

/// The external address of each host, or its internal one if it has no other.
fn addresses(json: &str) -> Result<Vec<String>, String> {
    let node: Node = serde_json::from_str(json).map_err(|e| format!("is not described as expected: {e}"))?;
    if node.state != "READY" {
        let state = if node.state.is_empty() { "in an unknown state" } else { &node.state };
        return Err(format!("is {state}, not READY; wait until it is"));
    }
    let address = |endpoint: Endpoint| endpoint.access_config.and_then(|a| a.external_ip).or(endpoint.ip_address);
    match node.network_endpoints.into_iter().map(address).collect::<Option<Vec<_>>>() {
        Some(hosts) if !hosts.is_empty() => Ok(hosts),
        _ => Err("has a host without an address".into()),
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
        assert_eq!(addresses(json).unwrap(), ["34.1.2.3", "10.130.0.6"]);
        let error = addresses(&json.replace("READY", "PREEMPTED")).unwrap_err();
        assert!(error.starts_with("is PREEMPTED, not READY"), "{error}");
        assert!(addresses(r#"{"state": "READY"}"#).unwrap_err().contains("without an address"));
        assert!(addresses("ERROR").unwrap_err().contains("not described"));
    }
}
