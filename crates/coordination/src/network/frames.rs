//! Encrypted messages of any length over a connection, after its handshake.
//!
//! A message is cut into frames. On the wire, a frame is the length of the rest in two bytes, and
//! encrypted: the number of the request, whether the message ends here, and a part of the message.
//! A short message goes between the frames of a long one, so a heartbeat never waits for a large
//! value. A frame that was changed, repeated, left out or moved ends the connection.
//!
//! Out of scope: what the messages say (`wire.rs`).

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;

use snow::{HandshakeState, StatelessTransportState};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::mpsc::Receiver;

use super::noise::{MAX_ENCRYPTED, OVERHEAD};
use super::wire::MAX_MESSAGE_BYTES;

/// The number of the request, and whether the message ends here.
const HEADER: usize = 9;
/// The largest part of a message in one frame.
const MAX_PART: usize = MAX_ENCRYPTED - OVERHEAD - HEADER;

/// The keys of one connection.
pub(crate) struct Session(StatelessTransportState);

impl Session {
    pub(crate) fn new(finished: HandshakeState) -> Result<Session, snow::Error> {
        finished.into_stateless_transport_mode().map(Session)
    }
}

/// A request or the answer to it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// The number of the request on its connection.
    pub(crate) request: u64,
    pub(crate) bytes: Vec<u8>,
}

/// Why a connection ended.
#[derive(Debug)]
pub(crate) enum ConnectionEnd {
    Closed(io::Error),
    /// A frame does not have the keys of the connection, or is out of order.
    Altered,
    /// A message exceeds the limit, or is not cut into frames as it should be.
    Invalid,
}

impl fmt::Display for ConnectionEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectionEnd::Closed(error) => write!(f, "the connection broke: {error}"),
            ConnectionEnd::Altered => {
                f.write_str("what arrived is not what was sent: it was changed on its way")
            }
            ConnectionEnd::Invalid => write!(
                f,
                "a message is longer than {MAX_MESSAGE_BYTES} bytes, or not in the order of the protocol; run the same \
                 build in all processes"
            ),
        }
    }
}

impl From<io::Error> for ConnectionEnd {
    fn from(error: io::Error) -> ConnectionEnd {
        ConnectionEnd::Closed(error)
    }
}

/// The sending half of a connection.
pub(crate) struct Writer<W> {
    session: Arc<Session>,
    stream: W,
    /// The number of frames so far, which is the nonce of the next.
    frames: u64,
    text: Vec<u8>,
    encrypted: Vec<u8>,
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    pub(crate) fn new(session: Arc<Session>, stream: W) -> Writer<W> {
        Writer { session, stream, frames: 0, text: Vec::new(), encrypted: Vec::new() }
    }

    /// Sends messages until no more can come.
    pub(crate) async fn send_all(mut self, mut queue: Receiver<Message>) -> io::Result<()> {
        let mut long: VecDeque<(Message, usize)> = VecDeque::new();
        loop {
            let next = if long.is_empty() { queue.recv().await } else { queue.try_recv().ok() };
            match (next, long.front_mut()) {
                (Some(message), _) if message.bytes.len() <= MAX_PART => {
                    self.send_frame(message.request, true, &message.bytes).await?;
                }
                (Some(message), _) => long.push_back((message, 0)),
                (None, Some((message, sent))) => {
                    let end = message.bytes.len().min(*sent + MAX_PART);
                    let is_last = end == message.bytes.len();
                    self.send_frame(message.request, is_last, &message.bytes[*sent..end]).await?;
                    *sent = end;
                    if is_last {
                        long.pop_front();
                    }
                }
                (None, None) => return self.stream.shutdown().await,
            }
        }
    }

    pub(super) async fn send_frame(
        &mut self,
        request: u64,
        is_last: bool,
        part: &[u8],
    ) -> io::Result<()> {
        self.text.clear();
        self.text.extend_from_slice(&request.to_le_bytes());
        self.text.push(u8::from(is_last));
        self.text.extend_from_slice(part);
        let length = self.text.len() + OVERHEAD;
        self.encrypted.resize(2 + length, 0);
        let prefix = u16::try_from(length).map_err(io::Error::other)?;
        self.encrypted[..2].copy_from_slice(&prefix.to_be_bytes());
        self.session
            .0
            .write_message(self.frames, &self.text, &mut self.encrypted[2..])
            .map_err(|error| io::Error::other(error.to_string()))?;
        self.frames += 1;
        self.stream.write_all(&self.encrypted).await
    }
}

/// The receiving half of a connection.
pub(crate) struct Reader<R> {
    session: Arc<Session>,
    stream: BufReader<R>,
    frames: u64,
    encrypted: Vec<u8>,
    text: Vec<u8>,
    /// A long message whose end has not arrived.
    begun: Option<Message>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub(crate) fn new(session: Arc<Session>, stream: R) -> Reader<R> {
        Reader {
            session,
            stream: BufReader::new(stream),
            frames: 0,
            encrypted: Vec::new(),
            text: Vec::new(),
            begun: None,
        }
    }

