//! Connections to object stores, made from the environment and options, and the threads that their requests run on.
//!
//! Not here: what is asked of a store (`remote`), and trying again (`retry`).

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::multipart::MultipartStore;
use object_store::path::Path as Key;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};
use tokio::runtime::{Builder, Runtime};

use super::StoreOptions;
use super::location::{ObjectPath, Scheme};
use fulmen_data::{Error, Result};

/// A bucket that can be asked.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) objects: Arc<dyn ObjectStore>,
    pub(super) parts: Arc<dyn Parts>,
}

/// What can take an object in parts.
pub(super) trait Parts: MultipartStore + std::fmt::Debug {}

impl<T: MultipartStore + std::fmt::Debug> Parts for T {}

/// What makes a connection another one.
type Identity = (Scheme, String, Vec<(String, String)>);

/// The store of an object, and its key there. There is one connection for each bucket and settings in a process.
pub(super) fn connect(object: &ObjectPath, options: &StoreOptions) -> Result<(Arc<Store>, Key)> {
    static STORES: OnceLock<Mutex<HashMap<Identity, Arc<Store>>>> = OnceLock::new();
    let key = Key::parse(&object.key).map_err(|why| Error::usage(format!("{object}: {why}")))?;
    let identity = (object.scheme, object.bucket.clone(), options.settings().to_vec());
    let mut stores = STORES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(store) = stores.get(&identity) {
        return Ok((store.clone(), key));
    }
    let store = match object.scheme {
        Scheme::S3 => s3(object, options),
        Scheme::Gs => gs(object, options),
    }?;
    stores.insert(identity, store.clone());
    Ok((store, key))
}

/// Variables of the environment that begin so, in lower case, and then the options' own settings; those of the
/// environment may be about something else, and need not be known.
fn settings(prefix: &str, options: &StoreOptions) -> Vec<(String, String, bool)> {
    let variables =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let variables = variables.filter(|(name, value)| name.starts_with(prefix) && !value.is_empty());
    let variables = variables.map(|(name, value)| (name.to_ascii_lowercase(), value, false));
    variables.chain(options.settings().iter().map(|(name, value)| (name.clone(), value.clone(), true))).collect()
}

fn unknown(object: &ObjectPath, name: &str) -> Error {
    Error::usage(format!("{object}: there is no setting `{name}` for this store; expected one like aws_region"))
}

/// One attempt each: trying again is done here, so that how long is known, and nothing read is lost.
fn once() -> RetryConfig {
    RetryConfig { backoff: BackoffConfig::default(), max_retries: 0, retry_timeout: Duration::ZERO }
}

/// Silence is noticed by whoever waits, and large objects take their time.
fn client() -> ClientOptions {
    ClientOptions::new().with_timeout_disabled().with_connect_timeout(Duration::from_secs(10))
}

fn s3(object: &ObjectPath, options: &StoreOptions) -> Result<Arc<Store>> {
    let mut builder = AmazonS3Builder::new().with_client_options(client()).with_retry(once());
    for (name, value, must_be_known) in settings("AWS_", options) {
        match name.parse::<AmazonS3ConfigKey>() {
            Ok(AmazonS3ConfigKey::Bucket) => {}
            Ok(key) => builder = builder.with_config(key, value),
            Err(_) if must_be_known => return Err(unknown(object, &name)),
            Err(_) => {}
        }
    }
    let endpoints = [AmazonS3ConfigKey::S3Endpoint, AmazonS3ConfigKey::Endpoint];
    let endpoint = endpoints.iter().find_map(|key| builder.get_config_value(key));
    if endpoint.is_some_and(|url| url.starts_with("http://")) {
        builder = builder.with_allow_http(true);
    }
    let store = builder.with_bucket_name(&object.bucket).build();
    let store = Arc::new(store.map_err(|why| Error::usage(format!("{object}: cannot connect to the store: {why}")))?);
    Ok(Arc::new(Store { objects: store.clone(), parts: store }))
}

fn gs(object: &ObjectPath, options: &StoreOptions) -> Result<Arc<Store>> {
    let mut client = client();
    let settings = settings("GOOGLE_", options);
    if settings.iter().any(|(name, value, _)| name == "google_base_url" && value.starts_with("http://")) {
        client = client.with_allow_http(true);
    }
    let mut builder = GoogleCloudStorageBuilder::new().with_client_options(client).with_retry(once());
    for (name, value, must_be_known) in settings {
        match name.parse::<GoogleConfigKey>() {
            Ok(GoogleConfigKey::Bucket) => {}
            Ok(key) => builder = builder.with_config(key, value),
            Err(_) if must_be_known => return Err(unknown(object, &name)),
            Err(_) => {}
        }
    }
    let store = builder.with_bucket_name(&object.bucket).build();
    let store = Arc::new(store.map_err(|why| Error::usage(format!("{object}: cannot connect to the store: {why}")))?);
    Ok(Arc::new(Store { objects: store.clone(), parts: store }))
}

/// The threads that requests run on, one runtime a process.
pub(super) fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let made = RUNTIME.get_or_init(|| {
        let mut builder = Builder::new_multi_thread();
        let builder = builder.worker_threads(2).thread_name("fulmen-store").enable_all();
        builder.build().map_err(|why| why.to_string())
    });
    made.as_ref().map_err(|why| Error::runtime("starting the threads for object stores", why.as_str()))
}

/// Runs a request and waits for it. The caller may be in a runtime of its own, which must not run another inside.
pub(super) fn wait<T: Send + 'static>(request: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    let (send, receive) = mpsc::sync_channel(1);
    runtime()?.spawn(async move {
        // Nobody waits any more where this fails.
        let _ = send.send(request.await);
    });
    receive.recv().unwrap_or_else(|_| Err(Error::panic("a request to an object store panicked")))
}
