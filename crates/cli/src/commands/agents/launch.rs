//! `poncho launch`: runs a coding agent with this machine's models.
//!
//! Finds or starts a server, gives the agent its address, its model and its context size through variables, flags and
//! files of a temporary folder, and runs it. It must never change a file of the user.

pub(crate) mod args;
mod clients;
mod listing;
mod process;
mod setup;
mod target;

use std::io::Write;

use anyhow::{Context, bail};
use poncho_client::runtime;
use poncho_models::nearest;
use poncho_terminal::Outcome;

use self::args::LaunchArgs;
use self::clients::{AGENTS, Agent};
use self::target::Found;

pub(crate) fn run(args: &LaunchArgs, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let Some(name) = &args.agent else {
        listing::print(out)?;
        return Ok(Outcome::Good);
    };
    let agent = find(name)?;
    let runtime = runtime()?;
    if args.print {
        let found = runtime.block_on(target::look(args, agent))?;
        setup::print(agent, &found, &args.args, out)?;
        return Ok(Outcome::Good);
    }
    let program = process::find(agent.program).with_context(|| {
        format!("{} is not installed: there is no `{}` on PATH; {}", agent.title, agent.program, agent.install)
    })?;
    let (found, connection) = runtime.block_on(target::open(args, agent))?;
    for warning in warnings(agent, &found) {
        eprintln!("warning: {warning}");
    }
    let setup = agent.setup(&found.target);
    let outcome = process::run(&runtime, &program, &setup, &args.args);
    let closed = runtime.block_on(connection.close());
    // The first error is the one to report.
    let outcome = outcome?;
    closed?;
    Ok(outcome)
}

fn find(name: &str) -> anyhow::Result<&'static Agent> {
    if let Some(agent) = AGENTS.iter().find(|agent| agent.name == name || agent.program == name) {
        return Ok(agent);
    }
    let names: Vec<&str> = AGENTS.iter().map(|agent| agent.name).collect();
    match nearest(name, names.iter().copied()).first() {
        Some(near) => bail!("unknown agent `{name}`; did you mean `{near}`?"),
        None => bail!("unknown agent `{name}`; choose one of {}", names.join(", ")),
    }
}

/// Why the agent may not work well with what was found.
fn warnings(agent: &Agent, found: &Found) -> Vec<String> {
    let (title, model, context) = (agent.title, &found.target.model, found.target.context);
    let mut all = Vec::new();
    if context < agent.least_context {
        let least = agent.least_context;
        all.push(format!(
            "{title} needs a context of {least} tokens or more, and {model} has {context}; set --ctx-size {least}"
        ));
    }
    if let Some(trained) = found.trained.filter(|trained| *trained < context) {
        all.push(format!(
            "{model} was trained with {trained} tokens, and its context is {context}; expect worse replies beyond that"
        ));
    }
    if agent.needs_tools && found.tools == Some(false) {
        all.push(format!(
            "the chat template of {model} has no tools, which {title} needs; `poncho launch` lists models that have"
        ));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::setup::Target;
    use super::*;

    #[test]
    fn an_agent_is_found_by_its_name_or_its_program() {
        assert_eq!(find("claude").unwrap().title, "Claude Code");
        assert_eq!(find("cn").unwrap().name, "continue");
        assert!(find("cladue").unwrap_err().to_string().contains("did you mean `claude`"));
        assert!(find("xyzzyx").unwrap_err().to_string().contains("choose one of claude, codex"));
    }

    #[test]
    fn a_model_that_does_not_fit_is_named() {
        let agent = find("claude").unwrap();
        let target = Target { url: String::new(), key: None, model: "m".into(), context: 4096 };
        let found = Found { target, trained: Some(2048), tools: Some(false), starts: None };
        let all = warnings(agent, &found);
        assert_eq!(all.len(), 3, "{all:?}");
        assert!(all[0].contains("--ctx-size 32768") && all[1].contains("2048") && all[2].contains("no tools"));
        let target = Target { context: 65536, ..found.target };
        assert!(warnings(agent, &Found { target, trained: None, tools: None, starts: None }).is_empty());
    }
}