    /// The next message that is complete. It costs at most one message and one frame of memory.
    pub(crate) async fn receive(&mut self) -> Result<Message, ConnectionEnd> {
        loop {
            self.receive_frame().await?;
            let Some((header, part)) = self.text.split_first_chunk::<HEADER>() else {
                return Err(ConnectionEnd::Invalid);
            };
            let [request @ .., is_last] = *header;
            let request = u64::from_le_bytes(request);
            let is_last = is_last != 0;
            match self.begun.take() {
                Some(mut begun) if begun.request == request => {
                    if begun.bytes.len() + part.len() > MAX_MESSAGE_BYTES {
                        return Err(ConnectionEnd::Invalid);
                    }
                    begun.bytes.extend_from_slice(part);
                    if is_last {
                        return Ok(begun);
                    }
                    self.begun = Some(begun);
                }
                begun => {
                    let message = Message { request, bytes: part.to_vec() };
                    if is_last {
                        self.begun = begun;
                        return Ok(message);
                    }
                    if begun.is_some() {
                        return Err(ConnectionEnd::Invalid);
                    }
                    self.begun = Some(message);
                }
            }
        }
    }

    /// Reads until the other end closes the connection, whatever it still sends.
    pub(crate) async fn drain(mut self) {
        self.encrypted.resize(MAX_ENCRYPTED, 0);
        while matches!(self.stream.read(&mut self.encrypted).await, Ok(1..)) {}
    }

    /// Reads a frame into `text`.
    async fn receive_frame(&mut self) -> Result<(), ConnectionEnd> {
        let length = usize::from(self.stream.read_u16().await?);
        self.encrypted.resize(length, 0);
        self.stream.read_exact(&mut self.encrypted).await?;
        self.text.resize(length, 0);
        let length = self
            .session
            .0
            .read_message(self.frames, &self.encrypted, &mut self.text)
            .map_err(|_| ConnectionEnd::Altered)?;
        self.text.truncate(length);
        self.frames += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::super::fuzzing::{new_sessions, sessions};
    use super::*;

    /// What a process sends as frames, and the coordinator's keys.
    async fn sent(frames: &[(u64, bool, &[u8])]) -> (Vec<u8>, Arc<Session>) {
        let [process, coordinator] = sessions();
        let mut wire = Vec::new();
        let mut writer = Writer::new(process, &mut wire);
        for (request, is_last, part) in frames {
            writer.send_frame(*request, *is_last, part).await.unwrap();
        }
        (wire, coordinator)
    }

    async fn received(wire: &[u8], session: Arc<Session>) -> (Vec<Message>, ConnectionEnd) {
        let mut reader = Reader::new(session, wire);
        let mut messages = Vec::new();
        loop {
            match reader.receive().await {
                Ok(message) => messages.push(message),
                Err(end) => return (messages, end),
            }
        }
    }

    #[tokio::test]
    async fn a_short_message_goes_between_the_frames_of_a_long_one() {
        let [process, coordinator] = sessions();
        let (process_end, coordinator_end) = tokio::io::duplex(1000);
        let (requests, queue) = mpsc::channel(16);
        let writer = tokio::spawn(Writer::new(process, process_end).send_all(queue));
        let long: Vec<u8> = (0..MAX_MESSAGE_BYTES).map(|n| (n % 251) as u8).collect();
        let mut reader = Reader::new(coordinator, coordinator_end);
        for (request, bytes) in [(0, long.clone()), (1, long.clone()), (2, vec![7])] {
            requests.send(Message { request, bytes }).await.unwrap();
        }
        drop(requests);
        assert_eq!(reader.receive().await.unwrap(), Message { request: 2, bytes: vec![7] });
        for request in [0, 1] {
            let message = reader.receive().await.unwrap();
            assert!(message.request == request && message.bytes == long);
        }
        assert!(matches!(reader.receive().await, Err(ConnectionEnd::Closed(_))));
        writer.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn each_changed_bit_ends_the_connection() {
        let (wire, session) = sent(&[(5, true, b"a value")]).await;
        assert_eq!(received(&wire, session.clone()).await.0.len(), 1);
        for bit in 0..8 * wire.len() {
            let mut changed = wire.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let (messages, end) = received(&changed, session.clone()).await;
            assert!(messages.is_empty(), "bit {bit}");
            // A larger length waits for bytes that never come.
            let is_length = bit < 16;
            assert!(matches!(end, ConnectionEnd::Altered) || is_length, "bit {bit}: {end}");
        }
    }

    #[tokio::test]
    async fn a_repeated_a_missing_and_a_moved_frame_end_the_connection() {
        let (wire, session) = sent(&[(0, true, b"one"), (1, true, b"two")]).await;
        let middle = wire.len() / 2;
        let one = &wire[..middle];
        let two = &wire[middle..];
        for (order, accepted) in
            [([one, one].concat(), 1), ([two].concat(), 0), ([two, one].concat(), 0)]
        {
            let (messages, end) = received(&order, session.clone()).await;
            assert!(messages.len() == accepted && matches!(end, ConnectionEnd::Altered), "{end}");
        }
        // Nor does a frame return to its sender, or fit another connection with the same token.
        let [sender, _] = sessions();
        let [_, other] = new_sessions();
        for session in [sender, other.into()] {
            let (messages, end) = received(&wire, session).await;
            assert!(messages.is_empty() && matches!(end, ConnectionEnd::Altered), "{end}");
        }
    }

    #[tokio::test]
    async fn a_message_is_limited_while_it_arrives() {
        let part = vec![0; MAX_PART];
        let frames = vec![(0, false, &part[..]); MAX_MESSAGE_BYTES / MAX_PART + 1];
        let (wire, session) = sent(&frames).await;
        let (messages, end) = received(&wire, session).await;
        assert!(messages.is_empty() && matches!(end, ConnectionEnd::Invalid), "{end}");
        // Two long messages at once would cost the memory of both.
        let (wire, session) = sent(&[(0, false, b"a"), (1, false, b"b")]).await;
        let (messages, end) = received(&wire, session).await;
        assert!(messages.is_empty() && matches!(end, ConnectionEnd::Invalid), "{end}");
    }
}
