//! The outcome of workers that ran together: which one failed first, the exit code, whether to
//! restart.

use fulmen_signals::Signal;

/// `EX_TEMPFAIL`: the work is not done and can be restarted. Fulmen programs exit with it after
/// SIGTERM, and if another process of the run no longer answers.
pub(crate) const EX_TEMPFAIL: u8 = 75;

/// The exit codes of a wrong command: invalid arguments, a file that cannot be run, one that is not
/// there.
pub(crate) const WRONG_COMMAND: [u8; 3] = [2, 126, 127];

/// The exit codes of a program that the system ended: SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGKILL (also
/// for lack of memory), SIGSEGV, and SIGTERM before the program could handle it.
pub(crate) const CRASHES: [u8; 7] = [132, 134, 135, 136, 137, 139, 143];

/// How a worker ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With an exit code.
    Exited {
        code: u8,
        /// Whether the worker had been sent a signal to end.
        signaled: bool,
    },
    /// By a crash, with this exit code, before it had been sent a signal to end.
    Crashed(u8),
    /// The program could not be started, for this reason, and a second attempt would not help.
    NotStarted(String),
    /// The worker no longer sends messages, for this reason.
    Lost(String),
    /// The worker made no progress and was killed, for this reason.
    Stuck(String),
    /// The worker was killed but, as far as is known, still runs.
    Remains,
}

impl End {
    /// The end of a worker by itself or, if it had been `signaled`, by a signal to end.
    pub(crate) fn exited(code: u8, signaled: bool) -> End {
        if !signaled && CRASHES.contains(&code) {
            End::Crashed(code)
        } else {
            End::Exited { code, signaled }
        }
    }
}

/// The outcome of a group of workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) code: u8,
    pub(crate) text: String,
    /// Whether a restart makes sense.
    pub(crate) restart: bool,
    /// The worker whose crash decided.
    pub(crate) crashed: Option<usize>,
}

