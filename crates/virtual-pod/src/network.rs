//! The connections between the processes of a pod. They find each other through the store, and
//! both ends of a connection prove that they have the secret of process 0. Out of scope: what the
//! frames mean (`exchange`).

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use fulmen_pjrt::abi::PJRT_Error_Code;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::error::PodError;
use crate::store::Store;

/// How long a process waits for the others while it opens its devices.
const JOIN_TIMEOUT: Duration = Duration::from_secs(300);
/// How long a connection may take to prove that it belongs to the pod.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// A frame's head has no reason to be longer.
const MAX_HEAD_BYTES: u32 = 64 << 20;

type Nonce = [u8; 32];

/// What one process sends to another: a head and data.
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) head: Vec<u8>,
    pub(crate) data: Vec<u8>,
}

/// The connection to one other process.
pub(crate) struct Peer {
    pub(crate) process: usize,
    stream: TcpStream,
    frames: Receiver<Result<Frame, String>>,
}

impl Peer {
    fn new(process: usize, stream: TcpStream) -> Result<Peer, PodError> {
        let failed = |error| unavailable(format!("the connection to process {process}: {error}"));
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_read_timeout(None).map_err(failed)?;
        let reader = stream.try_clone().map_err(failed)?;
        let (sender, frames) = channel();
        // It always reads, so that two processes that send to each other cannot block.
        thread::Builder::new()
            .name(format!("pod-read-{process}"))
            .spawn(move || read_frames(reader, &sender))
            .map_err(failed)?;
        Ok(Self { process, stream, frames })
    }

    pub(crate) fn send(&self, kind: u8, head: &[u8], data: &[u8]) -> Result<(), String> {
        let mut start = vec![kind];
        start.extend((head.len() as u32).to_le_bytes());
        start.extend((data.len() as u64).to_le_bytes());
        start.extend(head);
        let send = |mut stream: &TcpStream| {
            stream.write_all(&start)?;
            stream.write_all(data)
        };
        send(&self.stream).map_err(|error| error.to_string())
    }

    /// Waits for the next frame, or the reason why there is none.
    pub(crate) fn receive(&self) -> Result<Frame, String> {
        self.frames.recv().unwrap_or_else(|_| Err("its connection is closed".to_owned()))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // This also ends the thread that reads.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

fn read_frames(mut stream: TcpStream, sender: &Sender<Result<Frame, String>>) {
    loop {
        let frame = read_frame(&mut stream).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => "it closed its connection".to_owned(),
            _ => error.to_string(),
        });
        let is_over = frame.is_err();
        if sender.send(frame).is_err() || is_over {
            return;
        }
    }
}

fn read_frame(stream: &mut impl Read) -> io::Result<Frame> {
    let mut start = [0; 13];
    stream.read_exact(&mut start)?;
    let [kind, a, b, c, d, data_len @ ..] = start;
    let head_len = u32::from_le_bytes([a, b, c, d]);
    if head_len > MAX_HEAD_BYTES {
        return Err(io::Error::other(format!("a frame's head has {head_len} bytes")));
    }
    let head = read_bytes(stream, u64::from(head_len))?;
    let data = read_bytes(stream, u64::from_le_bytes(data_len))?;
    Ok(Frame { kind, head, data })
}

