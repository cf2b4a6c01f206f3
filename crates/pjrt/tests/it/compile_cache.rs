//! The compile cache: hits, misses, and the effects of damage, kills and full disks.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::common::*;
use fulmen_pjrt::compile_cache::{CompileCache, ProgramKey, SavedPrograms};
use fulmen_pjrt::{Client, CompileOptions, LoadedExecutable};

/// The variable with the folder of a child process.
const FOLDER: &str = "FULMEN_TEST_FOLDER";
/// The variable with the task of a child process.
const TASK: &str = "FULMEN_TEST_TASK";

const TIME: Duration = Duration::from_millis(1500);

fn key_of(client: &Client, name: &str, text: &str) -> ProgramKey {
    ProgramKey::new(&client.topology().unwrap(), name, text, &CompileOptions::new(), []).unwrap()
}

/// Compiles and stores `increment`.
fn store(cache: &CompileCache, client: &Client, name: &str) -> ProgramKey {
    let key = key_of(client, name, &increment(""));
    let program = compile(client, &increment(""));
    cache.store(&key, &program, TIME).unwrap();
    key
}

fn large(folder: &Path) -> CompileCache {
    CompileCache::new(folder, 1 << 30)
}

fn increments(client: &Client, program: &LoadedExecutable) {
    let x = put(client, &[1.5; 4], 0);
    assert_eq!(get(&run(program, vec![(&x).into()]).outputs[0][0]), [2.5; 4]);
}

fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.to_string_lossy().ends_with(ending)).collect()
}

#[test]
fn a_stored_program_is_the_one_that_was_compiled() {
    let folder = tempfile::tempdir().unwrap();
    let cache = large(&folder.path().join("new/folder"));
    let one = client(1);
    let key = key_of(&one, "step", &increment("{tf.aliasing_output = 0 : i32}"));
    assert!(cache.load(&one, &key).unwrap().is_none() && cache.entries().unwrap().is_empty());
    assert!(!cache.has_program("step") && cache.nearest(&key).is_none());
    let compiled = compile(&one, &increment("{tf.aliasing_output = 0 : i32}"));
    cache.store(&key, &compiled, TIME).unwrap();

    let other = client(1);
    let key = key_of(&other, "step", &increment("{tf.aliasing_output = 0 : i32}"));
    let loaded = cache.load(&other, &key).unwrap().unwrap();
    assert_eq!(loaded.signature(), compiled.signature());
    assert_eq!(loaded.memory_analysis().unwrap(), compiled.memory_analysis().unwrap());
    increments(&other, &loaded);
    assert!(cache.has_program("step") && !cache.has_program("ste"));
    assert!(cache.nearest(&key).is_none(), "there is no other");

    let entries = cache.entries().unwrap();
    assert_eq!(
        (entries.len(), entries[0].program.as_deref(), entries[0].compile_time),
        (1, Some("step"), TIME)
    );
    assert!(cache.verify().unwrap().is_empty());
    assert_eq!(cache.clear().unwrap(), entries[0].bytes);
    assert!(cache.load(&other, &key).unwrap().is_none());
}

#[test]
fn a_stored_program_knows_its_memory() {
    let text = "func.func public @main(%x: tensor<512x512xf32>) -> tensor<512x512xf32> {
        %y = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
        %z = stablehlo.tanh %y : tensor<512x512xf32>
        %w = stablehlo.dot_general %z, %y, contracting_dims = [1] x [0] : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
        return %w : tensor<512x512xf32>
    }";
    let client = client(1);
    let compiled = compile(&client, text);
    let loaded = client.load(&compiled.serialize().unwrap()).unwrap();
    assert!(compiled.memory_analysis().unwrap().temp_bytes >= 1 << 20);
    assert_eq!(loaded.memory_analysis().unwrap(), compiled.memory_analysis().unwrap());
}

