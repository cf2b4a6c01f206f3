//! Google's own gcloud judges the commands, where it is installed: `ci/gcloud`.

use std::fs;

use tempfile::TempDir;

use super::api_server::{ApiServer, FAULTS, Request};
use super::*;

/// Google's gcloud, which talks to a server on loopback.
struct Google {
    server: ApiServer,
    folder: TempDir,
}

impl Google {
    fn start() -> Google {
        let server = ApiServer::start();
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        fs::write(path("token"), "token").unwrap();
        let address = &server.address;
        write_script(
            &folder.path().join("gcloud"),
            &format!(
                "#!/bin/sh\nexport CLOUDSDK_CONFIG='{}' CLOUDSDK_AUTH_ACCESS_TOKEN_FILE='{}'\n\
                 export CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU={address}/\n\
                 export CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE={address}/\n\
                 export CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDQUOTAS={address}/\n\
                 export CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE={address}/storage/v1/\n\
                 gcloud=$(command -v gcloud)\nexport HOME='{}' PATH='{}':\"$PATH\"\n\
                 export CLOUDSDK_CORE_DISABLE_USAGE_REPORTING=1 CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK=1\n\
                 exec \"$gcloud\" \"$@\"\n",
                path("config"),
                path("token"),
                path("home"),
                path("bin"),
            ),
        );
        // Programs that gcloud starts. They note how.
        fs::create_dir_all(folder.path().join("bin")).unwrap();
        for program in ["ssh", "scp"] {
            let text = format!("#!/bin/sh\necho \"{program} $*\" >>'{}'\n", path("started"));
            write_script(&folder.path().join("bin").join(program), &text);
        }
        Google { server, folder }
    }

    fn program(&self) -> Gcloud {
        Gcloud(self.folder.path().join("gcloud"))
    }
}

/// A command of `fulmen tpu`, and the requests that Google's gcloud makes of it.
struct Case {
    arguments: &'static str,
    /// Method and path, without the ones that only query.
    changes: &'static [&'static str],
    /// Parts that the bodies of these requests have.
    bodies: &'static [&'static str],
}

const fn case(arguments: &'static str, changes: &'static [&'static str]) -> Case {
    Case { arguments, changes, bodies: &[] }
}

const fn with_bodies(case: Case, bodies: &'static [&'static str]) -> Case {
    Case { bodies, ..case }
}

const NODES: &str = "POST projects/p/locations/us-west4-a/nodes?nodeId=train";