/// Combines the ends of workers, in the order in which they were observed. `name` gives the name of
/// a worker.
///
/// A worker that was not started, is lost or stuck, or crashed decides the outcome, because it makes
/// the others fail. Otherwise, the first worker that failed without a signal to end decides. One
/// that asks for a restart with [`EX_TEMPFAIL`] counts after the others that failed, because it may
/// only have lost them. A wrong command decides before any of them: it would fail again.
pub(crate) fn outcome(
    ends: &[(usize, End)],
    signal: Option<Signal>,
    name: impl Fn(usize) -> String,
) -> Outcome {
    if let Some(signal) = signal {
        let succeeded = ends.iter().all(|(_, end)| matches!(end, End::Exited { code: 0, .. }));
        let code = if succeeded { 0 } else { signal.exit_code() };
        let text = format!("{signal}: all workers have ended");
        return Outcome { code, text, restart: false, crashed: None };
    }
    let not_started = ends.iter().find(|(_, end)| matches!(end, End::NotStarted(_)));
    let wrong = || {
        ends.iter().find(|(_, end)| {
            matches!(end, End::Exited { code, signaled: false } if WRONG_COMMAND.contains(code))
        })
    };
    let crashed = || ends.iter().find(|(_, end)| matches!(end, End::Crashed(_)));
    let lost = || ends.iter().find(|(_, end)| matches!(end, End::Lost(_)));
    let stuck = || ends.iter().find(|(_, end)| matches!(end, End::Stuck(_)));
    let remains = || ends.iter().find(|(_, end)| *end == End::Remains);
    let failed = |was_signaled: bool| {
        let failures = move || {
            ends.iter().filter(move |(_, end)| {
                matches!(end, End::Exited { code: 1.., signaled } if *signaled == was_signaled)
            })
        };
        let by_itself =
            |end: &End| !matches!(end, End::Exited { code, .. } if *code == EX_TEMPFAIL);
        failures().find(|(_, end)| by_itself(end)).or_else(|| failures().next())
    };
    let deciding = not_started
        .or_else(wrong)
        .or_else(lost)
        .or_else(stuck)
        .or_else(crashed)
        .or_else(|| failed(false))
        .or_else(|| failed(true))
        .or_else(remains);
    let Some((worker, end)) = deciding else {
        return Outcome { code: 0, text: String::new(), restart: false, crashed: None };
    };
    let (code, description) = match end {
        End::Exited { code, .. } | End::Crashed(code) if *code > 128 => {
            (*code, format!("was killed by signal {}, exit code {code}", code - 128))
        }
        End::Exited { code, .. } | End::Crashed(code) => {
            (*code, format!("exited with code {code}"))
        }
        End::NotStarted(reason) => (1, format!("cannot be started: {reason}")),
        End::Lost(reason) => (EX_TEMPFAIL, format!("is lost: {reason}")),
        End::Stuck(reason) => (EX_TEMPFAIL, format!("is stuck: {reason}")),
        End::Remains => (EX_TEMPFAIL, "still runs after it was killed".into()),
    };
    let crashed = matches!(end, End::Crashed(_)).then_some(*worker);
    let restart = code == EX_TEMPFAIL || crashed.is_some();
    Outcome { code, text: format!("{} {description}", name(*worker)), restart, crashed }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(ends: &[End], signal: Option<Signal>, code: u8, text: &str, restart: bool) {
        let ends: Vec<(usize, End)> = ends.iter().cloned().enumerate().collect();
        let outcome = outcome(&ends, signal, |worker| format!("worker {worker}"));
        let found = (outcome.code, outcome.text.as_str(), outcome.restart);
        assert_eq!(found, (code, text, restart));
    }

    fn exited(code: u8) -> End {
        End::exited(code, false)
    }

    #[test]
    fn the_first_failed_worker_is_named() {
        let signaled = |code| End::Exited { code, signaled: true };
        check(&[exited(0), exited(0)], None, 0, "", false);
        check(&[exited(0), exited(3), exited(1)], None, 3, "worker 1 exited with code 3", false);
        check(&[signaled(143), exited(75)], None, 75, "worker 1 exited with code 75", true);
        check(&[exited(75), exited(1)], None, 1, "worker 1 exited with code 1", false);
        check(
            &[signaled(137), exited(137)],
            None,
            137,
            "worker 1 was killed by signal 9, exit code 137",
            true,
        );
        let lost = End::Lost("no route".into());
        let stuck = End::Stuck("stopped".into());
        check(
            &[exited(1), stuck.clone(), lost.clone()],
            None,
            75,
            "worker 2 is lost: no route",
            true,
        );
        let not_started = End::NotStarted("no bash".into());
        check(&[lost, not_started], None, 1, "worker 1 cannot be started: no bash", false);
        check(&[exited(1), stuck], None, 75, "worker 1 is stuck: stopped", true);
        check(&[End::Remains, exited(1)], None, 1, "worker 1 exited with code 1", false);
    }

    #[test]
    fn a_crash_is_restarted_and_a_wrong_command_is_not() {
        for (code, signal) in [(134, 6), (137, 9), (139, 11), (143, 15)] {
            let text = format!("worker 1 was killed by signal {signal}, exit code {code}");
            // The others fail because of it.
            check(&[exited(1), exited(code)], None, code, &text, true);
            let sent = [End::exited(code, true), exited(1)];
            check(&sent, None, 1, "worker 1 exited with code 1", false);
        }
        for code in [2, 126, 127] {
            let text = format!("worker 1 exited with code {code}");
            check(&[exited(134), exited(code), exited(75)], None, code, &text, false);
        }
        check(&[exited(101)], None, 101, "worker 0 exited with code 101", false);
    }

    #[test]
    fn a_run_that_the_user_ends_is_not_restarted() {
        check(&[exited(75)], Some(Signal::Terminate), 75, "SIGTERM: all workers have ended", false);
        check(&[exited(1)], Some(Signal::Interrupt), 130, "Ctrl-C: all workers have ended", false);
        check(&[exited(0)], Some(Signal::Interrupt), 0, "Ctrl-C: all workers have ended", false);
    }
}
