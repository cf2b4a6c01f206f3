//! SIGINT (Ctrl-C), SIGTERM and SIGHUP: the first one asks a run to save and stop, the second one
//! ends the program. Before the first step of a run there is nothing to save, so the first one ends
//! the program.
//!
//! A run lasts as long as its [`Guard`]. A signal gets a handler only if nothing else handles it:
//! signals that `nohup` or a shell ignores stay ignored, and a program keeps its own handlers.
//!
//! ```
//! use std::time::Duration;
//! use fulmen_signals::Guard;
//!
//! let guard = Guard::new(Duration::from_secs(30));
//! guard.stepped();
//! assert_eq!(guard.requested(), None);
//! ```
//!
//! [`wait_with_output`] waits for another program until a signal or a time limit ends it.
//!
//! Out of scope: saving, and agreement between processes.

mod child;

use std::fmt;
use std::io::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::{self, raise};

pub use child::{ProcessOutput, wait_with_output};

/// A signal that asks a program to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT, sent by Ctrl-C: the user wants the program to end.
    Interrupt,
    /// SIGTERM, sent by a supervisor, for example because the machine is needed.
    Terminate,
    /// SIGHUP: the terminal was closed.
    HangUp,
}

const SIGNALS: [(Signal, i32, &str); 3] = [
    (Signal::Interrupt, SIGINT, "Ctrl-C"),
    (Signal::Terminate, SIGTERM, "SIGTERM"),
    (Signal::HangUp, SIGHUP, "SIGHUP"),
];

impl Signal {
    /// The exit code of a program that this signal ends: 130 for Ctrl-C, as in shells, and 75 for
    /// the others. 75 is `EX_TEMPFAIL`: the work is not complete, and a supervisor may restart the
    /// program.
    ///
    /// ```
    /// use fulmen_signals::Signal;
    /// assert_eq!((Signal::Interrupt.exit_code(), Signal::Terminate.exit_code()), (130, 75));
    /// ```
    pub fn exit_code(self) -> u8 {
        match self {
            Signal::Interrupt => 130,
            Signal::Terminate | Signal::HangUp => 75,
        }
    }

    /// Installs handlers for the signals that nothing else handles or ignores, unless they are
    /// installed already. [`Guard::new`] installs them too. Outside of a run, a signal then ends
    /// the program with its [`exit_code`](Signal::exit_code).
    ///
    /// ```
    /// fulmen_signals::Signal::install_handlers();
    /// ```
    pub fn install_handlers() {
        install();
    }

    /// Sends the signal to this process.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fulmen_signals::{Guard, Signal};
    ///
    /// let guard = Guard::new(Duration::from_secs(30));
    /// guard.stepped();
    /// Signal::Terminate.raise();
    /// while guard.requested().is_none() {
    ///     std::thread::sleep(Duration::from_millis(1));
    /// }
    /// assert_eq!(guard.requested(), Some(Signal::Terminate));
    /// ```
    pub fn raise(self) {
        // It fails only for invalid signal numbers.
        let _ = raise(self.number());
    }

    /// The number of the signal, such as 15 for SIGTERM.
    ///
    /// ```
    /// use fulmen_signals::Signal;
    /// assert_eq!(Signal::Terminate.number(), 15);
    /// assert_eq!(Signal::from_number(15), Some(Signal::Terminate));
    /// ```
    pub fn number(self) -> i32 {
        SIGNALS.iter().find(|row| row.0 == self).map_or(0, |row| row.1)
    }

    /// The signal with this number.
    pub fn from_number(number: i32) -> Option<Signal> {
        SIGNALS.iter().find(|row| row.1 == number).map(|row| row.0)
    }

    /// The signal with this `Display` name.
    ///
    /// ```
    /// use fulmen_signals::Signal;
    /// assert_eq!(Signal::from_name("SIGTERM"), Some(Signal::Terminate));
    /// ```
    pub fn from_name(name: &str) -> Option<Signal> {
        SIGNALS.iter().find(|row| row.2 == name).map(|row| row.0)
    }
}

