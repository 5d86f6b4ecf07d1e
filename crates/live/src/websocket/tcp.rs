//! TCP and TLS.

use std::{
    collections::VecDeque,
    fmt, io,
    net::SocketAddr,
    sync::{Arc, LazyLock},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{StreamExt, stream::FuturesUnordered};
use hyper::Uri;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpStream, lookup_host},
    time::{sleep, timeout},
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName, pem::PemObject},
    },
};

use crate::{Connector, LiveError, Transport};

/// How long the name of a host may take to resolve.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the TLS handshake may take.
const TLS_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one address may take.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection over which nothing moves for so long is probed, and then every so often.
const PROBE_AFTER: Duration = Duration::from_secs(15);
const PROBE_EVERY: Duration = Duration::from_secs(5);
/// What was sent and not acknowledged for so long never will be.
const DEAD_AFTER: Duration = Duration::from_secs(30);
/// The next address is tried beside the last after so long (RFC 8305, section 5).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// Of a host's addresses so many are tried.
const MAX_ADDRESSES: usize = 8;

/// Connects by TCP, with TLS for `wss://`. Trusts Mozilla's root certificates and those added.
#[derive(Clone)]
pub struct TcpConnector {
    roots: Arc<RootCertStore>,
    tls: Arc<ClientConfig>,
}

impl Default for TcpConnector {
    fn default() -> Self {
        // Mozilla's roots alone are what nearly everybody uses; their configuration, with its cache
        // of TLS sessions, is made once.
        static MOZILLA: LazyLock<TcpConnector> = LazyLock::new(|| {
            TcpConnector::trusting(RootCertStore::from_iter(
                webpki_roots::TLS_SERVER_ROOTS.iter().cloned(),
            ))
        });
        MOZILLA.clone()
    }
}

impl TcpConnector {
    /// A connector that trusts Mozilla's root certificates.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts the certificates of a PEM file too: those of a company's own authority, or a server's
    /// own.
    pub fn with_root_certificate(self, pem: &[u8]) -> Result<Self, LiveError> {
        let invalid = |why: &dyn fmt::Display| {
            LiveError::InvalidConfig(format!("not a PEM file of certificates: {why}"))
        };
        let mut roots = (*self.roots).clone();
        let before = roots.len();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|error| invalid(&error))?;
            roots.add(certificate).map_err(|error| invalid(&error))?;
        }
        if roots.len() == before {
            return Err(invalid(&"it holds none"));
        }
        Ok(Self::trusting(roots))
    }

    fn trusting(roots: RootCertStore) -> Self {
        let roots = Arc::new(roots);
        let mut tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring supports the default versions")
            .with_root_certificates(roots.clone())
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Self { roots, tls: Arc::new(tls) }
    }
}

impl fmt::Debug for TcpConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpConnector").field("roots", &self.roots.len()).finish()
    }
}

#[async_trait]
impl Connector for TcpConnector {
    async fn connect(&self, url: &str) -> io::Result<Box<dyn Transport>> {
        let invalid = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        let address = Address::parse(url).map_err(invalid)?;
        let stream = dial(&address).await?;
        stream.set_nodelay(true)?;
        watch(&stream);
        if !address.tls {
            return Ok(Box::new(stream));
        }
        let name = ServerName::try_from(address.host.clone())
            .map_err(|_| invalid(format!("{} is no name of a host", address.host)))?;
        let handshake = TlsConnector::from(self.tls.clone()).connect(name, stream);
        match timeout(TLS_TIMEOUT, handshake).await {
            Ok(stream) => Ok(Box::new(stream?)),
            Err(_) => Err(late("the TLS handshake")),
        }
    }
}

/// Where a URL points.
pub(super) struct Address {
    pub(super) uri: Uri,
    tls: bool,
    /// Without the brackets of an IPv6 address.
    host: String,
    port: u16,
}

impl Address {
    /// Says what is wrong with `url`. The query may hold a key and is not quoted, nor is what stands
    /// before the host.
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        let shown = url.split(['?', '#']).next().unwrap_or(url);
        let shown = match (shown.split_once("://"), shown.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
            (None, Some((_, host))) => host.to_owned(),
            _ => shown.to_owned(),
        };
        if !url.is_ascii() {
            return Err(format!("{shown} is not a URL: percent-encode what is not ASCII"));
        }
        let uri: Uri = url.parse().map_err(|why| format!("{shown} is not a URL: {why}"))?;
        let tls = match uri.scheme_str() {
            Some("ws") => false,
            Some("wss") => true,
            _ => return Err(format!("{shown} begins with neither ws:// nor wss://")),
        };
        let host = uri.host().unwrap_or("").trim_matches(['[', ']']).to_owned();
        if host.is_empty() {
            return Err(format!("{shown} names no host"));
        }
        // An authority such as `host:99999` parses; its port does not.
        let port = match (uri.port_u16(), uri.port()) {
            (Some(port), _) => port,
            (None, None) if !has_port(&uri) => {
                if tls {
                    443
                } else {
                    80
                }
            }
            _ => return Err(format!("{shown} has no valid port")),
        };
        Ok(Self { tls, host, port, uri })
    }
}

