//! Accepts connections on the coordinator's port and admits those whose handshake proves the token.
//!
//! Unknown clients cost little: only a few wait at a time, each for a few seconds, and each address
//! is reported once.

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::Sender;
use tokio::task::{AbortHandle, JoinSet};

use super::frames::{ConnectionEnd, Session};
use super::handshake::{Refusal, admit};
use super::noise::RunKey;

/// How many connections may be in their handshake at once. If the run has more processes, their
/// number is the limit. Above the limit, the oldest connection is dropped. A process with the token
/// finishes its handshake quickly, and retries if its connection is dropped.
const MAX_UNAUTHENTICATED: usize = 128;

/// How many addresses are reported.
const MAX_REPORTED: usize = 16;

/// A connection whose other end has the token.
pub(crate) struct Admitted {
    pub(crate) stream: TcpStream,
    pub(crate) session: Arc<Session>,
    pub(crate) address: IpAddr,
}

/// Accepts connections until it is dropped.
pub(crate) async fn accept(
    listener: TcpListener,
    key: RunKey,
    processes: usize,
    admitted: Sender<Admitted>,
    rejected: Arc<RejectedPeers>,
) {
    let limit = MAX_UNAUTHENTICATED.max(processes);
    let mut handshakes = JoinSet::new();
    let mut waiting: VecDeque<(AbortHandle, IpAddr)> = VecDeque::new();
    loop {
        let Ok((mut stream, address)) = listener.accept().await else {
            // The process may have no file descriptor left, for example. The system keeps the
            // connection waiting.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let address = address.ip().to_canonical();
        while handshakes.try_join_next().is_some() {}
        if waiting.len() >= limit {
            waiting.retain(|(handshake, _)| !handshake.is_finished());
        }
        if waiting.len() >= limit
            && let Some((handshake, oldest)) = waiting.pop_front()
        {
            handshake.abort();
            rejected.refuse(oldest, Refusal::Crowded);
        }
        let admitted = admitted.clone();
        let rejected = rejected.clone();
        let handshake = handshakes.spawn(async move {
            let _ = stream.set_nodelay(true);
            match admit(&mut stream, &key).await {
                Ok(session) => {
                    // Sending fails only if the server has stopped; the connection ends with it.
                    let session = Arc::new(session);
                    let _ = admitted.send(Admitted { stream, session, address }).await;
                }
                Err(refusal) => rejected.refuse(address, refusal),
            }
        });
        waiting.push_back((handshake, address));
    }
}

/// The addresses whose connections were refused or ended.
pub(crate) struct RejectedPeers {
    addresses: Mutex<BTreeSet<IpAddr>>,
    report: Box<dyn Fn(String, &'static str) + Send + Sync>,
}

impl RejectedPeers {
    /// Reports refusals with `report`, which gets the refusal and a note about refusals that will
    /// not be reported.
    pub(crate) fn new(
        report: impl Fn(String, &'static str) + Send + Sync + 'static,
    ) -> RejectedPeers {
        RejectedPeers { addresses: Mutex::default(), report: Box::new(report) }
    }

    fn refuse(&self, address: IpAddr, refusal: Refusal) {
        self.report(
            address,
            format!("the coordinator refused a connection from {address}: {refusal}"),
        );
    }

    /// Reports that a process with the token sent something wrong, or that someone changed it.
    pub(crate) fn end(&self, address: IpAddr, process: &str, end: &ConnectionEnd) {
        self.report(
            address,
            format!("the coordinator ended a connection of {process} from {address}: {end}"),
        );
    }

    /// Reports, unless something from the same address was reported before.
    fn report(&self, address: IpAddr, what: String) {
        let mut addresses = self.addresses.lock();
        if addresses.len() >= MAX_REPORTED || !addresses.insert(address) {
            return;
        }
        let rest = match addresses.len() {
            MAX_REPORTED => "Further refusals are not reported",
            _ => "Further refusals from this address are not reported",
        };
        drop(addresses);
        (self.report)(what, rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_is_reported_once_up_to_a_limit() {
        let (send, reports) = std::sync::mpsc::channel();
        let rejected = RejectedPeers::new(move |refusal, rest| {
            send.send(format!("{refusal}. {rest}")).unwrap()
        });
        for round in 0..3 {
            for last in 1..=200 {
                let refusal = if round == 0 { Refusal::WrongToken } else { Refusal::TooLate };
                rejected.refuse(IpAddr::from([10, 0, 0, last]), refusal);
            }
        }
        drop(rejected);
        let reports: Vec<String> = reports.iter().collect();
        assert_eq!(reports.len(), MAX_REPORTED);
        assert_eq!(
            reports[0],
            "the coordinator refused a connection from 10.0.0.1: it does not have the token of this run \
             (FULMEN_RUN_TOKEN). Further refusals from this address are not reported"
        );
        assert!(reports[MAX_REPORTED - 1].ends_with("Further refusals are not reported"));
    }
}
