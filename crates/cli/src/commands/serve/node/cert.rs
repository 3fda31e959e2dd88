//! `poncho node cert`: certificates for nodes and servers, signed by an authority of one's own.

use std::io::Write;
use std::path::PathBuf;

use poncho_node::issue;
use poncho_terminal::Outcome;

#[derive(Debug, clap::Args)]
pub(crate) struct CertArgs {
    /// Host names and IP addresses, as other machines pass them to --node; any name for a server
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,

    /// Folder of the files; an authority that is already there is reused
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,

    /// How long the certificates are valid
    #[arg(long, value_name = "DAYS", default_value_t = 825, value_parser = clap::value_parser!(u16).range(1..=3650))]
    days: u16,
}

pub(super) fn run(args: &CertArgs, out: &mut impl Write) -> anyhow::Result<Outcome> {
    for issued in issue(&args.dir, &args.names, args.days)? {
        let files = issued.files;
        writeln!(out, "{}", issued.name)?;
        writeln!(
            out,
            "  --node-cert {} --node-key {} --node-ca {}",
            files.certificate.display(),
            files.key.display(),
            files.authority.display()
        )?;
    }
    writeln!(
        out,
        "Give each machine its own certificate and key, and ca.pem. Keep ca-key.pem here: it signs new ones."
    )?;
    Ok(Outcome::Good)
}
