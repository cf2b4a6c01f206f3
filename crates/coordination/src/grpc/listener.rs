//! Chooses the local address on which process 0 listens: only the coordinator's address.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};

use crate::process::{is_loopback, split_address};
use crate::{Error, Result};

/// Listens on `address`. Also returns the address for the other processes, with the actual port if
/// the port was 0.
///
/// Only a loopback address, such as `localhost`, gets a loopback listener. Debian also maps the
/// machine's own name to loopback in `/etc/hosts`. Other machines resolve this name to an address
/// that is not known here, so the listener binds all interfaces for it.
pub(crate) fn listen(address: &str) -> Result<(TcpListener, String)> {
    let (host, port) = split_address(address)?;
    let resolved: Vec<SocketAddr> = (host, port)
        .to_socket_addrs()
        .map_err(|e| {
            Error::usage(format!(
                "the coordinator's address `{address}` does not resolve: {e}; use an address that does"
            ))
        })?
        .collect();
    let candidates = if !is_loopback(host) && resolved.iter().all(|a| a.ip().is_loopback()) {
        vec![SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))]
    } else {
        resolved
    };
    let listener = TcpListener::bind(candidates.as_slice()).map_err(|e| {
        let hint = match e.kind() {
            std::io::ErrorKind::AddrInUse => "another program, or an earlier run, listens there; choose another port",
            std::io::ErrorKind::AddrNotAvailable => {
                "process 0 must run on the coordinator's host, and the address must belong to that machine"
            }
            _ => "choose another address or port",
        };
        Error::usage(format!("process 0 cannot listen at the coordinator's address `{address}`: {e}; {hint}"))
    })?;
    let port = listener
        .local_addr()
        .map_err(|e| Error::system("reading the coordinator's address", e))?
        .port();
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    Ok((listener, format!("{host}:{port}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_stays_loopback_and_port_0_is_chosen() {
        for host in ["127.0.0.1", "localhost"] {
            let (listener, address) = listen(&format!("{host}:0")).unwrap();
            let bound = listener.local_addr().unwrap();
            assert!(bound.ip().is_loopback());
            assert_eq!(address, format!("{host}:{}", bound.port()));
        }
    }

    #[test]
    fn a_port_in_use_and_a_foreign_address_are_errors() {
        let (_listener, address) = listen("127.0.0.1:0").unwrap();
        let error = listen(&address).unwrap_err();
        assert!(error.is_usage() && error.to_string().contains("an earlier run"), "{error}");
        // An address reserved for documentation, which no machine has.
        let error = listen("192.0.2.1:0").unwrap_err();
        assert!(
            error.is_usage() && error.to_string().contains("must run on the coordinator's host"),
            "{error}"
        );
    }
}
