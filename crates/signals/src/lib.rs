//! SIGINT (Ctrl-C), SIGTERM and SIGHUP: the first one asks a run to save and end, the second ends the program. Before the
//! first step of a run there is nothing to save, so the first one ends the program.
//!
//! A run is what happens while a [`Guard`] lives. A signal gets a handler only if nothing else handles it: what `nohup` or
//! a shell has the program ignore stays ignored, and a program with a handler of its own keeps it.
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
//! Not here: saving, and agreeing with other processes.

use std::fmt;
use std::io::Write as _;
use std::sync::{Arc, Once};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::{self, raise};

/// A signal that asks a program to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT, which Ctrl-C sends: whoever started the program wants it to end.
    Interrupt,
    /// SIGTERM, which a supervisor sends: the machine is needed for something else, say.
    Terminate,
    /// SIGHUP: the terminal is gone.
    HangUp,
}

const SIGNALS: [(Signal, i32, &str); 3] = [
    (Signal::Interrupt, SIGINT, "Ctrl-C"),
    (Signal::Terminate, SIGTERM, "SIGTERM"),
    (Signal::HangUp, SIGHUP, "SIGHUP"),
];

impl Signal {
    /// What a program that it has ended exits with: 130 after Ctrl-C, as a shell says it. 75 after the others, which is
    /// `EX_TEMPFAIL`: the work is not done, and a supervisor may start the program again.
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

    /// Sets the handlers, once, for the signals that nothing else handles or ignores. [`Guard::new`] does so too. Before, a
    /// signal ends a program that calls this with [`exit_code`](Signal::exit_code).
    ///
    /// ```
    /// fulmen_signals::Signal::install_handlers();
    /// ```
    pub fn install_handlers() {
        install();
    }

    /// Sends the signal to this program.
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
        if let Some(&(_, number, _)) = SIGNALS.iter().find(|row| row.0 == self) {
            // It fails for the number of no signal alone.
            let _ = raise(number);
        }
    }

    /// The signal that `Display` shows as `name`.
    ///
    /// ```
    /// use fulmen_signals::Signal;
    /// assert_eq!(Signal::named("SIGTERM"), Some(Signal::Terminate));
    /// ```
    pub fn named(name: &str) -> Option<Signal> {
        SIGNALS.iter().find(|row| row.2 == name).map(|row| row.0)
    }
}

/// `Ctrl-C`, `SIGTERM` or `SIGHUP`.
impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SIGNALS.iter().find(|row| row.0 == *self).map_or("", |row| row.2))
    }
}

/// Within which a further SIGTERM or SIGHUP is the first one again: a shell that goes, and a supervisor that means a whole
/// group of processes, send them twice.
const SAME: Duration = Duration::from_secs(1);

/// What is done before the program ends.
static BEFORE_EXIT: Mutex<Option<Arc<dyn Fn() + Send + Sync>>> = Mutex::new(None);

/// Calls `hook` before a signal ends the program, and in [`exit`]: what gives a terminal back, say, where nothing is dropped.
/// A later one takes the place of an earlier one. It must not wait long.
///
/// ```
/// fulmen_signals::before_exit(|| eprintln!("bye"));
/// ```
pub fn before_exit(hook: impl Fn() + Send + Sync + 'static) {
    *BEFORE_EXIT.lock() = Some(Arc::new(hook));
}

fn run_before_exit() {
    let hook = BEFORE_EXIT.lock().clone();
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

type Listener = Arc<dyn Fn(Signal) + Send + Sync>;

static STATE: Mutex<State> = Mutex::new(State {
    running: 0,
    stepped: false,
    requested: None,
    grace: Duration::ZERO,
    guards: 0,
    listeners: vec![],
});

/// What a signal does.
#[derive(Debug, PartialEq)]
enum Effect {
    /// Ends the program; nothing says whether there was something to save.
    End,
    /// Ends the program, since no step has ended.
    EndUnsaved,
    /// Nothing: it is the first one again.
    Nothing,
    /// Asks for the end.
    Request,
}

struct State {
    /// Runs, all of them asked alike.
    running: usize,
    /// Whether a step has ended, so that there is something to save.
    stepped: bool,
    requested: Option<(Signal, Instant)>,
    grace: Duration,
    /// How many guards there have been.
    guards: u64,
    listeners: Vec<(u64, Listener)>,
}

impl State {
    fn effect(&self, signal: Signal, now: Instant) -> Effect {
        match self.requested {
            _ if self.running == 0 => Effect::End,
            None if !self.stepped => Effect::EndUnsaved,
            None => Effect::Request,
            Some((_, first)) if signal != Signal::Interrupt && now - first < SAME => Effect::Nothing,
            Some(_) => Effect::End,
        }
    }
}

/// Installs the handlers, once.
fn install() {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        let fails = |e| say(&format!("warning: no handler can be set for signals, which end the program unsaved: {e}"));
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

/// Whether nobody has said what becomes of a signal, by what the system says of this process: a line each for the signals
/// that it ignores and that it catches, a bit each in hexadecimal.
fn is_default(status: &str, number: i32) -> bool {
    let mask = |name: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix(name))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    };
    let taken = ["SigIgn:", "SigCgt:"].into_iter().filter_map(mask).fold(0, |all, mask| all | mask);
    taken >> (number - 1) & 1 == 0
}

