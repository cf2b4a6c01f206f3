//! Loading plugins, and files that are not plugins.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::*;
use fulmen_pjrt::locate::{Platform, locate};
use fulmen_pjrt::{NamedValue, Plugin};

#[test]
fn the_same_file_is_the_same_plugin() {
    let path = locate(Platform::Cpu, None).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("link.so");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let plugins = std::thread::scope(|scope| {
        let loads =
            [&path, &link, &path].map(|path| scope.spawn(move || Plugin::load(path).unwrap()));
        loads.map(|load| load.join().unwrap())
    });
    for plugin in &plugins {
        assert_eq!(plugin.path(), path.canonicalize().unwrap());
        assert_eq!(plugin.api_version().major, 0);
        assert!(plugin.api_version().minor >= 81, "{}", plugin.api_version());
    }
}

#[test]
fn the_plugin_reports_its_attributes() {
    let attributes = plugin().attributes().unwrap();
    let version = attributes.get("stablehlo_current_version").unwrap();
    assert!(matches!(version, NamedValue::IntList(version) if version.len() == 3), "{version}");
    assert_eq!(plugin().identity().unwrap().len(), 64);
}

#[test]
fn a_plugin_without_a_profiler_says_so() {
    let error = plugin().start_profile().unwrap_err();
    assert!(error.is_unsupported(), "{error:?}");
    says(&error, &["has no profiler", &plugin().path().display().to_string()]);
}

/// Without a TPU, libtpu's profiler can be created, but not started, and the error says why.
#[test]
fn libtpu_has_a_profiler() {
    let Some(plugin) = libtpu() else { return };
    match plugin.start_profile() {
        Ok(profile) => assert!(!profile.finish().unwrap().is_empty()),
        Err(error) => says(&error, &["PLUGIN_Profiler_Start: No factory for ACTIVITY_TRACING"]),
    }
}

fn refused(path: &Path, parts: &[&str]) {
    let error = Plugin::load(path).unwrap_err();
    assert!(error.is_not_a_plugin(), "{error:?}");
    says(&error, &[&path.display().to_string()]);
    says(&error, parts);
}

#[test]
fn a_path_that_is_not_a_plugin_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let error = Plugin::load(folder.path().join("missing.so")).unwrap_err();
    assert!(error.is_not_found());
    says(&error, &["there is no PJRT plugin at", "missing.so"]);

    let folder = folder.path().canonicalize().unwrap();
    let text = folder.join("text.so");
    fs::write(
        &text,
        "this is not a shared object, but it is long enough to have held a header of one",
    )
    .unwrap();
    refused(&text, &["the dynamic loader says", "use the path of a whole plugin (.so) for"]);
    let empty = folder.join("empty.so");
    fs::write(&empty, "").unwrap();
    refused(&empty, &["the dynamic loader says", "file too short"]);
    refused(&folder, &["it is not a regular file"]);
}

/// Opening one would wait for a writer.
#[test]
fn a_named_pipe_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().canonicalize().unwrap().join("pipe.so");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    refused(&pipe, &["it is not a regular file"]);
}

#[test]
fn a_plugin_for_another_architecture_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    let file = shared_object(&folder, "plugin", &plugin_of("0"));
    let mut bytes = fs::read(&file).unwrap();
    // The machine of the ELF header: s390x.
    bytes[18..20].copy_from_slice(&[22, 0]);
    fs::write(&file, &bytes).unwrap();
    refused(
        &file,
        &[&format!("use the path of a whole plugin (.so) for {}", std::env::consts::ARCH)],
    );
}

#[test]
fn a_shared_object_that_is_not_a_plugin_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    let library = shared_object(&folder, "library", "int answer(void) { return 42; }");
    refused(&library, &["it is a shared object but not a PJRT plugin: it has no GetPjrtApi"]);
    let nothing = shared_object(&folder, "nothing", "void *GetPjrtApi(void) { return 0; }");
    refused(&nothing, &["its GetPjrtApi returned null"]);
    let small = shared_object(
        &folder,
        "small",
        "long table[9] = {8}; void *GetPjrtApi(void) { return table; }",
    );
    refused(&small, &["its table of functions has 8 bytes"]);
    let broken = shared_object(
        &folder,
        "broken",
        "void missing(void); void *GetPjrtApi(void) { missing(); return 0; }",
    );
    refused(&broken, &["the dynamic loader says", "missing"]);
}

