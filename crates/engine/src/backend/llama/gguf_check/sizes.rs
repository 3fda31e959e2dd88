//! Rules for the numbers that shape a model: layers, heads, experts, positions, recurrent states.
//!
//! Called by the check of a file. Each rule stands for an assertion, a division or a table lookup in llama.cpp
//! (`llama-model.cpp`, `llama-graph.cpp`, `models/*.cpp`, the kernels) that the value of a key alone can fail.

use super::families::{Trait, has};
use super::metadata::{Layers, Metadata};

/// llama.cpp's own limits; beyond them it asserts.
const MAX_LAYERS: u64 = 512;
const MAX_EXPERTS: u64 = 512;
/// Windows are multiplied by up to 256 sequences in 32 bits.
const MAX_WINDOW: u64 = 16_000_000;
/// Far above any head, embedding or state, and small enough that products of two of them fit into 63 bits.
const MAX_LENGTH: u64 = 1 << 28;

type Rule = Result<(), String>;

/// All rules that apply to the architecture.
pub(super) fn check(metadata: &Metadata) -> Rule {
    if metadata.architecture.is_empty() {
        // A further part of a split model, or nothing that llama.cpp would take.
        return Ok(());
    }
    if metadata.architecture == "clip" {
        return Err("general.architecture is clip: it is the projector of a model, not a model".to_owned());
    }
    floats(metadata)?;
    layers(metadata)?;
    experts(metadata)?;
    heads(metadata)?;
    windows(metadata)?;
    positions(metadata)?;
    recurrent(metadata)?;
    outputs(metadata)
}

fn wrong(metadata: &Metadata, name: &str, value: impl std::fmt::Display, why: &str) -> Rule {
    Err(format!("{} is {value}, and {why}", metadata.own_key(name)))
}

/// A number that is there must be in a range.
fn within(metadata: &Metadata, name: &str, least: u64, most: u64) -> Rule {
    match metadata.own_for_layers(name) {
        Some(numbers) => {
            let outside = (0..numbers.count())
                .filter_map(|layer| numbers.get(layer))
                .find(|number| *number < least || *number > most);
            outside.map_or(Ok(()), |number| wrong(metadata, name, number, &format!("{least} to {most} is possible")))
        }
        None => Ok(()),
    }
}

fn one_of(metadata: &Metadata, name: &str, known: &[&str]) -> Rule {
    match metadata.own_text(name) {
        Some(text) if !known.contains(&text.as_ref()) => {
            let text: String = text.chars().take(80).collect();
            wrong(metadata, name, format!("{text:?}"), &format!("one of {} is known", known.join(", ")))
        }
        _ => Ok(()),
    }
}

fn floats(metadata: &Metadata) -> Rule {
    for (key, float) in metadata.own_floats() {
        if float.is_nan() {
            return Err(format!("{key} is not a number"));
        }
        if key.ends_with("epsilon") && float < 0.0 {
            return Err(format!("{key} is {float}, and it must not be negative"));
        }
    }
    Ok(())
}

fn layers(metadata: &Metadata) -> Rule {
    within(metadata, "block_count", 1, MAX_LAYERS)?;
    within(metadata, "embedding_length", 1, MAX_LENGTH)?;
    let Some(layers) = metadata.own_number("block_count") else { return Ok(()) };
    // Layers that predict further tokens are counted among the blocks, and something must be left.
    if let Some(further) = metadata.own_number("nextn_predict_layers").filter(|further| *further >= layers) {
        return wrong(metadata, "nextn_predict_layers", further, &format!("there are {layers} blocks"));
    }
    for name in ["posnet.block_count", "convnext.block_count"] {
        within(metadata, name, 0, layers)?;
    }
    if metadata.architecture == "gemma4" {
        within(metadata, "attention.shared_kv_layers", 0, layers.saturating_sub(2))?;
    }
    Ok(())
}

