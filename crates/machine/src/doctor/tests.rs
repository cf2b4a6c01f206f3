//! Tests the checks on simulated machines, made of files, variables and servers on loopback.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, SystemTime};

use expect_test::{Expect, expect};
use tempfile::TempDir;

use super::*;

/// A machine of 16 GB and 8 cores without a TPU, on 1 November 2026.
struct TestMachine {
    folder: TempDir,
    machine: Machine,
}

impl TestMachine {
    fn new() -> TestMachine {
        let folder = tempfile::tempdir().unwrap();
        let mut machine = Machine::local(["cat"]);
        machine.root = folder.path().to_owned();
        machine.folder = folder.path().to_owned();
        machine.variables = [("PATH".into(), "/usr/bin:/bin".into())].into();
        machine.free_bytes = |_| Ok(100_000_000_000);
        machine.now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_793_491_200);
        // A long time-out, because the machine that runs the tests may be busy.
        machine.timeout = Duration::from_secs(60);
        machine.plugin_list.push(folder.path().join("plugins.json").into());
        let test_machine = Self { folder, machine }.with("XDG_CACHE_HOME", "ROOT/cache");
        for (name, text) in [
            (
                "proc/meminfo",
                "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:   12000000 kB\n",
            ),
            (
                "proc/self/limits",
                "Limit  Soft Limit  Hard Limit  Units\nMax open files            1048576  1048576  files\n",
            ),
            ("proc/self/status", "Name:\tfulmen\nCpus_allowed_list:\t0-7\n"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
            ("proc/net/tcp", "  sl  local_address rem_address   st\n"),
            ("tmp/.keep", ""),
            (
                "plugins.json",
                r#"{"cpu": {"path": "/cpu.so", "api_version": "0.115"}, "tpu": {"error": "nowhere"}}"#,
            ),
        ] {
            test_machine.file(name, text);
        }
        test_machine
    }

    fn file(&self, name: &str, text: &str) {
        let path = self.folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Sets a variable. In the value, `ROOT` is replaced by the machine's folder.
    fn with(mut self, name: &str, value: &str) -> TestMachine {
        let value = value.replace("ROOT", &self.folder.path().display().to_string());
        self.machine.variables.insert(name.into(), value.into());
        self
    }

    /// A TPU that is opened by VFIO, with a libtpu of this version.
    fn with_tpu(self, version: &str) -> TestMachine {
        let root = self.folder.path();
        self.file("dev/vfio/0", "");
        self.file("sys/bus/pci/devices/0000:00:04.0/vendor", "0x1ae0\n");
        self.file("sys/bus/pci/devices/0000:00:04.0/class", "0x120000\n");
        symlink(
            "../../../kernel/iommu_groups/0",
            root.join("sys/bus/pci/devices/0000:00:04.0/iommu_group"),
        )
        .unwrap();
        self.file(&format!("site/libtpu-{version}.dist-info/METADATA"), "");
        let libtpu = root.join("site/libtpu/libtpu.so");
        let list = format!(r#"{{"tpu": {{"path": {libtpu:?}, "api_version": "0.116"}}}}"#);
        self.file("plugins.json", &list);
        self
    }

    fn text(&self) -> String {
        let text = self.machine.examine().to_string();
        text.replace(&self.folder.path().display().to_string(), "ROOT")
    }

    /// Compares the lines except those of severity `ok`.
    fn check(&self, expect: Expect) {
        let text = self.text();
        let is_notable = |line: &&str| !line.starts_with("ok ");
        expect.assert_eq(
            &text.lines().filter(is_notable).map(|line| format!("{line}\n")).collect::<String>(),
        );
    }
}

/// A server on loopback that knows these paths.
fn server(answers: &'static [(&'static str, &'static str)]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let lines: Vec<String> = BufReader::new(&stream)
                .lines()
                .map_while(Result::ok)
                .take_while(|line| !line.is_empty())
                .collect();
            let request_path =
                lines.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
            let (status, body) = match answers.iter().find(|(path, _)| request_path.contains(path))
            {
                // A request for a bucket needs the token.
                Some(_)
                    if request_path.contains("/b/")
                        && !lines.iter().any(|line| line.ends_with("Bearer of-the-machine")) =>
                {
                    ("403 Forbidden", "")
                }
                Some((_, body)) => ("200 OK", *body),
                None => ("404 Not Found", ""),
            };
            let _ = write!(
                stream,
                "HTTP/1.1 {status}\r\nMetadata-Flavor: Google\r\nDate: Sun, 01 Nov 2026 00:00:00 GMT\r\nConnection: close\r\n\
                 Content-Length: {}\r\n\r\n{body}",
                body.len()
            );
        }
    });
    address
}

