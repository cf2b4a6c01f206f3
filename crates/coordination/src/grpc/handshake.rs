//! The first bytes of a connection: both ends prove that they have the token of the run.
//!
//! | from | bytes |
//! | --- | --- |
//! | coordinator | `GREETING`, then its nonce: 32 random bytes |
//! | process | its nonce, then its proof: 32 bytes each |
//! | coordinator | 1, then its proof; or 0, and it hangs up |
//!
//! A proof is the HMAC-SHA256, under the token, of a label for the proving end and of both nonces.
//! The token itself is not sent, and a recorded connection proves nothing on another one.
//!
//! Out of scope: encryption. After the handshake, the connection is plain HTTP/2.

use std::fmt;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::token::Token;
use crate::{Result, error};

const GREETING: [u8; 8] = *b"fulmen/2";
const LENGTH: usize = 32;
type Nonce = [u8; LENGTH];

/// How long either end waits for the other.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy)]
enum Side {
    Coordinator,
    Process,
}

/// The proof of one end. Without a token, which is allowed only on loopback, anyone can compute the
/// proof.
fn proof(token: Option<&Token>, side: Side, coordinator: &Nonce, process: &Nonce) -> Hmac<Sha256> {
    let label: &[u8] = match side {
        Side::Coordinator => b"fulmen coordinator",
        Side::Process => b"fulmen process",
    };
    let key = token.map_or(&[][..], Token::as_bytes);
    #[expect(clippy::expect_used, reason = "an HMAC takes a key of any length")]
    let mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length");
    mac.chain_update(label).chain_update(coordinator).chain_update(process)
}

/// Unpredictable bytes.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|e| error::system("drawing random numbers", e.into()))?;
    Ok(bytes)
}

/// Why the coordinator refused a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    WrongProof,
    HungUp,
    TooLate,
    /// Too many connections wait for their handshake.
    Crowded,
    /// The system provides no random numbers.
    NoNonce,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::WrongProof => {
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
            Refusal::NoNonce => f.write_str("this machine provides no random numbers"),
        }
    }
}

/// The coordinator's end of the handshake.
pub(crate) async fn admit(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    token: Option<&Token>,
) -> Result<(), Refusal> {
    let handshake = async {
        let coordinator_nonce: Nonce = random().map_err(|_| Refusal::NoNonce)?;
        let hung_up = |_| Refusal::HungUp;
        stream.write_all(&[&GREETING[..], &coordinator_nonce].concat()).await.map_err(hung_up)?;
        let mut process_nonce = [0; LENGTH];
        let mut process_proof = [0; LENGTH];
        stream.read_exact(&mut process_nonce).await.map_err(hung_up)?;
        stream.read_exact(&mut process_proof).await.map_err(hung_up)?;
        // `verify_slice` compares in constant time.
        if proof(token, Side::Process, &coordinator_nonce, &process_nonce)
            .verify_slice(&process_proof)
            .is_err()
        {
            let _ = stream.write_all(&[0]).await;
            return Err(Refusal::WrongProof);
        }
        let own_proof = proof(token, Side::Coordinator, &coordinator_nonce, &process_nonce)
            .finalize()
            .into_bytes();
        stream.write_all(&[&[1], &own_proof[..]].concat()).await.map_err(hung_up)
    };
    tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await.unwrap_or(Err(Refusal::TooLate))
}

