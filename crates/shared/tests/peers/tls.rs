//! Pulls with certificates: both ends show one of the same authority, or nothing is pulled.

use std::sync::Arc;

use poncho_cache::{NO_TENANT, RemoteQuery, RemoteTier};
use poncho_shared::{PeerTier, PullTls};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::node::{Known, Node, SECRET, limits, save_chain};
use crate::fixture::{NAMESPACE, patience};

/// The certificates of a node that an authority of its own signed, which trusts the authority of `trusts`.
struct Authority {
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().der().clone();
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    /// A certificate of this authority, for an end that trusts another one.
    fn tls(&self, trusts: &Self) -> PullTls {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let shown = vec![params.signed_by(&key, &self.issuer).unwrap().der().clone()];
        let secret = || PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(trusts.certificate.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots.clone()), Arc::clone(&provider));
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier.build().unwrap())
            .with_single_cert(shown.clone(), secret())
            .unwrap();
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(shown, secret())
            .unwrap();
        PullTls { client: Arc::new(client), server: Arc::new(server) }
    }
}

#[test]
fn with_certificates_rows_are_pulled_and_ends_of_another_authority_get_nothing() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let node = Node::with_tls(limits(), Some(&ours.tls(&ours)));
    let key = save_chain(&node.cache, 1, &[40], &[20_000], None)[0];
    let pull = |tls: Option<&PullTls>| {
        let tier = PeerTier::open(Known::at(&[node.server.address()]), SECRET, tls, limits()).unwrap();
        let query = RemoteQuery { owner: NO_TENANT, namespace: &NAMESPACE, keys: &[key] };
        let row = tier.find(query, &patience()).ok().flatten()?;
        tier.fetch(&row, &patience()).ok()
    };
    assert_eq!(pull(Some(&ours.tls(&ours))), node.cache.export(&key, NO_TENANT).ok());
    assert_eq!(pull(Some(&theirs.tls(&ours))), None, "the node refuses the certificate");
    assert_eq!(pull(Some(&ours.tls(&theirs))), None, "the certificate of the node is refused");
    assert_eq!(pull(None), None, "nothing is spoken in plain");
}