fn experts(metadata: &Metadata) -> Rule {
    let (count, used) = ("expert_count", "expert_used_count");
    within(metadata, count, 0, MAX_EXPERTS)?;
    let mut experts = metadata.own_number(count).unwrap_or(0);
    let mut most_used = metadata.own_for_layers(used).map_or(0, |used| used.largest());
    if ["hunyuan_vl", "hunyuan-dense"].contains(&metadata.architecture.as_str()) && experts <= 1 {
        (experts, most_used) = (0, 0);
    }
    if most_used > experts || (experts > 0 && most_used == 0) {
        return wrong(metadata, used, most_used, &format!("there are {experts} experts"));
    }
    let needs_experts = has(&metadata.architecture, Trait::Experts) && metadata.has_own("block_count");
    if needs_experts && experts == 0 {
        return wrong(metadata, count, 0, "this architecture needs experts");
    }
    let groups = metadata.own_number("expert_group_count").unwrap_or(0);
    if groups > 0 && (groups >= experts || (groups > 1 && !experts.is_multiple_of(groups))) {
        return wrong(metadata, "expert_group_count", groups, &format!("there are {experts} experts to divide"));
    }
    let groups_used = metadata.own_number("expert_group_used_count").unwrap_or(0);
    if groups > 1 && (groups_used == 0 || groups_used >= groups) {
        return wrong(metadata, "expert_group_used_count", groups_used, &format!("there are {groups} groups"));
    }
    if metadata.architecture == "grovemoe" {
        within(metadata, "experts_per_group", 1, MAX_EXPERTS)?;
    }
    if ["ernie4_5-moe", "maion-coder"].contains(&metadata.architecture.as_str()) {
        within(metadata, "interleave_moe_layer_step", 1, MAX_LAYERS)?;
    }
    Ok(())
}

/// The length of a head in the first layer, if the file says so or it follows.
fn key_length(metadata: &Metadata) -> Option<u64> {
    let heads = metadata.own_for_layers("attention.head_count")?.get(0).filter(|heads| *heads > 0)?;
    let stated = metadata.own_number("attention.key_length");
    stated.or_else(|| Some(metadata.own_number("embedding_length")? / heads))
}

fn heads(metadata: &Metadata) -> Rule {
    let (all, of_keys) = ("attention.head_count", "attention.head_count_kv");
    for name in [all, of_keys] {
        within(metadata, name, 0, MAX_LENGTH)?;
    }
    within(metadata, "attention.sliding_window", 0, MAX_WINDOW)?;
    if has(&metadata.architecture, Trait::Recurrent) {
        return Ok(());
    }
    for name in ["attention.key_length", "attention.value_length"] {
        within(metadata, name, 1, MAX_LENGTH)?;
        within(metadata, &format!("{name}_swa"), 1, MAX_LENGTH)?;
        within(metadata, &format!("{name}_mla"), 0, MAX_LENGTH)?;
    }
    let heads = metadata.own_for_layers(all).unwrap_or(Layers::All(0));
    let needs_heads = has(&metadata.architecture, Trait::Attention) && metadata.has_own("block_count");
    if needs_heads && heads.get(0).is_none_or(|heads| heads == 0) {
        return wrong(metadata, all, 0, "this architecture needs attention heads");
    }
    let keys = metadata.own_for_layers(of_keys).unwrap_or_else(|| heads.clone());
    for layer in 0..heads.count().max(keys.count()) {
        let (Some(heads), Some(keys)) = (heads.get(layer), keys.get(layer)) else { continue };
        if keys > 0 && heads % keys != 0 {
            return wrong(metadata, of_keys, keys, &format!("{heads} heads cannot share that many"));
        }
        if needs_heads && heads > 0 && keys == 0 {
            return wrong(metadata, of_keys, keys, "keys and values need a head");
        }
    }
    let Some(key) = key_length(metadata) else { return Ok(()) };
    if key == 0 {
        return wrong(metadata, all, heads.get(0).unwrap_or(0), "a head would have no length");
    }
    let windowed = metadata.has_own("attention.key_length_swa") || metadata.has_own("attention.value_length_swa");
    let default =
        metadata.own_number("embedding_length").zip(heads.get(0)).and_then(|(all, heads)| all.checked_div(heads));
    let value = metadata.own_number("attention.value_length").or(default);
    if let Some(value) = value.filter(|value| *value != key)
        && has(&metadata.architecture, Trait::EqualHeads)
        && !windowed
    {
        return wrong(metadata, "attention.value_length", value, &format!("attention.key_length is {key}"));
    }
    Ok(())
}

/// A model with a window has a layer that uses it.
fn windows(metadata: &Metadata) -> Rule {
    let windowed = metadata.own_number("attention.sliding_window").is_some_and(|window| window > 0);
    if !windowed || !has(&metadata.architecture, Trait::Windows) {
        return Ok(());
    }
    let name = "attention.sliding_window_pattern";
    let layers = metadata.own_number("block_count").and_then(|layers| usize::try_from(layers).ok()).unwrap_or(0);
    let used = match metadata.own_for_layers(name) {
        // One layer in every `step` has no window.
        Some(Layers::All(step)) => step != 1,
        Some(Layers::Each(marks)) => marks.iter().take(layers).any(|mark| *mark != 0),
        None => true,
    };
    if used { Ok(()) } else { wrong(metadata, name, "without a windowed layer", "attention.sliding_window is set") }
}