/// The source of a plugin whose functions are all the one with this name.
fn plugin_of(function: &str) -> String {
    format!(
        "struct {{ long size; void *start; long version_size; void *version_start; int major, minor; void *f[138]; }}
         table = {{1144, 0, 24, 0, 0, 115, {{[0 ... 137] = {function}}}}}; void *GetPjrtApi(void) {{ return &table; }}"
    )
}

/// An exception must not unwind Rust frames; it ends the process at the call, with a message.
#[test]
fn a_plugin_that_throws_ends_the_process_with_a_message() {
    const NAME: &str = "plugin::a_plugin_that_throws_ends_the_process_with_a_message";
    if is_child() {
        let _ = Plugin::load(std::env::var_os("PLUGIN").unwrap());
        println!("after the exception");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // The C equivalent of C++'s `throw`, without a C++ compiler.
    let source = format!(
        "#include <unwind.h>
         static struct _Unwind_Exception exception;
         void *thrower(void *args) {{ _Unwind_RaiseException(&exception); return 0; }}
         {}",
        plugin_of("thrower")
    );
    let thrower = shared_object(folder.path(), "thrower", &source);
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .envs([("FULMEN_TEST_CHILD", "1".as_ref()), ("PLUGIN", thrower.as_os_str())])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("threw a C++ exception out of PJRT_Plugin_Initialize"), "{said}");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("after the exception"));
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output.status), Some(6), "it aborts");
}

#[test]
fn a_plugin_whose_file_was_replaced_has_no_identity() {
    let folder = tempfile::tempdir().unwrap();
    let source = format!("void *well(void *args) {{ return 0; }} {}", plugin_of("well"));
    let load = |name: &str| Plugin::load(shared_object(folder.path(), name, &source)).unwrap();
    let kept = load("kept");
    let replaced = load("replaced");
    let new = folder.path().join("new.so");
    fs::copy(replaced.path(), &new).unwrap();
    fs::rename(&new, replaced.path()).unwrap();
    says(
        &replaced.identity().unwrap_err(),
        &["was replaced after it was loaded; restart the program"],
    );
    let identity = kept.identity().unwrap().to_owned();
    fs::remove_file(kept.path()).unwrap();
    assert_eq!(kept.identity().unwrap(), identity, "what was found out once stays");
}

#[test]
fn another_version_and_a_missing_function_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    let table = |name: &str, size: usize, major: i32, minor: i32| {
        let source = format!(
            "struct {{ long size; void *start; long version_size; void *version_start; int major, minor; void *f[200]; }}
             table = {{{size}, 0, 24, 0, {major}, {minor}}}; void *GetPjrtApi(void) {{ return &table; }}"
        );
        shared_object(&folder, name, &source)
    };
    let old = table("old", 800, 0, 54);
    refused(
        &old,
        &["speaks PJRT API 0.54", "this program speaks 0.81 and later 0.x: use a newer plugin"],
    );
    refused(&table("next", 1200, 1, 2), &["speaks PJRT API 1.2"]);
    for (name, size) in [("null", 1144), ("short", 40)] {
        let error = Plugin::load(table(name, size, 0, 115)).unwrap_err();
        assert!(error.is_unsupported());
        says(&error, &["starting the plugin", "has no PJRT_Plugin_Initialize"]);
    }
}

/// A cache folder with a copy of the downloaded plugin; `None` if this machine uses another plugin.
fn cache_with_plugin(folder: &Path) -> Option<PathBuf> {
    let plugin = locate(Platform::Cpu, None).unwrap();
    let package = plugin.parent().unwrap();
    let fetched = fulmen_pjrt::fetch::cache_folder()
        .is_ok_and(|cache| package.parent() == Some(&cache.join("pjrt")));
    if !fetched {
        eprintln!("skipped: this machine does not use the downloaded plugin");
        return None;
    }
    let copy = folder
        .join("fulmen/pjrt")
        .join(package.file_name().unwrap())
        .join(plugin.file_name().unwrap());
    fs::create_dir_all(copy.parent().unwrap()).unwrap();
    fs::copy(plugin, &copy).unwrap();
    Some(copy)
}

/// Runs a test again in a process whose plugin comes from this cache folder, and that may not
/// download another.
fn with_cache(name: &str, cache: &Path, variables: &[(&str, &str)]) -> std::process::Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", name, "--nocapture"])
        .envs([("FULMEN_TEST_CHILD", "1"), ("FULMEN_OFFLINE", "1")]);
    command
        .env("XDG_CACHE_HOME", cache)
        .env_remove("FULMEN_PJRT_PLUGIN")
        .envs(variables.iter().copied());
    command.output().unwrap()
}

