//! `pod manifest`: prints the file that starts a program on a cluster. The templates are in
//! `manifests`.

use std::io::Write;

use fulmen_durable::messages::{public_command, quote};
use fulmen_tpu::Slice;
use serde_json::{Value, json};

use crate::arguments::{Jobset, Kind, Manifest};
use crate::libtpu::{Libtpu, LibtpuOption, Source};
use crate::outcome::{CRASHES, EX_TEMPFAIL, WRONG_COMMAND};
use crate::plan::{PORT, environment};
use crate::ssh::LIBTPU;
use crate::{Error, Result};

const JOBSET: &str = include_str!("manifests/jobset.yaml");
const RAY: &str = include_str!("manifests/ray.py");
const SKYPILOT: &str = include_str!("manifests/skypilot.yaml");

/// The image with bash, gzip and pip that puts libtpu into the volume of a pod. It is an official
/// one of Docker.
const DOWNLOAD_IMAGE: &str = "python:3.13-slim-bookworm";

/// The folder of that volume.
const LIBTPU_FOLDER: &str = "/libtpu";

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
    if *kind != Kind::Jobset {
        check_not_jobset(&arguments.jobset)?;
        if let Some(slice) = arguments.topology.as_ref().filter(|slice| slice.num_slices() > 1) {
            return Err(Error::usage(format!(
                "--topology {slice}: only --kind jobset starts several slices"
            )));
        }
    }
    let hosts = arguments.topology.as_ref().map_or(Hosts { count: 1, chips: 0 }, Hosts::from_slice);
    let mut values = vec![
        ("name", name.clone()),
        ("slice", arguments.topology.as_ref().map(Slice::to_string).unwrap_or_default()),
        ("slice_words", arguments.topology.as_ref().map(slice_words).unwrap_or_default()),
        ("slices", arguments.topology.as_ref().map_or(1, Slice::num_slices).to_string()),
        ("hosts", hosts.count.to_string()),
        ("chips", hosts.chips.to_string()),
        ("max_restarts", max_restarts.to_string()),
        ("port", PORT.to_string()),
        ("temporary", EX_TEMPFAIL.to_string()),
        ("crashes", listed(&CRASHES, ", ")),
        ("wrong_command", listed(&WRONG_COMMAND, ", ")),
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

/// The slices of a run, for a comment.
fn slice_words(slice: &Slice) -> String {
    match slice.name().split_once('*') {
        None => format!("a slice {slice}"),
        Some((count, name)) => format!("{count} slices {name}"),
    }
}

type Values = Vec<(&'static str, String)>;

/// Exit codes as text.
fn listed(codes: &[u8], separator: &str) -> String {
    codes.iter().map(u8::to_string).collect::<Vec<_>>().join(separator)
}

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
    let libtpu = Libtpu::new(arguments.libtpu.clone());
    // Another user of the pod may not enter the folder of the link.
    let version = &libtpu.wheel.version;
    let file = format!("{LIBTPU_FOLDER}/.cache/fulmen/pjrt/libtpu-{version}/libtpu.so");
    let mut fixed = processes(name, hosts, slice.num_slices());
    fixed.push(("FULMEN_RUN_ID".into(), PodValue::Text(name.clone())));
    fixed.push(("FULMEN_RESUME".into(), PodValue::Text("auto".into())));
    let texts = |values: Vec<(String, String)>| {
        values.into_iter().map(|(name, value)| (name, PodValue::Text(value))).collect::<Vec<_>>()
    };
    fixed.extend(texts(tpu_variables(&libtpu, &file)));
    let environment = merged(fixed, texts(variables));
    let lines: Vec<String> =
        environment.iter().map(|(name, value)| variable_lines(name, value)).collect();
    let pods = hosts.count * slice.num_slices();
    // With several processes, one that lost another may exit with 1, if it has a command line of its
    // own.
    let (lost, note) = match pods {
        1 => ("", ""),
        _ => ("1, ", " or 1 (some programs exit with it after they lost another process)"),
    };
    // As `pod run --max-restarts` does. Kubernetes ends the other pods of a failed run by SIGTERM: one
    // that has not handled it has 143, the last of them.
    let restart_codes = format!("{lost}{EX_TEMPFAIL}, {}", listed(&CRASHES, ", "));
    let (_, topology) = slice.name().split_once(':').unwrap_or_default();
    let mut values = settings(&arguments.jobset, &libtpu)?;
    values.extend([
        ("accelerator", accelerator.into()),
        ("topology", topology.into()),
        ("image", json!(image).to_string()),
        ("command", command.iter().map(|word| escape_dollar(word)).collect::<Value>().to_string()),
        ("environment", lines.join("\n")),
        ("pods", pods.to_string()),
        ("restart_codes", restart_codes),
        ("restart_codes_note", note.into()),
        ("libtpu_note", libtpu_note(&libtpu)),
    ]);
    Ok(values)
}

/// The value of a variable of a pod.
enum PodValue {
    Text(String),
    /// A field of the pod.
    Field(&'static str),
}

/// The index of a pod among those of its slice.
const POD_INDEX: PodValue =
    PodValue::Field("metadata.annotations['batch.kubernetes.io/job-completion-index']");

/// The index of a pod's slice.
const SLICE_INDEX: PodValue = PodValue::Field("metadata.labels['jobset.sigs.k8s.io/job-index']");

/// The variables that tell a pod its place in the run.
///
/// A pod of several slices cannot compute its number among all: libtpu's variables have the parts.
/// Google Kubernetes Engine sets those of the slice, `TPU_WORKER_ID` and `TPU_WORKER_HOSTNAMES`.
fn processes(name: &str, hosts: Hosts, slices: usize) -> Vec<(String, PodValue)> {
    let first = format!("{name}-workers-0-0.{name}");
    let variables = if slices > 1 {
        vec![
            ("MEGASCALE_NUM_SLICES", PodValue::Text(slices.to_string())),
            ("MEGASCALE_SLICE_ID", SLICE_INDEX),
            ("MEGASCALE_COORDINATOR_ADDRESS", PodValue::Text(first)),
        ]
    } else {
        let coordinator =
            if hosts.count == 1 { "127.0.0.1:0".into() } else { format!("{first}:{PORT}") };
        vec![
            ("FULMEN_PROCESS_ID", POD_INDEX),
            ("FULMEN_COORDINATOR", PodValue::Text(coordinator)),
            ("FULMEN_NUM_PROCESSES", PodValue::Text(hosts.count.to_string())),
        ]
    };
    variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The lines of a variable in the list `env` of a container.
fn variable_lines(name: &str, value: &PodValue) -> String {
    let indent = " ".repeat(20);
    match value {
        PodValue::Text(text) => {
            let value = json!(escape_dollar(text));
            format!("{indent}- name: {name}\n{indent}  value: {value}")
        }
        PodValue::Field(path) => format!(
            "{indent}- name: {name}\n{indent}  valueFrom:\n{indent}    fieldRef:\n{indent}      fieldPath: {path}"
        ),
    }
}

/// Variables for a program. Those of the user replace others of the same name.
fn merged<T>(fixed: Vec<(String, T)>, users: Vec<(String, T)>) -> Vec<(String, T)> {
    let is_users = |name: &String| users.iter().any(|(other, _)| other == name);
    let mut variables: Vec<_> = fixed.into_iter().filter(|(name, _)| !is_users(name)).collect();
    variables.extend(users);
    variables
}

/// The variables of a program that must run on TPUs. An installed library has the path `installed`.
fn tpu_variables(libtpu: &Libtpu, installed: &str) -> Vec<(String, String)> {
    let path = match &libtpu.option {
        LibtpuOption::Install => Some(installed.to_owned()),
        LibtpuOption::None => None,
        LibtpuOption::OnHost(path) => Some(path.clone()),
    };
    let path = path.map(|path| ("TPU_LIBRARY_PATH".to_owned(), path));
    [("FULMEN_ACCELERATOR".to_owned(), "tpu".to_owned())].into_iter().chain(path).collect()
}

/// The words of a command that installs libtpu on the machine that runs it, or checks the one that
/// is there.
fn libtpu_words(libtpu: &Libtpu) -> Option<Vec<String>> {
    let arguments = libtpu.script_arguments(Source::Alone)?;
    let shell = ["bash".to_owned(), "-c".to_owned(), LIBTPU.short_text(), "libtpu".to_owned()];
    Some(shell.into_iter().chain(arguments).collect())
}

/// A line of a manifest, which begins with a new line.
fn line(indent: usize, key: &str, value: &str) -> String {
    format!("\n{}{key}: {}", " ".repeat(indent), json!(value))
}

/// What a JobSet's comment says about libtpu.
fn libtpu_note(libtpu: &Libtpu) -> String {
    if libtpu.option != LibtpuOption::Install {
        return String::new();
    }
    let version = &libtpu.wheel.version;
    format!(
        "\n#\n# In each pod, the container `libtpu` first downloads libtpu {version} and checks its SHA-256, so the pods need a way to \
         PyPI.\n# If your image has a libtpu, print the manifest with --libtpu PATH."
    )
}

/// The container that runs before the program's and puts libtpu into a volume that both see.
fn libtpu_container(libtpu: &Libtpu) -> String {
    let words = libtpu_words(libtpu).unwrap_or_default();
    let command: Value = words.iter().map(|word| escape_dollar(word)).collect();
    let mut text = "\n              initContainers:\n                - name: libtpu".to_owned();
    text += &line(18, "image", DOWNLOAD_IMAGE);
    text += &format!("\n{}command: {command}", " ".repeat(18));
    text += "\n                  env:\n                    - name: HOME";
    text += &line(22, "value", LIBTPU_FOLDER);
    text += "\n                  volumeMounts:\n                    - name: libtpu";
    text + &line(22, "mountPath", LIBTPU_FOLDER)
}

/// The parts of a JobSet that its own options add. Each begins with a new line.
fn settings(jobset: &Jobset, libtpu: &Libtpu) -> Result<Values> {
    let is_installed = libtpu.option == LibtpuOption::Install;
    let optional = |indent, key, value: &Option<String>| {
        value.as_ref().map_or_else(String::new, |value| line(indent, key, value))
    };
    let queue = optional(4, "kueue.x-k8s.io/queue-name", &jobset.queue);
    let labels = if queue.is_empty() { queue } else { format!("\n  labels:{queue}") };
    let mut pod_settings = optional(14, "serviceAccountName", &jobset.service_account);
    pod_settings += &optional(14, "priorityClassName", &jobset.priority_class);
    let mut node_selectors = optional(16, "cloud.google.com/reservation-name", &jobset.reservation);
    if jobset.spot {
        node_selectors += &line(16, "cloud.google.com/gke-spot", "true");
    }
    let mut pod_annotations = String::new();
    let mut mounts = String::new();
    if !jobset.bucket.is_empty() {
        pod_annotations = format!(
            "\n            metadata:\n              annotations:{}",
            line(16, "gke-gcsfuse/volumes", "true")
        );
    }
    if is_installed {
        pod_settings += &libtpu_container(libtpu);
    }
    if is_installed || !jobset.bucket.is_empty() {
        pod_settings += "\n              volumes:";
        mounts = "\n                  volumeMounts:".to_owned();
    }
    if is_installed {
        pod_settings += "\n                - name: libtpu\n                  emptyDir: {}";
        mounts += "\n                    - name: libtpu";
        mounts += &line(22, "mountPath", LIBTPU_FOLDER);
    }
    for (i, bucket) in jobset.bucket.iter().enumerate() {
        let folder = bucket.split_once('=').filter(|(name, folder)| {
            !name.is_empty() && !name.contains('/') && folder.starts_with('/')
        });
        let Some((bucket, folder)) = folder else {
            return Err(Error::usage(format!(
                "--bucket {bucket}: expected BUCKET=FOLDER with an absolute folder, such as runs=/runs"
            )));
        };
        let volume = format!("bucket-{i}");
        pod_settings += &format!("\n                - name: {volume}\n                  csi:");
        pod_settings += &line(20, "driver", "gcsfuse.csi.storage.gke.io");
        pod_settings += "\n                    volumeAttributes:";
        pod_settings += &line(22, "bucketName", bucket);
        // Folders that were made by other programs have no object of their own.
        pod_settings += &line(22, "mountOptions", "implicit-dirs");
        mounts += &format!("\n                    - name: {volume}");
        mounts += &line(22, "mountPath", folder);
    }
    Ok(vec![
        ("labels", labels),
        ("pod_annotations", pod_annotations),
        ("pod_settings", pod_settings),
        ("node_selectors", node_selectors),
        ("mounts", mounts),
    ])
}

/// The options of a JobSet mean nothing to the other kinds.
fn check_not_jobset(jobset: &Jobset) -> Result<()> {
    let options = [
        ("--queue", jobset.queue.is_some()),
        ("--priority-class", jobset.priority_class.is_some()),
        ("--service-account", jobset.service_account.is_some()),
        ("--spot", jobset.spot),
        ("--reservation", jobset.reservation.is_some()),
        ("--bucket", !jobset.bucket.is_empty()),
    ];
    match options.iter().find(|(_, is_given)| *is_given) {
        Some((name, _)) => Err(Error::usage(format!("{name}: only --kind jobset has it"))),
        None => Ok(()),
    }
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
    let libtpu = Libtpu::new(arguments.libtpu.clone());
    let fixed = vec![
        ("FULMEN_RESUME".into(), "auto".into()),
        ("FULMEN_RUN_ID".into(), name.clone()),
        ("FULMEN_ACCELERATOR".into(), "tpu".into()),
    ];
    // SkyPilot expands no variable in `envs`, so the script names the library.
    let is_users = variables.iter().any(|(name, _)| name == "TPU_LIBRARY_PATH");
    let path = libtpu.path().filter(|_| !is_users).map(|path| match &libtpu.option {
        LibtpuOption::Install => format!("$HOME/.fulmen/pods/{path}"),
        LibtpuOption::None | LibtpuOption::OnHost(_) => quote(&path),
    });
    let library =
        path.map_or_else(String::new, |path| format!("\n  export TPU_LIBRARY_PATH={path}"));
    let setup = libtpu_words(&libtpu).map_or_else(String::new, |words| {
        let words: Vec<String> =
            words.iter().map(|word| quote(word).replace('\n', "\n  ")).collect();
        format!("\nsetup: |\n  {}", words.join(" "))
    });
    let variables = merged(fixed, variables)
        .into_iter()
        .map(|(name, value)| format!("  {name}: {}", json!(value)));
    // An argument of several lines stays one: YAML strips the indentation of each line.
    let words = command[1..].iter().map(|word| quote(word).replace('\n', "\n  "));
    let program = format!("~/fulmen/{name}");
    let line = std::iter::once(program).chain(words).collect::<Vec<_>>().join(" ");
    // With several processes, one that lost another may exit with 1, if it has a command line of its
    // own. SkyPilot then ends the others and reports 137 for them.
    let several = hosts.count > 1;
    let errors = if several { *max_restarts } else { 0 };
    let note = if several {
        format!("and, at most {max_restarts} times, after any other failure")
    } else {
        let crashes = listed(&CRASHES, ", ");
        format!("and, at most {max_restarts} times on the same host, after a crash ({crashes})")
    };
    let run = if several {
        format!("exec {line}")
    } else {
        restarted_after_crashes(&line, *max_restarts)
    };
    Ok(vec![
        ("accelerator", format!("tpu-{accelerator_type}")),
        ("program", json!(command[0]).to_string()),
        ("run", run),
        ("environment", variables.collect::<Vec<_>>().join("\n")),
        ("errors", errors.to_string()),
        ("errors_note", note),
        ("setup", setup),
        ("library", library),
    ])
}

/// Lines of a script that start a command again if it crashes. SkyPilot does not limit how often it
/// recovers after the codes of `recover_on_exit_codes`, so a program that always crashes would never
/// end if crashes were among them.
fn restarted_after_crashes(command: &str, max_restarts: u32) -> String {
    let crashes = listed(&CRASHES, "|");
    let lines = [
        "restarts=0".to_owned(),
        "while true; do".to_owned(),
        "  code=0".to_owned(),
        format!("  {command} || code=$?"),
        format!("  case $code in {crashes}) ;; *) exit $code ;; esac"),
        format!("  [ $restarts -lt {max_restarts} ] || exit $code"),
        "  restarts=$((restarts + 1))".to_owned(),
        format!(
            "  echo \"the program crashed with exit code $code; restart $restarts of {max_restarts}\" >&2"
        ),
        "done".to_owned(),
    ];
    lines.join("\n  ")
}

/// Python can read strings, arrays and objects in JSON notation.
fn ray(arguments: &Manifest, hosts: Hosts, variables: Vec<(String, String)>) -> Values {
    let libtpu = arguments.topology.as_ref().map(|_| Libtpu::new(arguments.libtpu.clone()));
    let accelerator = libtpu.is_some().then(|| ("FULMEN_ACCELERATOR".into(), "tpu".into()));
    let install = libtpu.as_ref().and_then(libtpu_words).unwrap_or_default();
    let environment: Value = merged(accelerator.into_iter().collect(), variables)
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
        ("install", json!(install).to_string()),
    ]
}

impl Hosts {
    /// The hosts of one slice.
    fn from_slice(slice: &Slice) -> Hosts {
        let chips = slice.num_chips() / slice.num_slices();
        let chips_of_host = chips.min(slice.host().chips);
        Hosts { count: slice.num_hosts() / slice.num_slices(), chips: chips_of_host }
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
    use crate::libtpu_wheel::LibtpuWheel;
    use crate::outcome::{End, outcome};
    use crate::tests::PROVIDERS;

    fn print(arguments: &[&str]) -> Result<String> {
        let words =
            [&["manifest"], arguments, &["--", "./train", "fit", "it's $(HOME) {index}"]].concat();
        let mut out = Vec::new();
        let pod = crate::tests::hosts::parse(&words);
        crate::run(pod, PROVIDERS, &mut out, || Err(Error::new("no signals")))?;
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
            "values: [1, 75, 132, 134, 135, 136, 137, 139, 143]\n",
            r#"value: "train-workers-0-0.train:8482""#,
            r#"command: ["./train","fit","it's $$(HOME) {index}"]"#,
            "- name: X\n                      value: \"a: b\"\n",
        ] {
            assert!(text.contains(expected), "{expected}:\n{text}");
        }
        let single_host =
            print(&["--kind", "jobset", "--topology", "v6e:2x4", "--image", "a/b:1"]).unwrap();
        assert!(
            single_host.contains("values: [75, 132, 134, 135, 136, 137, 139, 143]\n")
                && single_host.contains("google.com/tpu: 8\n"),
            "{single_host}"
        );
    }

    /// The numbers between the first brackets after `before`.
    fn numbers(text: &str, before: &str) -> Vec<u8> {
        let (_, rest) = text.split_once(before).unwrap();
        let (_, rest) = rest.split_once('[').unwrap();
        let (list, _) = rest.split_once(']').unwrap();
        list.split(", ").map(|number| number.parse().unwrap()).collect()
    }

    /// The exit codes after which `pod run` restarts a run.
    fn restarted_by_pod_run() -> Vec<u8> {
        let restarts =
            |code: &u8| outcome(&[(0, End::exited(*code, false))], None, |_| String::new()).restart;
        (1..=u8::MAX).filter(restarts).collect()
    }

    #[test]
    fn jobsets_and_ray_restart_after_the_exit_codes_after_which_pod_run_does() {
        let jobset = |topology: &str| {
            let arguments = ["--kind", "jobset", "--topology", topology, "--image", "a/b:1"];
            numbers(&print(&arguments).unwrap(), "operator: NotIn\n")
        };
        let mut expected = restarted_by_pod_run();
        assert_eq!(jobset("v6e:2x4"), expected);
        let ray = print(&["--kind", "ray"]).unwrap();
        let temporary = format!("\nTEMPORARY = {EX_TEMPFAIL} ");
        assert!(ray.contains(&temporary), "{ray}");
        let crashes = numbers(&ray, "\nCRASHES = ");
        assert_eq!([vec![EX_TEMPFAIL], crashes].concat(), expected);
        assert_eq!(numbers(&ray, "\nWRONG_COMMAND = "), WRONG_COMMAND);
        // A program with a command line of its own may have lost another process.
        expected.insert(0, 1);
        assert_eq!(jobset("v5p-32"), expected);
    }

    /// The script of a SkyPilot task, and the exit codes after which SkyPilot always restarts it.
    fn skypilot_task(topology: &str) -> (String, Vec<u8>) {
        let arguments = ["--kind", "skypilot", "--topology", topology, "--max-restarts", "2"];
        let text = print(&arguments).unwrap();
        let (_, script) = text.split_once("\nrun: |\n").unwrap();
        (script.replace("\n  ", "\n"), numbers(&text, "recover_on_exit_codes: "))
    }

    #[test]
    fn skypilot_restarts_after_the_exit_codes_after_which_pod_run_does() {
        let home = tempfile::tempdir().unwrap();
        let starts = home.path().join("starts");
        std::fs::create_dir(home.path().join("fulmen")).unwrap();
        // The program is bash, and its first argument the name of its script.
        std::os::unix::fs::symlink("/bin/bash", home.path().join("fulmen/train")).unwrap();
        std::fs::write(home.path().join("fit"), "echo >>starts\nexit $CODE\n").unwrap();
        let starts_and_end = |script: &str, code: u8| {
            std::fs::write(&starts, "").unwrap();
            let mut bash = std::process::Command::new("bash");
            bash.args(["-c", script]).current_dir(home.path()).env("HOME", home.path());
            bash.env("SKYPILOT_NODE_IPS", "10.0.0.1").env("CODE", code.to_string());
            let output = bash.output().unwrap();
            let starts = std::fs::read_to_string(&starts).unwrap().lines().count();
            (starts, output.status.code())
        };
        let (script, always) = skypilot_task("v6e:2x4");
        assert_eq!(always, [EX_TEMPFAIL]);
        let restarted = restarted_by_pod_run();
        for code in 0..=u8::MAX {
            let is_crash = restarted.contains(&code) && !always.contains(&code);
            let expected_starts = if is_crash { 3 } else { 1 };
            let expected = (expected_starts, Some(i32::from(code)));
            assert_eq!(starts_and_end(&script, code), expected, "exit code {code}");
        }
        // SkyPilot counts the restarts of several hosts: it starts all of them again. It reports 137 for
        // hosts that it ended, so that code must not restart a run without a limit.
        let (script, always) = skypilot_task("v5e:4x4");
        assert_eq!(always, [EX_TEMPFAIL]);
        assert_eq!(starts_and_end(&script, 134), (1, Some(134)));
    }

    /// The value of a variable in a JobSet; for a field of the pod, its path.
    fn value(jobset: &str, name: &str) -> Option<String> {
        let (_, rest) = jobset.split_once(&format!("- name: {name}\n"))?;
        let (_, rest) = rest.split_once("value")?;
        let line =
            if rest.starts_with("From") { rest.lines().nth(2)? } else { rest.lines().next()? };
        Some(line.split_once(": ")?.1.trim_matches('"').to_owned())
    }

    #[test]
    fn the_pods_of_several_slices_are_counted_slice_by_slice() {
        for (topology, slices, hosts, chips) in [("2*v5e:4x4", 2, 4, 4), ("3*v6e:2x4", 3, 1, 8)] {
            let arguments = ["--kind", "jobset", "--topology", topology, "--image", "a/b"];
            let text = print(&arguments).unwrap();
            let (_, single) = topology.split_once('*').unwrap();
            for expected in [
                format!("# One run on {slices} slices {single} of TPUs: {} pods", slices * hosts),
                format!("      replicas: {slices}\n"),
                format!("          completions: {hosts}\n          parallelism: {hosts}\n"),
                format!("google.com/tpu: {chips}\n"),
                "values: [1, 75, ".into(),
            ] {
                assert!(text.contains(&expected), "{expected}:\n{text}");
            }
            let slice_id = "metadata.labels['jobset.sigs.k8s.io/job-index']";
            assert_eq!(value(&text, "MEGASCALE_SLICE_ID").unwrap(), slice_id);
            for index in 0..slices * hosts {
                // What Google Kubernetes Engine adds.
                let slice = index / hosts;
                let names = (0..hosts).map(|host| format!("train-workers-{slice}-{host}.train"));
                let names = names.collect::<Vec<_>>().join(",");
                let env = |name: &str| match name {
                    "MEGASCALE_SLICE_ID" => Some(slice.to_string().into()),
                    "TPU_WORKER_ID" => Some((index % hosts).to_string().into()),
                    "TPU_WORKER_HOSTNAMES" => Some(names.clone().into()),
                    "FULMEN_RUN_TOKEN" => None,
                    name => value(&text, name).map(Into::into),
                };
                let process = fulmen_coordination::Process::from_env(env).unwrap();
                assert_eq!((process.index(), process.count()), (index, slices * hosts));
                assert_eq!(process.coordinator(), "train-workers-0-0.train:8482");
                assert_eq!(process.run_id(), "train");
            }
        }
    }

    #[test]
    fn every_host_of_a_manifest_gets_libtpu_and_no_program_may_fall_back() {
        let of = |kind: &str, more: &[&str]| {
            print(&[&["--kind", kind, "--topology", "v5e:4x4", "--image", "a/b"], more].concat())
                .unwrap()
        };
        let link = ".fulmen/pods/libtpu-0.0.51/libtpu.so";
        let hash = LibtpuWheel::tested().sha256;
        let jobset = of("jobset", &[]);
        let container =
            format!("image: \"{DOWNLOAD_IMAGE}\"\n                  command: [\"bash\",\"-c\",");
        for expected in [
            container.as_str(),
            "              volumes:\n                - name: libtpu\n                  emptyDir: {}\n",
            "                    - name: libtpu\n                      mountPath: \"/libtpu\"\n",
            "- name: FULMEN_ACCELERATOR\n                      value: \"tpu\"\n",
            "# If your image has a libtpu, print the manifest with --libtpu PATH.\n",
        ] {
            assert!(jobset.contains(expected), "{expected}:\n{jobset}");
        }
        let file = "value: \"/libtpu/.cache/fulmen/pjrt/libtpu-0.0.51/libtpu.so\"\n";
        assert!(jobset.contains(file), "{jobset}");
        let skypilot = of("skypilot", &[]);
        assert!(skypilot.contains("  FULMEN_ACCELERATOR: \"tpu\"\n"), "{skypilot}");
        assert!(skypilot.contains("\nsetup: |\n  bash -c '"), "{skypilot}");
        let exported = format!("\n  export TPU_LIBRARY_PATH=$HOME/{link}\n");
        assert!(skypilot.contains(&exported), "{skypilot}");
        let ray = of("ray", &[]);
        assert!(ray.contains(r#"ENVIRONMENT = {"FULMEN_ACCELERATOR":"tpu"}"#), "{ray}");
        for text in [&jobset, &skypilot, &ray] {
            assert_eq!(text.matches(&hash).count(), 1, "{text}");
        }
        // On a Ray cluster without TPUs.
        let ray = print(&["--kind", "ray"]).unwrap();
        assert!(ray.contains("INSTALL = []\n") && ray.contains("ENVIRONMENT = {}\n"), "{ray}");
        for kind in ["jobset", "skypilot", "ray"] {
            let text = of(kind, &["--libtpu", "none"]);
            assert!(text.contains("FULMEN_ACCELERATOR") && !text.contains(&hash), "{text}");
            assert!(!text.contains("volume"), "{text}");
            let users = ["--libtpu=/opt/libtpu.so", "--env=FULMEN_ACCELERATOR=cpu"];
            let text = of(kind, &users);
            assert_eq!(text.matches("FULMEN_ACCELERATOR").count(), 1, "{text}");
            assert!(text.contains("/opt/libtpu.so"), "{text}");
        }
    }

    #[test]
    fn a_jobset_has_a_queue_an_account_a_reservation_and_buckets() {
        let jobset =
            ["--kind", "jobset", "--topology", "v5p-32", "--image", "a/b:1", "--libtpu", "none"];
        let plain = print(&jobset).unwrap();
        for part in ["labels:", "volume", "kueue", "serviceAccount", "priority", "spot"] {
            assert!(!plain.contains(part), "{part}:\n{plain}");
        }
        let options = [
            "--queue=tpus",
            "--priority-class=high",
            "--service-account=trainer",
            "--reservation=ours",
            "--bucket=runs=/runs",
            "--bucket=data=/data/all",
        ];
        let text = print(&[&jobset[..], &options[..]].concat()).unwrap();
        for expected in [
            "  labels:\n    kueue.x-k8s.io/queue-name: \"tpus\"\n",
            "              priorityClassName: \"high\"\n",
            "              serviceAccountName: \"trainer\"\n",
            "                cloud.google.com/reservation-name: \"ours\"\n",
            "                gke-gcsfuse/volumes: \"true\"\n",
            "                      bucketName: \"runs\"\n",
            "                    - name: bucket-1\n                      mountPath: \"/data/all\"\n",
        ] {
            assert!(text.contains(expected), "{expected}:\n{text}");
        }
        let spot = print(&[&jobset[..], &["--spot"]].concat()).unwrap();
        assert!(spot.contains("cloud.google.com/gke-spot: \"true\"\n"), "{spot}");
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
            "without a limit,\n# and, at most 5 times, after any other failure.\n",
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
        for kind in ["ray", "skypilot"] {
            let expected = "--topology 2*v5e:4x4: only --kind jobset starts several slices";
            check(&["--kind", kind, "--topology", "2*v5e:4x4"], expected);
        }
        check(&["--kind", "ray", "--queue", "tpus"], "--queue: only --kind jobset has it");
        let bucket = ["--kind", "jobset", "--topology", "v5e-8", "--image", "a", "--bucket"];
        for wrong in ["runs", "runs=relative", "=/runs", "gs://runs=/runs"] {
            let expected = format!("--bucket {wrong}: expected BUCKET=FOLDER");
            check(&[&bucket[..], &[wrong]].concat(), &expected);
        }
    }
}
