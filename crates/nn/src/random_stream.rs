//! [`RandomStream`]: the source of a layer's random keys.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fulmen_tensor::{Tensor, random};

use crate::library::NN;

/// The source of a layer's random numbers: a key, and the number of keys derived from it so far.
///
/// [`Module::set_random_key`](crate::Module::set_random_key) gives each stream of a model a key
/// derived from the model's key and the stream's dotted name. So the numbers of a layer depend
/// neither on other layers nor on the number of devices. A training step sets a new key. A clone is
/// the same stream.
///
/// ```
/// use fulmen_nn::{Module, RandomStream};
/// use fulmen_tensor::random;
///
/// let stream = RandomStream::new();
/// assert!(stream.next_key().fault().unwrap().message().contains("set_random_key"));
/// stream.set_random_key(&random::key(0));
/// assert_eq!(stream.next_key().ty().to_string(), "u32[2]");
/// ```
#[derive(Clone, Default)]
pub struct RandomStream(Arc<Mutex<State>>);

#[derive(Clone, Default)]
pub(crate) struct State {
    pub(crate) key: Option<StreamKey>,
    pub(crate) drawn: u32,
}

/// The key of a stream.
#[derive(Clone)]
pub(crate) enum StreamKey {
    /// A key of its own, u32\[2\].
    Own(Tensor),
    /// A row of the keys of all streams of a model.
    Row(Arc<ModelKeys>, usize),
}

impl StreamKey {
    /// The key, u32\[2\].
    pub(crate) fn tensor(&self) -> Tensor {
        match self {
            StreamKey::Own(key) => key.clone(),
            StreamKey::Row(model, row) => model.keys.index(0, *row as isize),
        }
    }

    /// The key that is derived for draw number `drawn`.
    fn for_draw(&self, drawn: u32) -> Tensor {
        match self {
            StreamKey::Own(key) => random::fold_in(key, drawn),
            StreamKey::Row(model, row) => model.for_draw(drawn).index(0, *row as isize),
        }
    }
}

/// The keys of all streams of a model, u32\[streams, 2\]. The keys of all streams for a draw are
/// derived together, as one vector operation. One by one, each would be a hundred scalar operations,
/// which XLA does not fuse for a TPU.
pub(crate) struct ModelKeys {
    keys: Tensor,
    /// The keys that were derived so far, by the number of the draw.
    derived: Mutex<BTreeMap<u32, Tensor>>,
}

impl ModelKeys {
    /// Derives a key for each stream from the model's key and the stream's name.
    pub(crate) fn new(key: &Tensor, names: &[String]) -> Arc<ModelKeys> {
        let keys = random::fold_in_names(key, names);
        Arc::new(ModelKeys { keys, derived: Mutex::default() })
    }

    fn for_draw(&self, drawn: u32) -> Tensor {
        let mut derived = self.derived.lock().unwrap_or_else(PoisonError::into_inner);
        let derive = || {
            let streams = self.keys.size(0);
            random::fold_in_each(&self.keys, Tensor::from_slice(&vec![drawn; streams], [streams]))
        };
        derived.entry(drawn).or_insert_with(derive).clone()
    }
}

impl RandomStream {
    /// A stream without a key.
    pub fn new() -> RandomStream {
        RandomStream::default()
    }

    /// A new key (u32\[2\]) from this stream.
    ///
    /// Poisoned if the stream has no key.
    #[track_caller]
    pub fn next_key(&self) -> Tensor {
        NN.record("random_stream", || {
            let mut state = self.state();
            let Some(key) = &state.key else {
                let message = "there is no random key yet: call `set_random_key(&random::key(seed))` on the model, or \
                     `eval()` if it is not training";
                return Err(message.into());
            };
            let key = key.for_draw(state.drawn);
            state.drawn = state.drawn.wrapping_add(1);
            Ok(key)
        })
    }

    /// Restarts the stream from `key`.
    pub fn reset(&self, key: Tensor) {
        self.set_state(State { key: Some(StreamKey::Own(key)), drawn: 0 });
    }

    /// Whether both are the same stream.
    pub fn is(&self, other: &RandomStream) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn set_state(&self, state: State) {
        *self.state() = state;
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // Every change is a single assignment, so a panic in another thread cannot leave it half
        // done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for RandomStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        match &state.key {
            Some(_) => write!(f, "RandomStream({} keys drawn)", state.drawn),
            None => f.write_str("RandomStream(no key yet)"),
        }
    }
}