fn has_port(uri: &Uri) -> bool {
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let host = authority.rsplit('@').next().unwrap_or(authority);
    host.rsplit(']').next().is_some_and(|rest| rest.contains(':'))
}

/// Connects to the first of the host's addresses that answers.
async fn dial(address: &Address) -> io::Result<TcpStream> {
    let host = &address.host;
    let name = (host.as_str(), address.port);
    let found = match timeout(RESOLVE_TIMEOUT, lookup_host(name)).await {
        Ok(found) => found.map_err(|error| named(host, &error))?,
        Err(_) => return Err(late(&format!("an address of {host}"))),
    };
    let mut addresses = alternate(found);
    let mut attempts = FuturesUnordered::new();
    let mut last = named(host, &"it has no address");
    loop {
        match addresses.pop_front() {
            Some(next) => attempts.push(timeout(ADDRESS_TIMEOUT, TcpStream::connect(next))),
            None if attempts.is_empty() => return Err(last),
            None => {}
        }
        let delay = async {
            if addresses.is_empty() {
                std::future::pending().await
            } else {
                sleep(ATTEMPT_DELAY).await
            }
        };
        tokio::select! {
            Some(attempt) = attempts.next() => match attempt {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => last = named(host, &error),
                Err(_) => last = late(&format!("an answer of {host}")),
            },
            () = delay => {}
        }
    }
}

/// Has the system find out that the peer is gone, also where nothing has to be sent, and where what is
/// sent is not acknowledged. A server that is only slow acknowledges.
fn watch(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_EVERY);
    let mut watched = socket.set_tcp_keepalive(&keepalive);
    #[cfg(any(target_os = "android", target_os = "linux"))]
    {
        watched = watched.and_then(|()| socket.set_tcp_user_timeout(Some(DEAD_AFTER)));
    }
    // The WebSocket's own pings find it out as well, later.
    if let Err(error) = watched {
        tracing::debug!(%error, "the system does not watch the connection");
    }
}

/// Addresses of both families in turn, the resolver's first choice first.
fn alternate(found: impl Iterator<Item = SocketAddr>) -> VecDeque<SocketAddr> {
    let all: Vec<_> = found.collect();
    let first_is_v6 = all.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|address| address.is_ipv6() == first_is_v6);
    let mut second = second.into_iter();
    let mut mixed = VecDeque::new();
    for address in first {
        mixed.push_back(address);
        mixed.extend(second.next());
    }
    mixed.extend(second);
    mixed.truncate(MAX_ADDRESSES);
    mixed
}

fn named(host: &str, why: &dyn fmt::Display) -> io::Error {
    io::Error::other(format!("{host}: {why}"))
}

fn late(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("{what} did not come in time"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_and_bad_ones_say_why() {
        let parsed = |url| {
            let address = Address::parse(url).map_err(|why| format!("{url}: {why}")).unwrap();
            (address.tls, address.host, address.port)
        };
        assert_eq!(parsed("wss://api.openai.com/v1?model=m"), (true, "api.openai.com".into(), 443));
        assert_eq!(parsed("ws://[::1]:4010/x"), (false, "::1".into(), 4010));
        assert_eq!(parsed("ws://127.0.0.1"), (false, "127.0.0.1".into(), 80));
        assert_eq!(parsed("ws://[::1]/"), (false, "::1".into(), 80));
        for bad in [
            "",
            "localhost",
            "http://host/",
            "wss://",
            "ws://host:99999/",
            "ws://host:x/",
            "ws://ho st/",
            "ws:///path",
            "ws://host/ü",
        ] {
            assert!(Address::parse(bad).is_err(), "{bad}");
        }
        for url in ["http://host/?key=secret", "http://me:secret@host/", "me:secret@host"] {
            let why = Address::parse(url).err().unwrap();
            assert!(!why.contains("secret") && why.contains("host"), "{why}");
        }
    }

    #[tokio::test]
    async fn the_system_watches_the_connection() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        watch(&stream);
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        #[cfg(any(target_os = "android", target_os = "linux"))]
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(DEAD_AFTER));
    }

    #[test]
    fn address_families_alternate() {
        let addresses: Vec<SocketAddr> =
            ["[::1]:1", "[::2]:1", "1.1.1.1:1", "1.1.1.2:1", "1.1.1.3:1"]
                .map(|address| address.parse().unwrap())
                .into();
        let mixed: Vec<_> =
            alternate(addresses.into_iter()).iter().map(ToString::to_string).collect();
        assert_eq!(mixed, ["[::1]:1", "1.1.1.1:1", "[::2]:1", "1.1.1.2:1", "1.1.1.3:1"]);
    }

    #[test]
    fn a_root_certificate_must_be_one() {
        for bad in
            [&b""[..], b"hello", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
        {
            let error = TcpConnector::new().with_root_certificate(bad).unwrap_err();
            assert!(matches!(error, LiveError::InvalidConfig(_)), "{error}");
        }
    }
}
