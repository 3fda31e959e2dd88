//! Models of the catalogue that are good with tools, by the memory that they need.
//!
//! A flat table, read by `poncho launch`. The memory is that of the weights and of 32,768 tokens in 16 bits, which is
//! what coding agents need, plus half a gigabyte for the buffers of llama.cpp.

/// A model for coding agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgentModel {
    /// Its name in the catalogue.
    pub name: &'static str,
    /// Weights, and the states of 32,768 tokens.
    pub bytes: u64,
    /// What it is good for, in a few words.
    pub about: &'static str,
}

const fn model(name: &'static str, tenths: u64, about: &'static str) -> AgentModel {
    AgentModel { name, bytes: tenths * 100_000_000, about }
}

/// The best first.
pub const AGENT_MODELS: &[AgentModel] = &[
    model("qwen3-coder:30b", 223, "Qwen3 Coder 30B A3B: made for agents, 3B active parameters"),
    model("gpt-oss:20b", 142, "gpt-oss 20B: reasons, 4B active parameters"),
    model("qwen3:14b", 149, "Qwen3 14B: reasons, slow without a GPU"),
    model("qwen3:8b", 104, "Qwen3 8B: reasons, the smallest that edits several files well"),
    model("qwen3:4b", 78, "Qwen3 4B: short tasks"),
    model("qwen3:1.7b", 61, "Qwen3 1.7B: tool calls work, edits often do not"),
];

/// The best model for this much memory; for memory of unknown size, the smallest.
#[must_use]
pub fn agent_model_for(memory: Option<u64>) -> Option<&'static AgentModel> {
    match memory {
        Some(memory) => AGENT_MODELS.iter().find(|model| model.bytes <= memory),
        None => AGENT_MODELS.last(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::CATALOGUE;

    #[test]
    fn every_model_can_be_pulled_and_more_memory_never_gives_a_worse_one() {
        let place = |memory| agent_model_for(Some(memory)).map(|found| AGENT_MODELS.iter().position(|m| m == found));
        let mut last = None;
        for gigabytes in (0..40).rev() {
            let now = place(gigabytes << 30);
            assert!(last.is_none() || now.is_none() || now >= last, "{gigabytes}");
            last = now.or(last);
        }
        for model in AGENT_MODELS {
            assert!(CATALOGUE.iter().any(|entry| entry.name == model.name), "{}", model.name);
        }
        assert_eq!(agent_model_for(Some(1 << 30)), None);
        assert_eq!(agent_model_for(Some(12 << 30)).map(|model| model.name), Some("qwen3:8b"));
        assert_eq!(agent_model_for(None), AGENT_MODELS.last());
    }
}
