//! From an address to a store: `file://`, `s3://`, `gs://`, `az://`, with explicit timeouts and few retries.
//!
//! Called when a tier is opened, probed or listed. The client library retries ten times within three minutes by
//! default; a request to a model cannot wait for that. The text of a location never contains credentials.

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{BackoffConfig, ClientConfigKey, ObjectStore, RetryConfig};
use reqwest::Url;

use crate::error::SharedError;
use crate::settings::{Settings, Timing};

/// An opened store.
#[derive(Debug, Clone)]
pub(crate) struct Location {
    pub(crate) store: Arc<dyn ObjectStore>,
    /// The address without credentials.
    pub(crate) name: String,
    /// The folder, if the store is one.
    pub(crate) folder: Option<PathBuf>,
}

impl Location {
    /// A store that the caller made, under the address of the settings.
    pub(crate) fn given(settings: &Settings, store: Arc<dyn ObjectStore>) -> Self {
        Self { store, name: settings.url.clone(), folder: None }
    }

    /// Opens the store of an address. Sends no request.
    pub(crate) fn open(settings: &Settings) -> Result<Self, SharedError> {
        let address =
            |detail: &str| SharedError::Address { url: without_secrets(&settings.url), detail: detail.to_owned() };
        let url = Url::parse(&settings.url).map_err(|error| address(&error.to_string()))?;
        // The store's client takes the provider of the process; another part may have installed the same one before.
        let _ = rustls::crypto::ring::default_provider().install_default();
        match url.scheme() {
            "file" => folder(&url, address),
            "s3" | "s3a" => s3(&url, settings),
            "gs" => google(&url, settings),
            "az" | "azure" => azure(&url, settings),
            other => Err(address(&format!("the scheme {other} is not known"))),
        }
    }
}

fn folder(url: &Url, address: impl Fn(&str) -> SharedError) -> Result<Location, SharedError> {
    let path = url.to_file_path().map_err(|()| address("a folder has an absolute path, as in file:///srv/poncho"))?;
    let setup = |detail: String| SharedError::Setup { location: url.to_string(), detail };
    if !path.exists() {
        poncho_cache::create_private_folder(&path).map_err(|error| setup(error.to_string()))?;
    }
    let store = LocalFileSystem::new_with_prefix(&path).map_err(|error| setup(error.to_string()))?;
    Ok(Location { store: Arc::new(store), name: url.to_string(), folder: Some(path) })
}

fn s3(url: &Url, settings: &Settings) -> Result<Location, SharedError> {
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket(url)).with_retry(retries(&settings.timing));
    for (key, value) in client_settings(&settings.timing) {
        builder = builder.with_config(AmazonS3ConfigKey::Client(key), value);
    }
    for (name, value) in &settings.options {
        let key = AmazonS3ConfigKey::from_str(name).map_err(|error| setup(url, &error))?;
        builder = builder.with_config(key, value);
    }
    if builder.get_config_value(&AmazonS3ConfigKey::Endpoint).is_some_and(|endpoint| is_loopback(&endpoint)) {
        builder = builder.with_allow_http(true);
    }
    finish(url, Arc::new(builder.build().map_err(|error| setup(url, &error))?))
}

fn google(url: &Url, settings: &Settings) -> Result<Location, SharedError> {
    let retry = retries(&settings.timing);
    let mut builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket(url)).with_retry(retry);
    for (key, value) in client_settings(&settings.timing) {
        builder = builder.with_config(GoogleConfigKey::Client(key), value);
    }
    for (name, value) in &settings.options {
        let key = GoogleConfigKey::from_str(name).map_err(|error| setup(url, &error))?;
        builder = builder.with_config(key, value);
    }
    finish(url, Arc::new(builder.build().map_err(|error| setup(url, &error))?))
}