#[test]
fn a_bare_machine() {
    let expected = expect![[r#"
        ok       Plugins: cpu: /cpu.so speaks PJRT API 0.115
        ok       Age of libtpu: no libtpu is installed
        ok       TPU devices: there are none
        ok       Lock file: there is none
        ok       Memory: 12.3 GB of 16.4 GB are free
        ok       Huge pages: transparent huge pages: madvise
        ok       Limits of a process: all limits are high enough
        ok       Cores: 8
        ok       Variables of other frameworks: none are set
        ok       Variables that are read: no variable needs a change
        ok       Metadata server: this machine has none, or it is not queried
        ok       Zone and bucket: no bucket is named (`--bucket gs://NAME`, FULMEN_CHECKPOINT_DIR)
        ok       Clock: it says Sun, 01 Nov 2026 00:00:00 GMT; there is no other clock to compare it with
        ok       Ports: 8431, 8471, 8476, 8482 are free
        ok       Colab, Kaggle, Kubernetes and Google Cloud: this machine is not one of them
        ok       Compile cache: ROOT/cache/fulmen/compile holds 0 bytes of 4.1 GB
        ok       Disk: 100.0 GB are free at ROOT, for runs
        0 errors, 0 warnings
    "#]];
    expected.assert_eq(&(TestMachine::new().text() + "\n"));
}

#[test]
fn an_old_libtpu_on_a_machine_that_is_not_set_up() {
    let test_machine = TestMachine::new().with_tpu("0.0.7");
    let libtpu = test_machine.folder.path().join("site/libtpu/libtpu.so");
    let old = "the plugin libtpu.so speaks PJRT API 0.54; this program speaks 0.81 and later 0.x: use a newer plugin";
    test_machine
        .file("plugins.json", &format!(r#"{{"tpu": {{"path": {libtpu:?}, "error": {old:?}}}}}"#));
    test_machine.file("proc/meminfo", "MemTotal: 400000000 kB\nMemAvailable: 1000000 kB\n");
    test_machine.file(
        "proc/self/limits",
        "Max processes             2048                 500000               processes\n\
         Max open files            1024                 2048                 files\n\
         Max locked memory         8388608              unlimited            bytes\n\
         Max address space         unlimited            unlimited            bytes\n",
    );
    test_machine.file("proc/self/status", "Cpus_allowed_list:\t0-23\n");
    test_machine.file("sys/fs/cgroup/cpu.max", "200000 100000\n");
    test_machine.file("sys/fs/cgroup/memory.max", "max\n");
    test_machine.file(
        "proc/net/tcp",
        "   0: 00000000:2117 00000000:0000 0A 0:0\n   1: 0100007F:20EF 0100007F:1234 01 0:0\n",
    );
    test_machine.check(expect![[r#"
        ERROR    Plugins: tpu: the plugin libtpu.so speaks PJRT API 0.54; this program speaks 0.81 and later 0.x: use a newer plugin
                   do: `fulmen plugin install tpu`, or `pip install --upgrade libtpu`
        warning  Age of libtpu: libtpu 0.0.7 at ROOT/site/libtpu/libtpu.so is older than 0.0.51, which this version of Fulmen was tested with
                   do: `pip install --upgrade libtpu`, or `fulmen plugin install tpu`, which installs the tested version
        warning  Memory: 1.0 GB of 409.6 GB are free; when memory runs out, the kernel kills the program (exit code 137)
                   do: end other programs (`ps aux --sort=-rss | head` shows the largest), lower `--num-workers`, or take a machine or container with more
        warning  Huge pages: transparent huge pages: madvise; with `always`, libtpu starts and stops faster on v5e and later
                   do: `sudo sh -c 'echo always > /sys/kernel/mm/transparent_hugepage/enabled'`, on each host and after each start of the machine
        warning  Limits of a process: max open files: 1024; many shards, workers and connections need more
                   do: raise the hard limit: in /etc/security/limits.conf, by systemd's Limit… or docker's `--ulimit`; then `ulimit -n 65536`
        warning  Limits of a process: max processes: 2048; threads count too, and plugins start several for each core
                   do: `ulimit -u 65536` before the program starts
        warning  Limits of a process: max locked memory: 8388608; the kernel counts memory that a TPU accesses through VFIO as locked
                   do: `ulimit -l unlimited` before the program starts
        note     Cores: the container may use 2.0 of 24 cores, but plugins start threads for all 24
                   do: `taskset -c 0-1 ./train …` limits the threads to the cores that the container may use
        warning  Cores: 2 cores for 1 TPU chip; decoding and augmentation may take longer than the steps
                   do: keep samples decoded (`.cache(…)`, `fulmen data presize`), or augment on the device; the book's chapter “When data is slow” says how to find out
        warning  Ports: a program listens on 8471 (for libtpu, to discover the other hosts of a slice)
                   do: `sudo ss -ltnp 'sport = :8471'` shows which program; end it, or give it another port
        1 error, 8 warnings
    "#]]);
}

#[test]
fn a_tpu_host_has_the_vcpus_of_its_kind() {
    let v5e = |status: &str, online: Option<&str>| {
        let test_machine = TestMachine::new().with_tpu("0.0.51");
        test_machine.file("sys/bus/pci/devices/0000:00:04.0/device", "0x0063\n");
        test_machine.file("proc/self/status", &format!("Cpus_allowed_list:\t{status}\n"));
        if let Some(online) = online {
            test_machine.file("sys/devices/system/cpu/online", online);
        }
        test_machine.text()
    };
    let check = |text: String, expected: &str| {
        assert!(text.lines().any(|line| line == expected), "{expected}\n{text}");
    };
    check(
        v5e("0-23", None),
        "ok       Cores: the host has 24 vCPUs; a host with 1 chip of v5e has 24",
    );
    // The process has a part of the host.
    check(
        v5e("0-7", Some("0-23\n")),
        "ok       Cores: the host has 24 vCPUs; a host with 1 chip of v5e has 24",
    );
    // A container may show a list of its own.
    check(
        v5e("0-23", Some("0-7\n")),
        "ok       Cores: the host has 24 vCPUs; a host with 1 chip of v5e has 24",
    );
    check(
        v5e("0-7", Some("0-15\n")),
        "warning  Cores: the host has 16 vCPUs, and a host with 1 chip of v5e has 24",
    );
    // A container with one of eight chips, as the metadata server says.
    let test_machine =
        TestMachine::new().with_tpu("0.0.51").with("GCE_METADATA_HOST", &server(TPU_VM));
    check(
        test_machine.text(),
        "warning  Cores: the host has 8 vCPUs, and a host with 8 chips of v5e has 224",
    );
    // A kind that is not known, and a machine without a TPU.
    assert!(!TestMachine::new().with_tpu("0.0.51").text().contains("vCPUs"));
    assert!(!TestMachine::new().text().contains("vCPUs"));
}

#[test]
fn a_lock_file_that_was_left_and_one_that_is_held() {
    let test_machine = TestMachine::new().with_tpu("9.0.0");
    test_machine.file("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n");
    test_machine.file("tmp/libtpu_lockfile", "");
    test_machine.file("etc/passwd", "root:x:0:0:root:/root:/bin/bash\n");
    let lock = fs::File::open(test_machine.folder.path().join("tmp/libtpu_lockfile")).unwrap();
    lock.set_modified(test_machine.machine.now - Duration::from_secs(5400)).unwrap();
    let text = test_machine.text();
    assert!(text.ends_with("0 errors, 1 warning"), "{text}");
    let lock_file = crate::LockFile::find(test_machine.folder.path()).unwrap();
    let owner = lock_file.owner_name.unwrap_or_else(|| format!("user {}", lock_file.owner));
    let message = format!(
        "was made by {owner} 1 h 30 min ago, and no process holds it: the file is stale and keeps old versions of libtpu from starting\n"
    );
    assert!(
        text.contains(&message) && text.contains("do: `rm ROOT/tmp/libtpu_lockfile`\n"),
        "{text}"
    );

    use std::os::unix::fs::MetadataExt as _;
    let number = lock.metadata().unwrap().ino();
    test_machine
        .file("proc/locks", &format!("1: FLOCK  ADVISORY  WRITE 4711 fd:01:{number} 0 EOF\n"));
    let text = test_machine.text();
    assert!(text.contains("1 h 30 min ago; process 4711 uses the TPU\n"), "{text}");
    assert!(text.ends_with("0 errors, 0 warnings"), "{text}");
}

#[test]
fn old_and_new_variables() {
    let variables = [
        ("XRT_TPU_CONFIG", "tpu_worker;0;10.0.0.2:8470"),
        ("PJRT_DEVICE", "TPU"),
        ("XLA_USE_BF16", "1"),
        ("XLA_FLAGS", "--xla_dump_to=/tmp"),
        ("TPU_VISIBLE_CHIPS", "0,1"),
        ("FULMEN_COORDINATOR", "host-a:8482"),
        ("FULMEN_RUN_TOKEN", "a secret that is never shown, of 32 letters"),
        ("FULMEN_COMPILE_CACHE", "off"),
        ("TPU_WORKER_ID", "0"),
        ("KAGGLE_KERNEL_RUN_TYPE", "Interactive"),
    ];
    let test_machine = variables
        .into_iter()
        .fold(TestMachine::new(), |test_machine, (name, value)| test_machine.with(name, value));
    test_machine.check(expect![[r#"
        ERROR    Plugins: tpu: there are devices, but no plugin; training with the accelerator `auto` is an error
                   do: `fulmen plugin install tpu`, or `pip install --upgrade libtpu`
        ERROR    TPU devices: there is no TPU in /dev/accel* or /dev/vfio/*, though the environment variable TPU_WORKER_ID is set
                   do: in a container, pass the devices on (`docker run --privileged --net=host`; on Kubernetes, the resource `google.com/tpu`); on the TPU VM itself, restart it
        warning  Variables of other frameworks: XRT_TPU_CONFIG is set, but it is obsolete
                   do: it gave the address of a TPU to XRT, which PJRT has replaced; run this program on the TPU VM itself, where libtpu opens the TPU, and unset it. For several hosts, see TPU_WORKER_HOSTNAMES and FULMEN_COORDINATOR
        note     Variables of other frameworks: PJRT_DEVICE is set, but Fulmen does not read it
                   do: use FULMEN_ACCELERATOR or `--accelerator`
        note     Variables of other frameworks: XLA_USE_BF16 is set, but Fulmen does not read it
                   do: use FULMEN_PRECISION=bf16-true or `--precision`
        ERROR    Variables that are read: XLA_FLAGS is "--xla_dump_to=/tmp"; Fulmen rejects it, because an unknown flag ends the process
                   do: unset it; `CompileOptions::override_flag` sets a flag for one program
        note     Variables that are read: TPU_VISIBLE_CHIPS is "0,1"; libtpu sees only these chips
                   do: unset it to train on all chips
        ERROR    Variables that are read: the environment variable FULMEN_PROCESS_ID is not set though FULMEN_COORDINATOR is; expected the index of this process, from 0 (or none of FULMEN_COORDINATOR, FULMEN_PROCESS_ID and FULMEN_NUM_PROCESSES for a single process)
                   do: correct it; the book's chapter “Many hosts” lists the variables that go together
        note     Colab, Kaggle, Kubernetes and Google Cloud: Kaggle: a session with a TPU lasts 9 hours, 20 a week; /kaggle/working keeps 20 GB, other folders nothing
                   do: write checkpoints to a store that outlives it (`--checkpoint-dir gs://…`), and start with `--resume auto`; `--default-root-dir /kaggle/working/runs` works too
        note     Compile cache: FULMEN_COMPILE_CACHE is `off`: every start recompiles
                   do: unset it, or set it to a folder
        4 errors, 1 warning
    "#]]);
}

const TPU_VM: &[(&str, &str)] = &[
    ("instance/zone", "projects/1/zones/us-central1-a"),
    ("instance/machine-type", "projects/1/machineTypes/ct5lp-hightpu-8t"),
    ("instance/attributes/accelerator-type", "v5litepod-8"),
    ("instance/scheduling/preemptible", "TRUE"),
    (
        "instance/service-accounts/default/token",
        r#"{"access_token":"of-the-machine","expires_in":3599}"#,
    ),
    ("/storage/v1/b/far?", r#"{"location":"EUROPE-WEST4"}"#),
    ("/storage/v1/b/near?", r#"{"location":"US-CENTRAL1"}"#),
    ("/storage/v1/b/dual?", r#"{"location":"NAM4","customPlacementConfig":{}}"#),
    (
        "/storage/v1/b/two?",
        r#"{"location":"US","customPlacementConfig":{"dataLocations":["US-EAST4","US-CENTRAL1"]}}"#,
    ),
];

#[test]
fn a_tpu_vm_whose_bucket_is_far_away_and_whose_clock_is_wrong() {
    let address = server(TPU_VM);
    let cloud = |bucket: &str| {
        let test_machine = TestMachine::new()
            .with("GCE_METADATA_HOST", &address)
            .with("GOOGLE_BASE_URL", &format!("http://{address}"));
        test_machine.with("FULMEN_CHECKPOINT_DIR", bucket)
    };
    let mut far = cloud("gs://far/runs");
    far.machine.now += Duration::from_secs(400);
    far.check(expect![[r#"
        ERROR    TPU devices: there is no TPU in /dev/accel* or /dev/vfio/*, though the metadata server says that this machine is a v5litepod-8
                   do: in a container, pass the devices on (`docker run --privileged --net=host`; on Kubernetes, the resource `google.com/tpu`); on the TPU VM itself, restart it
        warning  Zone and bucket: gs://far is in EUROPE-WEST4, and this machine is in us-central1-a: reads are slower, and traffic may cost money
                   do: keep data and checkpoints in us-central1: `gcloud storage buckets create gs://NAME --location=us-central1`
        ERROR    Clock: it says Sun, 01 Nov 2026 00:06:40 GMT, 400 s off from the metadata server
                   do: `sudo systemctl restart chrony` or `systemd-timesyncd` sets it; stores refuse requests of machines whose clocks are wrong
        note     Colab, Kaggle, Kubernetes and Google Cloud: Google Cloud, preemptible: this machine may be taken away at any time, with 30 s to save
                   do: write checkpoints to a store that outlives it (`--checkpoint-dir gs://…`), and start with `--resume auto`; restart a program that exits with code 75
        2 errors, 1 warning
    "#]]);
    for (bucket, expected) in [
        (
            "gs://near",
            "ok       Zone and bucket: gs://near is in us-central1, and this machine is in us-central1-a",
        ),
        ("gs://dual/x", "ok       Zone and bucket: gs://dual is in us-central1 and us-east1"),
        ("gs://two", "ok       Zone and bucket: gs://two is in us-east4 and us-central1"),
        ("gs://none", "ERROR    Zone and bucket: there is no bucket gs://none"),
        ("gs://No bucket", "ERROR    Zone and bucket: \"No bucket\" is not a valid bucket name"),
    ] {
        let text = cloud(bucket).text();
        assert!(text.contains(expected), "{text}");
        assert!(!text.contains("of-the-machine"), "{text}");
    }
}

#[test]
fn a_program_or_server_that_does_not_answer_is_given_up() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut test_machine =
        TestMachine::new().with("GCE_METADATA_HOST", &silent.local_addr().unwrap().to_string());
    test_machine.machine.plugin_list = vec!["sleep".into(), "600".into()];
    test_machine.machine.timeout = Duration::from_millis(100);
    let text = test_machine.text();
    assert!(
        text.contains("no answer within 0.2 s") && text.contains("does not answer within 0.1 s"),
        "{text}"
    );
    for (command, why) in
        [("false", "exit status: 1"), ("/no/such/program", "No such file"), ("true", "EOF")]
    {
        test_machine = TestMachine::new();
        test_machine.machine.plugin_list = vec![command.into()];
        let text = test_machine.text();
        assert!(
            text.contains("warning  Plugins: cannot list the plugins: ") && text.contains(why),
            "{text}"
        );
    }
}

#[test]
fn a_full_disk_is_an_error() {
    let mut test_machine = TestMachine::new();
    test_machine.machine.free_bytes = |_| Ok(300_000_000);
    let text = test_machine.text();
    assert!(
        text.contains("ERROR    Disk: 300.0 MB are free at ROOT, for runs\n           do: `du "),
        "{text}"
    );
    assert_eq!(text.matches("Disk:").count(), 1, "all places are on one disk: {text}");
}

#[test]
fn every_section_finds_something_and_says_what_to_do() {
    let report = Machine::local(["cat", "/dev/null"]).examine();
    assert_eq!(report.sections.len(), CHECKS.len());
    for Section { heading, findings } in &report.sections {
        assert!(!findings.is_empty(), "{heading}");
        let complete = |it: &Finding| it.remedy.is_some() == (it.severity != Severity::Ok);
        assert!(findings.iter().all(complete), "{heading}: {findings:?}");
    }
}

#[test]
fn the_books_chapter_has_a_heading_for_each_check() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/troubleshooting.md");
    let chapter = fs::read_to_string(path).unwrap();
    let (_, section) = chapter.split_once("\n## What `fulmen doctor` looks at\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let headings = section.lines().filter_map(|line| line.strip_prefix("### "));
    assert_eq!(
        headings.collect::<Vec<_>>(),
        CHECKS.iter().map(|check| check.heading).collect::<Vec<_>>()
    );
}
