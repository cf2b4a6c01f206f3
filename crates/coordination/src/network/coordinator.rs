//! The coordinator's state of a run: who has joined, when each process last sent a message, the
//! barriers, the values, and the failure that ended the run, if any.
//!
//! Out of scope: waiting, sockets, clocks. Every method returns at once and takes the current time
//! as an argument, so that tests need neither sockets nor clocks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::agreement;
use super::wire::{self, Failure, FailureKind, Purpose};

pub(crate) struct Coordinator {
    run_id: String,
    /// The hosts by index, if the environment names them.
    hosts: Vec<String>,
    heartbeat_timeout: Duration,
    members: Vec<Option<Member>>,
    /// The reasons why processes were refused. The message about a missing process lists them.
    refusals: Vec<String>,
    values: BTreeMap<String, Value>,
    barriers: BTreeMap<BarrierKey, Barrier>,
    failure: Option<Failure>,
    /// Whether all processes have arrived at the shutdown, so that a process may leave.
    is_finished: bool,
}

struct Member {
    session: u64,
    host: String,
    pid: u32,
    last_heartbeat: Instant,
    has_left: bool,
    /// Whether the process knows about the failure.
    notified: bool,
}

struct Value {
    bytes: Bytes,
    process: u32,
}

/// Identifies a barrier: its purpose, its name, and how often that name was used before.
pub(crate) type BarrierKey = (Purpose, String, u64);

#[derive(Default)]
struct Barrier {
    arrivals: BTreeMap<u32, BTreeMap<String, String>>,
    outcome: Option<Result<(), Failure>>,
}

impl Coordinator {
    pub(crate) fn new(
        count: usize,
        run_id: &str,
        hosts: &[String],
        heartbeat_timeout: Duration,
    ) -> Coordinator {
        Coordinator {
            run_id: run_id.to_owned(),
            hosts: hosts.to_vec(),
            heartbeat_timeout,
            members: (0..count).map(|_| None).collect(),
            refusals: Vec::new(),
            values: BTreeMap::new(),
            barriers: BTreeMap::new(),
            failure: None,
            is_finished: false,
        }
    }

    pub(crate) fn heartbeat_timeout(&self) -> Duration {
        self.heartbeat_timeout
    }

    pub(crate) fn count(&self) -> u32 {
        self.members.len() as u32
    }

    fn member(&mut self, index: u32) -> Option<&mut Member> {
        self.members.get_mut(index as usize)?.as_mut()
    }

    /// The name of a process in messages.
    pub(crate) fn name(&self, index: u32) -> String {
        match (self.members.get(index as usize), self.hosts.get(index as usize)) {
            (Some(Some(m)), _) => format!("process {index} ({}, pid {})", m.host, m.pid),
            (_, Some(host)) => format!("process {index} ({host})"),
            _ => format!("process {index}"),
        }
    }

    fn names(&self, indices: &[u32]) -> String {
        agreement::list(indices, |index| self.name(index))
    }

    pub(crate) fn members(&self) -> Vec<wire::Member> {
        (0..)
            .zip(&self.members)
            .filter_map(|(index, m)| m.as_ref().map(|m| (index, m)))
            .map(|(index, m)| wire::Member { index, host: m.host.clone(), pid: m.pid })
            .collect()
    }

    /// Why a process should retry later, if it should. It then belongs to the next run at this
    /// address. The coordinator of this run stops as soon as all processes know its outcome.
    pub(crate) fn is_ending(&self, caller: wire::Caller) -> Option<String> {
        let member = self.members.get(caller.index as usize).and_then(Option::as_ref);
        if member.is_some_and(|m| m.session == caller.session) {
            return None;
        }
        match &self.failure {
            _ if self.is_finished => {
                Some("the previous run has not ended for all its processes".into())
            }
            // A process that has not joined before is late for this run, and gets its failure.
            Some(failure) if member.is_some_and(|m| m.has_left || m.notified) => {
                Some(format!("the previous run is ending: {}", failure.message))
            }
            _ => None,
        }
    }

