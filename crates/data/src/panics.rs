//! Catches panics of other crates, which unexpected content may cause. The panic hook stays silent,
//! because the panic is reported as an error.
//!
//! Out of scope: panics in datasets and samplers. They are caught too, but the hook runs, so that
//! their author sees where they happened.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs code and catches a panic in it, without calling the program's panic hook. The error is the
/// message of the panic.
pub fn catch_quietly<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    // A thread that is unwinding must not set a hook.
    if !std::thread::panicking() {
        HOOK.call_once(|| {
            let previous_hook = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                if !QUIET.get() {
                    previous_hook(info);
                }
            }));
        });
    }
    let was_quiet = QUIET.replace(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(run));
    QUIET.set(was_quiet);
    outcome.map_err(|payload| message(&*payload))
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|&text| text.to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "(no message)".to_owned())
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;
    use std::process::Command;

    use super::*;

    #[test]
    fn the_panic_hook_of_the_program_hears_of_all_panics_but_those_that_become_errors() {
        const CHILD: &str = "FULMEN_TEST_PANICS_CHILD";
        if std::env::var_os(CHILD).is_some() {
            panic::set_hook(Box::new(|info| {
                eprintln!("heard: {}", info.payload().downcast_ref::<&str>().unwrap_or(&""))
            }));
            let caught = catch_quietly(|| {
                assert!(catch_quietly(|| panic!("damaged page")).is_err());
                // Panics of other threads still reach the hook.
                std::thread::scope(|scope| {
                    let _ = scope.spawn(|| panic!("in another thread")).join();
                });
                panic!("damaged file")
            });
            assert_eq!(caught, Err::<(), _>("damaged file".to_owned()));
            assert!(catch_unwind(|| panic!("of the user's")).is_err());
            return;
        }
        let test = "panics::tests::the_panic_hook_of_the_program_hears_of_all_panics_but_those_that_become_errors";
        let mut child = Command::new(std::env::current_exe().unwrap());
        let output = child.args([test, "--exact", "--nocapture"]).env(CHILD, "1").output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        let heard: Vec<&str> =
            stderr.lines().filter_map(|line| line.strip_prefix("heard: ")).collect();
        assert_eq!(heard, ["in another thread", "of the user's"], "{stderr}");
    }
}
