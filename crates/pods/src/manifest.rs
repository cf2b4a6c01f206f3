//! `pod manifest`: prints the file that starts a program on a cluster. The templates are in
//! `manifests`.

use std::io::Write;

use fulmen_durable::messages::public_command;
use fulmen_gcloud::quote;
use fulmen_preflight::Slice;
use serde_json::{Value, json};

use crate::arguments::{Kind, Manifest};
use crate::outcome::EX_TEMPFAIL;
use crate::plan::{PORT, environment};
use crate::{Error, Result};

const JOBSET: &str = include_str!("manifests/jobset.yaml");
const RAY: &str = include_str!("manifests/ray.py");
const SKYPILOT: &str = include_str!("manifests/skypilot.yaml");

/// Kubernetes limits the name of a pod to 63 characters, and JobSet appends to it.
const MAX_NAME_LENGTH: usize = 40;

/// The hosts of a slice, according to Google's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hosts {
    count: usize,
    chips: usize,
}

pub(crate) fn print(arguments: &Manifest, out: &mut dyn Write) -> Result<u8> {
    let text = manifest(arguments)?;
    if let Some(warning) = secrets_warning(&arguments.command) {
        // A closed terminal must not prevent the manifest.
        let _ = writeln!(std::io::stderr(), "{warning}");
    }
    out.write_all(text.as_bytes()).map_err(|e| Error::new(format!("standard output: {e}")))?;
    Ok(0)
}

fn manifest(arguments: &Manifest) -> Result<String> {
    let Manifest { kind, name, programs, max_restarts, .. } = arguments;
    check_name(name)?;
    if *programs == 0 || (*programs > 1 && *kind != Kind::Ray) {
        return Err(Error::usage(format!(
            "--programs {programs}: Ray starts one or more independent programs; for the other kinds, print one manifest for each program"
        )));
    }
    let hosts = arguments.topology.as_ref().map_or(Hosts { count: 1, chips: 0 }, Hosts::from_slice);
    let mut values = vec![
        ("name", name.clone()),
        ("slice", arguments.topology.as_ref().map(Slice::to_string).unwrap_or_default()),
        ("hosts", hosts.count.to_string()),
        ("chips", hosts.chips.to_string()),
        ("max_restarts", max_restarts.to_string()),
        ("port", PORT.to_string()),
    ];
    let variables = environment(&arguments.env)?;
    let template = match (kind, &arguments.topology) {
        (Kind::Jobset, Some(slice)) => {
            values.extend(jobset(arguments, slice, hosts, variables)?);
            JOBSET
        }
        (Kind::Skypilot, Some(slice)) => {
            values.extend(skypilot(arguments, slice, hosts, variables)?);
            SKYPILOT
        }
        _ => {
            values.extend(ray(arguments, hosts, variables));
            RAY
        }
    };
    Ok(fill_template(template, &values))
}

/// The warning about words of the command that may be secret. They stay in the manifest: a program
/// needs them, and some names only look like those of secrets.
fn secrets_warning(command: &[String]) -> Option<String> {
    let mut names: Vec<&str> = Vec::new();
    let mut before = "";
    for (word, shown) in command.iter().zip(public_command(command.iter().cloned())) {
        if *word != shown {
            let name = word.split_once('=').map_or(before, |(name, _)| name);
            names.push(if name.starts_with('-') { name } else { "a URL with a password" });
        }
        before = word;
    }
    let names = names.join(", ");
    (!names.is_empty()).then(|| {
        format!(
            "warning: the manifest has the command as it is, with {names} in plain text. If that is a secret, leave it out of \
             the command, and give it to the program in an environment variable from the cluster's secrets"
        )
    })
}

