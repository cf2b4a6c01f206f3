//! The search for plugins. Each case runs in a new process with its own variables.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::*;
use fulmen_pjrt::locate::{Platform, locate};

fn variable(name: &str) -> PathBuf {
    std::env::var_os(name).unwrap().into()
}

fn touch(path: &Path) -> String {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, "").unwrap();
    path.to_str().unwrap().to_owned()
}

/// `in_child` without the user's variables: empty ones count as unset.
fn in_clean_child(name: &str, variables: &[(&str, &str)]) -> String {
    let mut all = ["FULMEN_PJRT_PLUGIN", "TPU_LIBRARY_PATH", "FULMEN_OFFLINE", "VIRTUAL_ENV"]
        .map(|name| (name, ""))
        .to_vec();
    all.extend(variables);
    in_child(name, &all)
}

/// A Python with one folder of packages.
fn python(environment: &Path, packages: &Path) {
    write_python(environment, &format!("echo '{}'", packages.display()));
}

/// A Python that runs a shell script.
///
/// Another process writes the file. The kernel refuses to run a file while a process has it open for
/// writing: this one, or a child that another test has just forked.
fn write_python(environment: &Path, script: &str) {
    let folder = environment.join("bin");
    fs::create_dir_all(&folder).unwrap();
    let write = "printf '#!/bin/sh\\n%s\\n' \"$0\" >python3 && chmod 755 python3";
    let status =
        Command::new("sh").args(["-c", write, script]).current_dir(folder).status().unwrap();
    assert!(status.success());
}

