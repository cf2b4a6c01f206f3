//! The cryptography of a connection: the Noise pattern that `snow` runs, over the primitives of
//! `ring`.
//!
//! `snow` would bring primitives of its own, which are twenty packages. `ring` is one, and also
//! encrypts every other connection of Fulmen.

use parking_lot::Mutex;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::digest::{Context, SHA256};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::CryptoResolver;
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, Error, HandshakeState};

use crate::token::Token;

/// Both ends have fresh keys and one secret. The secret encrypts from the first message on.
const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";
const KEY: usize = 32;
const TAG: usize = 16;

/// The length of each of the two messages: a public key, and the tag of an empty text.
pub(crate) const HANDSHAKE_MESSAGE: usize = KEY + TAG;
/// The bytes that encryption adds.
pub(crate) const OVERHEAD: usize = TAG;
/// The largest encrypted text.
pub(crate) const MAX_ENCRYPTED: usize = u16::MAX as usize;

/// The secret of a run, as long as Noise needs it.
#[derive(Clone, Copy)]
pub(crate) struct RunKey([u8; KEY]);

impl RunKey {
    /// The HMAC-SHA256 of the token under a constant. A token is at least 32 random characters, so
    /// a slow hash would add nothing. Without a token, which is allowed only on loopback, everyone
    /// knows the key.
    pub(crate) fn new(token: Option<&Token>) -> RunKey {
        let label = hmac::Key::new(hmac::HMAC_SHA256, b"the token of a run of Fulmen");
        let hash = hmac::sign(&label, token.map_or(&[][..], Token::as_bytes));
        let mut key = [0; KEY];
        key.copy_from_slice(hash.as_ref());
        RunKey(key)
    }
}

/// Fills `bytes` with unpredictable ones.
pub(crate) fn fill_random(bytes: &mut [u8]) -> crate::Result<()> {
    SystemRandom::new().fill(bytes).map_err(|_| {
        let reason = std::io::Error::other("the system provides none");
        crate::error::system("drawing random numbers", reason)
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Coordinator,
    Process,
}

/// The start of a handshake. It succeeds only if both ends have the same key and saw the same
/// `prologue`.
pub(crate) fn handshake(end: End, key: &RunKey, prologue: &[u8]) -> Result<HandshakeState, Error> {
    let builder = Builder::with_resolver(PATTERN.parse()?, Box::new(Primitives));
    let builder = builder.psk(0, &key.0)?.prologue(prologue)?;
    match end {
        End::Process => builder.build_initiator(),
        End::Coordinator => builder.build_responder(),
    }
}

/// What the pattern names.
struct Primitives;

impl CryptoResolver for Primitives {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Primitives))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        match choice {
            DHChoice::Curve25519 => Some(Box::new(FreshKey::default())),
            _ => None,
        }
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        match choice {
            HashChoice::SHA256 => Some(Box::new(Sha256(Context::new(&SHA256)))),
            _ => None,
        }
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        match choice {
            CipherChoice::ChaChaPoly => Some(Box::new(ChaChaPoly(chacha_key(&[0; KEY])))),
            _ => None,
        }
    }
}

impl Random for Primitives {
    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        SystemRandom::new().fill(bytes).map_err(|_| Error::Rng)
    }
}

/// A key pair for one handshake. `ring` keeps the private key to itself and lets it be used once,
/// which is all that the pattern needs.
#[derive(Default)]
struct FreshKey {
    private: Mutex<Option<EphemeralPrivateKey>>,
    public: [u8; KEY],
}

impl Dh for FreshKey {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        KEY
    }

    fn priv_len(&self) -> usize {
        KEY
    }

    /// Never called: the pattern has no keys that last longer than a handshake.
    fn set(&mut self, _: &[u8]) {}

    fn generate(&mut self, _: &mut dyn Random) -> Result<(), Error> {
        let private = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new());
        let private = private.map_err(|_| Error::Rng)?;
        let public = private.compute_public_key().map_err(|_| Error::Dh)?;
        self.public.copy_from_slice(public.as_ref());
        self.private = Mutex::new(Some(private));
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    /// Never called, like [`Dh::set`].
    fn privkey(&self) -> &[u8] {
        &[]
    }

    fn dh(&self, public: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let private = self.private.lock().take().ok_or(Error::Dh)?;
        // `snow` passes a buffer for the longest keys of any curve.
        let other = UnparsedPublicKey::new(&X25519, public.get(..KEY).ok_or(Error::Dh)?);
        agree_ephemeral(private, &other, |shared| out[..KEY].copy_from_slice(shared))
            .map_err(|_| Error::Dh)
    }
}

struct ChaChaPoly(LessSafeKey);

fn chacha_key(key: &[u8; KEY]) -> LessSafeKey {
    #[expect(clippy::expect_used, reason = "the only error is a wrong length")]
    LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, key).expect("a key of 32 bytes"))
}

/// The number of a message as a nonce, as Noise defines it for this cipher.
fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&number.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

impl Cipher for ChaChaPoly {
    fn name(&self) -> &'static str {
        "ChaChaPoly"
    }

    fn set(&mut self, key: &[u8; KEY]) {
        self.0 = chacha_key(key);
    }

    fn encrypt(&self, number: u64, open: &[u8], text: &[u8], out: &mut [u8]) -> usize {
        let encrypted = &mut out[..text.len()];
        encrypted.copy_from_slice(text);
        let tag = self.0.seal_in_place_separate_tag(nonce(number), Aad::from(open), encrypted);
        #[expect(clippy::expect_used, reason = "the only error is a text of 256 GiB")]
        let tag = tag.expect("a short text");
        let end = text.len() + TAG;
        out[text.len()..end].copy_from_slice(tag.as_ref());
        end
    }

    fn decrypt(
        &self,
        number: u64,
        open: &[u8],
        encrypted: &[u8],
        out: &mut [u8],
    ) -> Result<usize, Error> {
        let length = encrypted.len().checked_sub(TAG).ok_or(Error::Decrypt)?;
        let text = out.get_mut(..length).ok_or(Error::Decrypt)?;
        text.copy_from_slice(&encrypted[..length]);
        let tag = encrypted[length..].try_into().map_err(|_| Error::Decrypt)?;
        self.0
            .open_in_place_separate_tag(nonce(number), Aad::from(open), tag, text, 0..)
            .map_err(|_| Error::Decrypt)?;
        Ok(length)
    }
}

struct Sha256(Context);

impl Hash for Sha256 {
    fn name(&self) -> &'static str {
        "SHA256"
    }

    fn block_len(&self) -> usize {
        64
    }

    fn hash_len(&self) -> usize {
        32
    }

    fn reset(&mut self) {
        self.0 = Context::new(&SHA256);
    }

    fn input(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn result(&mut self, out: &mut [u8]) {
        out[..32].copy_from_slice(self.0.clone().finish().as_ref());
    }
}
