//! The messages between a process and the coordinator: protocol buffers, one [`Request`] and one
//! [`Reply`] for each call.
//!
//! Field numbers never change. A change of meaning needs a new [`VERSION`].

use std::collections::BTreeMap;

use prost::Message as _;

use crate::error::{self, Error, Fact};
use crate::process::ProcessInfo;

/// Processes with a different version are refused.
pub(crate) const VERSION: u32 = 1;

/// The size limit of a value, in bytes. The key-value store is for names and small blobs, not for
/// tensors.
pub(crate) const MAX_VALUE_BYTES: usize = 16 << 20;
pub(crate) const MAX_KEY_BYTES: usize = 1024;
/// The size limit of a message, in bytes: a value with its key and a few numbers.
pub(crate) const MAX_MESSAGE_BYTES: usize = MAX_VALUE_BYTES + (64 << 10);

/// The sender of a message. Its session is random, so that a second process with the same index is
/// not mistaken for the first.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct Caller {
    #[prost(uint32, tag = "1")]
    pub(crate) index: u32,
    #[prost(fixed64, tag = "2")]
    pub(crate) session: u64,
}

/// The message of a process to the coordinator.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Call {
    #[prost(oneof = "Request", tags = "1, 2, 3, 4, 5, 6")]
    pub(crate) request: Option<Request>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Request {
    #[prost(message, tag = "1")]
    Join(Join),
    #[prost(message, tag = "2")]
    WaitAtBarrier(WaitAtBarrier),
    #[prost(message, tag = "3")]
    Put(Put),
    #[prost(message, tag = "4")]
    Get(Get),
    #[prost(message, tag = "5")]
    Heartbeat(Heartbeat),
    #[prost(message, tag = "6")]
    Leave(Leave),
}

impl Request {
    pub(crate) fn caller(&self) -> Caller {
        match self {
            Request::Join(request) => request.caller,
            Request::WaitAtBarrier(request) => request.caller,
            Request::Put(request) => request.caller,
            Request::Get(request) => request.caller,
            Request::Heartbeat(request) => request.caller,
            Request::Leave(request) => request.caller,
        }
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        Call { request: Some(self) }.encode_to_vec()
    }

    /// `None` if the bytes are not a request of this version.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Request> {
        Call::decode(bytes).ok()?.request
    }
}

/// A process introduces itself. The coordinator answers at once.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Join {
    #[prost(uint32, tag = "1")]
    pub(crate) version: u32,
    #[prost(message, required, tag = "2")]
    pub(crate) caller: Caller,
    #[prost(uint32, tag = "3")]
    pub(crate) count: u32,
    #[prost(string, tag = "4")]
    pub(crate) run_id: String,
    #[prost(string, tag = "5")]
    pub(crate) host: String,
    #[prost(uint32, tag = "6")]
    pub(crate) pid: u32,
}

/// Why processes wait at a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum Purpose {
    /// They synchronize.
    Barrier = 0,
    /// They join the run, which comes before everything else.
    Join = 1,
    /// They compare facts.
    Agreement = 2,
    /// They end the run together.
    Shutdown = 3,
}

/// A process arrives at a barrier. The coordinator answers when all have arrived, or after a
/// failure.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct WaitAtBarrier {
    #[prost(message, required, tag = "1")]
    pub(crate) caller: Caller,
    #[prost(enumeration = "Purpose", tag = "2")]
    pub(crate) purpose: i32,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
    /// How often this process arrived at a barrier of that name before.
    #[prost(uint64, tag = "4")]
    pub(crate) generation: u64,
    #[prost(uint64, tag = "5")]
    pub(crate) timeout_ms: u64,
    #[prost(btree_map = "string, string", tag = "6")]
    pub(crate) facts: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Put {
    #[prost(message, required, tag = "1")]
    pub(crate) caller: Caller,
    #[prost(string, tag = "2")]
    pub(crate) key: String,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) value: bytes::Bytes,
}

/// A process asks for a value. The coordinator answers when the value exists, or without a value
/// after the time-out.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Get {
    #[prost(message, required, tag = "1")]
    pub(crate) caller: Caller,
    #[prost(string, tag = "2")]
    pub(crate) key: String,
    #[prost(uint64, tag = "3")]
    pub(crate) timeout_ms: u64,
}

/// A heartbeat. The coordinator answers after a while, or at once if the run has failed.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Heartbeat {
    #[prost(message, required, tag = "1")]
    pub(crate) caller: Caller,
    #[prost(uint64, tag = "2")]
    pub(crate) wait_ms: u64,
}

/// A process leaves. Leaving before the shutdown ends the run for all.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Leave {
    #[prost(message, required, tag = "1")]
    pub(crate) caller: Caller,
    #[prost(string, tag = "2")]
    pub(crate) reason: String,
    /// The number of the signal that ends the process.
    #[prost(int32, optional, tag = "3")]
    pub(crate) signal: Option<i32>,
}

/// The answer to every request.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Reply {
    #[prost(message, optional, tag = "1")]
    pub(crate) failure: Option<Failure>,
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub(crate) value: Option<bytes::Bytes>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) members: Vec<Member>,
    #[prost(uint64, tag = "4")]
    pub(crate) heartbeat_timeout_ms: u64,
    /// Why the process should ask again later.
    #[prost(string, optional, tag = "5")]
    pub(crate) try_later: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum FailureKind {
    Usage = 0,
    Refused = 1,
    TimedOut = 2,
    PeerLost = 3,
    Disagreement = 4,
    Conflict = 5,
    PeerSilent = 6,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Failure {
    #[prost(enumeration = "FailureKind", tag = "1")]
    pub(crate) kind: i32,
    #[prost(uint32, repeated, tag = "2")]
    pub(crate) processes: Vec<u32>,
    #[prost(string, tag = "3")]
    pub(crate) message: String,
    /// Whether the run is over for all.
    #[prost(bool, tag = "4")]
    pub(crate) ends_run: bool,
    /// The number of the signal that ended the process.
    #[prost(int32, optional, tag = "5")]
    pub(crate) signal: Option<i32>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Member {
    #[prost(uint32, tag = "1")]
    pub(crate) index: u32,
    #[prost(string, tag = "2")]
    pub(crate) host: String,
    #[prost(uint32, tag = "3")]
    pub(crate) pid: u32,
}

impl From<Member> for ProcessInfo {
    fn from(member: Member) -> ProcessInfo {
        ProcessInfo { index: member.index as usize, host: member.host, pid: member.pid }
    }
}

impl Failure {
    pub(crate) fn new(
        kind: FailureKind,
        processes: Vec<u32>,
        message: impl Into<String>,
    ) -> Failure {
        Failure {
            kind: kind as i32,
            processes,
            message: message.into(),
            ends_run: false,
            signal: None,
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        let kind = match failure.kind() {
            FailureKind::Usage => Fact::Option,
            FailureKind::Refused => Fact::Refused,
            FailureKind::TimedOut => Fact::TimedOut,
            FailureKind::PeerLost => Fact::PeerLost,
            FailureKind::Disagreement => Fact::Disagreement,
            FailureKind::Conflict => Fact::Conflict,
            FailureKind::PeerSilent => Fact::PeerSilent,
        };
        error::about(
            kind,
            failure.processes.iter().map(|&i| i as usize).collect::<Vec<_>>(),
            failure.message,
        )
        .with_signal(failure.signal)
    }
}

impl From<Result<(), Failure>> for Reply {
    fn from(result: Result<(), Failure>) -> Reply {
        Reply { failure: result.err(), ..Reply::default() }
    }
}
