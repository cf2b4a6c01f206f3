//! Entry points for bytes from the network, with the properties that must hold for any input. They
//! are only for the fuzz targets and not part of the public API.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, LazyLock};
use std::task::Poll;
use std::time::{Duration, Instant};

use prost::Message as _;
use tokio::io::{join, sink};
use tokio::task::unconstrained;

use super::coordinator::Coordinator;
use super::frames::{Reader, Session, Writer};
use super::handshake::{admit, authenticate};
use super::noise::{self, End, HANDSHAKE_MESSAGE, RunKey};
use super::service::Service;
use super::wire::{self, Reply, Request};
use crate::token::Token;

/// Reads bytes as the handshake of a process, as the handshake of a coordinator, and as what follows
/// a handshake.
///
/// # Panics
/// If one of the three accepts the bytes.
pub fn handshake(bytes: &[u8]) {
    let key = RunKey::new(Token::new(&"t".repeat(32)).ok().as_ref());
    in_runtime(async {
        let admitted = poll_once(admit(&mut join(bytes, sink()), &key)).await;
        assert!(matches!(admitted, Some(Err(_))), "the coordinator admits the bytes");
        let presented = poll_once(authenticate(&mut join(bytes, sink()), &key)).await;
        assert!(matches!(presented, Some(Err(_))), "the process trusts the bytes");
        let [session, _] = sessions();
        let received = poll_once(Reader::new(session, bytes).receive()).await;
        assert!(matches!(received, Some(Err(_))), "{received:?}");
    });
}

/// The keys of both ends of a connection: of the process, and of the coordinator.
pub(super) fn sessions() -> [Arc<Session>; 2] {
    // A handshake takes much longer than the rest.
    static SESSIONS: LazyLock<[Arc<Session>; 2]> = LazyLock::new(|| new_sessions().map(Arc::new));
    SESSIONS.clone()
}

pub(super) fn new_sessions() -> [Session; 2] {
    let key = RunKey::new(None);
    let connect = || {
        let mut process = noise::handshake(End::Process, &key, b"")?;
        let mut coordinator = noise::handshake(End::Coordinator, &key, b"")?;
        let mut message = [0; HANDSHAKE_MESSAGE];
        process.write_message(&[], &mut message)?;
        coordinator.read_message(&message, &mut [])?;
        coordinator.write_message(&[], &mut message)?;
        process.read_message(&message, &mut [])?;
        Ok::<_, snow::Error>([Session::new(process)?, Session::new(coordinator)?])
    };
    #[expect(clippy::expect_used, reason = "without keys there is nothing to fuzz")]
    connect().expect("both ends have the same key")
}

/// Reads bytes as the frames of someone who has the keys. Before each frame come a byte for its
/// request and end, and one for its length.
///
/// # Panics
/// If a message has bytes that no frame has.
pub fn frames(mut bytes: &[u8]) {
    in_runtime(async {
        let [process, coordinator] = sessions();
        let mut wire = Vec::new();
        let mut sent = 0;
        let mut writer = Writer::new(process, &mut wire);
        while let [kind, length, rest @ ..] = bytes {
            let (part, rest) = rest.split_at(rest.len().min(usize::from(*length)));
            bytes = rest;
            sent += part.len();
            let writing = writer.send_frame(u64::from(kind / 2), kind % 2 == 1, part);
            assert!(matches!(poll_once(writing).await, Some(Ok(()))));
        }
        let mut reader = Reader::new(coordinator, &wire[..]);
        let mut received = 0;
        while let Some(Ok(message)) = poll_once(reader.receive()).await {
            received += message.bytes.len();
        }
        assert!(received <= sent);
    });
}

/// Reads bytes as requests and answers them, in a run of three processes, two of which have joined.
/// Before each request comes a byte for its length.
///
/// # Panics
/// If more processes join than allowed, or if an answer cannot be decoded.
pub fn requests(mut bytes: &[u8]) {
    in_runtime(async {
        let mut run = Coordinator::new(3, "r", &[], Duration::from_secs(10));
        (0..2).for_each(|index| assert!(run.join(&join_request(index), Instant::now()).is_ok()));
        let service = Service::new(run);
        let mut waiting = Vec::new();
        while let [length, rest @ ..] = bytes {
            let (request, rest) = rest.split_at(rest.len().min(usize::from(*length)));
            bytes = rest;
            let Some(request) = Request::from_bytes(request) else { continue };
            let mut answer = Box::pin(service.clone().answer(request));
            match poll_once(&mut answer).await {
                Some(reply) => check(&reply),
                None => waiting.push(answer),
            }
        }
        // Some of these were answered by later requests.
        for answer in waiting {
            if let Some(reply) = poll_once(answer).await {
                check(&reply);
            }
        }
        assert!(service.change(|run| run.members().len()) <= 3);
    });
}

