//! [`MetricsPort`]: the port that serves a run's metrics to Prometheus.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use crate::{Error, Result};

/// The port that serves a run's metrics to Prometheus, at `/metrics`. There is none by default.
///
/// Only this machine can reach a bare port; an address with a port can be reached by other machines
/// too. Port 0 selects a free port. All clients that reach the port can read the names and values
/// that a run logs.
///
/// ```
/// use fulmen_trainer::MetricsPort;
///
/// assert_eq!(MetricsPort::from(9090u16).address().unwrap().to_string(), "127.0.0.1:9090");
/// assert_eq!("0.0.0.0:9090".parse::<MetricsPort>()?.to_string(), "0.0.0.0:9090");
/// assert_eq!("none".parse::<MetricsPort>()?, MetricsPort::default());
/// # Ok::<(), fulmen_trainer::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetricsPort(Option<SocketAddr>);

impl MetricsPort {
    /// Returns the address at which the run listens.
    pub fn address(self) -> Option<SocketAddr> {
        self.0
    }
}

impl From<u16> for MetricsPort {
    fn from(port: u16) -> MetricsPort {
        MetricsPort(Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)))
    }
}

impl FromStr for MetricsPort {
    type Err = Error;
    fn from_str(text: &str) -> Result<MetricsPort> {
        if text.eq_ignore_ascii_case("none") {
            return Ok(MetricsPort(None));
        }
        if let Ok(port) = text.parse::<u16>() {
            return Ok(port.into());
        }
        text.parse().map(|address| MetricsPort(Some(address))).map_err(|_| {
            Error::usage(format!(
                "`{text}` is not a port; use one from 0 to 65535, which only this machine can reach, an address with a port \
                 (0.0.0.0:9090) for other machines too, or none"
            ))
        })
    }
}

impl TryFrom<&str> for MetricsPort {
    type Error = Error;
    fn try_from(text: &str) -> Result<MetricsPort> {
        text.parse()
    }
}

impl fmt::Display for MetricsPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("none"),
            Some(address) if address.ip() == Ipv4Addr::LOCALHOST => write!(f, "{}", address.port()),
            Some(address) => write!(f, "{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_without_an_address_is_local() {
        for (text, shown) in
            [("0", "0"), ("9090", "9090"), ("127.0.0.1:9090", "9090"), ("[::]:9", "[::]:9")]
        {
            let port: MetricsPort = text.parse().unwrap();
            assert_eq!(
                (port.to_string(), port.to_string().parse::<MetricsPort>().unwrap()),
                (shown.to_owned(), port)
            );
        }
        for invalid in ["65536", "-1", "localhost", "0.0.0.0", "1:2:3"] {
            let message = invalid.parse::<MetricsPort>().unwrap_err().to_string();
            assert!(message.contains("0.0.0.0:9090"), "{message}");
        }
    }
}
