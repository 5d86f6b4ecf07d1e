//! A server's certificate.

use std::{fmt, sync::Arc};

use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};

use super::AcceptError;
use crate::Transport;

/// A server's certificate and key.
#[derive(Clone)]
pub struct TlsIdentity(TlsAcceptor);

impl TlsIdentity {
    /// From a certificate chain and its key, both in PEM.
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> Result<Self, AcceptError> {
        let bad = |why: &dyn fmt::Display| AcceptError::Identity(why.to_string());
        let chain: Vec<_> = CertificateDer::pem_slice_iter(certificates)
            .collect::<Result<_, _>>()
            .map_err(|error| bad(&error))?;
        if chain.is_empty() {
            return Err(bad(&"the file holds no certificate"));
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| bad(&error))?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| bad(&error))?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(|error| bad(&error))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    /// The server's side of the TLS handshake.
    pub async fn accept(
        &self,
        transport: Box<dyn Transport>,
    ) -> Result<Box<dyn Transport>, AcceptError> {
        match self.0.accept(transport).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(AcceptError::Tls(error.to_string())),
        }
    }
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsIdentity(..)")
    }
}