fn azure(url: &Url, settings: &Settings) -> Result<Location, SharedError> {
    let retry = retries(&settings.timing);
    let mut builder = MicrosoftAzureBuilder::from_env().with_container_name(bucket(url)).with_retry(retry);
    for (key, value) in client_settings(&settings.timing) {
        builder = builder.with_config(AzureConfigKey::Client(key), value);
    }
    for (name, value) in &settings.options {
        let key = AzureConfigKey::from_str(name).map_err(|error| setup(url, &error))?;
        builder = builder.with_config(key, value);
    }
    if builder.get_config_value(&AzureConfigKey::Endpoint).is_some_and(|endpoint| is_loopback(&endpoint)) {
        builder = builder.with_allow_http(true);
    }
    finish(url, Arc::new(builder.build().map_err(|error| setup(url, &error))?))
}

fn bucket(url: &Url) -> &str {
    url.host_str().unwrap_or_default()
}

/// Puts the path of the address before every name.
fn finish(url: &Url, store: Arc<dyn ObjectStore>) -> Result<Location, SharedError> {
    let prefix = Path::from_url_path(url.path()).map_err(|error| setup(url, &error))?;
    let store: Arc<dyn ObjectStore> =
        if prefix.as_ref().is_empty() { store } else { Arc::new(PrefixStore::new(store, prefix)) };
    Ok(Location { store, name: without_secrets(url.as_str()), folder: None })
}

fn setup(url: &Url, error: &dyn std::error::Error) -> SharedError {
    SharedError::Setup { location: without_secrets(url.as_str()), detail: error.to_string() }
}

/// One retry, soon: the tier has its own way with a store that fails.
fn retries(timing: &Timing) -> RetryConfig {
    let backoff = BackoffConfig {
        init_backoff: std::time::Duration::from_millis(50),
        max_backoff: std::time::Duration::from_millis(200),
        base: 2.0,
    };
    RetryConfig { backoff, max_retries: 1, retry_timeout: timing.request }
}

fn client_settings(timing: &Timing) -> [(ClientConfigKey, String); 4] {
    let text = |time: std::time::Duration| format!("{} ms", time.as_millis());
    [
        (ClientConfigKey::Timeout, text(timing.transfer)),
        (ClientConfigKey::ConnectTimeout, text(timing.connect)),
        (ClientConfigKey::PoolIdleTimeout, "90 s".to_owned()),
        (ClientConfigKey::PoolMaxIdlePerHost, "64".to_owned()),
    ]
}

fn is_loopback(endpoint: &str) -> bool {
    let Ok(url) = Url::parse(endpoint) else { return false };
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// An address without user, password and query.
fn without_secrets(url: &str) -> String {
    let Ok(mut parsed) = Url::parse(url) else {
        return url.split(['?', '@']).next().unwrap_or_default().to_owned();
    };
    let _ = parsed.set_username("");
    let _ = parsed.set_password(None);
    parsed.set_query(None);
    parsed.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(url: &str) -> String {
        Location::open(&Settings::new(url)).expect_err("refused").to_string()
    }

    #[test]
    fn an_address_that_is_not_a_store_is_refused_with_examples() {
        for url in ["", "bucket", "ftp://host/x", "http://host/x"] {
            assert!(error(url).contains("s3://BUCKET/PREFIX"), "{}", error(url));
        }
        assert!(!error("ftp://me:secret@host/x?sig=secret").contains("secret"));
    }

    #[test]
    fn a_folder_is_created_for_its_owner_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("shared rows");
        let url = Url::from_file_path(&path).expect("an address");
        let location = Location::open(&Settings::new(url.as_str())).expect("opened");
        assert_eq!(location.folder.as_deref(), Some(path.as_path()));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o700);
        }
    }

    #[test]
    fn a_plain_endpoint_is_allowed_on_loopback_alone() {
        for (endpoint, allowed) in [
            ("http://127.0.0.1:8333", true),
            ("http://localhost:1", true),
            ("http://[::1]:9", true),
            ("http://10.0.0.1:9", false),
            ("http://127.0.0.1.example.com", false),
        ] {
            assert_eq!(is_loopback(endpoint), allowed, "{endpoint}");
        }
    }
}
