//! Diagnoses of artificial file trees.
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::*;
use crate::error::{self, Error, Fact};
use crate::plugin::ApiVersion;

/// A machine as a file tree.
struct Machine {
    folder: TempDir,
    variables: Vec<(&'static str, &'static str)>,
}

impl Machine {
    fn new() -> Machine {
        let folder = tempfile::tempdir().unwrap();
        for name in ["dev", "sys/bus/pci/devices"] {
            fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        Self { folder, variables: Vec::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn file(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "").unwrap();
        path
    }

    /// A PCI device, optionally with its own group.
    fn pci(&self, address: &str, vendor: &str, class: &str, group: Option<u32>) {
        let folder = self.path("sys/bus/pci/devices").join(address);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("vendor"), format!("{vendor}\n")).unwrap();
        fs::write(folder.join("class"), format!("{class}\n")).unwrap();
        if let Some(group) = group {
            symlink(format!("../../../kernel/iommu_groups/{group}"), folder.join("iommu_group"))
                .unwrap();
        }
    }

    fn roots(&self, proc: &Path) -> Roots {
        Roots { dev: self.path("dev"), proc: proc.to_owned(), sys: self.path("sys") }
    }

    /// Uses the processes of this system.
    fn diagnose(&self, platform: Platform) -> Diagnosis {
        let variable = |name: &str| {
            let set = self.variables.iter().find(|(known, _)| *known == name);
            set.map(|(_, value)| OsString::from(value))
        };
        let version = ApiVersion { major: 0, minor: 116 };
        let plugin = PluginState::Usable { path: "/opt/libtpu.so".into(), version };
        Diagnosis::gather(platform, &self.roots("/proc".as_ref()), &variable, plugin)
    }

    fn paths(&self, platform: Platform) -> Vec<String> {
        let paths = files::device_files(platform, &self.roots("/proc".as_ref())).into_iter();
        paths
            .map(|path| path.strip_prefix(self.folder.path()).unwrap().display().to_string())
            .collect()
    }
}

/// A process that has a file open until this is dropped.
struct HolderProcess(Child);

impl HolderProcess {
    fn new(path: &Path) -> HolderProcess {
        let file = File::open(path).unwrap();
        Self(Command::new("sleep").arg("600").stdin(Stdio::from(file)).spawn().unwrap())
    }
}

impl Drop for HolderProcess {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn without_a_tpu_the_diagnosis_lists_every_place() {
    let machine = Machine::new();
    let text = machine.diagnose(Platform::Tpu).to_string();
    let root = machine.folder.path().display();
    let expected = format!(
        "No TPU devices were found. Looked at:\n  \
         {root}/dev/accel*: not found\n  \
         {root}/dev/vfio/*: not found\n  \
         {root}/sys/bus/pci/devices: no Google accelerator (vendor 0x1ae0)\n  \
         the plugin /opt/libtpu.so: speaks PJRT API 0.116 (0.81 or later 0.x is needed)"
    );
    assert_eq!(text, expected);
}

#[test]
fn a_tpu_is_recognized_by_its_driver_or_its_group() {
    let machine = Machine::new();
    // 10 comes after 2; the folder `accel` belongs to other vendors' devices.
    for name in [
        "dev/accel10",
        "dev/accel2",
        "dev/accel",
        "dev/accel+1",
        "dev/vfio/vfio",
        "dev/vfio/7",
        "dev/vfio/3",
    ] {
        machine.file(name);
    }
    assert_eq!(
        machine.paths(Platform::Tpu),
        ["dev/accel2", "dev/accel10"],
        "the groups are of other devices"
    );
    let text = machine.diagnose(Platform::Tpu).to_string();
    assert!(text.starts_with("2 TPU device files were found. Looked at:\n"), "{text}");
    assert!(text.contains("/dev/vfio/*: 2 files, but none for a Google device"), "{text}");

    // A Google network card and another vendor's accelerator are not TPUs.
    machine.pci("0000:00:03.0", "0x1ae0", "0x020000", Some(7));
    machine.pci("0000:00:05.0", "0x10de", "0x120000", Some(7));
    assert_eq!(machine.paths(Platform::Tpu).len(), 2);
    machine.pci("0000:00:04.0", "0x1ae0", "0x120000", Some(3));
    assert_eq!(machine.paths(Platform::Tpu), ["dev/accel2", "dev/accel10", "dev/vfio/3"]);
    let text = machine.diagnose(Platform::Tpu).to_string();
    assert!(text.contains("sys/bus/pci/devices: Google accelerators at 0000:00:04.0\n"), "{text}");
}

/// In some containers the kernel's groups are not visible.
#[test]
fn without_groups_a_device_of_googles_is_enough() {
    let machine = Machine::new();
    machine.file("dev/vfio/0");
    machine.pci("0000:00:04.0", "0x1ae0", "0x120000", None);
    assert_eq!(machine.paths(Platform::Tpu), ["dev/vfio/0"]);
}

#[test]
fn the_process_with_an_open_tpu_is_named() {
    let machine = Machine::new();
    let busy = machine.file("dev/accel0");
    let free = machine.file("dev/accel1");
    let holder = HolderProcess::new(&busy);
    let diagnosis = machine.diagnose(Platform::Tpu);
    let pid = holder.0.id();
    let holders = diagnosis.device_files[0].holders.as_ref().unwrap();
    assert!(holders.processes.iter().any(|holder| holder.pid == pid), "{holders}");
    assert_eq!(diagnosis.device_files[1].holders.as_ref().unwrap().processes, []);
    let text = diagnosis.to_string();
    let headline =
        "2 TPU device files were found, and other processes have 1 of them open. Looked at:\n";
    assert!(text.starts_with(headline), "{text}");
    assert!(
        text.contains(&format!("{}: found, open in process {pid} (sleep)", busy.display())),
        "{text}"
    );
    assert!(
        text.contains(&format!("{}: found, open in no visible process", free.display())),
        "{text}"
    );
    drop(holder);
    assert_eq!(
        machine.diagnose(Platform::Tpu).device_files[0].holders.as_ref().unwrap().processes,
        []
    );
}

#[test]
fn this_process_is_recognized_and_another_file_of_the_same_name_is_ignored() {
    let machine = Machine::new();
    let device = machine.file("dev/accel0");
    let other = File::open(machine.file("elsewhere/accel0")).unwrap();
    assert_eq!(
        machine.diagnose(Platform::Tpu).device_files[0].holders.as_ref().unwrap().processes,
        []
    );
    drop(other);
    let open = File::open(&device).unwrap();
    let text = machine.diagnose(Platform::Tpu).to_string();
    assert!(text.contains(&format!("open in this process ({})", std::process::id())), "{text}");
    assert!(text.starts_with("One TPU device file was found. "), "{text}");
    drop(open);
}

/// A device may have a second name, as in a container. The real `/dev/null` plays the device.
#[test]
fn devices_are_compared_by_number() {
    let holder = HolderProcess::new("/dev/null".as_ref());
    let holders = holders::holders(&["/dev/null".into()], "/proc".as_ref());
    assert!(holders[0].processes.iter().any(|process| process.pid == holder.0.id()));
}

#[test]
fn processes_that_cannot_be_inspected_are_counted() {
    let machine = Machine::new();
    let device = machine.file("dev/accel0");
    for pid in ["11", "12"] {
        fs::create_dir_all(machine.path("proc").join(pid).join("fd")).unwrap();
        fs::write(machine.path("proc").join(pid).join("comm"), "train\n").unwrap();
    }
    symlink(&device, machine.path("proc/11/fd/5")).unwrap();
    let holders = holders::holders(std::slice::from_ref(&device), &machine.path("proc"));
    assert_eq!(holders[0].to_string(), "open in process 11 (train)");

    let closed = machine.path("proc/11/fd");
    fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o0)).unwrap();
    // Root may inspect every process.
    if fs::read_dir(&closed).is_err() {
        let holders = holders::holders(&[device], &machine.path("proc"));
        let expected =
            "open in no visible process (one process of another user could not be inspected)";
        assert_eq!(holders[0].to_string(), expected);
    }
    fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let several = Holders { processes: Vec::new(), unseen: 3 };
    assert!(several.to_string().ends_with("(3 processes of other users could not be inspected)"));
}

