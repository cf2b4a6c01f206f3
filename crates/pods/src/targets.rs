//! The hosts of a run, and how ssh reaches them.

use fulmen_durable::messages::quantity;
use fulmen_tpu::PodShape;

use crate::arguments::Targets;
use crate::providers::{Providers, TpuVm};
use crate::ssh::Ssh;
use crate::{Error, Result};

/// The key that gcloud creates for TPU VMs, in the home directory.
const GCLOUD_KEY: &str = ".ssh/google_compute_engine";

/// The name of this machine in messages.
const THIS_MACHINE: &str = "localhost";

impl Targets {
    /// The hosts in the order of the workers: this machine if none are given.
    ///
    /// # Errors
    /// A name that ssh would take for an option; an error of gcloud.
    pub(crate) fn resolve(&self, providers: &Providers) -> Result<(Vec<String>, Ssh)> {
        if !self.names_hosts() {
            let ssh = Ssh { is_local: true, ..Ssh::default() };
            return Ok((vec![THIS_MACHINE.to_owned()], ssh));
        }
        let mut options: Vec<String> =
            self.ssh_options.iter().map(|option| format!("-o{option}")).collect();
        if let Some(path) = &self.ssh_config {
            options.insert(0, format!("-F{}", path.display()));
        }
        let hosts = match self.tpu_vm() {
            None => self.hosts.clone(),
            Some(tpu) => {
                let key = std::env::home_dir()
                    .map(|home| home.join(GCLOUD_KEY))
                    .filter(|key| key.exists());
                options.extend(key.map(|key| format!("-oIdentityFile={}", key.display())));
                (providers.tpu_hosts)(tpu).map_err(|error| {
                    if error.is_usage() {
                        Error::usage(error.to_string())
                    } else {
                        Error::new(format!("{error}; or pass --hosts"))
                    }
                })?
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

    /// Whether hosts are given, instead of this machine.
    fn names_hosts(&self) -> bool {
        self.tpu.is_some() || !self.hosts.is_empty()
    }

    /// The hosts in the order of the workers, for a command that needs a choice of them.
    ///
    /// # Errors
    /// No hosts are given; those of [`resolve`](Targets::resolve).
    pub(crate) fn resolve_named(
        &self,
        providers: &Providers,
        alternative: &str,
    ) -> Result<(Vec<String>, Ssh)> {
        if !self.names_hosts() {
            return Err(Error::usage(format!(
                "no hosts are given: pass --hosts or --tpu{alternative}"
            )));
        }
        self.resolve(providers)
    }

    /// One host for each process of a virtual pod.
    ///
    /// # Errors
    /// The number of hosts is not that of processes; those of [`resolve`](Targets::resolve).
    pub(crate) fn resolve_virtual(
        &self,
        providers: &Providers,
        shape: PodShape,
    ) -> Result<(Vec<String>, Ssh)> {
        let (hosts, ssh) = self.resolve(providers)?;
        if ssh.is_local {
            let hosts = hosts.iter().cycle().take(shape.processes).cloned().collect();
            return Ok((hosts, ssh));
        }
        if hosts.len() != shape.processes {
            return Err(Error::usage(format!(
                "--virtual {shape} needs {}, one for each process, but --hosts names {}: {}",
                quantity(shape.processes, "host"),
                hosts.len(),
                hosts.join(", ")
            )));
        }
        Ok((hosts, ssh))
    }

    /// The command that finds the hosts of a TPU.
    pub(crate) fn shell_line(&self, providers: &Providers) -> Option<String> {
        Some((providers.tpu_hosts_command)(self.tpu_vm()?))
    }

    fn tpu_vm(&self) -> Option<TpuVm<'_>> {
        let name = self.tpu.as_deref()?;
        Some(TpuVm { name, zone: self.zone.as_deref(), project: self.project.as_deref() })
    }
}