    /// Admits a process or refuses it.
    pub(crate) fn join(&mut self, request: &wire::Join, now: Instant) -> Result<(), Failure> {
        let wire::Caller { index, session } = request.caller;
        let newcomer = format!("process {index} ({}, pid {})", request.host, request.pid);
        let mut kind = FailureKind::Refused;
        let reason = if request.version != wire::VERSION {
            let theirs = request.version;
            let ours = wire::VERSION;
            Some(format!(
                "it speaks version {theirs} of the protocol and the coordinator {ours}; run the same build in all \
                 processes"
            ))
        } else if request.run_id != self.run_id {
            Some(format!(
                "it belongs to the run `{}` and the coordinator to `{}` (FULMEN_RUN_ID); is a process of another run \
                 still there?",
                request.run_id, self.run_id
            ))
        } else if request.count != self.count() {
            Some(format!(
                "it expects {} processes and the coordinator {}; give all of them the same number",
                request.count,
                self.count()
            ))
        } else if index >= self.count() {
            kind = FailureKind::Usage;
            Some(format!("its index is not below the number of processes, {}", self.count()))
        } else if let Some(failure) = self.failure.clone() {
            // This process is late, not refused.
            return Err(Failure {
                message: format!("the run is over: {}", failure.message),
                ..failure
            });
        } else {
            match self.member(index) {
                Some(member) if member.session != session => {
                    let taken = self.name(index);
                    Some(format!("{taken} has that index; give each process its own"))
                }
                Some(_) => None,
                None => {
                    let host = request.host.clone();
                    let pid = request.pid;
                    self.members[index as usize] = Some(Member {
                        session,
                        host,
                        pid,
                        last_heartbeat: now,
                        has_left: false,
                        notified: false,
                    });
                    None
                }
            }
        };
        match reason {
            None => Ok(()),
            Some(reason) => {
                let message = format!("{newcomer} was not admitted to the run: {reason}");
                self.note_refusal(message.clone());
                Err(Failure::new(kind, vec![index], message))
            }
        }
    }

    /// Records why a process was refused, for the message about a missing one.
    pub(crate) fn note_refusal(&mut self, message: String) {
        if self.refusals.len() < 8 {
            self.refusals.push(message);
        }
    }

    /// Records a heartbeat of a member. Every request counts as one.
    pub(crate) fn heartbeat(&mut self, caller: wire::Caller, now: Instant) -> Result<(), Failure> {
        match self.member(caller.index) {
            Some(member) if member.session == caller.session => {
                member.last_heartbeat = now;
                Ok(())
            }
            _ => Err(Failure {
                ends_run: true,
                ..Failure::new(
                    FailureKind::PeerLost,
                    vec![0],
                    format!(
                        "the coordinator does not know process {}: it was restarted, or another run has taken its \
                         address; start all processes again",
                        caller.index
                    ),
                )
            }),
        }
    }

    /// Declares members that have been silent for too long lost.
    pub(crate) fn expire_members(&mut self, now: Instant) {
        if self.is_finished || self.failure.is_some() {
            return;
        }
        let limit = self.heartbeat_timeout;
        let is_silent =
            |m: &Member| !m.has_left && now.saturating_duration_since(m.last_heartbeat) > limit;
        let silent: Vec<u32> = (0..)
            .zip(&self.members)
            .filter(|(_, m)| m.as_ref().is_some_and(is_silent))
            .map(|(i, _)| i)
            .collect();
        if !silent.is_empty() {
            let names = self.names(&silent);
            let s = limit.as_secs_f64();
            let has = if silent.len() == 1 { "has" } else { "have" };
            self.fail(Failure::new(
                FailureKind::PeerSilent,
                silent,
                format!(
                    "{names} {has} not sent a heartbeat for {s} s: killed, stopped, or on a host that is not reachable; \
                     see its last output"
                ),
            ));
        }
    }

    /// Restarts all deadlines, after the coordinator itself was suspended.
    pub(crate) fn reset_deadlines(&mut self, now: Instant) {
        self.members.iter_mut().flatten().for_each(|m| m.last_heartbeat = now);
    }

    /// Ends the run. Only the first failure counts, since later ones follow from it.
    pub(crate) fn fail(&mut self, failure: Failure) {
        if self.failure.is_none() && !self.is_finished {
            self.failure = Some(Failure { ends_run: true, ..failure });
        }
    }

    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Records that a process knows about the failure, if there is one.
    pub(crate) fn notify_failure(&mut self, index: u32) {
        let failed = self.failure.is_some();
        if let Some(member) = self.member(index) {
            member.notified |= failed;
        }
    }

