//! Entry points for bytes from the network, with the properties that must hold for any input. They
//! are only for the fuzz targets and not part of the public API.

use std::future::{poll_fn, ready};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, Instant};

use prost::Message;
use tokio::io::{join, sink};
use tokio::task::unconstrained;

use super::coordinator::Coordinator;
use super::handshake::{admit, authenticate};
use super::service::Service;
use super::wire::{self, Reply};
use crate::token::Token;

/// Reads bytes as the handshake of a process, and as the handshake of a coordinator.
///
/// # Panics
/// If one of the two accepts the bytes.
pub fn handshake(bytes: &[u8]) {
    let token = Token::new(&"t".repeat(32)).ok();
    in_runtime(async {
        let admitted = poll_once(admit(&mut join(bytes, sink()), token.as_ref())).await;
        assert!(matches!(admitted, Some(Err(_))), "{admitted:?}");
        let presented = poll_once(authenticate(&mut join(bytes, sink()), token.as_ref())).await;
        assert!(matches!(presented, Some(Err(_))), "{presented:?}");
    });
}

/// Reads bytes as requests and answers them, in a run of three processes, two of which have joined.
/// Before each request come a byte for its method and one for its length.
///
/// # Panics
/// If more processes join than allowed, or if an answer cannot be decoded.
pub fn requests(mut bytes: &[u8]) {
    in_runtime(async {
        let mut run = Coordinator::new(3, "r", &[], Duration::from_secs(10));
        (0..2).for_each(|index| assert!(run.join(&join_request(index), Instant::now()).is_ok()));
        let service = Service::new(run);
        let mut waiting = Vec::new();
        while let [method, length, rest @ ..] = bytes {
            let (request, rest) = rest.split_at(rest.len().min(usize::from(*length)));
            bytes = rest;
            let mut answer = answer(service.clone(), *method, request);
            match poll_once(&mut answer).await {
                Some(reply) => check(reply),
                None => waiting.push(answer),
            }
        }
        // Some of these were answered by later requests.
        for answer in waiting {
            check(poll_once(answer).await.flatten());
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

type Answer = Pin<Box<dyn Future<Output = Option<Reply>>>>;

fn answer(service: Service, method: u8, bytes: &[u8]) -> Answer {
    fn decode_and_call<Q: Message + Default, A>(bytes: &[u8], call: impl FnOnce(Q) -> A) -> Answer
    where
        A: Future<Output = Option<Reply>> + 'static,
    {
        match Q::decode(bytes) {
            Ok(request) => Box::pin(call(request)),
            Err(_) => Box::pin(ready(None)),
        }
    }
    match method % 6 {
        0 => decode_and_call(bytes, move |request| async move { service.join(request).await.ok() }),
        1 => decode_and_call(bytes, move |request| async move {
            Some(service.wait_at_barrier(request).await)
        }),
        2 => decode_and_call(bytes, move |request| async move { Some(service.put(request).await) }),
        3 => decode_and_call(bytes, move |request| async move { Some(service.get(request).await) }),
        4 => {
            decode_and_call(
                bytes,
                move |request| async move { Some(service.heartbeat(request).await) },
            )
        }
        _ => {
            decode_and_call(bytes, move |request| async move { Some(service.leave(request).await) })
        }
    }
}

fn check(reply: Option<Reply>) {
    if let Some(reply) = reply {
        assert_eq!(Reply::decode(reply.encode_to_vec().as_slice()), Ok(reply));
    }
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
        fn frame(method: u8, request: &impl Message) -> Vec<u8> {
            let bytes = request.encode_to_vec();
            [&[method, u8::try_from(bytes.len()).unwrap()], bytes.as_slice()].concat()
        }
        let meet = |index, purpose: wire::Purpose, fact: &str| wire::WaitAtBarrier {
            caller: join_request(index).caller,
            purpose: purpose as i32,
            name: "fit".into(),
            generation: 0,
            timeout_ms: 60_000,
            facts: BTreeMap::from([("program".into(), fact.into())]),
        };
        let mut requests: Vec<Vec<u8>> =
            (0..4).map(|index| frame(0, &join_request(index))).collect();
        for index in 0..3 {
            let caller = join_request(index).caller;
            requests.push(frame(1, &meet(index, wire::Purpose::Join, "")));
            requests.push(frame(1, &meet(index, wire::Purpose::Barrier, "")));
            requests.push(frame(3, &wire::Get { caller, key: "key".into(), timeout_ms: 60_000 }));
            requests
                .push(frame(2, &wire::Put { caller, key: "key".into(), value: "value".into() }));
            requests.push(frame(4, &wire::Heartbeat { caller, wait_ms: 2000 }));
            requests.push(frame(1, &meet(index, wire::Purpose::Agreement, "9f3a")));
            requests.push(frame(1, &meet(index, wire::Purpose::Shutdown, "")));
            requests.push(frame(
                5,
                &wire::Leave { caller, reason: "the disk is full".into(), signal: Some(15) },
            ));
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
            handshake(&bytes);
            handshake(&[b"fulmen/2", bytes.as_slice()].concat());
        }
    }
}