type Values = Vec<(&'static str, String)>;

fn jobset(
    arguments: &Manifest,
    slice: &Slice,
    hosts: Hosts,
    variables: Vec<(String, String)>,
) -> Result<Values> {
    let Manifest { name, image, command, .. } = arguments;
    let accelerator = match slice.generation().name {
        "v3" if hosts.count == 1 => "tpu-v3-device",
        "v3" => "tpu-v3-slice",
        "v4" => "tpu-v4-podslice",
        "v5e" => "tpu-v5-lite-podslice",
        "v5p" => "tpu-v5p-slice",
        "v6e" => "tpu-v6e-slice",
        "tpu7x" => "tpu7x",
        other => return Err(Error::usage(format!("--topology {slice}: GKE has no {other}"))),
    };
    let coordinator = if hosts.count == 1 {
        "127.0.0.1:0".into()
    } else {
        format!("{name}-workers-0-0.{name}:{PORT}")
    };
    let fixed = [
        ("FULMEN_COORDINATOR", coordinator),
        ("FULMEN_NUM_PROCESSES", hosts.count.to_string()),
        ("FULMEN_RUN_ID", name.clone()),
        ("FULMEN_RESUME", "auto".into()),
    ];
    let variables =
        fixed.into_iter().map(|(name, value)| (name.to_owned(), value)).chain(variables);
    let lines = variables.map(|(name, value)| {
        let value = json!(escape_dollar(&value));
        format!("{0}- name: {name}\n{0}  value: {value}", " ".repeat(20))
    });
    // With several processes, one that lost another exits with 1.
    let (restart_codes, note) = match hosts.count {
        1 => (EX_TEMPFAIL.to_string(), ""),
        _ => (format!("1, {EX_TEMPFAIL}"), " or 1 (the exit code of a process that lost another)"),
    };
    let (_, topology) = slice.name().split_once(':').unwrap_or_default();
    Ok(vec![
        ("accelerator", accelerator.into()),
        ("topology", topology.into()),
        ("image", json!(image).to_string()),
        ("command", command.iter().map(|word| escape_dollar(word)).collect::<Value>().to_string()),
        ("environment", lines.collect::<Vec<_>>().join("\n")),
        ("restart_codes", restart_codes),
        ("restart_codes_note", note.into()),
    ])
}

fn skypilot(
    arguments: &Manifest,
    slice: &Slice,
    hosts: Hosts,
    variables: Vec<(String, String)>,
) -> Result<Values> {
    let Manifest { name, command, max_restarts, .. } = arguments;
    let accelerator_type = slice.accelerator_type().ok_or_else(|| {
        Error::usage(format!(
            "--topology {slice}: SkyPilot supports only slices with the usual shapes, such as v5p-128"
        ))
    })?;
    let fixed = [("FULMEN_RESUME".into(), "auto".into()), ("FULMEN_RUN_ID".into(), name.clone())];
    let variables = fixed
        .into_iter()
        .chain(variables)
        .map(|(name, value)| format!("  {name}: {}", json!(value)));
    // An argument of several lines stays one: YAML strips the indentation of each line.
    let words = command[1..].iter().map(|word| quote(word).replace('\n', "\n  "));
    let program = format!("~/fulmen/{name}");
    // With several processes, one that lost another exits with 1.
    let (errors, note) = match hosts.count {
        1 => (0, String::new()),
        _ => (*max_restarts, format!(", and {max_restarts} times after any other failure")),
    };
    Ok(vec![
        ("accelerator", format!("tpu-{accelerator_type}")),
        ("program", json!(command[0]).to_string()),
        ("command", std::iter::once(program).chain(words).collect::<Vec<_>>().join(" ")),
        ("environment", variables.collect::<Vec<_>>().join("\n")),
        ("errors", errors.to_string()),
        ("errors_note", note),
    ])
}

/// Python can read strings, arrays and objects in JSON notation.
fn ray(arguments: &Manifest, hosts: Hosts, variables: Vec<(String, String)>) -> Values {
    let environment: Value = variables
        .into_iter()
        .map(|(name, value)| (name, Value::from(value)))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let resources =
        if arguments.topology.is_some() { json!({ "TPU": hosts.chips }) } else { json!({}) };
    vec![
        ("python_name", json!(arguments.name).to_string()),
        ("command", json!(arguments.command).to_string()),
        ("environment", environment.to_string()),
        ("programs", arguments.programs.to_string()),
        ("resources", resources.to_string()),
    ]
}

impl Hosts {
    /// Up to eight chips of a generation with two axes share a host; otherwise four do.
    fn from_slice(slice: &Slice) -> Hosts {
        let (total, generation) = (slice.num_chips(), slice.generation());
        let max_per_host = if matches!(generation.name, "v5e" | "v6e") { 8 } else { 4 };
        let chips = if total <= max_per_host { total } else { 4 };
        Hosts { count: total.div_ceil(chips), chips }
    }
}

fn check_name(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let starts = name.starts_with(|c: char| c.is_ascii_lowercase());
    if starts && name.len() <= MAX_NAME_LENGTH && !name.ends_with('-') && name.chars().all(plain) {
        return Ok(());
    }
    Err(Error::usage(format!(
        "--name: `{name}` is not a valid Kubernetes name; use up to {MAX_NAME_LENGTH} lowercase letters, digits and -, with a letter \
         first and no - last"
    )))
}

/// Kubernetes replaces `$(NAME)` by the value of a variable.
fn escape_dollar(text: &str) -> String {
    text.replace("$(", "$$(")
}

/// Replaces `{{key}}` by its value.
fn fill_template(template: &str, values: &[(&str, String)]) -> String {
    let mut parts = template.split("{{");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (key, rest) = part.split_once("}}").unwrap_or((part, ""));
        text.extend(values.iter().filter(|value| value.0 == key).map(|value| value.1.as_str()));
        text += rest;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(arguments: &[&str]) -> Result<String> {
        let words =
            [&["manifest"], arguments, &["--", "./train", "fit", "it's $(HOME) {index}"]].concat();
        let mut out = Vec::new();
        crate::run(crate::tests::hosts::parse(&words), &mut out, || Err(Error::new("no signals")))?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn every_key_of_a_template_has_a_value() {
        let slice: Slice = "v5e:4x4".parse().unwrap();
        let keys = |template: &'static str| -> Vec<&str> {
            template.split("{{").skip(1).map(|part| part.split_once("}}").unwrap().0).collect()
        };
        for (kind, template) in [("jobset", JOBSET), ("ray", RAY), ("skypilot", SKYPILOT)] {
            let text =
                print(&["--kind", kind, "--topology", slice.name(), "--image", "a/b"]).unwrap();
            assert!(!keys(template).is_empty() && !text.contains("{{"), "{text}");
        }
    }

    #[test]
    fn words_that_may_be_secret_are_named_without_their_values() {
        let warning = |words: &[&str]| {
            secrets_warning(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>())
        };
        let text = warning(&[
            "./train",
            "--hub-token=hf_x",
            "--api-key",
            "k3y",
            "http://me:pw@host/data",
            "--seed",
            "3",
        ]);
        let text = text.unwrap();
        let named = "with --hub-token, --api-key, a URL with a password in plain text";
        assert!(text.starts_with("warning: ") && text.contains(named), "{text}");
        assert!(["hf_x", "k3y", "pw@", "--seed"].iter().all(|word| !text.contains(word)), "{text}");
        assert_eq!(warning(&["./train", "--seed", "3", "token"]), None);
    }

    #[test]
    fn a_jobset_selects_the_slice_and_restarts_after_75() {
        let text = print(&[
            "--kind",
            "jobset",
            "--topology",
            "v5p-32",
            "--image",
            "a/b:1",
            "--env",
            "X=a: b",
        ])
        .unwrap();
        for expected in [
            "gke-tpu-accelerator: tpu-v5p-slice\n",
            "gke-tpu-topology: 2x2x4\n",
            "google.com/tpu: 4\n",
            "completions: 4\n",
            "values: [1, 75]\n",
            r#"value: "train-workers-0-0.train:8482""#,
            r#"command: ["./train","fit","it's $$(HOME) {index}"]"#,
            "- name: X\n                      value: \"a: b\"\n",
        ] {
            assert!(text.contains(expected), "{expected}:\n{text}");
        }
        let single_host =
            print(&["--kind", "jobset", "--topology", "v6e:2x4", "--image", "a/b:1"]).unwrap();
        assert!(
            single_host.contains("values: [75]\n") && single_host.contains("google.com/tpu: 8\n"),
            "{single_host}"
        );
    }

    #[test]
    fn skypilot_gets_the_accelerator_type_and_a_shell_command() {
        let text =
            print(&["--kind", "skypilot", "--topology", "v5e:4x4", "--max-restarts", "5"]).unwrap();
        for expected in [
            "accelerators: tpu-v5litepod-16\n",
            "max_restarts_on_errors: 5\n",
            "recover_on_exit_codes: [75]\n",
            "exec ~/fulmen/train fit 'it'\\''s $(HOME) {index}'\n",
        ] {
            assert!(text.contains(expected), "{expected}:\n{text}");
        }
    }

    #[test]
    fn invalid_arguments_are_refused() {
        let check = |arguments: &[&str], expected: &str| {
            let error = print(arguments).unwrap_err();
            assert!(error.is_usage() && error.to_string().contains(expected), "{error}");
        };
        check(&["--kind", "ray", "--name", "Train"], "`Train` is not a valid Kubernetes name");
        check(&["--kind", "jobset", "--topology", "v2-8", "--image", "a"], "GKE has no v2");
        check(
            &["--kind", "skypilot", "--topology", "v5p:4x4x12"],
            "only slices with the usual shapes",
        );
        check(
            &["--kind", "skypilot", "--topology", "v5e-8", "--programs", "2"],
            "print one manifest for each program",
        );
    }
}