#[test]
fn keys_differ_if_programs_may_differ() {
    let one = client(1);
    let two = client(2);
    let text = increment("");
    let key = key_of(&one, "step", &text);
    let input = |ty: &str| [("batch.image".to_owned(), ty.to_owned())];
    let with = |options: &CompileOptions, ty: &str| {
        ProgramKey::new(&one.topology().unwrap(), "step", &text, options, input(ty)).unwrap()
    };
    let flag = CompileOptions::new().override_flag("xla_cpu_enable_fast_min_max", false);
    let new = CompileOptions::new();
    let others = [
        key_of(&one, "other", &text),
        key_of(&one, "step", &text.replace("1.0", "2.0")),
        key_of(&two, "step", &text),
        with(&flag, "u8[32]"),
        with(&new, "u8[64]"),
    ];
    for (i, other) in others.iter().enumerate() {
        assert_ne!(key.digest(), other.digest(), "{i}");
        assert!(others[..i].iter().all(|before| before.digest() != other.digest()), "{i}");
    }
    assert_eq!(key.digest(), key_of(&client(1), "step", &text).digest());
}

#[test]
fn a_miss_names_what_differs_from_the_most_similar_program() {
    let folder = tempfile::tempdir().unwrap();
    let cache = large(folder.path());
    let client = client(1);
    let key = |name: &str, text: &str, ty: &str| {
        ProgramKey::new(
            &client.topology().unwrap(),
            name,
            text,
            &CompileOptions::new(),
            [("batch.image".to_owned(), ty.to_owned())],
        )
        .unwrap()
    };
    let text = increment("");
    let program = compile(&client, &text);
    cache.store(&key("step", &text, "u8[32, 1, 28, 28]"), &program, TIME).unwrap();
    let sine = text.replace("add %x, %one", "sine %x");
    cache.store(&key("step", &sine, "u8[64, 1, 28, 28]"), &program, TIME).unwrap();
    cache.store(&key("other", &text, "u8[64, 1, 28, 28]"), &program, TIME).unwrap();
    assert_eq!(
        cache.nearest(&key("step", &text, "u8[64, 1, 28, 28]")).unwrap(),
        ["`batch.image`: u8[32, 1, 28, 28] then, u8[64, 1, 28, 28] now"]
    );
    assert_eq!(
        cache.nearest(&key("step", &text.replace("1.0", "2.0"), "u8[32, 1, 28, 28]")).unwrap(),
        ["the operations are the same, but their constants, axes, shapes or order differ"]
    );
    // A program for batches of another length is another variant.
    let of_length =
        |n: usize| key("step", &text, &format!("s32[8, {n}]")).with_variant(&n.to_string());
    cache.store(&of_length(64), &program, TIME).unwrap();
    assert_eq!(cache.nearest(&of_length(128)), None);
    let larger_batch = key("step", &text, "s32[16, 64]").with_variant("64");
    assert_eq!(
        cache.nearest(&larger_batch).unwrap(),
        ["`batch.image`: s32[8, 64] then, s32[16, 64] now"]
    );
    assert_eq!(of_length(64).digest(), key("step", &text, "s32[8, 64]").digest());
}

#[test]
fn a_damaged_entry_is_reported_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let cache = large(folder.path());
    let client = client(1);
    let key = store(&cache, &client, "step");
    let path = cache.entries().unwrap()[0].path.clone();
    let whole = fs::read(&path).unwrap();
    let refused = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        assert_eq!(cache.verify().unwrap().len(), 1);
        let error = cache.load(&client, &key).unwrap_err();
        assert!(error.is_corrupt() && !error.is_from_plugin(), "{error}");
        says(&error, &[&path.display().to_string(), "it has been removed"]);
        assert!(cache.load(&client, &key).unwrap().is_none());
    };
    for i in (0..whole.len()).step_by(whole.len() / 100) {
        let mut damaged = whole.clone();
        damaged[i] ^= 1 << (i % 8);
        refused(&damaged);
    }
    for length in [0, 1, 43, whole.len() / 2, whole.len() - 1] {
        refused(&whole[..length]);
    }
    // An intact entry under the name of another program.
    let other = store(&cache, &client, "other");
    let of_other = files(folder.path(), &format!("{}.xla", other.digest())).remove(0);
    fs::rename(&of_other, &path).unwrap();
    says(&cache.load(&client, &key).unwrap_err(), &["does not match its file name"]);
    // It is compiled and stored again.
    store(&cache, &client, "step");
    increments(&client, &cache.load(&client, &key).unwrap().unwrap());
}

