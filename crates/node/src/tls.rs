//! Certificates for nodes on other machines: each end shows one, and both must be signed by the same authority.
//!
//! Read by the command line, used by `host` and `link`. TLS is that of rustls. A private key is never printed.

pub(crate) mod issue;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Certificate, ClientTlsConfig, Identity, ServerTlsConfig};

/// The files of one end, all PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialFiles {
    /// The certificate that this end shows, with those between it and the authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authority that must have signed the certificate of the other end.
    pub authority: PathBuf,
}

/// What one end shows, and what it demands of the other end.
#[derive(Clone)]
pub struct Credentials {
    certificate: Vec<u8>,
    key: Vec<u8>,
    authority: Vec<u8>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Credentials")
    }
}

/// Why a file of certificates is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CredentialError {
    /// It cannot be read.
    #[error("cannot read {}: {reason}; make the file with `poncho node cert`", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// It holds something else.
    #[error("{} contains no {wanted} in PEM form; make the file with `poncho node cert`", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        wanted: &'static str,
    },
}

impl Credentials {
    /// Reads the files of one end.
    ///
    /// # Errors
    /// A file cannot be read, or holds something else.
    pub fn read(files: &CredentialFiles) -> Result<Self, CredentialError> {
        Ok(Self {
            certificate: certificates(&files.certificate)?,
            key: private_key(&files.key)?,
            authority: certificates(&files.authority)?,
        })
    }

    fn identity(&self) -> Identity {
        Identity::from_pem(&self.certificate, &self.key)
    }

    /// For the end that connects; the other end must have a certificate for this name or address.
    pub(crate) fn client(&self, host: &str) -> ClientTlsConfig {
        let authority = Certificate::from_pem(&self.authority);
        ClientTlsConfig::new().ca_certificate(authority).identity(self.identity()).domain_name(host)
    }

    /// For the end that listens; callers without a certificate are refused.
    pub(crate) fn server(&self) -> ServerTlsConfig {
        ServerTlsConfig::new().identity(self.identity()).client_ca_root(Certificate::from_pem(&self.authority))
    }
}

/// How long a node may take to refuse a certificate.
const REFUSES_WITHIN: Duration = Duration::from_secs(2);

impl Credentials {
    /// Asks a node that ended a connection whether it refuses our certificate. It says so only after the handshake, when
    /// HTTP/2 no longer hears it.
    pub(crate) async fn refusal(&self, host: &str, port: u16) -> Option<rustls::Error> {
        let connector = TlsConnector::from(Arc::new(self.config()?));
        let name = ServerName::try_from(host.to_owned()).ok()?;
        let asked = async {
            let mut stream = connector.connect(name, TcpStream::connect((host, port)).await?).await?;
            // A node that takes us speaks first.
            stream.read_u8().await
        };
        let error = tokio::time::timeout(REFUSES_WITHIN, asked).await.ok()?.err()?;
        error.into_inner()?.downcast::<rustls::Error>().ok().map(|error| *error)
    }

    fn config(&self) -> Option<ClientConfig> {
        let mut config = self.client_config().ok()?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Some(config)
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&self.authority).filter_map(Result::ok));
        roots
    }

    fn shown(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), rustls::Error> {
        let certificates = CertificateDer::pem_slice_iter(&self.certificate).filter_map(Result::ok).collect();
        let unusable = |error| rustls::Error::General(format!("the private key cannot be used: {error}"));
        Ok((certificates, PrivateKeyDer::from_pem_slice(&self.key).map_err(unusable)?))
    }

    /// TLS for connections to other nodes: shows the certificate, and demands one of the authority.
    ///
    /// # Errors
    /// The certificates do not fit together.
    pub fn client_config(&self) -> Result<ClientConfig, rustls::Error> {
        let (certificates, key) = self.shown()?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        config.with_root_certificates(self.roots()).with_client_auth_cert(certificates, key)
    }

    /// TLS for connections of other nodes: the same from the other end.
    ///
    /// # Errors
    /// The certificates do not fit together.
    pub fn server_config(&self) -> Result<ServerConfig, rustls::Error> {
        let (certificates, key) = self.shown()?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(self.roots()), Arc::clone(&provider)).build();
        let verifier = verifier.map_err(|error| rustls::Error::General(error.to_string()))?;
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        config.with_client_cert_verifier(verifier).with_single_cert(certificates, key)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, CredentialError> {
    let unreadable =
        |error: std::io::Error| CredentialError::Unreadable { path: path.into(), reason: error.to_string() };
    std::fs::read(path).map_err(unreadable)
}

fn certificates(path: &Path) -> Result<Vec<u8>, CredentialError> {
    let bytes = read(path)?;
    let mut found = CertificateDer::pem_slice_iter(&bytes).peekable();
    let is_there = found.peek().is_some() && found.all(|certificate| certificate.is_ok());
    drop(found);
    if is_there { Ok(bytes) } else { Err(CredentialError::Wrong { path: path.into(), wanted: "certificate" }) }
}

fn private_key(path: &Path) -> Result<Vec<u8>, CredentialError> {
    let bytes = read(path)?;
    match PrivateKeyDer::from_pem_slice(&bytes) {
        Ok(_) => Ok(bytes),
        Err(_) => Err(CredentialError::Wrong { path: path.into(), wanted: "private key" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_hold_something_else_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let issued = issue::issue(folder.path(), &["one".to_owned()], 30).unwrap();
        let files = issued.first().unwrap().files.clone();
        assert!(Credentials::read(&files).is_ok());
        let swapped = CredentialFiles { certificate: files.key.clone(), ..files.clone() };
        let error = Credentials::read(&swapped).unwrap_err();
        assert_eq!(error, CredentialError::Wrong { path: files.key.clone(), wanted: "certificate" });
        let swapped = CredentialFiles { key: files.certificate.clone(), ..files.clone() };
        assert!(Credentials::read(&swapped).unwrap_err().to_string().contains("no private key"));
        let missing = CredentialFiles { authority: folder.path().join("none.pem"), ..files };
        assert!(matches!(Credentials::read(&missing), Err(CredentialError::Unreadable { .. })));
        assert!(!format!("{:?}", Credentials::read(&missing)).contains("BEGIN"));
    }
}
