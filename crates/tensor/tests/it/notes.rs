//! The notes of this test program, which its subscriber keeps. All tests have the same subscriber,
//! so each test reads its own notes only.

use std::fmt::Debug;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use tracing::field::Field;
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

static NOTES: LazyLock<Mutex<Vec<String>>> = LazyLock::new(|| {
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(Notes)).unwrap();
    Mutex::default()
});

fn all() -> MutexGuard<'static, Vec<String>> {
    NOTES.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Notes;

impl<S: Subscriber> Layer<S> for Notes {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        event.record(&mut |field: &Field, value: &dyn Debug| {
            if field.name() == "message" {
                all().push(format!("{value:?}"));
            }
        });
    }
}

/// Collects notes from now on.
pub(crate) fn collect() {
    LazyLock::force(&NOTES);
}

/// The collected notes with this text.
pub(crate) fn about(text: &str) -> Vec<String> {
    all().iter().filter(|note| note.contains(text)).cloned().collect()
}