#[test]
fn the_programs_used_least_recently_are_removed_first() {
    let folder = tempfile::tempdir().unwrap();
    let cache = large(folder.path());
    let client = client(1);
    let keys = ["a", "b", "c"].map(|name| store(&cache, &client, name));
    let now = SystemTime::now();
    for entry in cache.entries().unwrap() {
        let age = match entry.program.as_deref() {
            Some("a") => 30,
            Some("b") => 20,
            _ => 10,
        };
        File::open(&entry.path).unwrap().set_modified(now - Duration::from_secs(age)).unwrap();
    }
    assert!(cache.load(&client, &keys[0]).unwrap().is_some());
    let bytes = cache.entries().unwrap()[0].bytes;
    // There is space for three, and a fourth is stored.
    store(&CompileCache::new(folder.path(), 3 * bytes + bytes / 2), &client, "d");
    let programs: Vec<String> =
        cache.entries().unwrap().into_iter().filter_map(|entry| entry.program).collect();
    assert_eq!(programs, ["d", "a", "c"]);
    // A program that exceeds the limit is not stored, and the others stay.
    store(&CompileCache::new(folder.path(), bytes / 2), &client, "e");
    assert_eq!(cache.entries().unwrap().len(), 3);
}

/// The folder is not added up after each program.
#[test]
fn the_limit_holds_after_each_of_many_programs() {
    let folder = tempfile::tempdir().unwrap();
    let client = client(1);
    let total = || files(folder.path(), ".xla").iter().map(|f| f.metadata().unwrap().len()).sum();
    let store = |cache: &CompileCache, i: usize| {
        let key = key_of(&client, &format!("p{i:03}"), &increment(""));
        cache.store_serialized(&key, client.plugin(), &[0; 4000], TIME).unwrap();
    };
    store(&large(folder.path()), 0);
    let one: u64 = total();
    let cache = CompileCache::new(folder.path(), 40 * one);
    for i in 1..150 {
        store(&cache, i);
        assert!(total() <= 40 * one, "{i}: {} of {}", total(), 40 * one);
    }
    assert!(total() > 36 * one && cache.has_program("p149") && !cache.has_program("p100"));
}

#[test]
fn a_folder_that_cannot_be_used_is_an_error_that_names_it() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let cache = large(&file.path().join("cache"));
    let client = client(1);
    let key = key_of(&client, "step", &increment(""));
    let place = file.path().display().to_string();
    says(&cache.load(&client, &key).unwrap_err(), &["cannot read", &place]);
    says(
        &cache.store(&key, &compile(&client, &increment("")), TIME).unwrap_err(),
        &["cannot create the folder", &place],
    );
    says(&cache.clear().unwrap_err(), &["cannot read the folder", &place]);
}

/// The tasks of child processes.
#[test]
fn child() {
    let (Some(folder), Ok(task)) = (std::env::var_os(FOLDER), std::env::var(TASK)) else { return };
    let cache = large(Path::new(&folder));
    let client = client(1);
    cache.prepare(&client);
    let key = key_of(&client, "step", &increment(""));
    let program = compile(&client, &increment(""));
    match task.as_str() {
        "store" => cache.store(&key, &program, TIME).unwrap(),
        "store for ever" => loop {
            cache.store(&key, &program, TIME).unwrap();
            println!("stored");
        },
        "store on a full disk" => {
            let error = cache.store(&key, &program, TIME).unwrap_err();
            assert!(error.is_disk_full(), "{error}");
            assert!(cache.load(&client, &key).unwrap().is_none());
        }
        _ => println!("found: {}", cache.load(&client, &key).unwrap().is_some()),
    }
}