/// `Ctrl-C`, `SIGTERM` or `SIGHUP`.
impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SIGNALS.iter().find(|row| row.0 == *self).map_or("", |row| row.2))
    }
}

/// A further SIGTERM or SIGHUP within this time counts as the first one: a closing shell, and a
/// supervisor that signals a whole process group, send them twice.
const REPEAT_WINDOW: Duration = Duration::from_secs(1);

/// The hook to run before the program ends.
static BEFORE_EXIT: Mutex<Option<Arc<dyn Fn() + Send + Sync>>> = Mutex::new(None);

/// Calls `hook` before a signal ends the program, and in [`exit`], for example to restore a
/// terminal when nothing is dropped. A later hook replaces an earlier one. It must return quickly.
///
/// ```
/// fulmen_signals::before_exit(|| eprintln!("bye"));
/// ```
pub fn before_exit(hook: impl Fn() + Send + Sync + 'static) {
    *locked(&BEFORE_EXIT) = Some(Arc::new(hook));
}

fn run_before_exit() {
    let hook = locked(&BEFORE_EXIT).clone();
    if let Some(hook) = hook {
        hook();
    }
}

/// Ends the program with this code, after the hook of [`before_exit`].
///
/// ```no_run
/// fulmen_signals::exit(1);
/// ```
pub fn exit(code: u8) -> ! {
    run_before_exit();
    std::process::exit(code.into())
}

/// How a signal ends the program before it could save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The signal.
    pub signal: Signal,
    /// Whether there is a run, whose first step has not completed.
    pub is_in_run: bool,
}

/// Calls `listener` before a signal ends the program while there is nothing to save: outside of a
/// run, or before its first step. The program ends when it returns. It is called as long as the
/// result exists, and installs the [handlers](Signal::install_handlers).
///
/// ```
/// let listener = fulmen_signals::before_end(|end| eprintln!("{} ends this program", end.signal));
/// drop(listener);
/// ```
pub fn before_end(listener: impl Fn(End) + Send + Sync + 'static) -> EndListener {
    install();
    let mut state = locked(&STATE);
    state.end_listeners_so_far += 1;
    let number = state.end_listeners_so_far;
    state.end_listeners.push((number, Arc::new(listener)));
    EndListener(number)
}

/// Keeps a listener of [`before_end`].
#[derive(Debug)]
#[must_use = "the listener is called only as long as this exists"]
pub struct EndListener(u64);

impl Drop for EndListener {
    fn drop(&mut self) {
        let removed: Vec<_> =
            locked(&STATE).end_listeners.extract_if(.., |listener| listener.0 == self.0).collect();
        // What the listener holds may need the state when it is dropped.
        drop(removed);
    }
}

type Listener<T> = Arc<dyn Fn(T) + Send + Sync>;

/// The value of a mutex. A listener that panicked while it was locked has not changed it.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

static STATE: Mutex<State> = Mutex::new(State {
    running: 0,
    stepped: false,
    requested: None,
    grace: Duration::ZERO,
    guards: 0,
    listeners: Vec::new(),
    end_listeners_so_far: 0,
    end_listeners: Vec::new(),
});

/// The effect of a signal.
#[derive(Debug, PartialEq)]
enum Effect {
    /// Ends the program, because there is no run.
    EndIdle,
    /// Ends the program, because no step has completed.
    EndUnsaved,
    /// Ends the program, although it is saving.
    EndAgain,
    /// Does nothing, because the signal is a repetition of the first one.
    Nothing,
    /// Requests the end of the run.
    Request,
}

struct State {
    /// The number of current runs. A signal goes to all of them.
    running: usize,
    /// Whether a step has completed, so that there is something to save.
    stepped: bool,
    requested: Option<(Signal, Instant)>,
    grace: Duration,
    /// The number of guards so far.
    guards: u64,
    listeners: Vec<(u64, Listener<Signal>)>,
    end_listeners_so_far: u64,
    /// Those of [`before_end`].
    end_listeners: Vec<(u64, Listener<End>)>,
}

