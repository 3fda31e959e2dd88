//! Makes certificates: an authority of one's own, and a certificate for each name.
//!
//! Called by `poncho node cert` and by tests. Keys are readable by their owner only. An authority that exists is used
//! again and never replaced: certificates that it signed would stop working.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use super::CredentialFiles;

/// The certificate of the authority.
const AUTHORITY: &str = "ca.pem";
/// Its key. Only the machine that issues certificates needs it.
const AUTHORITY_KEY: &str = "ca-key.pem";

/// How long the authority is valid.
const AUTHORITY_LIFE: Duration = days(3650);
/// Clocks of two machines differ.
const BEFORE: Duration = days(1);

const fn days(count: u64) -> Duration {
    Duration::from_secs(count * 24 * 60 * 60)
}

/// A certificate that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issued {
    /// The name or address that it is for.
    pub name: String,
    /// Its files.
    pub files: CredentialFiles,
}

/// Why no certificate was made.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// A file cannot be written or read.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The name cannot be in a certificate.
    #[error("`{name}` cannot be the name in a certificate; use a host name or an IP address")]
    Name {
        /// The name that was asked for.
        name: String,
    },
    /// A file of this certificate exists.
    #[error("{} exists; remove it to issue another certificate", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The authority's files cannot be used, or a certificate cannot be signed.
    #[error("cannot sign with the authority in {}: {reason}", path.display())]
    Authority {
        /// The folder.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// Makes a certificate for each name, in a folder that also holds the authority, which is made the first time. They are
/// valid for that many days.
///
/// # Errors
/// A file exists or cannot be written, a name cannot be used, or the authority cannot.
pub fn issue(folder: &Path, names: &[String], valid_days: u16) -> Result<Vec<Issued>, IssueError> {
    let broken = |error: rcgen::Error| IssueError::Authority { path: folder.into(), reason: error.to_string() };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| file_error(folder, error))?;
    let wanted = names.iter().map(|name| planned(folder, name)).collect::<Result<Vec<_>, _>>()?;
    let authority = authority(folder)?;
    let mut issued = Vec::new();
    for (Issued { name, files }, mut params) in wanted {
        limit(&mut params, days(valid_days.into()));
        let key = KeyPair::generate().map_err(broken)?;
        let certificate = params.signed_by(&key, &authority).map_err(broken)?;
        write_new(&files.key, &key.serialize_pem(), 0o600)?;
        write_new(&files.certificate, &certificate.pem(), 0o644)?;
        issued.push(Issued { name, files });
    }
    Ok(issued)
}

/// The files of a certificate and what it says, checked before anything is written.
fn planned(folder: &Path, name: &str) -> Result<(Issued, CertificateParams), IssueError> {
    let unusable = || IssueError::Name { name: name.to_owned() };
    let is_host = name.parse::<IpAddr>().is_ok()
        || name.chars().all(|letter| letter.is_ascii_alphanumeric() || ['-', '.', '_'].contains(&letter));
    if name.is_empty() || name.starts_with('.') || name == "ca" || !is_host {
        return Err(unusable());
    }
    let files = CredentialFiles {
        certificate: folder.join(format!("{name}.pem")),
        key: folder.join(format!("{name}-key.pem")),
        authority: folder.join(AUTHORITY),
    };
    if let Some(path) = [&files.certificate, &files.key].into_iter().find(|path| path.exists()) {
        return Err(IssueError::Exists { path: path.clone() });
    }
    let mut params = CertificateParams::new(vec![name.to_owned()]).map_err(|_| unusable())?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    // A front connects and a node listens; one machine may be both.
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    Ok((Issued { name: name.to_owned(), files }, params))
}

/// The authority of the folder, made if it has none.
fn authority(folder: &Path) -> Result<Issuer<'static, KeyPair>, IssueError> {
    let broken = |error: rcgen::Error| IssueError::Authority { path: folder.into(), reason: error.to_string() };
    let (certificate, key) = (folder.join(AUTHORITY), folder.join(AUTHORITY_KEY));
    if !certificate.exists() && !key.exists() {
        let made = CertifiedIssuer::self_signed(authority_params(), KeyPair::generate().map_err(broken)?);
        let made = made.map_err(broken)?;
        write_new(&key, &made.key().serialize_pem(), 0o600)?;
        write_new(&certificate, &made.pem(), 0o644)?;
    }
    let key_text = fs::read_to_string(&key).map_err(|error| file_error(&key, error))?;
    // All our authorities have one name, so the key is enough to sign.
    Ok(Issuer::new(authority_params(), KeyPair::from_pem(&key_text).map_err(broken)?))
}

fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "Poncho nodes");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    limit(&mut params, AUTHORITY_LIFE);
    params
}

fn limit(params: &mut CertificateParams, life: Duration) {
    let now = SystemTime::now();
    params.not_before = now.checked_sub(BEFORE).unwrap_or(now).into();
    params.not_after = now.checked_add(life).unwrap_or(now).into();
}

fn write_new(path: &Path, text: &str, mode: u32) -> Result<(), IssueError> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    opened.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| file_error(path, error))
}

fn file_error(path: &Path, error: io::Error) -> IssueError {
    IssueError::File { path: path.into(), error }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn keys_are_private_and_an_authority_is_used_again() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("certificates");
        let first = issue(&folder, &["gpu-1.example".to_owned(), "10.0.0.7".to_owned()], 30).unwrap();
        assert_eq!(first.len(), 2);
        let authority = fs::read(folder.join(AUTHORITY)).unwrap();
        for key in ["ca-key.pem", "gpu-1.example-key.pem", "10.0.0.7-key.pem"] {
            assert_eq!(fs::metadata(folder.join(key)).unwrap().permissions().mode() & 0o777, 0o600, "{key}");
        }
        issue(&folder, &["front".to_owned()], 30).unwrap();
        assert_eq!(fs::read(folder.join(AUTHORITY)).unwrap(), authority);
        assert!(matches!(issue(&folder, &["front".to_owned()], 30), Err(IssueError::Exists { .. })));
        for wrong in ["", "../up", "a b", ".hidden", "ca"] {
            assert!(matches!(issue(&folder, &[wrong.to_owned()], 30), Err(IssueError::Name { .. })), "{wrong}");
        }
    }
}