/// The memory grows as the bytes arrive, so that a wrong length allocates nothing.
fn read_bytes(stream: &mut impl Read, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.take(len).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == len { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn unavailable(message: String) -> PodError {
    PodError::new(PJRT_Error_Code::UNAVAILABLE, format!("virtual pod: {message}"))
}

/// Connects this process with all others. All processes of the pod call this.
pub(crate) fn connect(
    process: usize,
    count: usize,
    host: Option<&str>,
    store: &Store,
) -> Result<Vec<Peer>, PodError> {
    /// A process may open several clients one after another, as all others do.
    static OPENED: AtomicUsize = AtomicUsize::new(0);
    let key = format!("fulmen_virtual_pod/{}", OPENED.fetch_add(1, Ordering::Relaxed));

    let host = host.map_or_else(own_address, |host| Ok(host.to_owned()));
    let host = host.map_err(|error| unavailable(format!("finding the own address: {error}")))?;
    let failed = |error| unavailable(format!("listening for other processes at {host}: {error}"));
    let listener = TcpListener::bind((host.as_str(), 0)).map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();

    let secret = if process == 0 {
        let secret: Nonce = random()?;
        store.put(&format!("{key}/secret"), &secret)?;
        secret.to_vec()
    } else {
        store.get(&format!("{key}/secret"), JOIN_TIMEOUT)?
    };
    store.put(&format!("{key}/{process}"), format!("{host}:{port}").as_bytes())?;

    let mut peers = Vec::new();
    for other in 0..process {
        let address = store.get(&format!("{key}/{other}"), JOIN_TIMEOUT)?;
        let address = String::from_utf8_lossy(&address).into_owned();
        let failed = |error| {
            unavailable(format!(
                "process {process} cannot reach process {other} at {address}: {error}"
            ))
        };
        let mut stream = TcpStream::connect(&address).map_err(failed)?;
        // The other process may still wait for slower ones.
        stream.set_read_timeout(Some(JOIN_TIMEOUT)).map_err(failed)?;
        introduce(&mut stream, &secret, process, other).map_err(failed)?;
        peers.push(Peer::new(other, stream)?);
    }
    peers.extend(accept(&listener, process, count, &secret)?);
    peers.sort_by_key(|peer| peer.process);
    Ok(peers)
}

/// Accepts the connections of the processes with higher numbers. Others are refused.
fn accept(
    listener: &TcpListener,
    process: usize,
    count: usize,
    secret: &[u8],
) -> Result<Vec<Peer>, PodError> {
    let failed = |error| unavailable(format!("waiting for other processes: {error}"));
    let deadline = Instant::now() + JOIN_TIMEOUT;
    let mut missing: Vec<usize> = (process + 1..count).collect();
    let mut peers = Vec::new();
    listener.set_nonblocking(true).map_err(failed)?;
    while !missing.is_empty() {
        let mut stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if Instant::now() >= deadline {
                    return Err(unavailable(format!(
                        "process {process} waited {} s, but these processes did not connect: {missing:?}",
                        JOIN_TIMEOUT.as_secs()
                    )));
                }
                thread::sleep(Duration::from_millis(2));
                continue;
            }
            Err(error) => return Err(failed(error)),
        };
        let admitted = stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_read_timeout(Some(HANDSHAKE_TIMEOUT)))
            .and_then(|()| admit(&mut stream, secret, process));
        // A stranger's connection is closed, and the pod goes on waiting.
        let Ok(other) = admitted else { continue };
        if let Some(position) = missing.iter().position(|&index| index == other) {
            missing.swap_remove(position);
            peers.push(Peer::new(other, stream)?);
        }
    }
    Ok(peers)
}

/// The accepting end of the handshake: sends a nonce; gets the other's number, nonce and proof;
/// sends its own proof. Returns the other process.
fn admit(stream: &mut TcpStream, secret: &[u8], process: usize) -> io::Result<usize> {
    let own_nonce: Nonce = random().map_err(|error| io::Error::other(error.message))?;
    stream.write_all(&own_nonce)?;
    let mut number = [0; 4];
    let mut nonce: Nonce = [0; 32];
    let mut proved = [0; 32];
    stream.read_exact(&mut number)?;
    stream.read_exact(&mut nonce)?;
    stream.read_exact(&mut proved)?;
    let other = u32::from_le_bytes(number) as usize;
    // `verify_slice` compares in constant time.
    proof(secret, b"connects", other, process, &own_nonce, &nonce)
        .verify_slice(&proved)
        .map_err(io::Error::other)?;
    let own_proof = proof(secret, b"accepts", other, process, &own_nonce, &nonce);
    stream.write_all(&own_proof.finalize().into_bytes())?;
    Ok(other)
}

