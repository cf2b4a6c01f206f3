//! Connections to object stores, configured by the environment and by options, and the runtime for
//! their requests.
//!
//! Out of scope: the requests (`remote`, `upload`), and additions to the library's retries
//! (`retry`).

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::path::Path as Key;
use object_store::{BackoffConfig, ClientConfigKey, ClientOptions, ObjectStore, RetryConfig};
use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};

use super::StoreOptions;
use super::object_path::{ObjectPath, Scheme};
use super::retry::RetryState;
use crate::{Error, Result};

/// A connection without any data for this long is closed, and the request is repeated.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// The minimum time to wait for a response, even if the user gives up sooner.
const MIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The maximum wait between two attempts.
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// How long to wait for the credentials of a cloud machine if no credentials are set. On other
/// machines, the request is never answered.
const CREDENTIALS_TIMEOUT: Duration = Duration::from_secs(15);

/// A request for one object.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) key: Key,
    pub(super) object: ObjectPath,
    give_up_after: Duration,
}

impl Connection {
    /// The retries of a request that starts now.
    pub(super) fn retry_state(&self, doing: impl Into<String>) -> RetryState {
        RetryState::new(self.object.clone(), doing.into(), self.give_up_after)
    }
}

/// The key that shared connections have in common.
type Identity = (Scheme, String, Vec<(String, String)>, Duration, Duration);

/// Connects to the store of an object for reading.
pub(super) fn connect(object: &ObjectPath, options: &StoreOptions) -> Result<Connection> {
    connect_for(object, options, IDLE_TIMEOUT.min(options.give_up_time()?).max(MIN_TIMEOUT))
}

/// Connects to the store of an object. A connection without any data for `idle_timeout` is
/// considered broken. Within a process, one connection is shared for each bucket, settings and
/// timeouts.
pub(super) fn connect_for(
    object: &ObjectPath,
    options: &StoreOptions,
    idle_timeout: Duration,
) -> Result<Connection> {
    static STORES: OnceLock<Mutex<HashMap<Identity, Arc<dyn ObjectStore>>>> = OnceLock::new();
    let key =
        Key::parse(&object.key).map_err(|error| Error::usage(format!("{object}: {error}")))?;
    let give_up_after = options.give_up_time()?;
    let identity = (
        object.scheme,
        object.bucket.clone(),
        options.settings().to_vec(),
        give_up_after,
        idle_timeout,
    );
    let stores = STORES.get_or_init(Mutex::default);
    let connection = |store| Connection { store, key, object: object.clone(), give_up_after };
    if let Some(store) = stores.lock().get(&identity) {
        return Ok(connection(store.clone()));
    }
    // An error means that the program has installed its own provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // The lock is released here, because the machine may be asked for its credentials.
    let store: Arc<dyn ObjectStore> = match object.scheme {
        Scheme::S3 => s3(object, options, give_up_after, idle_timeout)?,
        Scheme::Gs => gs(object, options, give_up_after, idle_timeout)?,
        Scheme::Http | Scheme::Https => web(object, give_up_after, idle_timeout)?,
    };
    Ok(connection(stores.lock().entry(identity).or_insert(store).clone()))
}

/// The environment variables with this prefix, in lower case, then the settings of the options.
/// Unknown variables are ignored, because they may have another purpose.
fn settings(prefix: &str, options: &StoreOptions) -> Vec<(String, String, bool)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, value)| name.starts_with(prefix) && !value.is_empty())
        .map(|(name, value)| (name.to_ascii_lowercase(), value, false))
        .chain(options.settings().iter().map(|(name, value)| (name.clone(), value.clone(), true)))
        .collect()
}

fn unknown(object: &ObjectPath, name: &str) -> Error {
    Error::usage(format!(
        "{object}: there is no setting `{name}` for this store; expected one like aws_region"
    ))
}

/// Only the connection attempt has a timeout, because downloading a large object may take long.
fn retry_config(give_up_after: Duration, idle_timeout: Duration) -> (ClientOptions, RetryConfig) {
    let client =
        ClientOptions::new().with_timeout_disabled().with_connect_timeout(Duration::from_secs(10));
    let backoff = BackoffConfig { max_backoff: MAX_BACKOFF, ..BackoffConfig::default() };
    let retry = RetryConfig { backoff, max_retries: 1_000_000, retry_timeout: give_up_after };
    (client.with_read_timeout(idle_timeout), retry)
}

