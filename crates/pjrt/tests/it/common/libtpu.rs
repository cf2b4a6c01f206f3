//! libtpu for the tests that compile for TPUs, without a TPU. A skipped test reports it. Tests of
//! other crates include this file with `#[path]`.

use std::io::Write;
use std::path::PathBuf;

use fulmen_pjrt::Plugin;
use fulmen_pjrt::locate::{Platform, locate};

/// libtpu if it is installed. Otherwise the caller returns; this function reports the skipped test,
/// past the test harness, which hides the output of passing tests. With `FULMEN_REQUIRE_LIBTPU=1`
/// it fails instead.
#[allow(dead_code, reason = "some tests only need the path")]
pub(crate) fn libtpu() -> Option<Plugin> {
    path().map(|path| Plugin::load(path).unwrap())
}

/// The path of libtpu, as above. It is not loaded: its changes to this process's environment would
/// affect processes that other tests start.
pub(crate) fn path() -> Option<PathBuf> {
    let error = match locate(Platform::Tpu, None) {
        Ok(path) => return Some(path),
        Err(error) if error.is_not_found() => error,
        Err(error) => panic!("{error}"),
    };
    let required = std::env::var_os("FULMEN_REQUIRE_LIBTPU")
        .is_some_and(|value| !value.is_empty() && value != "0");
    assert!(!required, "FULMEN_REQUIRE_LIBTPU is set, and {error}");
    let thread = std::thread::current();
    let line = format!(
        "\nskipped: {}: libtpu is not installed (cargo run -p fulmen-pjrt --example fetch_libtpu)\n",
        thread.name().unwrap_or("a test")
    );
    // One call, so that the lines of concurrent tests do not mix.
    std::io::stderr().write_all(line.as_bytes()).unwrap();
    None
}
