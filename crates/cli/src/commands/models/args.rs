//! The flags of the commands for models.
//!
//! Filled by clap and read by the commands of this folder.

use std::path::PathBuf;

use poncho_models::{ModelName, Reference, Registry, Sha256};

use crate::settings::models_folder::models_folder;

/// The folder of models.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct RegistryArgs {
    /// Folder of models [env: PONCHO_MODELS_DIR] [default: $XDG_DATA_HOME/poncho/models, or ~/.local/share/poncho/models]
    #[arg(long, value_name = "DIR")]
    pub(crate) models_dir: Option<PathBuf>,
}

impl RegistryArgs {
    /// The registry in the folder, which may not exist yet: `pull` and `create` create it.
    pub(crate) fn open(&self) -> anyhow::Result<Registry> {
        Ok(Registry::open(models_folder(self.models_dir.as_deref())?)?)
    }
}

/// A model to pull: as typed, and what that means.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) text: String,
    pub(crate) reference: Reference,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PullArgs {
    /// Name from the catalogue, hf:owner/repo[:file or quant], https:// URL, or path of a GGUF file
    #[arg(value_name = "MODEL", value_parser = parse_wanted)]
    pub(crate) wanted: Wanted,

    /// Name to install it under [default: derived from the reference]
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub(crate) name: Option<ModelName>,

    /// Expected hash of the file; any other is refused
    #[arg(long, value_name = "HEX", value_parser = parse_digest)]
    pub(crate) sha256: Option<Sha256>,

    /// Print progress as JSON lines on standard output and nothing else
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// List the catalogue instead: the models that `poncho pull` knows by name
    #[arg(long)]
    pub(crate) catalogue: bool,

    /// Print JSON on standard output and nothing else
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ShowModelArgs {
    /// Name of the model
    #[arg(value_name = "NAME", value_parser = parse_name)]
    pub(crate) name: ModelName,

    /// Print a Modelfile that creates the same model
    #[arg(long, conflicts_with = "json")]
    pub(crate) modelfile: bool,

    /// Check the hashes of all files first; exits with 1 if one is damaged
    #[arg(long)]
    pub(crate) verify: bool,

    /// Print JSON on standard output and nothing else
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RmArgs {
    /// Names to remove
    #[arg(value_name = "NAME", required = true, value_parser = parse_name)]
    pub(crate) names: Vec<ModelName>,

    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CpArgs {
    /// Existing name
    #[arg(value_parser = parse_name)]
    pub(crate) from: ModelName,

    /// Additional name
    #[arg(value_parser = parse_name)]
    pub(crate) to: ModelName,

    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CreateArgs {
    /// Name of the new model
    #[arg(value_name = "NAME", value_parser = parse_name)]
    pub(crate) name: ModelName,

    /// Modelfile; `-` for standard input
    #[arg(short, long, value_name = "FILE", default_value = "Modelfile")]
    pub(crate) file: PathBuf,

    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
}

fn parse_wanted(text: &str) -> Result<Wanted, String> {
    let reference = Reference::parse(text).map_err(|error| error.to_string())?;
    Ok(Wanted { text: text.to_owned(), reference })
}

fn parse_name(text: &str) -> Result<ModelName, String> {
    ModelName::parse(text).map_err(|error| error.to_string())
}

fn parse_digest(text: &str) -> Result<Sha256, String> {
    Sha256::parse(text).ok_or_else(|| "a SHA-256 is 64 hexadecimal digits".to_owned())
}
