//! The grammar of the gcloud commands in use, from the synopses of
//! docs.cloud.google.com/sdk/gcloud/reference in October 2025. A flag that ends with `=` takes a
//! value. `google.rs` compares it with Google's own gcloud, where that is installed.

use std::collections::BTreeMap;

pub(super) struct Synopsis {
    pub(super) command: &'static str,
    /// The number of words that follow the command.
    names: usize,
    pub(super) required: &'static [&'static str],
    pub(super) optional: &'static [&'static str],
    /// A call has exactly one set of flags of each group.
    one_of: &'static [&'static [&'static str]],
    /// The values that flags can have.
    pub(super) choices: &'static [(&'static str, &'static [&'static str])],
}

impl Synopsis {
    const fn new(command: &'static str) -> Synopsis {
        Synopsis { command, names: 0, required: &[], optional: &[], one_of: &[], choices: &[] }
    }

    /// Every flag that the command takes, in addition to the global ones.
    pub(super) fn flags(&self) -> impl Iterator<Item = &'static str> {
        let alternatives = self.one_of.iter().copied().flatten().copied();
        self.required.iter().copied().chain(self.optional.iter().copied()).chain(alternatives)
    }
}

/// The flags that every command accepts.
const GLOBAL_FLAGS: &[&str] = &[
    "--access-token-file=",
    "--account=",
    "--billing-project=",
    "--configuration=",
    "--flags-file=",
    "--flatten=",
    "--format=",
    "--impersonate-service-account=",
    "--log-http",
    "--project=",
    "--quiet",
    "--trace-token=",
    "--user-output-enabled",
    "--verbosity=",
];

const LIST_FLAGS: &[&str] =
    &["--filter=", "--limit=", "--page-size=", "--sort-by=", "--uri", "--zone="];

/// The choices of `--type`.
const TYPES: (&str, &[&str]) = ("--type=", &["v2", "v3", "v4"]);
const ALPHA_TYPES: (&str, &[&str]) = ("--type=", &["v2", "v3", "v4", "v5litepod", "v5p", "v6e"]);

const TYPE_FLAGS: &[&[&str]] = &[&["--accelerator-type="], &["--type=", "--topology="]];

