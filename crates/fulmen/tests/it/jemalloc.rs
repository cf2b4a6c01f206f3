//! The feature `jemalloc`: what a plugin allocates is jemalloc's, with the settings of `src/jemalloc.rs`.

use std::env;
use std::mem;
use std::process::Command;

use fulmen::low_level::pjrt::locate::{Platform, locate};
use fulmen::low_level::pjrt::{ElementType, Plugin};

/// The bytes of the buffer that a child still has when it ends.
const BYTES: &str = "FULMEN_TEST_CHILD";

/// What jemalloc prints when a child with a buffer of `bytes` bytes ends.
fn statistics(bytes: usize, settings: &str) -> String {
    let name = "jemalloc::a_child_ends_with_a_buffer";
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--nocapture", name])
        .env(BYTES, bytes.to_string())
        .env("MALLOC_CONF", settings)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    text
}

/// The number after a name in the statistics.
fn number(text: &str, name: &str) -> i64 {
    let (_, rest) = text.split_once(name).unwrap_or_else(|| panic!("no {name} in {text}"));
    let digits = rest.trim_start().split(|letter: char| !letter.is_ascii_digit() && letter != '-');
    digits.into_iter().next().unwrap().parse().unwrap()
}

#[test]
#[ignore = "the tests of this file start it"]
fn a_child_ends_with_a_buffer() {
    let bytes = env::var(BYTES).unwrap().parse().unwrap();
    let plugin = Plugin::load(locate(Platform::Cpu, None).unwrap()).unwrap();
    let client = plugin.create_client(&[("cpu_device_count", 1.into())]).unwrap();
    let values = vec![1; bytes];
    let device = &client.devices()[0];
    let buffer = client.buffer_from_host(&values, ElementType::U8, &[bytes], device).unwrap();
    assert!(buffer.read().unwrap().wait().unwrap()[..] == values[..]);
    // It is in use until the process ends, and `values` is not.
    mem::forget(buffer);
}

#[test]
fn a_buffer_of_a_plugin_is_in_memory_of_jemalloc() {
    const LARGE: usize = 256 << 20;
    let allocated = |bytes| number(&statistics(bytes, "stats_print:true"), "Allocated:");
    let grown = allocated(LARGE) - allocated(1);
    assert!((grown - LARGE as i64).abs() < 4 << 20, "{grown} bytes for a buffer of {LARGE}");
}

#[test]
fn the_settings_count_and_the_users_win() {
    let text = statistics(1, "stats_print:true");
    assert_eq!(number(&text, "opt.oversize_threshold:"), 0);
    assert_eq!(number(&text, "opt.dirty_decay_ms:"), 60_000);
    let text = statistics(1, "stats_print:true,dirty_decay_ms:-1");
    assert_eq!(number(&text, "opt.oversize_threshold:"), 0);
    assert_eq!(number(&text, "opt.dirty_decay_ms:"), -1);
}