    /// Whether every process that could still ask has left or knows how the run failed.
    pub(crate) fn all_notified(&self) -> bool {
        let lost = self
            .failure
            .as_ref()
            .filter(|f| matches!(f.kind(), FailureKind::PeerLost | FailureKind::PeerSilent))
            .map(|f| f.processes.as_slice())
            .unwrap_or_default();
        (0..).zip(&self.members).all(|(index, m)| {
            m.as_ref().is_none_or(|m| m.has_left || m.notified || lost.contains(&index))
        })
    }

    /// Records that a process leaves, because of a signal if there is one. Before the shutdown, this
    /// ends the run for all.
    pub(crate) fn leave(&mut self, index: u32, reason: &str, signal: Option<i32>) {
        let name = self.name(index);
        if let Some(member) = self.member(index) {
            member.has_left = true;
        }
        let message = match reason {
            "" => format!("{name} left the run before its end; see its last output"),
            reason => format!("{name} ended: {reason}"),
        };
        let failure = Failure::new(FailureKind::PeerLost, vec![index], message);
        self.fail(Failure { signal, ..failure });
    }

    pub(crate) fn has_left(&self, index: u32) -> bool {
        matches!(self.members.get(index as usize), Some(Some(member)) if member.has_left)
    }

    /// Records that a process arrives at a barrier.
    pub(crate) fn arrive(
        &mut self,
        key: &BarrierKey,
        index: u32,
        facts: &BTreeMap<String, String>,
    ) {
        let (purpose, name, generation) = key;
        if *generation > 1 && !self.barriers.contains_key(key) {
            // This process knows the outcome of the last barrier, so every process knows the
            // outcome of the barrier before it.
            self.barriers.remove(&(*purpose, name.clone(), generation - 2));
        }
        let barrier = self.barriers.entry(key.clone()).or_default();
        if barrier.outcome.is_some() {
            return;
        }
        barrier.arrivals.insert(index, facts.clone());
        if barrier.arrivals.len() < self.members.len() {
            self.check_finished_members();
            return self.check_conflicting_barriers();
        }
        let facts = std::mem::take(&mut barrier.arrivals);
        let outcome = agreement::compare(&facts, |index| self.name(index)).map_err(|disagreement| {
            let message = format!(
                "the processes do not agree on `{name}`: {}. Start all of them from one build, with the same \
                 configuration and data",
                disagreement.message
            );
            Failure { ends_run: true, ..Failure::new(FailureKind::Disagreement, disagreement.processes, message) }
        });
        match (&outcome, purpose) {
            (Err(failure), _) => self.fail(failure.clone()),
            (Ok(()), Purpose::Shutdown) => self.is_finished = true,
            (Ok(()), _) => {}
        }
        if let Some(barrier) = self.barriers.get_mut(key) {
            barrier.outcome = Some(outcome);
        }
    }

    /// Fails the run if others wait at a barrier for a process that already waits for the end of
    /// the run: it will not arrive there.
    fn check_finished_members(&mut self) {
        let open = |m: &&Barrier| m.outcome.is_none();
        let end = (Purpose::Shutdown, String::new(), 0);
        let Some(finished_members) = self
            .barriers
            .get(&end)
            .filter(open)
            .map(|m| m.arrivals.keys().copied().collect::<Vec<_>>())
        else {
            return;
        };
        let absent = |barrier: &Barrier| {
            finished_members
                .iter()
                .copied()
                .filter(|i| !barrier.arrivals.contains_key(i))
                .collect::<Vec<_>>()
        };
        let others = self.barriers.iter().filter(|(key, m)| key.0 != Purpose::Shutdown && open(m));
        let Some((name, absent)) =
            others.map(|(key, m)| (key.1.clone(), absent(m))).find(|(_, a)| !a.is_empty())
        else {
            return;
        };
        let who = self.names(&absent);
        let has = if absent.len() == 1 { "has" } else { "have" };
        let message = format!(
            "{who} {has} reached the end of the program and will not arrive at `{name}`, where others wait; see the last \
             output there"
        );
        self.fail(Failure::new(FailureKind::PeerLost, absent, message));
    }