pub(super) const COMMANDS: &[Synopsis] = &[
    Synopsis {
        names: 1,
        required: &["--zone=", "--version="],
        optional: &[
            "--async",
            "--data-disk=",
            "--description=",
            "--internal-ips",
            "--labels=",
            "--metadata=",
            "--metadata-from-file=",
            "--network=",
            "--preemptible",
            "--queue-count=",
            "--range=",
            "--reserved",
            "--scopes=",
            "--service-account=",
            "--shielded-secure-boot",
            "--spot",
            "--subnetwork=",
            "--tags=",
        ],
        one_of: TYPE_FLAGS,
        choices: &[TYPES],
        ..Synopsis::new("compute tpus tpu-vm create")
    },
    Synopsis {
        names: 1,
        required: &["--zone=", "--runtime-version=", "--node-id="],
        optional: QUEUED_FLAGS,
        one_of: TYPE_FLAGS,
        choices: &[TYPES],
        ..Synopsis::new("compute tpus queued-resources create")
    },
    Synopsis {
        names: 1,
        required: &["--zone=", "--runtime-version=", "--node-id="],
        optional: ALPHA_QUEUED_FLAGS,
        one_of: TYPE_FLAGS,
        choices: &[ALPHA_TYPES],
        ..Synopsis::new("alpha compute tpus queued-resources create")
    },
    Synopsis { optional: LIST_FLAGS, ..Synopsis::new("compute tpus tpu-vm list") },
    Synopsis { optional: LIST_FLAGS, ..Synopsis::new("compute tpus queued-resources list") },
    Synopsis {
        optional: &[
            "--filter=",
            "--limit=",
            "--page-size=",
            "--regexp=",
            "--sort-by=",
            "--uri",
            "--zones=",
        ],
        ..Synopsis::new("compute disks list")
    },
    Synopsis {
        required: &["--service=", "--project="],
        optional: &["--filter=", "--limit=", "--page-size=", "--sort-by=", "--uri"],
        ..Synopsis::new("quotas info list")
    },
    Synopsis { names: 1, required: &["--zone="], ..Synopsis::new("compute tpus tpu-vm describe") },
    Synopsis {
        names: 1,
        required: &["--zone="],
        optional: &["--async"],
        ..Synopsis::new("compute tpus tpu-vm delete")
    },
    Synopsis {
        names: 1,
        required: &["--zone="],
        optional: &["--async", "--force"],
        ..Synopsis::new("compute tpus queued-resources delete")
    },
    Synopsis {
        names: 1,
        optional: &[
            "--command=",
            "--dry-run",
            "--force-key-file-overwrite",
            "--internal-ip",
            "--output-directory=",
            "--plain",
            "--ssh-flag=",
            "--ssh-key-expiration=",
            "--ssh-key-expire-after=",
            "--ssh-key-file=",
            "--strict-host-key-checking=",
            "--worker=",
            "--zone=",
        ],
        ..Synopsis::new("compute tpus tpu-vm ssh")
    },
    Synopsis {
        names: 1,
        required: &["--zone="],
        optional: &[
            "--add-tags=",
            "--async",
            "--attach-disk=",
            "--clear-labels",
            "--clear-tags",
            "--description=",
            "--detach-disk=",
            "--internal-ips",
            "--metadata-from-file=",
            "--remove-labels=",
            "--remove-tags=",
            "--update-labels=",
            "--update-metadata=",
        ],
        ..Synopsis::new("compute tpus tpu-vm update")
    },
    Synopsis {
        names: 1,
        required: &["--zone=", "--version="],
        optional: &[
            "--data-disk=",
            "--internal-ips",
            "--labels=",
            "--metadata-from-file=",
            "--network=",
            "--reserved",
            "--scopes=",
            "--service-account=",
            "--spot",
            "--subnetwork=",
        ],
        one_of: TYPE_FLAGS,
        choices: &[ALPHA_TYPES],
        ..Synopsis::new("alpha compute tpus tpu-vm create")
    },
    Synopsis {
        required: &["--service=", "--project="],
        optional: &["--filter=", "--limit=", "--page-size=", "--sort-by=", "--uri"],
        ..Synopsis::new("beta quotas info list")
    },
    Synopsis {
        optional: &["--filter=", "--limit=", "--page-size=", "--sort-by=", "--uri", "--zones="],
        ..Synopsis::new("compute instances list")
    },
    Synopsis {
        optional: &["--filter=", "--limit=", "--page-size=", "--sort-by=", "--uri"],
        ..Synopsis::new("compute addresses list")
    },
    Synopsis {
        optional: &["--filter=", "--limit=", "--page-size=", "--sort-by=", "--uri"],
        ..Synopsis::new("compute snapshots list")
    },
    Synopsis {
        optional: &["--filter=", "--limit=", "--page-size=", "--sort-by=", "--uri"],
        ..Synopsis::new("storage buckets list")
    },
    Synopsis {
        names: 1,
        required: &["--zone="],
        optional: &[
            "--description=",
            "--labels=",
            "--provisioned-iops=",
            "--provisioned-throughput=",
            "--size=",
            "--type=",
        ],
        ..Synopsis::new("compute disks create")
    },
    Synopsis { names: 1, required: &["--zone="], ..Synopsis::new("compute disks delete") },
    Synopsis {
        names: 1,
        required: &["--zone="],
        optional: &[
            "--boot-disk-size=",
            "--disk=",
            "--image-family=",
            "--image-project=",
            "--instance-termination-action=",
            "--labels=",
            "--machine-type=",
            "--max-run-duration=",
            "--provisioning-model=",
            "--scopes=",
        ],
        choices: &[
            ("--instance-termination-action=", &["DELETE", "STOP"]),
            ("--provisioning-model=", &["RESERVATION_BOUND", "SPOT", "STANDARD"]),
        ],
        ..Synopsis::new("compute instances create")
    },
    Synopsis { names: 1, required: &["--zone="], ..Synopsis::new("compute instances delete") },
    Synopsis { names: 1, optional: &["--command=", "--zone="], ..Synopsis::new("compute ssh") },
    Synopsis { names: 2, optional: &["--zone="], ..Synopsis::new("compute scp") },
];

