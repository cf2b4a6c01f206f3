//! The first bytes of a connection: both ends prove that they have the token of the run, and agree
//! on keys for what follows.
//!
//! | from | bytes |
//! | --- | --- |
//! | coordinator | `GREETING`, then 32 random bytes |
//! | process | Noise's first message: 48 bytes |
//! | coordinator | 1, then Noise's second message: 48 bytes; or 0, and it hangs up |
//!
//! The coordinator's bytes are the prologue of Noise, so the first message of a recorded connection
//! does not fit another one. A wrong token costs the coordinator a few hashes, and no arithmetic on
//! curves.
//!
//! Out of scope: the messages themselves (`noise.rs`, `snow`), and what follows them (`frames.rs`).

use std::fmt;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::frames::Session;
use super::noise::{End, HANDSHAKE_MESSAGE, RunKey, fill_random, handshake};

/// What all versions of the protocol begin with.
const PROTOCOL: &[u8] = b"fulmen/";
/// The last byte is the version.
const GREETING: [u8; 8] = *b"fulmen/3";
/// The greeting and the random bytes of the coordinator.
const PROLOGUE: usize = GREETING.len() + 32;

/// How long either end waits for the other.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the coordinator refused a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    WrongToken,
    HungUp,
    TooLate,
    /// Too many connections wait for their handshake.
    Crowded,
    /// The system provides no random numbers.
    NoRandomness,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::WrongToken => {
                f.write_str("it does not have the token of this run (FULMEN_RUN_TOKEN)")
            }
            Refusal::HungUp => f.write_str(
                "it closed the connection without showing that it has the token of this run",
            ),
            Refusal::TooLate => {
                write!(
                    f,
                    "it did not show within {} s that it has the token of this run",
                    HANDSHAKE_TIMEOUT.as_secs()
                )
            }
            Refusal::Crowded => f.write_str(
                "too many connections are waiting to show that they have the token of this run",
            ),
            Refusal::NoRandomness => f.write_str("this machine provides no random numbers"),
        }
    }
}

/// The coordinator's end of the handshake.
pub(crate) async fn admit(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    key: &RunKey,
) -> Result<Session, Refusal> {
    let handshake = async {
        let mut prologue = [0; PROLOGUE];
        prologue[..GREETING.len()].copy_from_slice(&GREETING);
        fill_random(&mut prologue[GREETING.len()..]).map_err(|_| Refusal::NoRandomness)?;
        let hung_up = |_| Refusal::HungUp;
        stream.write_all(&prologue).await.map_err(hung_up)?;
        let mut first = [0; HANDSHAKE_MESSAGE];
        stream.read_exact(&mut first).await.map_err(hung_up)?;
        let Ok((session, second)) = answer(key, &prologue, &first) else {
            let _ = stream.write_all(&[0]).await;
            return Err(Refusal::WrongToken);
        };
        stream.write_all(&[&[1], &second[..]].concat()).await.map_err(hung_up)?;
        Ok(session)
    };
    tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await.unwrap_or(Err(Refusal::TooLate))
}

/// What the coordinator makes of Noise's first message: a session, and the second message.
fn answer(
    key: &RunKey,
    prologue: &[u8],
    first: &[u8],
) -> Result<(Session, [u8; HANDSHAKE_MESSAGE]), snow::Error> {
    let mut noise = handshake(End::Coordinator, key, prologue)?;
    noise.read_message(first, &mut [])?;
    let mut second = [0; HANDSHAKE_MESSAGE];
    noise.write_message(&[], &mut second)?;
    Ok((Session::new(noise)?, second))
}

/// Why a process does not trust the server at the coordinator's address.
#[derive(Debug)]
pub(crate) enum HandshakeError {
    /// The server's greeting is not a coordinator's.
    OtherProtocol,
    /// The server is a coordinator of another version of Fulmen.
    OtherVersion(u8),
    /// The server does not accept this process's token.
    Refused,
    /// The server accepts the token but does not have it.
    NoProof,
    /// The connection broke, so a retry may help.
    Broken(std::io::Error),
    Silent,
}

impl From<std::io::Error> for HandshakeError {
    fn from(error: std::io::Error) -> HandshakeError {
        HandshakeError::Broken(error)
    }
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandshakeError::OtherProtocol => f.write_str("it is not a coordinator of Fulmen"),
            HandshakeError::OtherVersion(version) => {
                let theirs = version.escape_ascii();
                let ours = GREETING[PROTOCOL.len()].escape_ascii();
                write!(f, "it speaks version {theirs} of the protocol, and this process {ours}")
            }
            HandshakeError::Refused => f.write_str("it does not accept this process's token"),
            HandshakeError::NoProof => f.write_str("it does not have the token of this run"),
            HandshakeError::Broken(error) => write!(f, "it closed the connection: {error}"),
            HandshakeError::Silent => {
                write!(f, "it sent nothing for {} s", HANDSHAKE_TIMEOUT.as_secs())
            }
        }
    }
}

