//! Connections to the coordinator, each with its handshake.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower_service::Service;

use super::handshake::authenticate;
use crate::token::Token;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

pub(crate) struct Connector {
    tcp: HttpConnector,
    token: Option<Token>,
}

impl Connector {
    pub(crate) fn new(token: Option<Token>) -> Connector {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(Duration::from_secs(5)));
        Connector { tcp, token }
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(cx).map_err(BoxError::from)
    }

    fn call(&mut self, coordinator: Uri) -> Self::Future {
        let connecting = self.tcp.call(coordinator);
        let token = self.token.clone();
        Box::pin(async move {
            let mut stream = connecting.await?;
            authenticate(stream.inner_mut(), token.as_ref()).await?;
            Ok(stream)
        })
    }
}