#[test]
fn a_writer_that_is_killed_at_any_moment_leaves_only_whole_programs() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..8 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "compile_cache::child", "--nocapture"])
            .env(FOLDER, folder.path())
            .env(TASK, "store for ever")
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
        // Until the first write has ended, and then during another one.
        let mut line = String::new();
        while !line.contains("stored") {
            line.clear();
            assert!(
                std::io::BufRead::read_line(&mut output, &mut line).unwrap() > 0,
                "the child has ended"
            );
        }
        std::thread::sleep(Duration::from_micros(700 * round * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let cache = large(folder.path());
        assert!(cache.verify().unwrap().is_empty());
        let client = client(1);
        let program =
            cache.load(&client, &key_of(&client, "step", &increment(""))).unwrap().unwrap();
        increments(&client, &program);
    }
    // The next writer removes the leftovers of the others.
    in_child("compile_cache::child", &[(FOLDER, folder.path().to_str().unwrap()), (TASK, "store")]);
    assert_eq!(
        (files(folder.path(), ".xla").len(), files(folder.path(), "").len()),
        (1, 2),
        "a program and a hash"
    );
}

#[test]
fn on_a_full_disk_nothing_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    // A file can have one block of 512 bytes.
    let script = "trap '' XFSZ && ulimit -f 1 && exec \"$@\"";
    let output = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "compile_cache::child", "--nocapture"])
        .env(FOLDER, folder.path())
        .env(TASK, "store on a full disk")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(files(folder.path(), "").len(), 0);
}

#[test]
fn the_hash_of_the_plugin_is_kept_until_its_file_changes() {
    let folder = tempfile::tempdir().unwrap();
    // A file whose hash is not published.
    let own = tempfile::tempdir().unwrap();
    let own = own.path().join("plugin.so");
    fs::copy(plugin().path(), &own).unwrap();
    let task = |task| {
        let variables = [
            (FOLDER, folder.path().to_str().unwrap()),
            (TASK, task),
            ("FULMEN_PJRT_PLUGIN", own.to_str().unwrap()),
        ];
        in_child("compile_cache::child", &variables)
    };
    task("store");
    let record =
        files(folder.path(), "").into_iter().find(|path| path.extension().is_none()).unwrap();
    let written = fs::read_to_string(&record).unwrap();
    assert!(written.starts_with(plugin().identity().unwrap()));
    assert!(task("load").contains("found: true"));
    // The record is trusted: with another hash, the program belongs to a different plugin.
    fs::write(&record, written.replacen(&written[..8], "00000000", 1)).unwrap();
    assert!(task("load").contains("found: false"));
    // A record of another state of the file is not trusted, nor is a truncated one.
    for outdated in
        [written.replace("bytes, modified", "bytes, modified 1"), written[..60].to_owned()]
    {
        fs::write(&record, outdated).unwrap();
        assert!(task("load").contains("found: true"));
    }
}

#[test]
fn pipes_devices_and_huge_files_are_not_read_as_programs() {
    let folder = tempfile::tempdir().unwrap();
    let cache = large(folder.path());
    let client = client(1);
    let key = store(&cache, &client, "step");
    let [entry] = &files(folder.path(), ".xla")[..] else { panic!("one entry") };
    let replacements: [&dyn Fn(&Path); 3] = [
        &|path| std::os::unix::fs::symlink("/dev/zero", path).unwrap(),
        &|path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success()),
        &|path| File::create(path).unwrap().set_len(1 << 43).unwrap(),
    ];
    for replace in replacements {
        fs::remove_file(entry).unwrap();
        replace(entry);
        let error = cache.load(&client, &key).err().unwrap().to_string();
        assert!(error.contains("regular file") || error.contains("at most"), "{error}");
        assert_eq!(cache.verify().unwrap().len(), 1);
        assert!(cache.nearest(&key).is_none());
        assert_eq!(cache.entries().unwrap()[0].program, None);
        let error = SavedPrograms::read(entry, &client).unwrap_err().to_string();
        assert!(error.contains("regular file") || error.contains("at most"), "{error}");
    }
    assert!(SavedPrograms::read("/dev/zero".as_ref(), &client).is_err());
}