#[test]
fn obsolete_variables_are_named_with_what_replaced_them() {
    let mut machine = Machine::new();
    machine.variables = vec![
        ("XRT_TPU_CONFIG", "tpu_worker;0;10.0.0.2:8470"),
        ("TPU_IP_ADDRESS", "10.0.0.2"),
        ("XRT_MESH_SERVICE_ADDRESS", "10.0.0.2:8477"),
        ("COLAB_TPU_ADDR", ""),
        ("TPU_VISIBLE_CHIPS", "0,1"),
        ("CUDA_VISIBLE_DEVICES", ""),
    ];
    let diagnosis = machine.diagnose(Platform::Tpu);
    let names =
        diagnosis.obsolete_variables.iter().map(|variable| variable.name).collect::<Vec<_>>();
    assert_eq!(names, ["XRT_TPU_CONFIG", "TPU_IP_ADDRESS", "XRT_MESH_SERVICE_ADDRESS"]);
    let text = diagnosis.to_string();
    for part in [
        "the environment variable TPU_IP_ADDRESS is set but obsolete: it gave the address of a TPU to XRT, which \
         PJRT has replaced; run this program on the TPU VM itself",
        "XRT_MESH_SERVICE_ADDRESS is set but obsolete: XRT no longer exists; FULMEN_COORDINATOR is",
        "the environment variable TPU_VISIBLE_CHIPS is \"0,1\": the plugin sees no other devices",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let text = machine.diagnose(Platform::Cuda).to_string();
    assert!(text.contains("CUDA_VISIBLE_DEVICES is \"\"") && !text.contains("XRT"), "{text}");
}

#[test]
fn a_gpu_has_a_file_and_a_driver() {
    let machine = Machine::new();
    let proc = machine.path("proc");
    let plugin = || PluginState::Missing("no PJRT plugin for cuda was found".to_owned());
    let text = |machine: &Machine| {
        Diagnosis::gather(Platform::Cuda, &machine.roots(&proc), &|_| None, plugin()).to_string()
    };
    let without = text(&machine);
    for part in [
        "No CUDA devices were found",
        "/dev/nvidia*: not found",
        "the NVIDIA driver is not loaded",
        "\n  libcuda.so.1",
    ] {
        assert!(without.contains(part), "{without}");
    }
    for name in ["dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia0"] {
        machine.file(name);
    }
    machine.file("proc/driver/nvidia/version");
    fs::write(proc.join("driver/nvidia/version"), "NVRM version: 580.1\nGCC version: 12\n")
        .unwrap();
    assert_eq!(machine.paths(Platform::Cuda), ["dev/nvidia0"]);
    let with = text(&machine);
    for part in [
        "One CUDA device file was found",
        "/dev/nvidia0: found\n",
        "version: NVRM version: 580.1\n",
    ] {
        assert!(with.contains(part), "{with}");
    }
}

#[test]
fn a_plugin_that_is_too_old_or_damaged_is_reported() {
    let machine = Machine::new();
    let source = machine.path("old.c");
    fs::write(
        &source,
        "struct { long size; void *start; long version_size; void *version_start; int major, minor; void *f[200]; }
         table = {800, 0, 24, 0, 0, 54}; void *GetPjrtApi(void) { return &table; }",
    )
    .unwrap();
    let old = machine.path("old.so");
    assert!(
        Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .args([&old, &source])
            .status()
            .unwrap()
            .success()
    );
    let state = PluginState::of_file(old.clone());
    assert!(matches!(&state, PluginState::Unusable { path, .. } if *path == old), "{state:?}");
    assert!(
        state.to_string().contains("speaks PJRT API 0.54; this program speaks 0.81"),
        "{state}"
    );
    let damaged = PluginState::of_file(machine.file("damaged.so"));
    assert!(matches!(damaged, PluginState::Unusable { .. }), "{damaged:?}");
}

#[test]
fn an_error_from_opening_is_explained_once() {
    let machine = Machine::new();
    let diagnosis = machine.diagnose(Platform::Tpu);
    let failed = error::plugin(crate::abi::PJRT_Error_Code::NOT_FOUND, "No jellyfish device found");
    let error = diagnosis.prepend_to(failed);
    assert!(error.is_not_found() && error.is_from_plugin());
    assert_eq!(error.to_string(), format!("{diagnosis}\n  then: No jellyfish device found"));
    assert!(error.to_string().starts_with("No TPU devices were found. Looked at:\n"));

    // An error from the search repeats what the diagnosis says about the plugin.
    let plugin = PluginState::Missing("no PJRT plugin for tpu was found".to_owned());
    let diagnosis = Diagnosis { plugin, ..diagnosis };
    let error = diagnosis.prepend_to(Error::of(Fact::NotFound, "no PJRT plugin for tpu was found"));
    assert_eq!(error.to_string(), diagnosis.to_string());
    assert_eq!(error.to_string().matches("no PJRT plugin").count(), 1);
}

#[test]
fn errors_that_are_not_about_devices_stay_unchanged() {
    for (fact, platform) in [(Fact::Rejected, Platform::Tpu), (Fact::NotFound, Platform::Cpu)] {
        assert_eq!(explain(Error::of(fact, "as it was"), platform, None).to_string(), "as it was");
    }
}

#[test]
fn a_tpu_leaves_signs_without_its_device_files() {
    let sign = |machine: &Machine, platform, variables: &[(&str, &str)]| {
        let variable = |name: &str| {
            let set = variables.iter().find(|(known, _)| *known == name);
            set.map(|(_, value)| OsString::from(value))
        };
        let sign = evidence_under(machine.folder.path(), platform, &variable);
        sign.map(|sign| sign.replace(&machine.folder.path().display().to_string(), ""))
    };
    let none = Machine::new();
    assert_eq!(sign(&none, Platform::Tpu, &[]), None);
    assert_eq!(sign(&none, Platform::Cuda, &[("TPU_WORKER_ID", "0")]), None);
    assert_eq!(
        sign(&none, Platform::Tpu, &[("TPU_WORKER_HOSTNAMES", "a,b")]).unwrap(),
        "the environment variable TPU_WORKER_HOSTNAMES is set"
    );
    // A plugin for TPUs elsewhere, and what this library sets itself.
    for own in [
        ("TPU_LIBRARY_PATH", "/opt/libtpu.so"),
        ("TPU_ACCELERATOR_TYPE", "v5litepod-8"),
        ("TPU_WORKER_HOSTNAMES", "localhost"),
        ("TPU_WORKER_ID", ""),
        ("TPU_WORKER_ID", "WARNING: could not determine TPU worker number"),
    ] {
        assert_eq!(sign(&none, Platform::Tpu, &[own]), None, "{own:?}");
    }

    let without_driver = Machine::new();
    without_driver.pci("0000:00:03.0", "0x1ae0", "0x020000", None);
    assert_eq!(sign(&without_driver, Platform::Tpu, &[]), None, "a network card");
    without_driver.pci("0000:00:04.0", "0x1ae0", "0xff0000", None);
    assert_eq!(
        sign(&without_driver, Platform::Tpu, &[]).unwrap(),
        "the PCI device 0000:00:04.0 is a Google accelerator"
    );

    let files = Machine::new();
    files.file("dev/accel0");
    files.file("dev/nvidia0");
    files.file("dev/nvidiactl");
    assert_eq!(sign(&files, Platform::Tpu, &[]).unwrap(), "/dev/accel0 exists");
    assert_eq!(sign(&files, Platform::Cuda, &[]).unwrap(), "/dev/nvidia0 exists");
    assert_eq!(sign(&files, Platform::Cpu, &[]), None);
}