    /// Fails the run if every process waits, but not all at the same barrier, because all would
    /// wait forever.
    fn check_conflicting_barriers(&mut self) {
        let is_between =
            |purpose: Purpose| matches!(purpose, Purpose::Barrier | Purpose::Agreement);
        let open: Vec<(&str, Vec<u32>)> = self
            .barriers
            .iter()
            .filter(|(key, m)| is_between(key.0) && m.outcome.is_none())
            .map(|(key, m)| (key.1.as_str(), m.arrivals.keys().copied().collect()))
            .collect();
        let waiting: BTreeSet<u32> =
            open.iter().flat_map(|(_, arrived)| arrived.iter().copied()).collect();
        if open.len() < 2 || waiting.len() < self.members.len() {
            return;
        }
        let where_each =
            open.iter().map(|(name, arrived)| format!("{} at `{name}`", self.names(arrived)));
        let message = format!(
            "the processes wait for each other at different barriers: {}. Start all of them from one build, with the same \
             configuration and data",
            where_each.collect::<Vec<_>>().join("; ")
        );
        self.fail(Failure::new(FailureKind::Disagreement, waiting.into_iter().collect(), message));
    }

    /// The outcome of a barrier, once there is one.
    pub(crate) fn outcome(&self, key: &BarrierKey) -> Option<Result<(), Failure>> {
        self.barriers.get(key)?.outcome.clone()
    }

    /// Fails a barrier for all processes when one has waited too long, so that none continues
    /// alone.
    pub(crate) fn time_out(&mut self, key: &BarrierKey, waited: Duration) -> Result<(), Failure> {
        if let Some(outcome) = self.outcome(key) {
            return outcome;
        }
        let (purpose, name, _) = key;
        let count = self.count();
        let barrier = self.barriers.entry(key.clone()).or_default();
        let arrived = barrier.arrivals.len();
        let missing: Vec<u32> =
            (0..count).filter(|index| !barrier.arrivals.contains_key(index)).collect();
        let names = self.names(&missing);
        let s = waited.as_secs_f64();
        let has = if missing.len() == 1 { "has" } else { "have" };
        let mut message = match purpose {
            Purpose::Join => format!(
                "{names} {has} not joined within {s} s; {arrived} of {count} processes have"
            ),
            Purpose::Barrier => format!(
                "{names} {has} not reached the barrier `{name}` within {s} s; {arrived} of {count} processes wait there"
            ),
            Purpose::Agreement => format!(
                "{names} {has} not arrived to agree on `{name}` within {s} s; {arrived} of {count} processes wait there"
            ),
            Purpose::Shutdown => {
                format!(
                    "{names} {has} not reached the end within {s} s; {arrived} of {count} processes have"
                )
            }
        };
        if *purpose == Purpose::Join && !self.refusals.is_empty() {
            message = format!("{message}. {}", self.refusals.join(". "));
        }
        let failure = Failure {
            // A run cannot start without all of its processes.
            ends_run: *purpose == Purpose::Join,
            ..Failure::new(FailureKind::TimedOut, missing, message)
        };
        if let Some(barrier) = self.barriers.get_mut(key) {
            barrier.outcome = Some(Err(failure.clone()));
        }
        if failure.ends_run {
            self.fail(failure.clone());
        }
        Err(failure)
    }

    /// Stores a value. A different value under the same key is refused, since other processes may
    /// have read the first.
    pub(crate) fn put(&mut self, index: u32, key: &str, bytes: Bytes) -> Result<(), Failure> {
        match self.values.get(key) {
            Some(value) if value.bytes != bytes => {
                let owner = self.name(value.process);
                let message = format!(
                    "the key `{key}` already has a different value, from {owner}; a value is put once"
                );
                Err(Failure::new(FailureKind::Conflict, vec![value.process], message))
            }
            Some(_) => Ok(()),
            None => {
                self.values.insert(key.to_owned(), Value { bytes, process: index });
                Ok(())
            }
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<Bytes> {
        self.values.get(key).map(|value| value.bytes.clone())
    }
}

#[cfg(test)]
mod tests;