impl State {
    fn effect(&self, signal: Signal, now: Instant) -> Effect {
        match self.requested {
            _ if self.running == 0 => Effect::EndIdle,
            None if !self.stepped => Effect::EndUnsaved,
            None => Effect::Request,
            Some((_, first)) if signal != Signal::Interrupt && now - first < REPEAT_WINDOW => {
                Effect::Nothing
            }
            Some(_) => Effect::EndAgain,
        }
    }
}

/// Installs the handlers, once.
fn install() {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        let fails = |e| {
            print_line(&format!("warning: cannot install signal handlers; signals will end the program without saving: {e}"))
        };
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mut signals = match Signals::new::<_, i32>([]) {
            Ok(signals) => signals,
            Err(error) => return fails(error),
        };
        for (_, number, _) in SIGNALS.iter().filter(|row| is_default(&status, row.1)) {
            if let Err(error) = signals.add_signal(*number) {
                fails(error);
            }
        }
        let wait = move || {
            for number in signals.forever() {
                SIGNALS.iter().filter(|row| row.1 == number).for_each(|row| receive(row.0));
            }
        };
        if let Err(error) = thread::Builder::new().name("fulmen-signals".into()).spawn(wait) {
            fails(error);
        }
    });
}

/// Whether a signal has its default action, from the system's status of this process: one line each
/// for ignored and caught signals, as hexadecimal bit masks.
fn is_default(status: &str, number: i32) -> bool {
    let mask = |name: &str| {
        let digits = status.lines().find_map(|line| line.strip_prefix(name))?;
        u64::from_str_radix(digits.trim(), 16).ok()
    };
    let handled =
        ["SigIgn:", "SigCgt:"].into_iter().filter_map(mask).fold(0, |all, mask| all | mask);
    handled >> (number - 1) & 1 == 0
}

fn called<T>(listeners: &[(u64, Listener<T>)]) -> Vec<Listener<T>> {
    listeners.iter().map(|listener| listener.1.clone()).collect()
}

/// Runs on the thread that waits for signals.
fn receive(signal: Signal) {
    let mut state = locked(&STATE);
    let now = Instant::now();
    match state.effect(signal, now) {
        Effect::EndAgain => end(signal),
        effect @ (Effect::EndIdle | Effect::EndUnsaved) => {
            let is_in_run = effect == Effect::EndUnsaved;
            if is_in_run {
                print_line(&format!("\n{signal} before the first step: there is nothing to save."));
            }
            let listeners = called(&state.end_listeners);
            drop(state);
            listeners.iter().for_each(|listener| listener(End { signal, is_in_run }));
            end(signal)
        }
        Effect::Nothing => return,
        Effect::Request => {}
    }
    state.requested = Some((signal, now));
    let grace = state.grace;
    let guards = state.guards;
    let listeners = called(&state.listeners);
    drop(state);
    listeners.iter().for_each(|listener| listener(signal));
    if signal == Signal::Interrupt {
        return print_line(
            "\nInterrupted: ending after this step. Press Ctrl-C again to end immediately.",
        );
    }
    print_line(&format!(
        "{signal}: saving and ending after this step, within {grace:?}. A second one ends immediately."
    ));
    let wait = move || {
        thread::sleep(grace);
        let state = locked(&STATE);
        if state.running > 0 && state.guards == guards && state.requested.is_some() {
            print_line(&format!(
                "error: {grace:?} after {signal} (the option `grace`) saving is not complete, and the program ends. \
                 Resume from the last complete checkpoint"
            ));
            end(signal);
        }
    };
    // If no thread can be started, the supervisor will end the program.
    drop(thread::Builder::new().name("fulmen-grace".into()).spawn(wait));
}

