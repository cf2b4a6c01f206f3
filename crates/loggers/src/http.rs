//! The HTTP client of the loggers that send values to a server.

use std::sync::Arc;
use std::time::Duration;

use ureq::Agent;
use ureq::tls::{RootCerts, TlsConfig};

/// A client with the system's trusted certificates. `timeout` limits each request.
pub(crate) fn agent(timeout: Duration) -> Agent {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = TlsConfig::builder()
        .root_certs(RootCerts::PlatformVerifier)
        .unversioned_rustls_crypto_provider(provider);
    let config = Agent::config_builder().timeout_global(Some(timeout)).http_status_as_error(false);
    config.tls_config(tls.build()).build().into()
}