fn positions(metadata: &Metadata) -> Rule {
    one_of(metadata, "rope.scaling.type", &["none", "linear", "yarn", "longrope"])?;
    for name in ["rope.dimension_count", "rope.dimension_count_swa"] {
        if let Some(turned) = metadata.own_number(name).filter(|turned| !turned.is_multiple_of(2)) {
            return wrong(metadata, name, turned, "positions turn pairs of numbers");
        }
    }
    if let Some(key) = key_length(metadata).filter(|_| !has(&metadata.architecture, Trait::Recurrent)) {
        let name = "rope.dimension_count";
        let turned = metadata.own_number(name).unwrap_or(key);
        let whole = has(&metadata.architecture, Trait::WholeRope) && !metadata.has_own("rope.dimension_count_swa");
        let odd = whole && !turned.is_multiple_of(2);
        // The kernel never comes back from turning nothing; architectures without positions do not call it.
        let turns = has(&metadata.architecture, Trait::Windows) || has(&metadata.architecture, Trait::ShortConvolution);
        if turned > key || (whole && turned != key) || odd || (turns && turned == 0) {
            return wrong(metadata, name, turned, &format!("a head has the length {key}"));
        }
        if let Some(windowed) = metadata.own_number("rope.dimension_count_swa") {
            let head = metadata.own_number("attention.key_length_swa").unwrap_or(key);
            if windowed > head || (turns && windowed == 0) {
                return wrong(metadata, "rope.dimension_count_swa", windowed, &format!("a head has the length {head}"));
            }
        }
    }
    if has(&metadata.architecture, Trait::Sections) {
        let name = "rope.dimension_sections";
        within(metadata, name, 0, MAX_LENGTH)?;
        if let Some(Layers::Each(sections)) = metadata.own_for_layers(name)
            && !sections.iter().take(3).any(|section| *section > 0)
        {
            return wrong(metadata, name, "all zero", "at least one of the first three is needed");
        }
    }
    Ok(())
}

/// `count` must be there if `whole` is, and divide it.
fn divides(metadata: &Metadata, count: &str, whole: &str) -> Rule {
    let Some(whole_size) = metadata.own_number(whole) else { return Ok(()) };
    match metadata.own_number(count) {
        Some(count_size) if count_size > 0 && whole_size % count_size == 0 => Ok(()),
        other => wrong(metadata, count, other.unwrap_or(0), &format!("{whole} is {whole_size}, which it must divide")),
    }
}

fn recurrent(metadata: &Metadata) -> Rule {
    let is = |wanted| has(&metadata.architecture, wanted);
    for name in ["ssm.inner_size", "ssm.state_size", "ssm.conv_kernel"] {
        within(metadata, name, u64::from(is(Trait::SsmHeads)), MAX_LENGTH)?;
    }
    if is(Trait::SsmHeads) || is(Trait::DeltaNet) {
        divides(metadata, "ssm.time_step_rank", "ssm.inner_size")?;
    }
    if is(Trait::SsmHeads) {
        divides(metadata, "ssm.group_count", "ssm.inner_size")?;
        divides(metadata, "ssm.group_count", "ssm.time_step_rank")?;
    }
    if is(Trait::DeltaNet) {
        divides(metadata, "ssm.group_count", "ssm.time_step_rank")?;
    }
    if is(Trait::ShortConvolution) {
        within(metadata, "shortconv.l_cache", 2, MAX_LENGTH)?;
    }
    if is(Trait::Wkv) {
        divides(metadata, "wkv.head_size", "embedding_length")?;
        if ["rwkv6", "rwkv7"].contains(&metadata.architecture.as_str()) {
            within(metadata, "token_shift_count", 2, 2)?;
        }
    }
    Ok(())
}

fn outputs(metadata: &Metadata) -> Rule {
    // None, mean, first, last, rank.
    within(metadata, "pooling_type", 0, 4)?;
    within(metadata, "classifier.pooling_type", 0, 4)?;
    within(metadata, "embedding_length_out", 0, MAX_LENGTH)?;
    one_of(metadata, "classifier.activation", &["gelu", "silu", "tanh"])
}
