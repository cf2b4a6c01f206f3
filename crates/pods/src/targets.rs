//! The hosts of a run, and how ssh reaches them.

use crate::arguments::Targets;
use crate::ssh::Ssh;
use crate::{Error, Result};

/// The key that gcloud creates for TPU VMs, in the home directory.
const GCLOUD_KEY: &str = ".ssh/google_compute_engine";

impl Targets {
    /// The hosts in the order of the workers.
    ///
    /// # Errors
    /// A name that ssh would take for an option; an error of gcloud.
    pub(crate) fn resolve(&self) -> Result<(Vec<String>, Ssh)> {
        let mut options: Vec<String> =
            self.ssh_options.iter().map(|option| format!("-o{option}")).collect();
        if let Some(path) = &self.ssh_config {
            options.insert(0, format!("-F{}", path.display()));
        }
        let hosts = match &self.tpu {
            None => self.hosts.clone(),
            Some(name) => {
                let key = std::env::home_dir()
                    .map(|home| home.join(GCLOUD_KEY))
                    .filter(|key| key.exists());
                options.extend(key.map(|key| format!("-oIdentityFile={}", key.display())));
                fulmen_gcloud::hosts(name, self.zone.as_deref(), self.project.as_deref()).map_err(
                    |error| {
                        if error.is_usage() {
                            Error::usage(error.to_string())
                        } else {
                            Error::new(format!("{error}; or pass --hosts"))
                        }
                    },
                )?
            }
        };
        let wrong = |host: &&String| {
            host.is_empty() || host.starts_with('-') || host.contains(char::is_whitespace)
        };
        if let Some(host) = hosts.iter().find(wrong) {
            return Err(Error::usage(format!(
                "--hosts: `{host}` is not a valid host name; expected, for example, host-a,user@host-b"
            )));
        }
        Ok((hosts, Ssh { options, ..Ssh::default() }))
    }

    /// The command that finds the hosts of a TPU.
    pub(crate) fn shell_line(&self) -> Option<String> {
        let name = self.tpu.as_deref()?;
        Some(fulmen_gcloud::hosts_command(name, self.zone.as_deref(), self.project.as_deref()))
    }
}