/// Writes a line to standard error, ignoring failures: a closed terminal must not end training.
fn print_line(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Exits immediately: other threads must not change the exit code.
fn end(signal: Signal) -> ! {
    run_before_exit();
    low_level::exit(signal.exit_code().into())
}

/// A run. While this exists, the first signal after the run's first step does not end the program
/// but requests the run to end.
#[derive(Debug)]
pub struct Guard(u64);

impl Guard {
    /// Starts a run. `grace` is the time limit for saving after a signal other than Ctrl-C. After
    /// this time, the program ends.
    pub fn new(grace: Duration) -> Guard {
        install();
        let mut state = locked(&STATE);
        if state.running == 0 {
            (state.requested, state.stepped) = (None, false);
        }
        state.running += 1;
        state.guards += 1;
        state.grace = grace;
        Guard(state.guards)
    }

    /// Tells the handlers that there is something to save from now on.
    pub fn stepped(&self) {
        locked(&STATE).stepped = true;
    }

    /// The signal that arrived since the run started.
    pub fn requested(&self) -> Option<Signal> {
        locked(&STATE).requested.map(|(signal, _)| signal)
    }

    /// Calls `listener` when a signal arrives, or at once if it has already arrived, while the
    /// guard is alive. It must return quickly.
    pub fn listen(&self, listener: impl Fn(Signal) + Send + Sync + 'static) {
        let mut state = locked(&STATE);
        if let Some((signal, _)) = state.requested {
            listener(signal);
        }
        state.listeners.push((self.0, Arc::new(listener)));
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut state = locked(&STATE);
        state.running -= 1;
        state.listeners.retain(|listener| listener.0 != self.0);
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn within_a_second_a_repeated_signal_other_than_ctrl_c_counts_once() {
        let first = Instant::now();
        let soon = Duration::from_millis(999);
        let state = |running, stepped, requested| State {
            running,
            stepped,
            requested,
            grace: Duration::ZERO,
            guards: 0,
            listeners: Vec::new(),
            end_listeners_so_far: 0,
            end_listeners: Vec::new(),
        };
        let idle = state(0, true, None);
        let begun = state(1, false, None);
        let stepped = state(1, true, None);
        assert_eq!(
            [idle, begun, stepped].map(|state| state.effect(Signal::HangUp, first)),
            [Effect::EndIdle, Effect::EndUnsaved, Effect::Request]
        );
        let state_of_run = state(1, true, Some((Signal::HangUp, first)));
        for (signal, within, after) in [
            (Signal::Terminate, Effect::Nothing, Effect::EndAgain),
            (Signal::HangUp, Effect::Nothing, Effect::EndAgain),
            (Signal::Interrupt, Effect::EndAgain, Effect::EndAgain),
        ] {
            assert_eq!(
                [
                    state_of_run.effect(signal, first + soon),
                    state_of_run.effect(signal, first + REPEAT_WINDOW)
                ],
                [within, after]
            );
        }
    }

    #[test]
    fn the_last_hook_runs_before_the_end() {
        let done = Arc::new(Mutex::new(Vec::new()));
        let first = Arc::new(Mutex::new(0));
        let list = done.clone();
        let number = first.clone();
        run_before_exit();
        before_exit(move || *locked(&number) += 1);
        before_exit(move || locked(&list).push("bye"));
        run_before_exit();
        assert_eq!((locked(&done).as_slice(), *locked(&first)), (&["bye"][..], 0));
    }

    #[test]
    fn only_signals_with_the_default_action_get_a_handler() {
        let nohup =
            "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000001\nSigCgt:\t0000000000004400\n";
        assert_eq!([SIGHUP, SIGINT].map(|number| is_default(nohup, number)), [false, true]);
        assert!(!is_default(nohup, SIGTERM), "caught");
        assert!(
            is_default("", SIGHUP) && is_default("SigIgn:\tnone", SIGHUP),
            "if the system does not report it"
        );
    }
}