/// On the thread that waits for signals.
fn receive(signal: Signal) {
    let (mut state, now) = (STATE.lock(), Instant::now());
    match state.effect(signal, now) {
        Effect::End => end(signal),
        Effect::EndUnsaved => {
            say(&format!("\n{signal} before the first step: there is nothing to save."));
            end(signal)
        }
        Effect::Nothing => return,
        Effect::Request => {}
    }
    state.requested = Some((signal, now));
    let (grace, guards) = (state.grace, state.guards);
    let listeners: Vec<Listener> = state.listeners.iter().map(|listener| listener.1.clone()).collect();
    drop(state);
    listeners.iter().for_each(|listener| listener(signal));
    if signal == Signal::Interrupt {
        return say("\nInterrupted: ending after this step. Press Ctrl-C again to end at once.");
    }
    say(&format!("{signal}: saving and ending after this step, within {grace:?}. A second one ends at once."));
    let wait = move || {
        thread::sleep(grace);
        let state = STATE.lock();
        if state.running > 0 && state.guards == guards && state.requested.is_some() {
            say(&format!(
                "error: {grace:?} after {signal} (the option `grace`) not all is saved, and the program ends. The last \
                 whole checkpoint is there to go on from"
            ));
            end(signal);
        }
    };
    // Without a thread to spare the supervisor sees to the end.
    drop(thread::Builder::new().name("fulmen-grace".into()).spawn(wait));
}

/// Writes a line to standard error, if it can: a closed terminal must not end training.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// At once: what other threads still do must not change the code.
fn end(signal: Signal) -> ! {
    run_before_exit();
    low_level::exit(signal.exit_code().into())
}

/// A run: while it lives, the first signal after its first step is a request, and does not end the program.
#[derive(Debug)]
pub struct Guard(u64);

impl Guard {
    /// Begins a run. `grace` is how long it may take to save after a signal other than Ctrl-C; then the program ends.
    pub fn new(grace: Duration) -> Guard {
        install();
        let mut state = STATE.lock();
        if state.running == 0 {
            (state.requested, state.stepped) = (None, false);
        }
        state.running += 1;
        state.guards += 1;
        state.grace = grace;
        Guard(state.guards)
    }

    /// From now on there is something to save.
    pub fn stepped(&self) {
        STATE.lock().stepped = true;
    }

    /// The signal that came since the run began.
    pub fn requested(&self) -> Option<Signal> {
        STATE.lock().requested.map(|(signal, _)| signal)
    }

    /// Calls `listener` as soon as a signal comes, or has come, while the guard lives. It must not wait.
    pub fn listen(&self, listener: impl Fn(Signal) + Send + Sync + 'static) {
        let mut state = STATE.lock();
        if let Some((signal, _)) = state.requested {
            listener(signal);
        }
        state.listeners.push((self.0, Arc::new(listener)));
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut state = STATE.lock();
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
    fn within_a_second_a_signal_that_is_no_ctrl_c_is_the_first_one_again() {
        let (first, soon) = (Instant::now(), Duration::from_millis(999));
        let state = |running, stepped, requested| {
            let (grace, listeners) = (Duration::ZERO, vec![]);
            State { running, stepped, requested, grace, guards: 0, listeners }
        };
        let (idle, begun, stepped) = (state(0, true, None), state(1, false, None), state(1, true, None));
        assert_eq!(
            [idle, begun, stepped].map(|state| state.effect(Signal::HangUp, first)),
            [Effect::End, Effect::EndUnsaved, Effect::Request]
        );
        let asked = state(1, true, Some((Signal::HangUp, first)));
        for (signal, within, after) in [
            (Signal::Terminate, Effect::Nothing, Effect::End),
            (Signal::HangUp, Effect::Nothing, Effect::End),
            (Signal::Interrupt, Effect::End, Effect::End),
        ] {
            assert_eq!([asked.effect(signal, first + soon), asked.effect(signal, first + SAME)], [within, after]);
        }
    }

    #[test]
    fn what_is_done_before_the_end_is_what_was_set_last() {
        let (done, first) = (Arc::new(Mutex::new(vec![])), Arc::new(Mutex::new(0)));
        let (list, number) = (done.clone(), first.clone());
        run_before_exit();
        before_exit(move || *number.lock() += 1);
        before_exit(move || list.lock().push("bye"));
        run_before_exit();
        assert_eq!((done.lock().as_slice(), *first.lock()), (&["bye"][..], 0));
    }

    #[test]
    fn a_signal_that_is_ignored_or_caught_is_left_alone_and_the_others_are_not() {
        let nohup = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000001\nSigCgt:\t0000000000004400\n";
        assert_eq!([SIGHUP, SIGINT].map(|number| is_default(nohup, number)), [false, true]);
        assert!(!is_default(nohup, SIGTERM), "caught");
        assert!(is_default("", SIGHUP) && is_default("SigIgn:\tnone", SIGHUP), "where the system does not say it");
    }
}
