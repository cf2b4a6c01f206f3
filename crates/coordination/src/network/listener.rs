//! Chooses the local addresses on which process 0 listens: only the coordinator's address.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};

use crate::process::{is_loopback, split_address};
use crate::{Result, error};

/// The sockets on which process 0 listens.
#[derive(Debug)]
pub(crate) struct Listeners {
    pub(crate) sockets: Vec<TcpListener>,
    /// The address for the other processes, with the actual port if the port was 0.
    pub(crate) address: String,
}

/// Listens on `address`.
///
/// Debian maps the machine's own name to loopback in `/etc/hosts`. Other machines resolve this name
/// to an address that is not known here. For such a name, process 0 listens on the loopback address,
/// for processes of this machine, and on the machine's own address on the network, but not on all
/// addresses.
pub(crate) fn listen(address: &str) -> Result<Listeners> {
    let (host, port) = split_address(address)?;
    let resolved: Vec<SocketAddr> = (host, port)
        .to_socket_addrs()
        .map_err(|e| {
            error::usage(format!(
                "the coordinator's address `{address}` does not resolve: {e}; use an address that does"
            ))
        })?
        .collect();
    let own = if !is_loopback(host) && resolved.iter().all(|a| a.ip().is_loopback()) {
        own_address(address)?
    } else {
        None
    };
    let sockets = bind(address, &resolved, own)?;
    let port = port_of(&sockets[0])?;
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    Ok(Listeners { sockets, address: format!("{host}:{port}") })
}

/// Listens on one of `resolved`, and on the same port of `own`.
fn bind(address: &str, resolved: &[SocketAddr], own: Option<IpAddr>) -> Result<Vec<TcpListener>> {
    let failed = |e: std::io::Error| {
        let hint = match e.kind() {
            std::io::ErrorKind::AddrInUse => {
                "another program, or an earlier run, listens there; choose another port"
            }
            std::io::ErrorKind::AddrNotAvailable => {
                "process 0 must run on the coordinator's host, and the address must belong to that machine"
            }
            _ => "choose another address or port",
        };
        error::usage(format!(
            "process 0 cannot listen at the coordinator's address `{address}`: {e}; {hint}"
        ))
    };
    let first = TcpListener::bind(resolved).map_err(failed)?;
    let port = port_of(&first)?;
    let mut sockets = vec![first];
    if let Some(own) = own {
        sockets.push(TcpListener::bind((own, port)).map_err(failed)?);
    }
    Ok(sockets)
}

fn port_of(socket: &TcpListener) -> Result<u16> {
    let local = socket.local_addr();
    Ok(local.map_err(|e| error::system("reading the coordinator's address", e))?.port())
}

/// The machine's own address on the network: the source of what leaves through its default route,
/// or its only address. `None` if it has no network.
fn own_address(coordinator: &str) -> Result<Option<IpAddr>> {
    if let Some(source) = default_source() {
        return Ok(Some(source));
    }
    let routes = std::fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
    match &local_addresses(&routes)[..] {
        [] => Ok(None),
        [only] => Ok(Some(*only)),
        several => {
            let names: Vec<String> = several.iter().map(IpAddr::to_string).collect();
            Err(error::usage(format!(
                "the coordinator's address `{coordinator}` is loopback on this machine, which has the addresses {}; name \
                 the one that the other processes reach instead",
                names.join(", ")
            )))
        }
    }
}

/// The source address of the default route. Nothing is sent.
fn default_source() -> Option<IpAddr> {
    /// An address for documentation, which no route is special to.
    const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((ELSEWHERE, 9)).ok()?;
    let source = socket.local_addr().ok()?.ip();
    (!source.is_loopback() && !source.is_unspecified()).then_some(source)
}

/// The machine's own IPv4 addresses in the kernel's table of routes, without loopback.
fn local_addresses(routes: &str) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    let mut current: Option<Ipv4Addr> = None;
    for line in routes.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            current = address.parse().ok();
        } else if line == "/32 host LOCAL"
            && let Some(address) = current.filter(|address| !address.is_loopback())
            && !addresses.contains(&IpAddr::V4(address))
        {
            addresses.push(IpAddr::V4(address));
        }
    }
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_stays_loopback_and_port_0_is_chosen() {
        for host in ["127.0.0.1", "localhost"] {
            let Listeners { sockets, address } = listen(&format!("{host}:0")).unwrap();
            assert_eq!(sockets.len(), 1);
            let bound = sockets[0].local_addr().unwrap();
            assert!(bound.ip().is_loopback());
            assert_eq!(address, format!("{host}:{}", bound.port()));
        }
    }

    #[test]
    fn a_port_in_use_and_a_foreign_address_are_errors() {
        let listeners = listen("127.0.0.1:0").unwrap();
        let error = listen(&listeners.address).unwrap_err();
        assert!(error.is_usage() && error.to_string().contains("an earlier run"), "{error}");
        // An address reserved for documentation, which no machine has.
        let error = listen("192.0.2.1:0").unwrap_err();
        assert!(
            error.is_usage() && error.to_string().contains("must run on the coordinator's host"),
            "{error}"
        );
    }

    #[test]
    fn a_name_that_is_loopback_here_is_not_served_on_all_addresses() {
        // As on Debian, with another loopback address in the place of the network's.
        let resolved = ["127.0.0.1:0".parse().unwrap()];
        let own = "127.0.0.2".parse().unwrap();
        let sockets = bind("myhost:0", &resolved, Some(own)).unwrap();
        let bound: Vec<SocketAddr> = sockets.iter().map(|s| s.local_addr().unwrap()).collect();
        assert_eq!(bound.iter().map(SocketAddr::ip).collect::<Vec<_>>(), [resolved[0].ip(), own]);
        assert_eq!(bound[0].port(), bound[1].port());
        if let Ok(Some(own)) = own_address("myhost:0") {
            assert!(!own.is_unspecified() && !own.is_loopback(), "{own}");
        }
    }

    #[test]
    fn the_own_addresses_are_in_the_table_of_routes() {
        let routes = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     \
                      +-- 10.0.0.0/24 2 0 2\n        |-- 10.0.0.0\n           /24 link UNICAST\n        |-- \
                      10.0.0.7\n           /32 host LOCAL\n        |-- 10.0.0.255\n           /32 link \
                      BROADCAST\n     |-- 127.0.0.1\n        /32 host LOCAL\nLocal:\n        |-- 10.0.0.7\n           \
                      /32 host LOCAL\n";
        assert_eq!(local_addresses(routes), ["10.0.0.7".parse::<IpAddr>().unwrap()]);
    }
}