const ALPHA_QUEUED_FLAGS: &[&str] = &[
    "--data-disk=",
    "--internal-ips",
    "--labels=",
    "--max-run-duration=",
    "--metadata-from-file=",
    "--network=",
    "--provisioning-model=",
    "--reserved",
    "--scopes=",
    "--service-account=",
    "--spot",
    "--subnetwork=",
    "--valid-until-duration=",
];

const QUEUED_FLAGS: &[&str] = &[
    "--async",
    "--data-disk=",
    "--description=",
    "--guaranteed",
    "--internal-ips",
    "--labels=",
    "--metadata=",
    "--metadata-from-file=",
    "--network=",
    "--range=",
    "--reserved",
    "--scopes=",
    "--service-account=",
    "--shielded-secure-boot",
    "--spot",
    "--subnetwork=",
    "--tags=",
    "--valid-after-duration=",
    "--valid-after-time=",
    "--valid-until-duration=",
    "--valid-until-time=",
];

/// A call that gcloud would accept.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) command: &'static str,
    pub(super) name: String,
    pub(super) flags: BTreeMap<String, Vec<String>>,
}

impl Call {
    pub(super) fn flag(&self, name: &str) -> &str {
        self.flags.get(name).map_or("", |values| &values[0])
    }

    /// Reads a command line as gcloud does.
    ///
    /// # Errors
    /// The message that gcloud prints.
    pub(super) fn parse(words: &[String]) -> Result<Call, String> {
        let count = words.iter().take_while(|word| !word.starts_with('-')).count();
        let plain = &words[..count];
        let matches = |synopsis: &&Synopsis| {
            let command = plain.len().checked_sub(synopsis.names).map(|end| plain[..end].join(" "));
            command.as_deref() == Some(synopsis.command)
        };
        let synopsis = COMMANDS
            .iter()
            .find(matches)
            .ok_or_else(|| format!("ERROR: (gcloud) Invalid choice: '{}'.", plain.join(" ")))?;
        let name = if synopsis.names > 0 { words[count - 1].clone() } else { String::new() };
        let mut flags: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for word in &words[count..] {
            let (flag, value) = match word.split_once('=') {
                Some((flag, value)) => (format!("{flag}="), value),
                None => (word.clone(), ""),
            };
            let mut known = GLOBAL_FLAGS.iter().copied().chain(synopsis.flags());
            if !known.any(|valid| valid == flag) {
                return Err(format!(
                    "ERROR: ({}) unrecognized arguments: {word}",
                    synopsis.command
                ));
            }
            if flag.ends_with('=') && value.is_empty() {
                return Err(format!("ERROR: argument {flag}: expected one argument"));
            }
            let choices = synopsis.choices.iter().find(|choices| choices.0 == flag);
            if choices.is_some_and(|choices| !choices.1.contains(&value)) {
                return Err(format!("ERROR: argument {flag}: Invalid choice: '{value}'."));
            }
            flags.entry(flag).or_default().push(value.to_owned());
        }
        let is_present = |flag: &&str| flags.contains_key(*flag);
        if let Some(missing) = synopsis.required.iter().find(|flag| !is_present(flag)) {
            return Err(format!("ERROR: argument {missing}: must be specified"));
        }
        let complete = synopsis.one_of.iter().filter(|set| set.iter().all(is_present)).count();
        let partial = synopsis.one_of.iter().filter(|set| set.iter().any(is_present)).count();
        if !synopsis.one_of.is_empty() && (complete, partial) != (1, 1) {
            return Err(format!(
                "ERROR: ({}) exactly one of the groups must be specified",
                synopsis.command
            ));
        }
        if let Some(repeated) = flags.iter().find(|(flag, values)| {
            values.len() > 1 && !["--data-disk=", "--disk="].contains(&flag.as_str())
        }) {
            return Err(format!("ERROR: argument {}: given twice", repeated.0));
        }
        let is_label = |label: &str| {
            label.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c))
        };
        for pair in
            ["--labels=", "--update-labels="].iter().filter_map(|flag| flags.get(*flag)).flatten()
        {
            for (key, value) in pair.split(',').filter_map(|pair| pair.split_once('=')) {
                if !is_label(key) || !is_label(value) || value.len() > 63 {
                    return Err(format!(
                        "ERROR: Only hyphens, underscores, lowercase characters and numbers: {value}"
                    ));
                }
            }
        }
        Ok(Call { command: synopsis.command, name, flags })
    }
}