/// The connecting end of the handshake.
fn introduce(
    stream: &mut TcpStream,
    secret: &[u8],
    process: usize,
    other: usize,
) -> io::Result<()> {
    let own_nonce: Nonce = random().map_err(|error| io::Error::other(error.message))?;
    let mut nonce: Nonce = [0; 32];
    stream.read_exact(&mut nonce)?;
    let own_proof = proof(secret, b"connects", process, other, &nonce, &own_nonce);
    let mut answer = (process as u32).to_le_bytes().to_vec();
    answer.extend(own_nonce);
    answer.extend(own_proof.finalize().into_bytes());
    stream.write_all(&answer)?;
    let mut proved = [0; 32];
    stream.read_exact(&mut proved)?;
    proof(secret, b"accepts", process, other, &nonce, &own_nonce)
        .verify_slice(&proved)
        .map_err(|_| io::Error::other("it does not have the secret of this pod"))
}

/// The proof of one end, bound to both processes and to this connection.
fn proof(
    secret: &[u8],
    role: &[u8],
    connecting: usize,
    accepting: usize,
    accepting_nonce: &Nonce,
    connecting_nonce: &Nonce,
) -> Hmac<Sha256> {
    #[expect(clippy::expect_used, reason = "an HMAC takes a key of any length")]
    let mac = Hmac::<Sha256>::new_from_slice(secret).expect("a key of any length");
    mac.chain_update(b"fulmen virtual pod ")
        .chain_update(role)
        .chain_update((connecting as u64).to_le_bytes())
        .chain_update((accepting as u64).to_le_bytes())
        .chain_update(accepting_nonce)
        .chain_update(connecting_nonce)
}

fn random() -> Result<Nonce, PodError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| {
        PodError::new(PJRT_Error_Code::INTERNAL, format!("drawing random numbers: {error}"))
    })?;
    Ok(bytes)
}

/// The address of this machine on the way to the run's coordinator, or loopback without one.
fn own_address() -> io::Result<String> {
    let Some(coordinator) = std::env::var("FULMEN_COORDINATOR").ok().filter(|c| !c.is_empty())
    else {
        return Ok(Ipv4Addr::LOCALHOST.to_string());
    };
    let is_ipv4 = |address: &SocketAddr| address.is_ipv4();
    let address = coordinator.to_socket_addrs()?.find(is_ipv4).ok_or_else(|| {
        io::Error::other(format!(
            "{coordinator} has no IPv4 address; set FULMEN_VIRTUAL_POD_HOST to this machine's"
        ))
    })?;
    // Connecting a UDP socket sends nothing; it only selects the interface.
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(address)?;
    Ok(socket.local_addr()?.ip().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of a handshake between two ends with these secrets and process numbers.
    fn handshake(accepting: &[u8], connecting: &[u8], expected: usize) -> (bool, bool) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::scope(|scope| {
            let accepts = scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                admit(&mut stream, accepting, 0).is_ok_and(|other| other == 2)
            });
            let mut stream = TcpStream::connect(address).unwrap();
            let connected = introduce(&mut stream, connecting, 2, expected).is_ok();
            drop(stream);
            (accepts.join().unwrap(), connected)
        })
    }

    #[test]
    fn both_ends_need_the_secret_and_the_right_process() {
        assert_eq!(handshake(b"secret", b"secret", 0), (true, true));
        assert_eq!(handshake(b"secret", b"another", 0), (false, false));
        assert_eq!(handshake(b"secret", b"secret", 1), (false, false), "it wanted another process");
    }

    #[test]
    fn damaged_frames_are_errors() {
        let frame = |head_len: u32, data_len: u64, rest: &[u8]| {
            let start = [&[7][..], &head_len.to_le_bytes(), &data_len.to_le_bytes(), rest].concat();
            read_frame(&mut &start[..])
        };
        let whole = frame(2, 3, b"abcde").unwrap();
        assert_eq!((whole.kind, &whole.head[..], &whole.data[..]), (7, &b"ab"[..], &b"cde"[..]));
        assert!(frame(2, 4, b"abcde").is_err(), "one byte is missing");
        assert!(frame(2, u64::MAX, b"abcde").is_err(), "nothing is allocated for a wrong length");
        let error = frame(u32::MAX, 0, b"").err().unwrap().to_string();
        assert!(error.contains("4294967295"), "{error}");
    }
}