/// Each starts without any resource, except for those that [`prepare`] adds.
const CASES: &[Case] = &[
    with_bodies(
        case("create train --type=v5e-8", &[NODES]),
        &[r#""acceleratorType":"v5litepod-8""#],
    ),
    with_bodies(
        case("create train --type=v5e:2x4", &[NODES]),
        &[r#""acceleratorType":"v5litepod-8""#],
    ),
    with_bodies(case("create train --type=v6e:2x2", &[NODES]), &[r#""acceleratorType":"v6e-4""#]),
    with_bodies(case("create train --type=v4:2x2x1", &[NODES]), &[r#""acceleratorType":"v4-8""#]),
    // Shapes without an accelerator type: v4 everywhere, v5p in alpha.
    with_bodies(
        case("create train --type=v4:2x2x3 --spot", &[NODES]),
        &[r#""topology":"2x2x3","type":"V4""#, r#""spot":true"#],
    ),
    with_bodies(
        case("create train --type=v5p:2x2x3 --reserved --internal-ips", &[NODES]),
        &[
            r#""topology":"2x2x3","type":"V5P""#,
            r#""reserved":true"#,
            r#""enableExternalIps":false"#,
        ],
    ),
    with_bodies(
        case(
            "create train --type=v5e-16 --data-disk=data:read-only --network=n --subnetwork=s --service-account=a@b",
            &[NODES],
        ),
        &[
            r#""mode":"READ_ONLY","sourceDisk":"projects/p/zones/us-west4-a/disks/data""#,
            r#""network":"n""#,
            r#""subnetwork":"s""#,
            r#""email":"a@b""#,
        ],
    ),
    with_bodies(
        case("create train --type=v5e-8 --max-hours=2", &[NODES]),
        &[r#""fulmen-limit":"7200""#, "startup-script", "cloud-platform"],
    ),
    with_bodies(
        case(
            "create train --type=v5e-8 --queued --spot",
            &["POST projects/p/locations/us-west4-a/queuedResources?queuedResourceId=train"],
        ),
        &[r#""validUntilDuration":"3600s""#, r#""spot":{}"#],
    ),
    with_bodies(
        case(
            "create train --type=v5e-8 --flex-start --max-hours=2",
            &["POST projects/p/locations/us-west4-a/queuedResources?queuedResourceId=train"],
        ),
        &[r#""provisioningModel":"FLEX_START""#, r#""maxRunDuration":"7200s""#],
    ),
    case("list --all-zones", &[]),
    case("list", &[]),
    case("describe old", &[]),
    case("wait old", &[]),
    case("ssh old --worker=all -- df -h", &[]),
    case(
        "extend old --hours=2",
        &["PATCH projects/p/locations/us-west4-a/nodes/old?updateMask=labels"],
    ),
    case("delete old", &["DELETE projects/p/locations/us-west4-a/nodes/old"]),
    case("quota", &[]),
    with_bodies(
        case("disk create new --size=200", &["POST projects/p/zones/us-west4-a/disks"]),
        &[r#""sizeGb":"200""#, "diskTypes/hyperdisk-balanced"],
    ),
    case(
        "disk create new --size=10 --kind=hyperdisk-ml",
        &["POST projects/p/zones/us-west4-a/disks"],
    ),
    case("disk list", &[]),
    with_bodies(
        case(
            "disk attach data --tpu=old --read-only",
            &["PATCH projects/p/locations/us-west4-a/nodes/old?updateMask=data_disks"],
        ),
        &[r#""mode":"READ_ONLY","sourceDisk":"projects/p/zones/us-west4-a/disks/data""#],
    ),
    case(
        "disk detach held --tpu=old",
        &["PATCH projects/p/locations/us-west4-a/nodes/old?updateMask=data_disks"],
    ),
    case("disk delete data", &["DELETE projects/p/zones/us-west4-a/disks/data"]),
    with_bodies(
        case(
            "machine create new --kind=n2-standard-32 --data-disk=data --max-hours=2 --spot",
            &["POST projects/p/zones/us-west4-a/instances"],
        ),
        &[
            "machineTypes/n2-standard-32",
            r#""maxRunDuration":{"seconds":"7200"}"#,
            r#""instanceTerminationAction":"DELETE""#,
            r#""provisioningModel":"SPOT""#,
            "zones/us-west4-a/disks/data",
        ],
    ),
    case("machine ssh prep -- nproc", &[]),
    case(
        "machine run new --delete-after -- /bin/true",
        &[
            "POST projects/p/zones/us-west4-a/instances",
            "DELETE projects/p/zones/us-west4-a/instances/new",
        ],
    ),
    case("machine delete prep", &["DELETE projects/p/zones/us-west4-a/instances/prep"]),
];

fn prepare(server: &ApiServer) {
    server.reset();
    let zone = "projects/p/zones/us-west4-a";
    server.add(
        "projects/p/locations/us-west4-a/nodes/old",
        json!({
            "name": "projects/p/locations/us-west4-a/nodes/old", "acceleratorType": "v5litepod-8",
            "state": "READY", "labels": {}, "metadata": {}, "createTime": "2026-11-22T10:00:00Z",
            "networkEndpoints": [{"accessConfig": {"externalIp": "34.1.2.3"}, "ipAddress": "10.0.0.2"}],
            "dataDisks": [{"mode": "READ_WRITE", "sourceDisk": "projects/p/zones/us-west4-a/disks/held"}],
        }),
    );
    server.add(
        &format!("{zone}/disks/data"),
        json!({"name": "data", "sizeGb": "200", "type": "diskTypes/hyperdisk-balanced", "zone": zone, "status": "READY",
               "selfLink": format!("{}/{zone}/disks/data", server.address), "creationTimestamp": "2026-11-20T12:00:00.000-08:00"}),
    );
    server.add(
        &format!("{zone}/instances/prep"),
        json!({"name": "prep", "zone": zone, "status": "RUNNING", "machineType": "machineTypes/n2-standard-8", "id": "7",
               "selfLink": format!("{}/{zone}/instances/prep", server.address),
               "creationTimestamp": "2026-11-20T12:00:00.000-08:00",
               "networkInterfaces": [{"networkIP": "10.0.0.3", "accessConfigs": [{"natIP": "34.1.2.9"}]}]}),
    );
}

#[test]
#[ignore = "needs Google's gcloud: ci/gcloud"]
fn googles_gcloud_takes_every_command() {
    let google = Google::start();
    let program = google.program();
    let mut failures = Vec::new();
    for case in CASES {
        prepare(&google.server);
        let (own, program_words) =
            case.arguments.split_once(" -- ").unwrap_or((case.arguments, ""));
        let mut arguments: Vec<&str> = own.split(' ').collect();
        // `quota` needs no zone, and `--all-zones` replaces it.
        if !own.contains("--all-zones") {
            arguments.push("--zone=us-west4-a");
        }
        arguments.push("--project=p");
        if arguments[0] == "create" {
            arguments.push("--ready-timeout=3600");
        }
        if !program_words.is_empty() {
            arguments.push("--");
            arguments.extend(program_words.split(' '));
        }
        let (ended, out, log) = tpu(&program, &arguments);
        let requests = google.server.requests();
        let lines: Vec<&str> = log.lines().filter(|line| line.starts_with("$ gcloud")).collect();
        println!("\nfulmen tpu {}\n  {}", case.arguments, lines.join("\n  "));
        for request in &requests {
            println!("  -> {} {}", request.method, request.path);
        }
        println!("  => {ended:?}");
        // Keys for ssh are set in the metadata of a project or a node.
        let is_change = |request: &&Request| {
            request.method != "GET"
                && !request.path.contains(":getGuestAttributes")
                && !request.path.contains("setCommonInstanceMetadata")
                && !request.path.ends_with("?updateMask=metadata")
                && !request.path.contains("/operations/")
        };
        let changes: Vec<&Request> = requests.iter().filter(is_change).collect();
        let made: Vec<String> =
            changes.iter().map(|request| format!("{} {}", request.method, request.path)).collect();
        let bodies: String = changes.iter().map(|request| request.body.to_string()).collect();
        let is_whole = case.bodies.iter().all(|part| bodies.contains(part));
        if ended != Ok(0) || made != case.changes || !is_whole {
            failures.push(format!("{}\n{ended:?}\n{made:?}\n{bodies}\n{out}{log}", case.arguments));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    let started = fs::read_to_string(google.folder.path().join("started")).unwrap();
    for expected in ["df -h", "nproc", "scp ", "./true"] {
        assert!(started.contains(expected), "{expected}: {started}");
    }
}

/// The stand-in takes no flag and no value that Google's gcloud refuses. It may know commands that
/// left beta since.
#[test]
#[ignore = "needs Google's gcloud: ci/gcloud"]
fn the_stand_ins_grammar_is_googles() {
    let program = r#"
import json, subprocess, sys
root = subprocess.run(["gcloud", "info", "--format=value(installation.sdk_root)"], capture_output=True, text=True, check=True)
sys.path.insert(0, root.stdout.strip() + "/data/cli")
import gcloud_completions
print(json.dumps(gcloud_completions.STATIC_COMPLETION_CLI_TREE))
"#;
    let output = Command::new("python3").args(["-c", program]).output().unwrap();
    let tree: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}", String::from_utf8_lossy(&output.stderr));
    });
    let find = |command: &str| {
        let mut words = command.split(' ');
        words.try_fold(&tree, |node, word| node.get("commands")?.get(word))
    };
    let mut failures = Vec::new();
    for synopsis in grammar::COMMANDS {
        let command = synopsis.command;
        let Some(node) = find(command) else {
            // The stand-in knows it with and without its track.
            if find(&format!("beta {command}")).is_none() {
                failures.push(format!("there is no command {command}"));
            }
            continue;
        };
        // The list of completions leaves out flags that are also global ones.
        let is_known = |flag: &str| {
            node["flags"].get(flag).is_some()
                || tree["flags"].get(flag).is_some()
                || flag == "--version"
        };
        for flag in synopsis.flags().filter(|flag| !is_known(flag.trim_end_matches('='))) {
            failures.push(format!("{command} has no {flag}"));
        }
        for (flag, choices) in synopsis.choices {
            let real = &node["flags"][flag.trim_end_matches('=')];
            if real != &json!(choices) {
                failures.push(format!("{command} {flag}: {choices:?}, and not {real}"));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Tries every fault in each request that creating, finding and deleting a machine makes.
#[test]
#[ignore = "needs Google's gcloud, and takes minutes: ci/gcloud"]
fn no_fault_of_the_service_leaves_a_machine_unreported() {
    let google = Google::start();
    let program = google.program();
    let flags: [&[&str]; 2] = [&[], &["--queued"]];
    for flags in flags {
        let machine = machine(flags);
        // Without a fault, to count the requests.
        let mut count = None;
        let mut number = 0;
        let mut leftovers = 0;
        while count.is_none_or(|count| number < count) {
            for fault in FAULTS {
                google.server.reset();
                let (send, signals) = channel();
                if count.is_some() {
                    google.server.fail(number, fault, send);
                }
                let mut out = Vec::new();
                let mut log = Vec::new();
                let tool = Tool::new(&program, &mut out, &mut log, &signals, poll_policy());
                let lease = Lease { machine: &machine, delete_after: true, json: false };
                let ended = lease_with(lease, false, tool, &mut |_| Ok(0));
                let text = String::from_utf8([out, log].concat()).unwrap();
                let case = format!("{flags:?}, {fault:?} in request {number}: {ended:?}\n{text}");
                if google.server.has_costs() {
                    leftovers += 1;
                    assert!(text.contains("LEFT: ") && text.contains("Delete it: "), "{case}");
                    assert!(ended != Ok(0) && !text.contains("train is deleted"), "{case}");
                }
                if count.is_none() {
                    assert!(ended == Ok(0) && !google.server.has_costs(), "{case}");
                    break;
                }
            }
            match count {
                None => count = Some(google.server.requests().len()),
                Some(_) => number += 1,
            }
        }
        println!(
            "{flags:?}: {} faults in each of {number} requests, {leftovers} machines left and reported",
            FAULTS.len()
        );
        assert!(number >= 5, "{number}");
    }
}
