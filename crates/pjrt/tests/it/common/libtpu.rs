//! libtpu for the tests that compile for TPUs, which needs no TPU. A test that goes without it says so. The tests of
//! other crates take this file with `#[path]`.

use std::io::Write;
use std::path::PathBuf;

use fulmen_pjrt::Plugin;
use fulmen_pjrt::locate::{Platform, locate};

/// libtpu if it is installed. If not, the caller returns: that it was skipped is said here, past the test harness, which
/// keeps what a passing test prints to itself. `FULMEN_REQUIRE_LIBTPU=1` makes it a failure.
#[allow(dead_code, reason = "some tests need the file alone")]
pub(crate) fn libtpu() -> Option<Plugin> {
    path().map(|path| Plugin::load(path).unwrap())
}

/// Where libtpu is, as above. It is not loaded: what it does to this process's environment would meet processes that other
/// tests start.
pub(crate) fn path() -> Option<PathBuf> {
    let error = match locate(Platform::Tpu, None) {
        Ok(path) => return Some(path),
        Err(error) if error.is_not_found() => error,
        Err(error) => panic!("{error}"),
    };
    let required = std::env::var_os("FULMEN_REQUIRE_LIBTPU").is_some_and(|value| !value.is_empty() && value != "0");
    assert!(!required, "FULMEN_REQUIRE_LIBTPU is set, and {error}");
    let thread = std::thread::current();
    let line = format!(
        "\nskipped: {}: libtpu is not installed (cargo run -p fulmen-pjrt --example fetch_libtpu)\n",
        thread.name().unwrap_or("a test")
    );
    // One call, so that lines of tests at once do not mix.
    std::io::stderr().write_all(line.as_bytes()).unwrap();
    None
}