fn join_request(index: u32) -> wire::Join {
    let caller = wire::Caller { index, session: 7 };
    wire::Join {
        version: wire::VERSION,
        caller,
        count: 3,
        run_id: "r".into(),
        host: "h".into(),
        pid: 1,
    }
}

fn check(reply: &Reply) {
    assert_eq!(Reply::decode(&reply.encode_to_vec()[..]).as_ref(), Ok(reply));
}

/// The output of a future that is ready at once.
async fn poll_once<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(unconstrained(future));
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Timers need a runtime.
fn in_runtime(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    #[expect(clippy::expect_used, reason = "without a runtime there is nothing to fuzz")]
    runtime.expect("a runtime").block_on(future);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The requests of a whole run, as [`requests`] reads them.
    fn valid_requests() -> Vec<Vec<u8>> {
        fn frame(request: Request) -> Vec<u8> {
            let bytes = request.into_bytes();
            [&[u8::try_from(bytes.len()).unwrap()], bytes.as_slice()].concat()
        }
        let meet = |index, purpose: wire::Purpose, fact: &str| {
            frame(Request::WaitAtBarrier(wire::WaitAtBarrier {
                caller: join_request(index).caller,
                purpose: purpose as i32,
                name: "fit".into(),
                generation: 0,
                timeout_ms: 60_000,
                facts: BTreeMap::from([("program".into(), fact.into())]),
            }))
        };
        let mut requests: Vec<Vec<u8>> =
            (0..4).map(|index| frame(Request::Join(join_request(index)))).collect();
        for index in 0..3 {
            let caller = join_request(index).caller;
            let key = "key".to_owned();
            requests.push(meet(index, wire::Purpose::Join, ""));
            requests.push(meet(index, wire::Purpose::Barrier, ""));
            let get = wire::Get { caller, key: key.clone(), timeout_ms: 60_000 };
            requests.push(frame(Request::Get(get)));
            requests.push(frame(Request::Put(wire::Put { caller, key, value: "value".into() })));
            requests.push(frame(Request::Heartbeat(wire::Heartbeat { caller, wait_ms: 2000 })));
            requests.push(meet(index, wire::Purpose::Agreement, "9f3a"));
            requests.push(meet(index, wire::Purpose::Shutdown, ""));
            let leave = wire::Leave { caller, reason: "the disk is full".into(), signal: Some(15) };
            requests.push(frame(Request::Leave(leave)));
        }
        requests
    }

    /// A subset of the requests, shuffled, with some bytes changed.
    fn corrupted(valid_requests: &[Vec<u8>], random: &mut impl FnMut(usize) -> usize) -> Vec<u8> {
        let count = random(2 * valid_requests.len());
        let mut bytes: Vec<u8> =
            (0..count).flat_map(|_| valid_requests[random(valid_requests.len())].clone()).collect();
        for _ in 0..random(8) {
            let position = random(bytes.len() + 1);
            match random(4) {
                0 => bytes.truncate(position),
                1 => bytes.insert(position, random(256) as u8),
                _ => {
                    if let Some(byte) = bytes.get_mut(position) {
                        *byte = random(256) as u8;
                    }
                }
            }
        }
        bytes
    }

    #[test]
    fn any_bytes_are_handled() {
        let mut state = 0u64;
        // SplitMix64.
        let mut random = |below: usize| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((mixed ^ (mixed >> 31)) % below.max(1) as u64) as usize
        };
        let valid_requests = valid_requests();
        requests(&valid_requests.concat());
        for _ in 0..3000 {
            requests(&corrupted(&valid_requests, &mut random));
            let bytes: Vec<u8> = (0..random(100)).map(|_| random(256) as u8).collect();
            requests(&bytes);
            frames(&bytes);
            handshake(&bytes);
            handshake(&[b"fulmen/3", bytes.as_slice()].concat());
        }
    }
}
