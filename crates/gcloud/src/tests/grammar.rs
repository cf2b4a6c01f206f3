//! The grammar of the gcloud commands in use, from the synopses of
//! docs.cloud.google.com/sdk/gcloud/reference in October 2025. A flag that ends with `=` takes a
//! value.

use std::collections::BTreeMap;

struct Synopsis {
    command: &'static str,
    /// Whether a name follows the command.
    has_name: bool,
    required: &'static [&'static str],
    optional: &'static [&'static str],
    /// A call has exactly one set of flags of each group.
    one_of: &'static [&'static [&'static str]],
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

const TYPE_FLAGS: &[&[&str]] = &[&["--accelerator-type="], &["--type=", "--topology="]];

const COMMANDS: &[Synopsis] = &[
    Synopsis {
        command: "compute tpus tpu-vm create",
        has_name: true,
        required: &["--zone=", "--version="],
        optional: &[
            "--async",
            "--boot-disk=",
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
    },
    Synopsis {
        command: "compute tpus queued-resources create",
        has_name: true,
        required: &["--zone=", "--runtime-version=", "--node-id="],
        optional: QUEUED_FLAGS,
        one_of: TYPE_FLAGS,
    },
    Synopsis {
        command: "alpha compute tpus queued-resources create",
        has_name: true,
        required: &[
            "--zone=",
            "--runtime-version=",
            "--node-id=",
            "--max-run-duration=",
            "--provisioning-model=",
        ],
        optional: QUEUED_FLAGS,
        one_of: TYPE_FLAGS,
    },
    Synopsis {
        command: "compute tpus tpu-vm list",
        has_name: false,
        required: &[],
        optional: LIST_FLAGS,
        one_of: &[],
    },
    Synopsis {
        command: "compute tpus queued-resources list",
        has_name: false,
        required: &[],
        optional: LIST_FLAGS,
        one_of: &[],
    },
    Synopsis {
        command: "compute disks list",
        has_name: false,
        required: &[],
        optional: &[
            "--filter=",
            "--limit=",
            "--page-size=",
            "--regexp=",
            "--sort-by=",
            "--uri",
            "--zones=",
        ],
        one_of: &[],
    },
    Synopsis {
        command: "quotas info list",
        has_name: false,
        required: &["--service=", "--project="],
        optional: &["--filter=", "--limit=", "--page-size=", "--sort-by=", "--uri"],
        one_of: &[],
    },
    Synopsis {
        command: "compute tpus tpu-vm describe",
        has_name: true,
        required: &["--zone="],
        optional: &[],
        one_of: &[],
    },
    Synopsis {
        command: "compute tpus tpu-vm delete",
        has_name: true,
        required: &["--zone="],
        optional: &["--async"],
        one_of: &[],
    },
    Synopsis {
        command: "compute tpus queued-resources delete",
        has_name: true,
        required: &["--zone="],
        optional: &["--async", "--force"],
        one_of: &[],
    },
    Synopsis {
        command: "compute tpus tpu-vm ssh",
        has_name: true,
        required: &[],
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
        one_of: &[],
    },
    Synopsis {
        command: "compute tpus tpu-vm update",
        has_name: true,
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
        one_of: &[],
    },
];

const QUEUED_FLAGS: &[&str] = &[
    "--async",
    "--boot-disk=",
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
        let plain = words[..count].join(" ");
        let matches = |synopsis: &&Synopsis| {
            let command = if synopsis.has_name {
                plain.rsplit_once(' ').map(|words| words.0)
            } else {
                Some(plain.as_str())
            };
            command == Some(synopsis.command)
        };
        let synopsis = COMMANDS.iter().find(matches).ok_or(format!("Invalid choice: '{plain}'"))?;
        let name = if synopsis.has_name { words[count - 1].clone() } else { String::new() };
        let mut flags: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for word in &words[count..] {
            let (flag, value) = match word.split_once('=') {
                Some((flag, value)) => (format!("{flag}="), value),
                None => (word.clone(), ""),
            };
            let flags_of_command = [GLOBAL_FLAGS, synopsis.required, synopsis.optional].concat();
            let alternatives = synopsis.one_of.iter().copied().flatten().copied();
            if !flags_of_command.into_iter().chain(alternatives).any(|valid| valid == flag) {
                return Err(format!(
                    "ERROR: ({}) unrecognized arguments: {word}",
                    synopsis.command
                ));
            }
            if flag.ends_with('=') && value.is_empty() {
                return Err(format!("ERROR: argument {flag}: expected one argument"));
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
        if let Some(repeated) =
            flags.iter().find(|(flag, values)| values.len() > 1 && *flag != "--data-disk=")
        {
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