/// Connects to a web server.
fn web(
    object: &ObjectPath,
    give_up_after: Duration,
    idle_timeout: Duration,
) -> Result<Arc<dyn ObjectStore>> {
    let (client, retry) = retry_config(give_up_after, idle_timeout);
    let builder = HttpBuilder::new()
        .with_url(object.root())
        .with_client_options(client.with_allow_http(true));
    let refused = |error| Error::usage(format!("{object}: cannot connect to the server: {error}"));
    Ok(Arc::new(builder.with_retry(retry).build().map_err(refused)?))
}

/// Defines a function that builds a store of one kind. The library's builders have the same methods
/// but no common trait.
macro_rules! build {
    ($name:ident, $builder:ident, $key:ident, $prefix:literal, [$($endpoint:ident),+]) => {
        fn $name(
            object: &ObjectPath,
            options: &StoreOptions,
            give_up_after: Duration,
            idle_timeout: Duration,
        ) -> Result<Arc<dyn ObjectStore>> {
            let (client, retry) = retry_config(give_up_after, idle_timeout);
            let mut builder = $builder::new().with_client_options(client).with_retry(retry);
            for (name, value, must_be_known) in settings($prefix, options) {
                match name.parse::<$key>() {
                    Ok($key::Bucket) => {}
                    Ok(key) => builder = builder.with_config(key, value),
                    Err(_) if must_be_known => return Err(unknown(object, &name)),
                    Err(_) => {}
                }
            }
            let endpoint = [$($key::$endpoint),+].iter().find_map(|key| builder.get_config_value(key));
            if endpoint.is_some_and(|url| url.starts_with("http://")) {
                builder = builder.with_config($key::Client(ClientConfigKey::AllowHttp), "true");
            }
            let is_public = builder.get_config_value(&$key::SkipSignature).is_some_and(|skip| skip == "true");
            let refused = |error| Error::usage(format!("{object}: cannot connect to the store: {error}"));
            let store = builder.with_bucket_name(&object.bucket).build().map_err(refused)?;
            if !is_public {
                let keys = store.credentials().clone();
                let state = RetryState::new(object.clone(), "asking for keys".to_owned(), give_up_after);
                let limit = give_up_after.max(MIN_TIMEOUT).min(CREDENTIALS_TIMEOUT);
                wait(async move {
                    match tokio::time::timeout(limit, keys.get_credential()).await {
                        Ok(Ok(_)) => Ok(()),
                        Ok(Err(error)) => Err(state.explain(&error)),
                        Err(_) => Err(state.no_credentials(&format!("no answer in {:.0} s", limit.as_secs_f64()))),
                    }
                })?;
            }
            Ok(Arc::new(store))
        }
    };
}

build!(s3, AmazonS3Builder, AmazonS3ConfigKey, "AWS_", [S3Endpoint, Endpoint]);
build!(gs, GoogleCloudStorageBuilder, GoogleConfigKey, "GOOGLE_", [BaseUrl]);

/// The runtime for requests, one per process.
pub(super) fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let runtime = RUNTIME.get_or_init(|| {
        Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("fulmen-store")
            .enable_all()
            .build()
            .map_err(|error| error.to_string())
    });
    runtime
        .as_ref()
        .map_err(|error| Error::runtime("starting the threads for object stores", error.as_str()))
}

/// The error for a request whose task ended without a result.
pub(super) fn panicked() -> Error {
    Error::panic("a request to an object store panicked")
}

/// Runs a request and waits for it. The request runs on [`runtime`], because the caller may be
/// inside another runtime, in which `block_on` panics.
pub(super) fn wait<T: Send + 'static>(
    request: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let (send, receive) = mpsc::sync_channel(1);
    runtime()?.spawn(async move {
        // If this fails, no one is waiting for the result.
        let _ = send.send(request.await);
    });
    receive.recv().unwrap_or_else(|_| Err(panicked()))
}