#[test]
fn an_explicit_path_comes_first() {
    if is_child() {
        let given = variable("GIVEN");
        assert_eq!(locate(Platform::Cpu, Some(&given)).unwrap(), given);
        for platform in [Platform::Cpu, Platform::Cuda, Platform::Tpu] {
            assert_eq!(locate(platform, None).unwrap(), variable("FULMEN_PJRT_PLUGIN"));
        }
        let error = locate(Platform::Cpu, Some("/no/such.so".as_ref())).unwrap_err();
        assert!(error.is_not_found());
        says(&error, &["there is no PJRT plugin at /no/such.so, the path given in the code"]);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let given = touch(&folder.path().join("given.so"));
    let named = touch(&folder.path().join("named.so"));
    in_clean_child(
        "locate::an_explicit_path_comes_first",
        &[("GIVEN", &given), ("FULMEN_PJRT_PLUGIN", &named)],
    );
}

#[test]
fn a_variable_with_a_missing_path_is_an_error() {
    if is_child() {
        let error = locate(Platform::Tpu, None).unwrap_err();
        says(
            &error,
            &[
                "/no/such.so",
                "named by the environment variable TPU_LIBRARY_PATH",
                "correct the path",
            ],
        );
        return;
    }
    in_clean_child(
        "locate::a_variable_with_a_missing_path_is_an_error",
        &[("TPU_LIBRARY_PATH", "/no/such.so")],
    );
}

#[test]
fn python_packages_are_found_in_the_active_environment() {
    if is_child() {
        let packages = variable("PACKAGES");
        assert_eq!(locate(Platform::Tpu, None).unwrap(), packages.join("libtpu/libtpu.so"));
        let cuda = packages.join("jax_plugins/xla_cuda12/xla_cuda_plugin.so");
        assert_eq!(locate(Platform::Cuda, None).unwrap(), cuda);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let packages = folder.path().join("packages");
    touch(&packages.join("libtpu/libtpu.so"));
    touch(&packages.join("jax_plugins/xla_cuda12/xla_cuda_plugin.so"));
    python(folder.path(), &packages);
    in_clean_child(
        "locate::python_packages_are_found_in_the_active_environment",
        &[
            ("VIRTUAL_ENV", folder.path().to_str().unwrap()),
            ("PACKAGES", packages.to_str().unwrap()),
        ],
    );
}

#[test]
fn nothing_of_the_current_folder_is_run_or_found() {
    if is_child() {
        std::env::set_current_dir(variable("VIRTUAL_ENV")).unwrap();
        // A machine may have a plugin elsewhere.
        let found = locate(Platform::Tpu, None).unwrap_or_default();
        assert!(!found.ends_with("packages/libtpu/libtpu.so"), "{found:?}");
        assert_eq!(fs::read_to_string("ran-in").unwrap(), "/\n");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    touch(&folder.path().join("packages/libtpu/libtpu.so"));
    python(folder.path(), Path::new("packages"));
    let program = folder.path().join("bin/python3");
    let script = fs::read_to_string(&program).unwrap();
    fs::write(&program, format!("{script}pwd > \"$VIRTUAL_ENV/ran-in\"\n")).unwrap();
    let environment = folder.path().to_str().unwrap();
    in_clean_child(
        "locate::nothing_of_the_current_folder_is_run_or_found",
        &[("VIRTUAL_ENV", environment), ("XDG_CACHE_HOME", environment), ("FULMEN_OFFLINE", "1")],
    );
}

#[test]
fn the_cache_folder_comes_after_packages_and_nothing_lists_every_place() {
    if is_child() {
        let cache = variable("XDG_CACHE_HOME").join("fulmen/pjrt");
        assert_eq!(locate(Platform::Cuda, None).unwrap(), cache.join("xla_cuda_plugin.so"));
        let error = locate(Platform::Tpu, None).unwrap_err();
        assert!(error.is_not_found());
        let tpu = variable("VIRTUAL_ENV").join("packages/libtpu/libtpu.so");
        let tpu = tpu.display().to_string();
        let cache = cache.join("libtpu.so").display().to_string();
        let parts = [
            "no PJRT plugin for tpu was found",
            "pip install libtpu",
            "FULMEN_PJRT_PLUGIN (not set)",
        ];
        says(&error, &parts);
        says(&error, &["TPU_LIBRARY_PATH (not set)", &tpu, &cache, "/usr/lib/libtpu.so"]);
        // An earlier download is found, and nothing is downloaded.
        #[cfg(target_arch = "x86_64")]
        {
            let fetched = variable("XDG_CACHE_HOME").join("fulmen/pjrt/libtpu-0.0.51/libtpu.so");
            says(
                &error,
                &["download it: `fulmen plugin install tpu`", &fetched.display().to_string()],
            );
            touch(&fetched);
            assert_eq!(locate(Platform::Tpu, None).unwrap(), fetched);
            assert_eq!(fulmen_pjrt::fetch::libtpu().unwrap(), fetched);
        }
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let packages = folder.path().join("packages");
    fs::create_dir_all(&packages).unwrap();
    python(folder.path(), &packages);
    touch(&folder.path().join("fulmen/pjrt/xla_cuda_plugin.so"));
    let folder = folder.path().to_str().unwrap();
    in_clean_child(
        "locate::the_cache_folder_comes_after_packages_and_nothing_lists_every_place",
        &[("VIRTUAL_ENV", folder), ("XDG_CACHE_HOME", folder)],
    );
}

#[test]
fn offline_nothing_is_fetched() {
    if is_child() {
        let error = locate(Platform::Cpu, None).unwrap_err();
        assert!(error.is_fetch());
        says(
            &error,
            &[
                "FULMEN_OFFLINE forbids fetching it",
                "pip download --no-deps",
                "set FULMEN_PJRT_PLUGIN",
            ],
        );
        let cache = variable("XDG_CACHE_HOME").join("fulmen/pjrt/pjrt_c_api_cpu_plugin.so");
        says(
            &error,
            &["Looked at:\n", "FULMEN_PJRT_PLUGIN (not set)", &cache.display().to_string()],
        );
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().to_str().unwrap();
    in_clean_child(
        "locate::offline_nothing_is_fetched",
        &[("XDG_CACHE_HOME", cache), ("FULMEN_OFFLINE", "1")],
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn libtpu_is_fetched_on_request_only() {
    if is_child() {
        assert!(locate(Platform::Tpu, None).unwrap_err().is_not_found());
        let error = fulmen_pjrt::fetch::libtpu().unwrap_err();
        assert!(error.is_fetch());
        let download =
            "pip download --no-deps --only-binary=:all: --python-version 3.13 --implementation cp";
        says(
            &error,
            &[
                "libtpu is missing, and FULMEN_OFFLINE forbids fetching it",
                download,
                "set TPU_LIBRARY_PATH",
            ],
        );
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    python(folder.path(), folder.path());
    let folder = folder.path().to_str().unwrap();
    let variables = [("VIRTUAL_ENV", folder), ("XDG_CACHE_HOME", folder), ("FULMEN_OFFLINE", "1")];
    in_clean_child("locate::libtpu_is_fetched_on_request_only", &variables);
}

#[test]
fn without_a_home_the_error_says_what_to_set() {
    if is_child() {
        let error = locate(Platform::Cpu, None).unwrap_err();
        assert!(error.is_not_found());
        let advice = "set one of them, or set FULMEN_PJRT_PLUGIN to a plugin's path";
        says(
            &error,
            &["neither XDG_CACHE_HOME nor HOME is an absolute path", advice, "Looked at:"],
        );
        return;
    }
    in_clean_child(
        "locate::without_a_home_the_error_says_what_to_set",
        &[("XDG_CACHE_HOME", ""), ("HOME", "")],
    );
}

#[test]
fn without_pip_the_error_says_what_to_do() {
    if is_child() {
        let error = locate(Platform::Cpu, None).unwrap_err();
        assert!(error.is_fetch());
        says(&error, &["Python has no pip; install it", "Nothing was left behind"]);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    write_python(folder.path(), "echo \"$0: No module named pip\" >&2; exit 1");
    let folder = folder.path().to_str().unwrap();
    let text = in_clean_child(
        "locate::without_pip_the_error_says_what_to_do",
        &[("XDG_CACHE_HOME", folder), ("VIRTUAL_ENV", folder)],
    );
    assert!(text.contains("Fetching the XLA CPU plugin ("), "{text}");
}