/// Why a process does not trust the server at the coordinator's address.
#[derive(Debug)]
pub(crate) enum HandshakeError {
    /// The server's greeting is not a coordinator's.
    OtherProtocol,
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
            HandshakeError::OtherProtocol => {
                f.write_str("it is not a coordinator of this version of Fulmen")
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

impl std::error::Error for HandshakeError {}

/// The process's end of the handshake.
pub(crate) async fn authenticate(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    token: Option<&Token>,
) -> Result<(), HandshakeError> {
    let handshake = async {
        let mut greeting = [0; GREETING.len()];
        stream.read_exact(&mut greeting).await?;
        if greeting != GREETING {
            return Err(HandshakeError::OtherProtocol);
        }
        let mut coordinator_nonce: Nonce = [0; LENGTH];
        stream.read_exact(&mut coordinator_nonce).await?;
        let process_nonce: Nonce = random().map_err(std::io::Error::other)?;
        let own_proof =
            proof(token, Side::Process, &coordinator_nonce, &process_nonce).finalize().into_bytes();
        stream.write_all(&[&process_nonce[..], &own_proof].concat()).await?;
        match stream.read_u8().await? {
            1 => {}
            0 => return Err(HandshakeError::Refused),
            _ => return Err(HandshakeError::OtherProtocol),
        }
        let mut coordinator_proof = [0; LENGTH];
        stream.read_exact(&mut coordinator_proof).await?;
        proof(token, Side::Coordinator, &coordinator_nonce, &process_nonce)
            .verify_slice(&coordinator_proof)
            .map_err(|_| HandshakeError::NoProof)
    };
    tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await.unwrap_or(Err(HandshakeError::Silent))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(letter: &str) -> Option<Token> {
        Some(Token::new(&letter.repeat(32)).unwrap())
    }

    async fn connect(
        coordinator: Option<Token>,
        process: Option<Token>,
    ) -> (Result<(), Refusal>, Result<(), HandshakeError>) {
        let (mut local, mut remote) = tokio::io::duplex(1024);
        tokio::join!(
            admit(&mut local, coordinator.as_ref()),
            authenticate(&mut remote, process.as_ref())
        )
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_same_token_is_admitted() {
        for (coordinator, process) in [(token("a"), token("a")), (None, None)] {
            let (admitted, presented) = connect(coordinator, process).await;
            assert!(admitted.is_ok() && presented.is_ok(), "{admitted:?} {presented:?}");
        }
        for (coordinator, process) in
            [(token("a"), token("b")), (token("a"), None), (None, token("b"))]
        {
            let (admitted, presented) = connect(coordinator, process).await;
            assert_eq!(admitted, Err(Refusal::WrongProof));
            assert!(matches!(presented, Err(HandshakeError::Refused)), "{presented:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_incomplete_handshake_times_out() {
        for sent in [0, 8, 63] {
            let (mut local, mut remote) = tokio::io::duplex(1024);
            remote.write_all(&vec![7; sent]).await.unwrap();
            assert_eq!(admit(&mut local, token("a").as_ref()).await, Err(Refusal::TooLate));
            drop(remote);
            assert_eq!(admit(&mut local, token("a").as_ref()).await, Err(Refusal::HungUp));
        }
        let (mut local, mut remote) = tokio::io::duplex(1024);
        remote.write_all(&GREETING).await.unwrap();
        assert!(matches!(
            authenticate(&mut local, token("a").as_ref()).await,
            Err(HandshakeError::Silent)
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn an_impostor_is_rejected() {
        let (mut local, mut remote) = tokio::io::duplex(1024);
        remote.write_all(b"SSH-2.0-OpenSSH").await.unwrap();
        assert!(matches!(
            authenticate(&mut local, token("a").as_ref()).await,
            Err(HandshakeError::OtherProtocol)
        ));
        // A server that accepts every proof and returns the process's own proof.
        let (mut local, mut remote) = tokio::io::duplex(1024);
        let impostor = async {
            remote.write_all(&[&GREETING[..], &[0; LENGTH]].concat()).await.unwrap();
            let mut answer = [0; 2 * LENGTH];
            remote.read_exact(&mut answer).await.unwrap();
            remote.write_all(&[&[1], &answer[LENGTH..]].concat()).await.unwrap();
        };
        let token = token("a");
        let (presented, ()) = tokio::join!(authenticate(&mut local, token.as_ref()), impostor);
        assert!(matches!(presented, Err(HandshakeError::NoProof)), "{presented:?}");
    }
}
