//! The process's end of a connection to the coordinator. Any number of requests may wait for their
//! answers on it.
//!
//! Out of scope: retries (`client.rs`).

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prost::Message as _;
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::frames::{ConnectionEnd, Message, Reader, Writer};
use super::handshake::{HandshakeError, authenticate};
use super::noise::RunKey;
use super::wire::{Reply, Request};

/// The time for all addresses of a name together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a request has no answer.
#[derive(Clone, Debug)]
pub(crate) enum SendError {
    /// A reason after which a retry may help.
    Broken(String),
    /// The server is not the coordinator of this run.
    Handshake(Arc<HandshakeError>),
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SendError::Broken(reason) => f.write_str(reason),
            SendError::Handshake(error) => error.fmt(f),
        }
    }
}

pub(crate) struct Connection {
    requests: mpsc::Sender<Message>,
    answers: Arc<Mutex<Answers>>,
    /// It ends with the connection.
    _task: JoinSet<()>,
}

#[derive(Default)]
struct Answers {
    /// The number of the next request.
    next: u64,
    waiting: HashMap<u64, oneshot::Sender<Reply>>,
    /// Why the connection ended.
    end: Option<String>,
}

impl Connection {
    /// Connects to the coordinator at `host:port`.
    pub(crate) async fn open(coordinator: &str, key: &RunKey) -> Result<Connection, SendError> {
        let broken = |error: io::Error| SendError::Broken(error.to_string());
        let mut stream = connect(coordinator).await.map_err(broken)?;
        stream.set_nodelay(true).map_err(broken)?;
        let session = authenticate(&mut stream, key)
            .await
            .map_err(|error| SendError::Handshake(Arc::new(error)))?;
        let session = Arc::new(session);
        let (receiving, sending) = stream.into_split();
        let (requests, queue) = mpsc::channel(16);
        let answers: Arc<Mutex<Answers>> = Arc::default();
        let writer = Writer::new(session.clone(), sending);
        let mut reader = Reader::new(session, receiving);
        let arriving = answers.clone();
        let receive_all = async move {
            loop {
                match reader.receive().await {
                    Ok(message) => arriving.lock().accept(message),
                    Err(end) => return end,
                }
            }
        };
        let ending = answers.clone();
        let mut task = JoinSet::new();
        // If one half ends, so does the other, and the socket is closed.
        task.spawn(async move {
            let end = tokio::select! {
                end = receive_all => end,
                sent = writer.send_all(queue) => match sent {
                    Ok(()) => return,
                    Err(error) => ConnectionEnd::Closed(error),
                },
            };
            ending.lock().end(&end);
        });
        Ok(Connection { requests, answers, _task: task })
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.answers.lock().end.is_some()
    }

    /// Sends a request and waits for its answer.
    pub(crate) async fn ask(&self, request: Request) -> Result<Reply, SendError> {
        let (send, answer) = oneshot::channel();
        let number = {
            let mut answers = self.answers.lock();
            if let Some(end) = &answers.end {
                return Err(SendError::Broken(end.clone()));
            }
            let number = answers.next;
            answers.next += 1;
            answers.waiting.insert(number, send);
            number
        };
        let message = Message { request: number, bytes: request.into_bytes() };
        // If the task that sends has ended, the reason is where the answer would be.
        let _ = self.requests.send(message).await;
        answer.await.map_err(|_| {
            let end = self.answers.lock().end.clone();
            SendError::Broken(end.unwrap_or_else(|| "the connection ended".to_owned()))
        })
    }
}

impl Answers {
    /// Passes an answer on, unless nobody waits for it any more.
    fn accept(&mut self, message: Message) {
        let waiting = self.waiting.remove(&message.request);
        match (waiting, Reply::decode(&message.bytes[..])) {
            (Some(waiting), Ok(reply)) => drop(waiting.send(reply)),
            (None, Ok(_)) => {}
            (_, Err(error)) => self.end(&error),
        }
    }

    /// Ends the wait of all requests. The first reason counts.
    fn end(&mut self, reason: &dyn fmt::Display) {
        self.end.get_or_insert_with(|| reason.to_string());
        self.waiting.clear();
    }
}

/// Connects to the first address of a name that accepts.
async fn connect(coordinator: &str) -> io::Result<TcpStream> {
    let too_slow =
        || io::Error::new(io::ErrorKind::TimedOut, "nothing accepts connections within 5 s");
    let addresses = timeout(CONNECT_TIMEOUT, lookup_host(coordinator)).await;
    let addresses: Vec<_> = addresses.map_err(|_| too_slow())??.collect();
    let mut last_error = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in &addresses {
        // A server that is not reachable at one address must not hide the others.
        let time = CONNECT_TIMEOUT / addresses.len() as u32;
        match timeout(time, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last_error = error,
            Err(_) => last_error = too_slow(),
        }
    }
    Err(last_error)
}
