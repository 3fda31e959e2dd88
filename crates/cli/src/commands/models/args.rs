//! The flags of the commands around models, as the user types them.
//!
//! Filled by clap and read by the commands of this folder. No input or output here.

use std::path::PathBuf;

use poncho_models::{ModelName, Reference, Sha256};

/// Where the models are.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct RegistryArgs {
    /// The folder of models [env: PONCHO_MODELS_DIR] [default: $XDG_DATA_HOME/poncho/models, or ~/.local/share/poncho/models]
    #[arg(long, value_name = "DIR")]
    pub(crate) models_dir: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PullArgs {
    /// A name of the catalogue, hf:owner/repo[:file or quant], an https:// address, or the path of a GGUF file
    #[arg(value_name = "MODEL", value_parser = parse_reference)]
    pub(crate) reference: Reference,

    /// Install it under this name [default: made from the reference]
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub(crate) name: Option<ModelName>,

    /// Refuse the file unless it has this hash
    #[arg(long, value_name = "HEX", value_parser = parse_digest)]
    pub(crate) sha256: Option<Sha256>,

    /// Print the progress as lines of JSON on standard output, and nothing else there
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// List the catalogue instead: what `poncho pull` knows by name
    #[arg(long)]
    pub(crate) catalogue: bool,

    /// Print JSON on standard output, and nothing else there
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ShowModelArgs {
    /// The model's name
    #[arg(value_name = "NAME", value_parser = parse_name)]
    pub(crate) name: ModelName,

    /// Print a Modelfile that makes the same model
    #[arg(long, conflicts_with = "json")]
    pub(crate) modelfile: bool,

    /// Read every byte and compare the hashes first; exits 1 if a file is damaged
    #[arg(long)]
    pub(crate) verify: bool,

    /// Print JSON on standard output, and nothing else there
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RmArgs {
    /// The names to remove
    #[arg(value_name = "NAME", required = true, value_parser = parse_name)]
    pub(crate) names: Vec<ModelName>,

    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CpArgs {
    /// The name that is there
    #[arg(value_parser = parse_name)]
    pub(crate) from: ModelName,

    /// The name to give it as well
    #[arg(value_parser = parse_name)]
    pub(crate) to: ModelName,

    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CreateArgs {
    /// The name of the new model
    #[arg(value_name = "NAME", value_parser = parse_name)]
    pub(crate) name: ModelName,

    /// The Modelfile; `-` for standard input
    #[arg(short, long, value_name = "FILE", default_value = "Modelfile")]
    pub(crate) file: PathBuf,

    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
}

fn parse_reference(text: &str) -> Result<Reference, String> {
    Reference::parse(text).map_err(|error| error.to_string())
}

fn parse_name(text: &str) -> Result<ModelName, String> {
    ModelName::parse(text).map_err(|error| error.to_string())
}

fn parse_digest(text: &str) -> Result<Sha256, String> {
    Sha256::parse(text).ok_or_else(|| "a SHA-256 is 64 hexadecimal digits".to_owned())
}
