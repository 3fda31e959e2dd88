//! `poncho show NAME`: all details of a model, for people, as JSON, or as a Modelfile.

use std::io::Write;

use poncho_models::{Installed, Modelfile};
use poncho_terminal::{Outcome, ago, iso, now, print_json, printable_line, show_bytes};

use crate::commands::models::args::ShowModelArgs;
use crate::commands::models::list::show_parameters;
use crate::commands::models::model_json::ModelJson;
use crate::commands::models::progress::Reporter;

pub(crate) fn run(args: &ShowModelArgs, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let registry = args.registry.open()?;
    let model = if args.verify {
        let mut reporter = Reporter::for_people(args.name.to_string());
        registry.verify(&args.name, &mut |step| reporter.report(&step))?
    } else {
        registry.get(&args.name)?
    };
    if args.json {
        print_json(out, &ModelJson::from(&model))?;
    } else if args.modelfile {
        write!(out, "{}", modelfile(&model))?;
    } else {
        print(&model, out)?;
    }
    Ok(Outcome::Good)
}

fn modelfile(model: &Installed) -> Modelfile {
    let manifest = &model.manifest;
    Modelfile {
        from: model.model.display().to_string(),
        parameters: manifest.parameters.clone(),
        system: manifest.system.clone(),
        template: manifest.template.clone(),
        adapters: model.adapters.iter().map(|path| path.display().to_string()).collect(),
        license: manifest.license.clone(),
        messages: manifest.messages.clone(),
    }
}

fn print(model: &Installed, out: &mut dyn Write) -> anyhow::Result<()> {
    let (manifest, facts) = (&model.manifest, &model.manifest.facts);
    let number = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
    let mut rows = vec![
        ("name", manifest.name.to_string()),
        ("architecture", text(&facts.architecture)),
        ("parameters", show_parameters(facts.parameters)),
        ("quantisation", text(&facts.quantization)),
        ("context", number(facts.context_length)),
        ("template", if facts.chat_template { "in the file" } else { "none in the file" }.to_owned()),
        ("size", show_bytes(manifest.bytes())),
        ("sha256", manifest.model.sha256.to_hex()),
        ("source", manifest.source.reference.clone()),
        ("added", format!("{} ({})", ago(now(), manifest.created), iso(manifest.created))),
        ("file", model.model.display().to_string()),
    ];
    rows.extend(model.adapters.iter().map(|path| ("adapter", path.display().to_string())));
    for (key, value) in rows {
        writeln!(out, "{key:<14}{}", printable_line(&value))?;
    }
    let mut lines: Vec<(&str, String)> =
        manifest.parameters.lines().map(|(name, value)| ("parameter", format!("{name} {value}"))).collect();
    lines.extend(manifest.system.clone().map(|text| ("system", text)));
    lines.extend(manifest.template.clone().map(|text| ("own template", text)));
    lines.extend(
        manifest.messages.iter().map(|message| ("message", format!("{} {}", message.role.word(), message.content))),
    );
    for (key, value) in lines {
        writeln!(out, "{key:<14}{}", printable_line(&value))?;
    }
    Ok(())
}