/// The process's end of the handshake.
pub(crate) async fn authenticate(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    key: &RunKey,
) -> Result<Session, HandshakeError> {
    let handshake = async {
        let mut prologue = [0; PROLOGUE];
        let greeting = &mut prologue[..GREETING.len()];
        stream.read_exact(greeting).await?;
        match greeting.strip_prefix(PROTOCOL) {
            _ if greeting == GREETING => {}
            Some(&[version]) => return Err(HandshakeError::OtherVersion(version)),
            _ => return Err(HandshakeError::OtherProtocol),
        }
        stream.read_exact(&mut prologue[GREETING.len()..]).await?;
        let no_randomness =
            |error: snow::Error| HandshakeError::Broken(std::io::Error::other(error.to_string()));
        let mut noise = handshake(End::Process, key, &prologue).map_err(no_randomness)?;
        let mut first = [0; HANDSHAKE_MESSAGE];
        noise.write_message(&[], &mut first).map_err(no_randomness)?;
        stream.write_all(&first).await?;
        match stream.read_u8().await? {
            1 => {}
            0 => return Err(HandshakeError::Refused),
            _ => return Err(HandshakeError::OtherProtocol),
        }
        let mut second = [0; HANDSHAKE_MESSAGE];
        stream.read_exact(&mut second).await?;
        noise.read_message(&second, &mut []).map_err(|_| HandshakeError::NoProof)?;
        Session::new(noise).map_err(|_| HandshakeError::NoProof)
    };
    tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await.unwrap_or(Err(HandshakeError::Silent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::Token;

    fn key(letter: &str) -> RunKey {
        RunKey::new(Some(&Token::new(&letter.repeat(32)).unwrap()))
    }

    async fn connect(
        coordinator: RunKey,
        process: RunKey,
    ) -> (Result<Session, Refusal>, Result<Session, HandshakeError>) {
        let (mut local, mut remote) = tokio::io::duplex(1024);
        tokio::join!(admit(&mut local, &coordinator), authenticate(&mut remote, &process))
    }

    /// What the end of a coordinator says, if it refuses.
    async fn refusal(stream: &mut tokio::io::DuplexStream) -> Option<Refusal> {
        admit(stream, &key("a")).await.err()
    }

    /// What the end of a process says, if it does not trust the server.
    async fn distrust(stream: &mut tokio::io::DuplexStream) -> Option<HandshakeError> {
        authenticate(stream, &key("a")).await.err()
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_same_token_is_admitted() {
        let none = RunKey::new(None);
        for same in [key("a"), none] {
            let (admitted, presented) = connect(same, same).await;
            assert!(admitted.is_ok() && presented.is_ok());
        }
        for (coordinator, process) in [(key("a"), key("b")), (key("a"), none), (none, key("b"))] {
            let (admitted, presented) = connect(coordinator, process).await;
            assert_eq!(admitted.err(), Some(Refusal::WrongToken));
            assert!(matches!(presented.err(), Some(HandshakeError::Refused)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_incomplete_handshake_times_out() {
        for sent in [0, 8, 47] {
            let (mut local, mut remote) = tokio::io::duplex(1024);
            remote.write_all(&vec![7; sent]).await.unwrap();
            assert_eq!(refusal(&mut local).await, Some(Refusal::TooLate));
            drop(remote);
            assert_eq!(refusal(&mut local).await, Some(Refusal::HungUp));
        }
        let (mut local, mut remote) = tokio::io::duplex(1024);
        remote.write_all(&GREETING).await.unwrap();
        assert!(matches!(distrust(&mut local).await, Some(HandshakeError::Silent)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_impostor_is_rejected() {
        let (mut local, mut remote) = tokio::io::duplex(1024);
        remote.write_all(b"SSH-2.0-OpenSSH").await.unwrap();
        assert!(matches!(distrust(&mut local).await, Some(HandshakeError::OtherProtocol)));
        // A server that accepts every process and returns the process's own message.
        let (mut local, mut remote) = tokio::io::duplex(1024);
        let impostor = async {
            remote.write_all(&[&GREETING[..], &[0; 32]].concat()).await.unwrap();
            let mut answer = [0; HANDSHAKE_MESSAGE];
            remote.read_exact(&mut answer).await.unwrap();
            remote.write_all(&[&[1], &answer[..]].concat()).await.unwrap();
        };
        let (presented, ()) = tokio::join!(distrust(&mut local), impostor);
        assert!(matches!(presented, Some(HandshakeError::NoProof)), "{presented:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn another_version_is_named() {
        let (mut local, mut remote) = tokio::io::duplex(1024);
        remote.write_all(b"fulmen/2").await.unwrap();
        let error = distrust(&mut local).await.unwrap();
        assert_eq!(error.to_string(), "it speaks version 2 of the protocol, and this process 3");
    }

    #[tokio::test(start_paused = true)]
    async fn each_changed_bit_of_the_handshake_ends_it() {
        for bit in 0..8 * HANDSHAKE_MESSAGE {
            let (mut local, mut remote) = tokio::io::duplex(1024);
            let (mut near, mut far) = tokio::io::duplex(1024);
            let proxy = async {
                let mut prologue = [0; PROLOGUE];
                remote.read_exact(&mut prologue).await.unwrap();
                near.write_all(&prologue).await.unwrap();
                let mut first = [0; HANDSHAKE_MESSAGE];
                near.read_exact(&mut first).await.unwrap();
                first[bit / 8] ^= 1 << (bit % 8);
                remote.write_all(&first).await.unwrap();
                let mut answer = Vec::new();
                drop(remote.read_buf(&mut answer).await);
                near.write_all(&answer).await.unwrap();
                answer
            };
            let (refused, presented, answer) =
                tokio::join!(refusal(&mut local), distrust(&mut far), proxy);
            assert_eq!((refused, &answer[..]), (Some(Refusal::WrongToken), &[0][..]), "bit {bit}");
            assert!(matches!(presented, Some(HandshakeError::Refused)), "{presented:?}");
        }
    }
}