/// Overwrites the plugin's instructions with one that no process may execute.
fn damage(plugin: &Path) {
    let mut bytes = fs::read(plugin).unwrap();
    let number = |position: usize, size: usize| {
        bytes[position..position + size]
            .iter()
            .rev()
            .fold(0_usize, |value, &byte| value << 8 | usize::from(byte))
    };
    // The first program header of type load (1) that is executable (flag 1).
    let start = number(32, 8);
    let each = number(54, 2);
    let count = number(56, 2);
    let header = (0..count)
        .map(|i| start + i * each)
        .find(|&offset| number(offset, 4) == 1 && number(offset + 4, 4) & 1 == 1)
        .unwrap();
    let offset = number(header + 8, 8);
    let size = number(header + 32, 8);
    // `hlt` on x86, which only the kernel may execute; elsewhere, an illegal instruction.
    bytes[offset..offset + size].fill(if cfg!(target_arch = "x86_64") { 0xf4 } else { 0 });
    fs::write(plugin, bytes).unwrap();
}

/// Such a file would end the process.
#[test]
fn a_damaged_plugin_is_detected_before_it_is_loaded() {
    const NAME: &str = "plugin::a_damaged_plugin_is_detected_before_it_is_loaded";
    if is_child() {
        match Plugin::load(locate(Platform::Cpu, None).unwrap()) {
            Ok(plugin) => println!("loaded: {}", plugin.identity().unwrap()),
            Err(error) => println!("corrupt: {}, {error}", error.is_corrupt()),
        }
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let Some(plugin) = cache_with_plugin(folder.path()) else { return };
    let whole = locate(Platform::Cpu, None).unwrap();
    let said = || String::from_utf8(with_cache(NAME, folder.path(), &[]).stdout).unwrap();
    let sha256 = Plugin::load(&whole).unwrap().identity().unwrap().to_owned();
    assert!(said().contains(&format!("loaded: {sha256}")));
    damage(&plugin);
    for _ in 0..2 {
        let said = said();
        let damaged = format!("the SHA-256 of {} is", plugin.canonicalize().unwrap().display());
        let parts = [
            "corrupt: true",
            "is damaged",
            &damaged,
            "FULMEN_OFFLINE forbids fetching it again; run `python3",
        ];
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    }
    fs::OpenOptions::new().write(true).open(&plugin).unwrap().set_len(1 << 20).unwrap();
    assert!(said().contains("corrupt: true"), "one that was cut off is damaged too");
    fs::copy(whole, &plugin).unwrap();
    assert!(said().contains(&format!("loaded: {sha256}")));
}

/// A file that the dynamic loader rejects is verified, although its size and time have not changed.
#[test]
fn a_damaged_plugin_that_cannot_be_loaded_is_detected() {
    const NAME: &str = "plugin::a_damaged_plugin_that_cannot_be_loaded_is_detected";
    if is_child() {
        match Plugin::load(locate(Platform::Cpu, None).unwrap()) {
            Ok(_) => println!("it was loaded"),
            Err(error) => println!("corrupt: {}, {error}", error.is_corrupt()),
        }
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let Some(plugin) = cache_with_plugin(folder.path()) else { return };
    let said = || String::from_utf8(with_cache(NAME, folder.path(), &[]).stdout).unwrap();
    assert!(said().contains("it was loaded"));
    let modified = plugin.metadata().unwrap().modified().unwrap();
    let mut bytes = fs::read(&plugin).unwrap();
    // The type of the ELF file.
    bytes[16] ^= 1;
    fs::write(&plugin, bytes).unwrap();
    fs::File::open(&plugin).unwrap().set_modified(modified).unwrap();
    let said = said();
    assert!(said.contains("corrupt: true") && said.contains("is damaged"), "{said}");
}

#[test]
fn options_that_would_end_the_process_are_refused() {
    let check = |name: &str, value: NamedValue, expected: &str| {
        let error = plugin().create_client(&[(name, value)]).unwrap_err();
        assert!(error.is_usage());
        says(&error, &[expected]);
    };
    check(
        "cpu_device_count",
        "eight".into(),
        "the option cpu_device_count must be an integer, not a string (eight)",
    );
    check("cpu_device_count", 0.into(), "cpu_device_count must be from 1 to 1024, not 0");
    check("asynchronous", 1.into(), "the option asynchronous must be a bool");
    // Older plugins ignore unknown options.
    if plugin().api_version().minor >= 115 {
        check("no_such_option", true.into(), "no_such_option");
    }
}

#[test]
fn xla_flags_are_refused() {
    if is_child() {
        let flags = format!("{:?}", std::env::var("XLA_FLAGS").unwrap());
        let error = Plugin::load(locate(Platform::Cpu, None).unwrap()).unwrap_err();
        assert!(error.is_usage());
        says(
            &error,
            &[
                &format!("XLA_FLAGS is set (to {flags})"),
                "unset it",
                "CompileOptions::override_flag",
            ],
        );
        return;
    }
    // An unknown flag, the name of a missing file, and a blank name.
    for flags in ["--xla_no_such_flag=1", "xla_flag", " "] {
        in_child("plugin::xla_flags_are_refused", &[("XLA_FLAGS", flags)]);
    }
}

#[test]
fn xla_flags_that_are_known_are_taken() {
    if is_child() {
        let client = client(1);
        assert_eq!(
            get(&run(
                &compile(&client, &increment("")),
                vec![(&put(&client, &[0.0; 4], 0)).into()]
            )
            .outputs[0][0]),
            [1.0; 4]
        );
        return;
    }
    // No flag, and that of `ci/test-runner`.
    for flags in ["", "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters=true"] {
        in_child("plugin::xla_flags_that_are_known_are_taken", &[("XLA_FLAGS", flags)]);
    }
}

#[test]
fn only_unset_variables_are_set() {
    if is_child() {
        plugin();
        assert_eq!(std::env::var("TPU_LOG_DIR").unwrap(), "/mine");
        assert_eq!(std::env::var("TF_CPP_MIN_LOG_LEVEL").unwrap(), "3");
        assert_eq!(std::env::var("GRPC_VERBOSITY").unwrap(), "ERROR");
        return;
    }
    in_child("plugin::only_unset_variables_are_set", &[("TPU_LOG_DIR", "/mine")]);
}

#[test]
fn ordinary_use_prints_nothing() {
    if is_child() {
        let client = client(2);
        client.compile("nonsense", &Default::default()).unwrap_err();
        get(&run(&compile(&client, &increment("")), vec![(&put(&client, &[0.0; 4], 0)).into()])
            .outputs[0][0]);
        return;
    }
    let text = in_child("plugin::ordinary_use_prints_nothing", &[]);
    let lines = text.lines().filter(|line| !line.trim().is_empty()).collect::<Vec<_>>();
    assert_eq!(lines.len(), 3, "only the test harness speaks: {text}");
}

/// The parser of a plugin looks for a NUL byte after the text.
#[test]
fn what_follows_a_text_in_memory_is_not_parsed() {
    let client = client(1);
    let program = increment("");
    for following in ["nonsense", "}", "\u{7f}", " \"", " module {"] {
        let longer = format!("{program}{following}");
        let executable = client.compile(&longer[..program.len()], &Default::default()).unwrap();
        assert_eq!(
            get(&run(&executable, vec![(&put(&client, &[1.0; 4], 0)).into()]).outputs[0][0]),
            [2.0; 4]
        );
        let longer = format!("nonsense{following}");
        client.compile(&longer[.."nonsense".len()], &Default::default()).unwrap_err();
    }
}

#[test]
fn a_client_knows_its_devices() {
    let client = client(3);
    assert_eq!((client.platform_name(), client.process_index()), ("cpu", 0));
    assert!(!client.platform_version().is_empty());
    let ids = client.devices().iter().map(|device| device.id()).collect::<Vec<_>>();
    assert_eq!(ids, [0, 1, 2]);
    assert_eq!(client.addressable_devices(), client.devices());
    let device = &client.devices()[1];
    assert!(device.is_addressable());
    assert_eq!(
        (device.kind(), device.process_index(), device.local_hardware_id()),
        ("cpu", 0, Some(1))
    );
    assert!(!format!("{device:?}").is_empty() && !device.to_string().is_empty());
    let error = device.memory_stats().unwrap_err();
    assert!(error.is_unsupported() && error.is_from_plugin(), "{error:?}");
    assert_eq!(error.code(), Some("UNIMPLEMENTED"));
}
